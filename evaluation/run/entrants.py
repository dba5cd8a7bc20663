"""What an evaluation scores: the correctors at the places of the data, references, forecast files and the oracle."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from data_pipeline.archive import Archive
from data_pipeline.common.errors import AbsentVariableError, InputError
from data_pipeline.common.messages import say
from data_pipeline.dataset import ForecastDataset
from data_pipeline.dates import Dates
from data_pipeline.sources.plausibility import data_warnings
from data_pipeline.split import Split
from data_pipeline.task import Task
from data_pipeline.truth_checks import TRUTH_TABLE
from data_pipeline.variables.meaning import list_unknown
from evaluation.forecasters.corrector_checks import EMOS_NAME, check_comparison, notes_on_times
from evaluation.forecasters.file_forecasts import FileForecaster, notes_on
from evaluation.forecasters.fold_correctors import FoldCorrectors
from evaluation.forecasters.lapse_rate import LapseRate
from evaluation.forecasters.leak_audit import audit, check_reference_dates
from evaluation.forecasters.persistence import Persistence
from evaluation.forecasters.references import (
    ReferenceFit,
    fit_references,
    reference_warnings,
    tile_of,
    training_years_warnings,
    unfitted_warnings,
    valid_times,
)
from evaluation.run.plan import Plan
from evaluation.run.scored_data import ScoredData
from evaluation.run.training_runs import with_first_runs
from evaluation.scoring.scoring import Forecaster
from models.parallel.domain import Domain
from models.parallel.mesh import Mesh
from models.provenance.stations import describe_stations


@dataclass(frozen=True)
class Entrants:
    """All models that are scored, by name; `compared` holds the correctors among them.

    `correctors` are the given ones, `own` an EMOS that was fitted here. `fits` and `notes` give rise to warnings.
    """

    models: Mapping[str, Forecaster]
    compared: Mapping[str, FoldCorrectors]
    correctors: Mapping[str, FoldCorrectors]
    own: Mapping[str, FoldCorrectors]
    oracle: ForecastDataset | None
    fits: Sequence[ReferenceFit]
    notes: Sequence[str]

    def warnings(self, lost: Mapping[str, int]) -> list[str]:
        """Return all warnings, also of the `lost` models; refuse to score the raw ensemble alone."""
        found = list(dict.fromkeys([*reference_warnings(self.fits, lost), *self.notes]))
        check_comparison(set(self.models) - set(lost), found)
        return found


def gather_models(plan: Plan, correctors: Mapping[str, FoldCorrectors], data: ScoredData, mesh: Mesh) -> Entrants:
    """Fit the references, and join them with the correctors, the forecast files and the oracle."""
    options, task, dates, domain, forecasts = plan.options, plan.task, plan.dates, data.domain, data.forecasts
    correctors = {name: folds.on(domain) for name, folds in correctors.items()}
    training = training_dates(plan.split, options["split"], task)
    # A corrector with the name emos takes the place of the one that would be fitted here.
    wanted = [name for name in plan.references if name not in with_first_runs(correctors, plan.runs)]
    compared, fits = fit_references(
        wanted, plan.source, task, dates, training, options["max_members"], domain, mesh, options["emos_minutes"]
    )
    own = {name: folds for name, folds in compared.items() if name == EMOS_NAME}
    compared |= correctors
    models: dict[str, Forecaster] = {name: folds.bind(task, plan.device) for name, folds in compared.items()}
    # Stores have analyses at valid times, and few at starts.
    whole = plan.source if options["data"]["store"] and not plan.archive.exists else lambda _: plan.archive
    for days, fold in training if "persistence" in wanted else ():
        check_reference_dates("persistence", days, fold)
    others: dict[str, Callable[[], Forecaster]] = {
        "persistence": lambda: Persistence.fit(whole, task, dates, training, domain),
        "lapse_rate": lambda: LapseRate.at(task, domain),
    }
    for name in (name for name in others if name in wanted):
        try:
            models[name] = others[name]()
            fits.append(ReferenceFit(name))
        except InputError as error:
            fits.append(ReferenceFit(name, why=str(error)))
    models |= {name: FileForecaster(one, domain, plan.device) for name, one in data.files.items()}
    notes = training_years_warnings(fits, correctors)
    notes += [note for name, folds in (own | correctors).items() for note in unfitted_warnings(name, folds)]
    notes += [
        f"{name}: {note}"
        for name, folds in correctors.items()
        if (note := describe_stations(folds.first.task, folds.first.grid, folds.first.provenance))
    ]
    notes += [note for name, folds in correctors.items() for note in notes_on_times(name, folds, *forecasts.times())]
    if forecasts.members == 1:
        notes.append(
            "the forecasts have one member: their CRPS, plain and fair, is the absolute error, and they have no spread"
        )
    notes += [unknown] if (unknown := list_unknown(forecasts.meanings)) else []
    table = plan.run_dir / TRUTH_TABLE
    notes += mesh.run_on_first(
        lambda: data_warnings(plan.source(dates), task, dates, options["max_members"], table=table)
    )
    notes += notes_on(data.files)
    check_comparison(models, [*reference_warnings(fits), *notes])
    notes += plan.choice.check(task, domain, forecasts.members, "climatology" in compared)
    oracle = open_oracle(plan.archive, task, dates, domain, notes)
    return Entrants(models, compared, correctors, own, oracle, fits, notes)


def audit_leaks(plan: Plan, entrants: Entrants, data: ScoredData, mesh: Mesh) -> dict[str, Any]:
    """Return how far the dates of each fit are from the scored dates; print the notes of the audit."""
    fitted = {name: folds for name, folds in entrants.compared.items() if name != "raw"}
    leaks = audit(fitted, data.valid, plan.task.lead_times, plan.split)
    for note in leaks["notes"]:
        say(f"leak audit: {note}")
    return leaks


def training_dates(split: Split, scored: str, task: Task) -> list[tuple[Dates, Dates]]:
    """Return the training dates of a reference and the dates that it forecasts, for every fold if all are scored."""
    folds = [split]
    if scored == "held_out" and split.fold is None and split.folds is not None:
        folds = [split.leave_out(fold) for fold in range(1, split.folds + 1)]
    return [(fold.dates("train", task.lead_times), fold.dates(scored, task.lead_times)) for fold in folds]


def open_oracle(archive: Archive, task: Task, dates: Dates, domain: Domain, notes: list[str]) -> ForecastDataset | None:
    """Return the oracle's forecasts that are valid on `dates`, or None if there are none.

    If the oracle lacks a target, a sentence about it is added to `notes`.
    """
    if archive.oracle is None:
        return None
    try:
        if not len(valid_times(archive.oracle, task, dates)):
            return None
    except AbsentVariableError as error:
        notes.append(f"the oracle is left out, because {error}")
        return None
    return tile_of(domain, archive.oracle, task.only_targets(), dates)
