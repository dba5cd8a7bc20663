"""References, the models without a training run that correctors are compared with, and warnings about them."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np

from data_pipeline.common.errors import InputError
from data_pipeline.common.messages import say
from data_pipeline.dataset import ForecastDataset
from data_pipeline.dates import Dates
from data_pipeline.protocols import DataSource
from data_pipeline.task import Task
from evaluation.forecasters.fold_correctors import FoldCorrectors
from evaluation.forecasters.leak_audit import check_reference_dates
from models.corrector import Corrector, build_reference
from models.corrector_summary import unfitted_notes
from models.parallel.domain import Domain
from models.parallel.mesh import Mesh
from models.provenance.training_dates import seen_dates, stated_fits
from models.reference_emos import fit_emos
from models.statistical.cases import add_unfitted

FITTED = ("climatology", "emos")
"""References that are correctors, fitted on the training dates."""
REFERENCE_NAMES = ("raw", *FITTED, "persistence", "lapse_rate")


@dataclass(frozen=True)
class ReferenceFit:
    """The years of a reference's fit and notes about it, or `why` it cannot be a reference."""

    name: str = "climatology"
    years: tuple[int, ...] = ()
    why: str = ""
    notes: tuple[str, ...] = ()


def check_references(option: object) -> tuple[str, ...]:
    """Return the option `references` with `raw`, which is always scored."""
    if not isinstance(option, list) or any(name not in REFERENCE_NAMES for name in option):
        raise InputError(
            f"references must be a list of {', '.join(REFERENCE_NAMES)}, such as [raw, climatology], got {option!r}"
        )
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
    emos_minutes: float,
) -> tuple[dict[str, FoldCorrectors], list[ReferenceFit]]:
    """Return the raw ensemble and the `wanted` references by name, and the fits of the wanted references.

    `training` holds, for each fold, the dates to fit a reference on and the dates that it forecasts. A reference that
    cannot be fitted is left out, and its fit says why. Raises `InputError` if it would be fitted on scored dates.
    """
    raw = make_reference("raw", source(scored), task, scored, members, domain, mesh).on(domain)
    found = {"raw": FoldCorrectors.of([raw])}
    fits = []
    for name in (name for name in FITTED if name in wanted):
        for dates, fold in training:
            check_reference_dates(name, dates, fold)
        correctors: list[Corrector] = []
        try:
            for number, (dates, _) in enumerate(training, 1):
                part = f" of fold {number} of {len(training)}" * (len(training) > 1)
                check_training_cases(own := source(dates), task, dates)
                if name == "emos":
                    fitted = fit_emos(own, task, dates, members, domain, mesh, emos_minutes, part)
                else:
                    say(f"fitting climatology on the training dates{part}")
                    fitted = make_reference("climatology", own, task, dates, members, domain, mesh)
                correctors.append(fitted.on(domain))
        except InputError as error:
            # A reference must not end a run: its failed fit is a warning.
            fits.append(ReferenceFit(name, why=str(error)))
            continue
        found[name] = FoldCorrectors(tuple(correctors), tuple(Dates.all().without(fold) for _, fold in training))
        found[name].check(name, scored)
        stated = [stated_fits(corrector.provenance) or {} for corrector in correctors]
        years = {year for parts in stated for dates in parts.values() for year in dates.years}
        notes = dict.fromkeys(f"{name}: {note}" for corrector in correctors for note in corrector.notes)
        fits.append(ReferenceFit(name, tuple(sorted(years)), notes=tuple(notes)))
    return found, fits


def check_training_cases(source: DataSource, task: Task, training: Dates) -> None:
    """Raise an `InputError` if a lead time has no forecast that is valid in the training dates and has an analysis."""
    valid = valid_times(source, task, training)
    if not len(valid):
        raise InputError(f"no forecast is valid in the training dates {training}")
    known = np.isin(valid, source.analysis_fields(task.targets).init_times.astype(valid.dtype))
    if not known.any(0).all():
        lead = task.lead_times[int(known.any(0).argmin())]
        raise InputError(f"no forecast of {lead} h that is valid in the training dates {training} has an analysis")


def valid_times(source: DataSource, task: Task, dates: Dates) -> np.ndarray:
    """Return the valid times (starts, lead times) of all forecasts of the targets; NaT where not in `dates`."""
    starts = source.ensemble_fields(task.targets, task.lead_times).init_times.astype("datetime64[s]")
    valid = starts[:, None] + np.array(task.lead_times, "timedelta64[h]")
    valid[~dates.contains(valid)] = np.datetime64("NaT")
    return valid[~np.isnat(valid).all(1)]


def reference_warnings(fits: Sequence[ReferenceFit], lost: Mapping[str, int] | None = None) -> list[str]:
    """Return the warnings about references that are left out, climatology first, and the notes of all others.

    `lost` maps references without any complete forecast to the number of points where they have no value.
    """
    found: list[str] = []
    for fit in sorted(fits, key=lambda fit: fit.name != "climatology"):
        why = fit.why
        if missing := (lost or {}).get(fit.name):
            cause = "an analysis is missing" if fit.name == "persistence" else "there are too few training cases"
            why = f"it has no value at {missing} points that have an analysis: {cause}"
        if why and fit.name == "climatology":
            why += "; so nothing here shows that a model is better than climatology"
        found += [f"{fit.name} is left out: {why}"] if why else fit.notes
    return found


def training_years_warnings(fits: Sequence[ReferenceFit], correctors: Mapping[str, FoldCorrectors]) -> list[str]:
    """Return a warning for each group of correctors that were trained on other years than the references."""
    years_of = next((fit.years for fit in fits if fit.years), ())
    fitted = [fit.name for fit in fits if fit.years]
    others: dict[tuple[int, ...], list[str]] = {}
    for name, folds in correctors.items():
        trained = [seen_dates(corrector.provenance, "train") or Dates(()) for corrector in folds.correctors]
        years = Dates(tuple(span for dates in trained for span in dates.spans)).years
        if years_of and years != years_of:
            others.setdefault(years, []).append(name)
    return [
        f"{' and '.join(fitted)} {'was' if len(fitted) == 1 else 'were'} fitted on {_year_range(years_of)}, "
        f"{', '.join(names)} on {_year_range(span)}: their skill against {' and '.join(fitted)} is partly due to other "
        "training years"
        for span, names in others.items()
    ]


def unfitted_warnings(name: str, folds: FoldCorrectors) -> list[str]:
    """Return the warnings about regressions of a corrector that could not be fitted, or are penalised."""
    counts = add_unfitted(corrector.provenance.get("unfitted") or {} for corrector in folds.correctors)
    return [f"{name}: {note}" for note in unfitted_notes(counts)]


def _year_range(years: Sequence[int]) -> str:
    """Return years as text: `16 years (1998–2013)`."""
    if len(years) == 1:
        return f"1 year ({years[0]})"
    return f"{len(years)} years ({years[0]}–{years[-1]})"
