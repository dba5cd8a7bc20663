"""References: the raw ensemble and climatology, which correctors are compared with, and the warnings about them."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np

from data_pipeline.common.errors import InputError
from data_pipeline.dataset import ForecastDataset
from data_pipeline.dates import Dates
from data_pipeline.protocols import DataSource
from data_pipeline.task import Task
from evaluation.fold_correctors import FoldCorrectors
from evaluation.leak_audit import check_reference_dates
from models.corrector import Corrector, build_reference
from models.parallel.domain import Domain
from models.parallel.mesh import Mesh
from models.statistical.cases import TooFewCasesError
from models.training_dates import seen_dates

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
    domain: Domain, source: DataSource, task: Task, dates: Dates, members: int | None = None
) -> ForecastDataset:
    """Open the first `members` of the forecasts that are valid on `dates`, on this rank's tile of `domain`."""
    rows, columns = domain.tile
    return ForecastDataset(source, task, dates, members=members, rows=rows, columns=columns)


def make_reference(
    name: str, source: DataSource, task: Task, dates: Dates, members: int | None, domain: Domain, mesh: Mesh
) -> Corrector:
    """Return the reference `name`, fitted on `dates`; all ranks of the mesh share the globe."""
    # Cells are independent, so that ranks of the data axis get a part of the globe too.
    shared = mesh.shared(domain.grid)
    return build_reference(name, task, shared, partial(tile_of, shared, source, dates=dates, members=members))


def fit_references(
    wanted: Collection[str],
    source: Callable[[Dates], DataSource],
    task: Task,
    scored: Dates,
    training: Sequence[tuple[Dates, Dates]],
    members: int | None,
    domain: Domain,
    mesh: Mesh,
) -> tuple[dict[str, FoldCorrectors], ClimatologyFit]:
    """Return the `wanted` references by name, and the fit of climatology.

    `training` holds, for each fold, the dates to fit climatology on and the dates that this climatology forecasts.
    """
    raw = make_reference("raw", source(scored), task, scored, members, domain, mesh).on(domain)
    found = {"raw": FoldCorrectors.of([raw])}
    if "climatology" not in wanted:
        return found, ClimatologyFit()
    correctors: list[Corrector] = []
    years: set[int] = set()
    for dates, fold in training:
        fitted = climatology_years(source(dates), task, fold, dates)
        if fitted.why:
            return found, fitted
        part = f" of fold {len(correctors) + 1} of {len(training)}" * (len(training) > 1)
        mesh.print(f"fitting climatology on the training dates{part}")
        try:
            corrector = make_reference("climatology", source(dates), task, dates, members, domain, mesh)
        except TooFewCasesError as error:
            return found, ClimatologyFit(why=str(error))
        correctors.append(corrector.on(domain))
        years |= set(fitted.years)
    found["climatology"] = FoldCorrectors(tuple(correctors), tuple(Dates.all().without(fold) for _, fold in training))
    found["climatology"].check("climatology", scored)
    notes = dict.fromkeys(f"climatology: {note}" for corrector in correctors for note in corrector.notes)
    return found, ClimatologyFit(tuple(sorted(years)), notes=tuple(notes))


def climatology_years(source: DataSource, task: Task, scored: Dates, training: Dates) -> ClimatologyFit:
    """Return the years to fit climatology on, or why it cannot be a reference for the `scored` dates."""
    check_reference_dates("climatology", training, scored)
    valid = valid_times(source, task, training)
    if not len(valid):
        return ClimatologyFit(why=f"no forecast is valid in the training dates {training}")
    known = np.isin(valid, source.analysis_fields(task.targets).init_times.astype(valid.dtype))
    if not known.any(0).all():
        lead = task.lead_times[int(known.any(0).argmin())]
        return ClimatologyFit(
            why=f"no forecast of {lead} h that is valid in the training dates {training} has an analysis"
        )
    found = np.unique(valid[known].astype("datetime64[Y]").astype(int) + 1970)
    return ClimatologyFit(tuple(found.tolist()))


def valid_times(source: DataSource, task: Task, dates: Dates) -> np.ndarray:
    """Return the valid times (starts, lead times) of all forecasts of the targets; NaT where not in `dates`."""
    starts = source.ensemble_fields(task.targets, task.lead_times).init_times.astype("datetime64[s]")
    valid = starts[:, None] + np.array(task.lead_times, "timedelta64[h]")
    valid[~dates.contains(valid)] = np.datetime64("NaT")
    return valid[~np.isnat(valid).all(1)]


def climatology_warnings(fitted: ClimatologyFit, missing: int = 0) -> list[str]:
    """Return the warning about a climatology that is left out, or that has no value at `missing` points."""
    why = fitted.why
    if missing:
        why = f"it has no value at {missing} points that have an analysis: there are too few training cases"
    return [f"climatology is left out: {why}"] if why else []


def training_years_warnings(fitted: ClimatologyFit, correctors: Mapping[str, FoldCorrectors]) -> list[str]:
    """Return a warning for each group of correctors that were trained on other years than climatology."""
    others: dict[tuple[int, ...], list[str]] = {}
    for name, folds in correctors.items():
        trained = [seen_dates(corrector.provenance, "train") or Dates(()) for corrector in folds.correctors]
        years = Dates(tuple(span for dates in trained for span in dates.spans)).years
        if fitted.years and years != fitted.years:
            others.setdefault(years, []).append(name)
    return [
        f"climatology was fitted on {_year_range(fitted.years)}, {', '.join(names)} on {_year_range(span)}: their "
        "skill against climatology is partly due to other training years"
        for span, names in others.items()
    ]


def unfitted_warnings(name: str, folds: FoldCorrectors) -> list[str]:
    """Return the warning about regressions of a corrector with too few cases to be fitted."""
    counts = [corrector.provenance.get("unfitted") or {"cells": 0, "of": 0} for corrector in folds.correctors]
    cells, of = (sum(count[key] for count in counts) for key in ("cells", "of"))
    if not cells:
        return []
    return [f"{name}: {cells} of {of} regressions (one for each cell, lead time and target) could not be fitted"]


def _year_range(years: Sequence[int]) -> str:
    """Return years as text: `16 years (1998–2013)`."""
    if len(years) == 1:
        return f"1 year ({years[0]})"
    return f"{len(years)} years ({years[0]}–{years[-1]})"
