"""References: the raw ensemble and climatology, which correctors are compared with, and the warnings about them."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial

import numpy as np

from data_pipeline.common.errors import InputError
from data_pipeline.dataset import ForecastDataset
from data_pipeline.protocols import DataSource
from data_pipeline.task import Task
from models.corrector import Corrector, build_reference
from models.parallel.domain import Domain
from models.parallel.mesh import Mesh
from models.statistical.cases import TooFewCasesError

REFERENCE_NAMES = ("raw", "climatology")


@dataclass(frozen=True)
class ClimatologyFit:
    """The years of climatology's fit and notes about it, or `why` climatology cannot be a reference."""

    years: tuple[int, ...] = ()
    why: str = ""
    notes: tuple[str, ...] = ()


def check_references(option: object) -> tuple[str, ...]:
    """Return the option `references` with `raw`, which is always scored."""
    if not isinstance(option, list) or any(name not in REFERENCE_NAMES for name in option):
        raise InputError(f"references must be a list of {' and '.join(REFERENCE_NAMES)}, such as [raw], got {option!r}")
    return tuple(dict.fromkeys(["raw", *option]))


def tile_of(
    domain: Domain, source: DataSource, task: Task, years: Collection[int], members: int | None = None
) -> ForecastDataset:
    """Open the first `members` of the forecasts that are valid in `years`, on this rank's tile of `domain`."""
    rows, columns = domain.tile
    return ForecastDataset(source, task, years, members=members, rows=rows, columns=columns)


def make_reference(
    name: str, source: DataSource, task: Task, years: Collection[int], members: int | None, domain: Domain, mesh: Mesh
) -> Corrector:
    """Return the reference `name`, fitted on `years`; all ranks of the mesh share the globe."""
    # Cells are independent, so that ranks of the data axis get a part of the globe too.
    shared = mesh.shared(domain.grid)
    return build_reference(name, task, shared, partial(tile_of, shared, source, years=years, members=members))


def fit_references(
    wanted: Collection[str],
    source: Callable[[Collection[int]], DataSource],
    task: Task,
    years: Collection[int],
    training: Collection[int],
    members: int | None,
    domain: Domain,
    mesh: Mesh,
) -> tuple[dict[str, Corrector], ClimatologyFit]:
    """Return the `wanted` references by name, and the fit of climatology on the `training` years."""
    found = {"raw": make_reference("raw", source(years), task, years, members, domain, mesh).on(domain)}
    if "climatology" not in wanted:
        return found, ClimatologyFit()
    fitted = climatology_years(source(training), task, years, training)
    if fitted.why:
        return found, fitted
    mesh.print("fitting climatology on the training years")
    try:
        corrector = make_reference("climatology", source(training), task, training, members, domain, mesh)
    except TooFewCasesError as error:
        return found, ClimatologyFit(why=str(error))
    found["climatology"] = corrector.on(domain)
    return found, replace(fitted, notes=tuple(f"climatology: {note}" for note in corrector.notes))


def climatology_years(
    source: DataSource, task: Task, years: Collection[int], training: Collection[int]
) -> ClimatologyFit:
    """Return the years to fit climatology on, or why it cannot be a reference for the scored `years`."""
    span = f"{min(training)}-{max(training)}"
    if shared := set(years) & set(training):
        return ClimatologyFit(
            why=f"{len(shared)} of the {len(set(years))} scored years are among its training years {span}"
        )
    valid = valid_times(source, task, training)
    if not len(valid):
        return ClimatologyFit(why=f"no forecast is valid in the training years {span}")
    known = np.isin(valid, source.analysis_fields(task.targets).init_times.astype(valid.dtype))
    if not known.any(0).all():
        lead = task.lead_times[int(known.any(0).argmin())]
        return ClimatologyFit(why=f"no forecast of {lead} h that is valid in the training years {span} has an analysis")
    found = np.unique(valid[known].astype("datetime64[Y]").astype(int) + 1970)
    return ClimatologyFit(tuple(found.tolist()))


def valid_times(source: DataSource, task: Task, years: Collection[int]) -> np.ndarray:
    """Return the valid times (starts, lead times) of all forecasts of the targets; NaT where not in `years`."""
    starts = source.ensemble_fields(task.targets, task.lead_times).init_times.astype("datetime64[s]")
    valid = starts[:, None] + np.array(task.lead_times, "timedelta64[h]")
    valid[~np.isin(valid.astype("datetime64[Y]").astype(int) + 1970, list(years))] = np.datetime64("NaT")
    return valid[~np.isnat(valid).all(1)]


def climatology_warnings(fitted: ClimatologyFit, missing: int = 0) -> list[str]:
    """Return the warning about a climatology that is left out, or that has no value at `missing` points."""
    why = fitted.why
    if missing:
        why = f"it has no value at {missing} points that have an analysis: there are too few training cases"
    return [f"climatology is left out: {why}"] if why else []


def training_years_warnings(fitted: ClimatologyFit, correctors: Mapping[str, Corrector]) -> list[str]:
    """Return a warning for each group of correctors that were trained on other years than climatology."""
    others: dict[tuple[int, ...], list[str]] = {}
    for name, corrector in correctors.items():
        first, last = corrector.provenance["train_years"]
        if fitted.years and (span := tuple(range(first, last + 1))) != fitted.years:
            others.setdefault(span, []).append(name)
    return [
        f"climatology was fitted on {_year_range(fitted.years)}, {', '.join(names)} on {_year_range(span)}: their "
        "skill against climatology is partly due to other training years"
        for span, names in others.items()
    ]


def unfitted_warnings(name: str, corrector: Corrector) -> list[str]:
    """Return the warning about regressions of a corrector with too few cases to be fitted."""
    cells = corrector.provenance.get("unfitted") or {"cells": 0}
    if not cells["cells"]:
        return []
    return [
        f"{name}: {cells['cells']} of {cells['of']} regressions (one for each cell, lead time and target) could not be "
        "fitted"
    ]


def _year_range(years: Sequence[int]) -> str:
    """Return years as text: `16 years (1998–2013)`."""
    if len(years) == 1:
        return f"1 year ({years[0]})"
    return f"{len(years)} years ({years[0]}–{years[-1]})"
