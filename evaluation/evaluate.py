"""The verb `evaluate`: score correctors, the raw ensemble, climatology and the oracle on the same forecasts.

Writes `report.html` into `run_dir`, and `scores.json`, `scores.csv`, `scores.nc`, `model_card.md` and `figures/` beside
it or, for a task with several targets, into one folder for each. On a mesh all ranks score, and the first rank writes.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from glob import has_magic
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
import torch
from omegaconf import DictConfig

from conf import build, plain, verb
from data_pipeline.archive import Archive
from data_pipeline.cluster import Cluster
from data_pipeline.common.checks import check_between, check_choice, check_integer
from data_pipeline.common.cost_meter import CostMeter, gather_usage, print_usage
from data_pipeline.common.errors import AbsentVariableError, InputError
from data_pipeline.common.files import atomic_write, expand_paths
from data_pipeline.common.identity import fingerprint_of, sha256_of
from data_pipeline.common.messages import say
from data_pipeline.common.progress import Progress, watched
from data_pipeline.dataset import ForecastDataset
from data_pipeline.dates import Dates
from data_pipeline.grid import Grid
from data_pipeline.grids.grid_coordinates import static_on
from data_pipeline.grids.points import Points
from data_pipeline.protocols import DataSource, Fields
from data_pipeline.sources.forecast_file import ForecastFile, OpenedForecast, open_files
from data_pipeline.sources.plausibility import data_warnings
from data_pipeline.split import Split
from data_pipeline.store import choose_source
from data_pipeline.task import Task
from data_pipeline.truth_checks import TRUTH_TABLE
from data_pipeline.variables.meaning import list_unknown
from evaluation.forecast_writer import check_writing, write_forecasts
from evaluation.forecasters.corrector_checks import (
    EMOS_NAME,
    check_comparison,
    check_corrector,
    check_emos,
    check_enough_members,
    check_meanings,
    check_name,
    notes_on_times,
    training_members,
)
from evaluation.forecasters.file_forecasts import FileForecaster, notes_on, parse_forecasts
from evaluation.forecasters.fold_correctors import FoldCorrectors, batch_groups
from evaluation.forecasters.leak_audit import audit
from evaluation.forecasters.references import (
    ReferenceFit,
    check_references,
    fit_persistence,
    fit_references,
    open_lapse_rate,
    reference_warnings,
    tile_of,
    training_years_warnings,
    unfitted_warnings,
    valid_times,
)
from evaluation.member_counts import MemberCountClaim, check_member_counts, member_count_claims, with_gates
from evaluation.regions import Region, check_regions, mask_hashes, region_weights
from evaluation.report.coastlines import shows_earth
from evaluation.report.model_card import write_model_card
from evaluation.report.provenance import run_facts
from evaluation.report.shown_data import ExampleForecast, ExpertMap, MapData, TargetReport
from evaluation.report.tables import plain_table
from evaluation.scoring.partial_scores import PartialScores
from evaluation.scoring.score_options import ScoreChoice, check_methods
from evaluation.scoring.scoreboard import DISTRIBUTION, Scoreboard
from evaluation.scoring.scoring import Forecaster, ScoringOptions, check_workers, score_models, scoring_workers
from evaluation.shown_cases import chosen_forecasts, gain_of, show_experts, show_forecast
from evaluation.shown_corrector import check_shown, choose_shown
from evaluation.significance.field_significance import block_times, longest_lead_blocks, significant_cells
from evaluation.tables.csv_tables import StartScores, write_score_table, write_start_table, write_station_table
from evaluation.tables.score_dataset import write_score_file
from evaluation.tables.score_json import SCORES_FORMAT, scores_of
from evaluation.tables.score_rows import ScoreRow, ScoreRows
from evaluation.training_runs import Runs, check_one_model, group_runs, name_runs, pool_runs, with_first_runs
from models.corrector import Corrector
from models.corrector_summary import summary_rows
from models.device import choose_device, watch_gpu
from models.members.methods import METHODS
from models.members.options import QUANTILE_LEVELS, CorrectionOptions, check_correlates
from models.members.past import Past
from models.parallel.domain import Domain
from models.parallel.mesh import Mesh, join_mesh
from models.protocol import claims
from models.provenance.noise import Noise
from models.provenance.stations import StationCounts, describe_stations


@verb("evaluate")
def main(cfg: DictConfig) -> None:
    """Evaluate on all ranks of the mesh."""
    with CostMeter() as meter, join_mesh(plain(cfg)["mesh"]) as mesh:
        run(cfg, mesh, meter)
        print_usage(meter, mesh)


def run(cfg: DictConfig, mesh: Mesh, meter: CostMeter) -> None:
    """Check the options, open correctors and data, score, print the table, write the results."""
    plan = plan_evaluation(cfg, mesh)
    watch_gpu(meter, plan.device)
    correctors = load_correctors(plan)
    inputs = mesh.run_on_first(lambda: fingerprint_inputs(plan))
    writing = check_writing(cfg.write_forecasts, mesh)
    if writing is None and (done := mesh.run_on_first(lambda: load_finished(cfg.run_dir, plan.folders, inputs))):
        say("\n\n".join(plain_table(scores) for scores in done))
        say(f"{cfg.run_dir} already holds the scores of these correctors and data; nothing was done")
        return

    correctors = at_stations_of_data(plan, correctors, mesh)
    data = open_data(plan, correctors, mesh)
    entrants = gather_models(plan, correctors, data, mesh)
    leaks = audit_leaks(plan, entrants, data, mesh)
    partial_scores = PartialScores(Path(cfg.run_dir), json.dumps([inputs, *entrants.models], sort_keys=True), mesh)
    board = score_entrants(plan, entrants, data, partial_scores, mesh)
    about = {
        "format": SCORES_FORMAT, "split": cfg.split, "members": data.forecasts.members,
        "dates": plan.dates.to_json(), "levels": cfg.quantile_levels, "ledger": data.forecasts.ledger.to_json(),
        "inputs": inputs, "leak_audit": leaks,
    }  # fmt: skip
    if moved := station_counts(correctors):
        about["stations"] = {name: counts._asdict() for name, counts in moved.items()}
    notes, facts = entrants.warnings(board.lost), run_facts(gather_usage(meter, mesh))
    evaluation = Evaluation(plan, data, entrants, board, about, notes, mesh, facts)
    evaluation.publish()
    if writing is not None:
        wrote = write_forecasts(
            writing, evaluation.models, data.forecasts, plan.member_options, *plan.open_past(), plan.device,
            list(board.written), noise_by_name(plan, entrants.correctors),
        )  # fmt: skip
        say(f"wrote {', '.join(map(str, wrote))}")
    partial_scores.remove()


@dataclass(frozen=True)
class Plan:
    """The checked options of an evaluation."""

    cfg: DictConfig
    archive: Archive
    split: Split
    task: Task
    cluster: Cluster
    dates: Dates
    paths: Mapping[str, Sequence[Path]]
    member_counts: tuple[int, ...]
    references: Sequence[str]
    regions: Sequence[Region]
    files: Mapping[str, ForecastFile]
    choice: ScoreChoice
    device: torch.device
    methods: tuple[str, ...]

    @property
    def member_options(self) -> CorrectionOptions:
        """How the members are made that are written."""
        return CorrectionOptions(self.cfg.quantile_levels, self.cfg.seed, self.methods[0])

    def open_past(self) -> tuple[Past | None, Fields | None]:
        """Return past weather of the training dates, and the raw members of all forecasts, for methods that read it."""
        if not any(METHODS[method].reads for method in self.methods):
            return None, None
        task = self.task
        # All folds together: starts near a forecast are never chosen for it.
        folds = self.cfg.split == "held_out" and self.split.fold is None
        training = self.dates if folds else self.split.dates("train", task.lead_times)
        past = Past.of(self.source(training), task, training)
        return past, self.source(self.dates).ensemble_fields(task.targets, task.lead_times)

    @property
    def runs(self) -> Runs:
        """The names of the runs of each model with several training runs."""
        return group_runs(list(self.paths))

    @property
    def folders(self) -> list[Path]:
        """The folder of each target's results."""
        return target_folders(Path(self.cfg.run_dir), self.task)

    def source(self, dates: Dates) -> DataSource:
        """Return the files or the store with forecasts of some dates."""
        return choose_source(self.archive, self.cfg.data.store, dates)


def plan_evaluation(cfg: DictConfig, mesh: Mesh) -> Plan:
    """Return what the options ask for. Raises `InputError` for wrong options, and for options that exclude others."""
    archive, split, task = build(cfg.data.archive), build(cfg.data.split), build(cfg.task)
    cluster: Cluster = build(cfg.cluster)
    options = plain(cfg)
    dates, paths = split.dates(cfg.split, task.lead_times), corrector_paths(cfg)
    member_counts, references = check_member_counts(options["member_counts"]), check_references(options["references"])
    regions, files = check_regions(options["regions"]), parse_forecasts(options["forecasts"], paths)
    check_shown(cfg.shown_corrector, {*with_first_runs(paths, group_runs(list(paths))), *files})
    if files and member_counts:
        raise InputError("member_counts needs members of all models, but forecasts has files; leave out one of them")
    if member_counts and (groups := [str(one) for one in task.formulas if one.members]):
        raise InputError(f"member_counts leaves out members, and {groups[0]} describes a group of all; leave out one")
    check_choice("quantile_levels", cfg.quantile_levels, QUANTILE_LEVELS)
    check_between("emos_minutes", cfg.emos_minutes, 0, math.inf)
    check_integer("batch_size", cfg.batch_size, 1)
    check_integer("memory_bytes", cfg.memory_bytes, 1)
    check_integer("seed", cfg.seed, 0)
    device, choice = choose_device(cfg.device, mesh), ScoreChoice.parse(options, task)
    methods = check_methods(options["members"])
    for method in methods:
        check_correlates(method, task)
        if METHODS[method].correlates and cfg.split == "held_out":
            raise InputError(
                f"members={method} learns from the errors of all past forecasts, so it cannot be scored with "
                "split=held_out; leave it out, or choose another split"
            )
    if cfg.write_forecasts and METHODS[methods[0]].correlates:
        raise InputError(
            f"write_forecasts writes one forecast after the other, and members={methods[0]} needs all lead times of a "
            "start; name another method first"
        )
    check_workers(cluster, mesh, device)
    return Plan(
        cfg, archive, split, task, cluster, dates, paths, member_counts, references, regions, files, choice, device,
        methods,
    )  # fmt: skip


def load_correctors(plan: Plan) -> dict[str, FoldCorrectors]:
    """Load the correctors by name; refuse runs of different models, and an `emos` that is none."""
    correctors = {
        name: FoldCorrectors.of([Corrector.load(path) for path in watched(files, f"reading {name}: corrector")])
        for name, files in plan.paths.items()
    }
    for name, path, corrector in each_file(plan, correctors):
        check_emos(name, corrector, path)
    check_one_model({name: folds.first for name, folds in correctors.items()}, plan.runs)
    if noise_by_name(plan, correctors) and EMOS_NAME in plan.references and EMOS_NAME not in correctors:
        raise InputError(
            "members=noise: the reference emos, which is fitted here, has no noise; set references=[raw,climatology], "
            "or name a corrector emos that was trained with noise=true"
        )
    for _, path, corrector in each_file(plan, correctors) if plan.member_counts else ():
        training_members(corrector, path, plan.member_counts)
    return correctors


def noise_by_name(plan: Plan, correctors: Mapping[str, FoldCorrectors]) -> dict[str, Noise]:
    """Return the noise of each corrector; {} if no method of the evaluation draws from it."""
    if not any(METHODS[method].fitted for method in plan.methods):
        return {}
    if several := [name for name, folds in correctors.items() if len(folds.correctors) > 1]:
        raise InputError(
            f"members=noise: {several[0]} has several folds, each with noise of its own; score one fold at a time, or "
            "leave out noise"
        )
    if without := [name for name, folds in correctors.items() if folds.first.noise is None]:
        raise InputError(
            f"members=noise: {without[0]} has no noise; run the command of its training again with noise=true, or "
            "leave it out"
        )
    return {name: folds.first.noise for name, folds in correctors.items() if folds.first.noise}


def at_stations_of_data(plan: Plan, correctors: Mapping[str, FoldCorrectors], mesh: Mesh) -> dict[str, FoldCorrectors]:
    """Return correctors of other stations at the stations of the data, and all others as they are."""
    if not any(isinstance(folds.first.grid, Points) for folds in correctors.values()):
        return dict(correctors)
    source = plan.source(plan.dates)
    grid = mesh.run_on_first(lambda: ForecastDataset(source, plan.task, plan.dates).grid)
    found = dict(correctors)
    for name, folds in correctors.items():
        if isinstance(folds.first.grid, Points) and isinstance(grid, Points) and not folds.first.grid.matches(grid):
            found[name] = FoldCorrectors.of([one.at(grid, source.static) for one in folds.correctors])
    return found


def station_note(folds: FoldCorrectors) -> str | None:
    """Return a sentence about new stations, None for correctors at their own stations."""
    return describe_stations(folds.first.task, folds.first.grid, folds.first.provenance)


def station_counts(correctors: Mapping[str, FoldCorrectors]) -> dict[str, StationCounts]:
    """Return the counts of stations of the correctors that were moved to other stations."""
    counts = {name: StationCounts.of(folds.first.grid, folds.first.provenance) for name, folds in correctors.items()}
    return {name: found for name, found in counts.items() if found is not None}


def station_regions(correctors: Mapping[str, FoldCorrectors], grid: Grid) -> dict[str, np.ndarray]:
    """Return the weights (H, W) of stations that are new to a corrector, and of all others; {} if none is new."""
    new = np.zeros(grid.shape)
    for folds in correctors.values():
        about = folds.first.provenance.get("stations", {})
        new[[*about.get("new", ()), *about.get("far", ())]] = 1
    parts = {"new_stations": new, "training_stations": 1 - new} if new.any() else {}
    return {name: weights for name, weights in parts.items() if weights.any()}


def each_file(plan: Plan, correctors: Mapping[str, FoldCorrectors]) -> Iterator[tuple[str, Path, Corrector]]:
    """Yield the name, path and corrector of every corrector file."""
    for name, folds in correctors.items():
        for path, corrector in zip(plan.paths[name], folds.correctors, strict=True):
            yield name, path, corrector


@dataclass(frozen=True)
class ScoredData:
    """The forecasts that are scored, and the forecast `files` beside them, on the own tile, and the regions."""

    domain: Domain
    forecasts: ForecastDataset
    files: Mapping[str, OpenedForecast]
    land: np.ndarray | None
    weights: Mapping[str, np.ndarray]

    @property
    def valid(self) -> np.ndarray:
        """The valid time of each forecast."""
        starts, leads = self.forecasts.times()
        return (starts + 3600 * leads).numpy().astype("datetime64[s]")


def open_data(plan: Plan, correctors: Mapping[str, FoldCorrectors], mesh: Mesh) -> ScoredData:
    """Open the forecasts, and refuse correctors that do not suit them."""
    cfg, task, dates, source = plan.cfg, plan.task, plan.dates, plan.source(plan.dates)
    # The first rank indexes the files and caches the index before the others open them.
    grid = mesh.run_on_first(lambda: ForecastDataset(source, task, dates).grid)
    for name, path, corrector in each_file(plan, correctors):
        check_corrector(corrector, path, task, grid, dates if len(plan.paths[name]) == 1 else None)
    for name, folds in correctors.items():
        folds.check(name, dates)
    domain = mesh.domain(grid)
    forecasts = tile_of(domain, source, task, dates, cfg.max_members)
    for _, path, corrector in each_file(plan, correctors):
        check_meanings(corrector, path, task, forecasts.meanings)
    check_enough_members(plan.member_counts, forecasts.members)
    files, forecasts = open_files(plan.files, forecasts, plan.archive)
    say(f"{len(forecasts)} forecasts of {forecasts.members} members on {grid}")
    say("\n".join(forecasts.ledger.lines(cfg.split)))
    land = land_share(plan.archive, forecasts)
    weights = region_weights(grid, land, plan.regions) | station_regions(correctors, grid)
    return ScoredData(domain, forecasts, files, land, weights)


@dataclass(frozen=True)
class Entrants:
    """All models that are scored, by name; `compared` holds those that are correctors.

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
    cfg, task, dates, domain, forecasts = plan.cfg, plan.task, plan.dates, data.domain, data.forecasts
    correctors = {name: folds.on(domain) for name, folds in correctors.items()}
    training = training_dates(plan.split, cfg.split, task)
    # A corrector with the name emos takes the place of the one that would be fitted here.
    wanted = [name for name in plan.references if name not in with_first_runs(correctors, plan.runs)]
    compared, fits = fit_references(
        wanted, plan.source, task, dates, training, cfg.max_members, domain, mesh, cfg.emos_minutes
    )
    own = {name: folds for name, folds in compared.items() if name == EMOS_NAME}
    compared |= correctors
    models: dict[str, Forecaster] = {name: folds.bind(task, plan.device) for name, folds in compared.items()}
    if "persistence" in wanted:
        # Stores have analyses at valid times, and few at starts.
        whole = plan.source if cfg.data.store and not plan.archive.exists else lambda _: plan.archive
        persistence, fit = fit_persistence(whole, task, dates, training, domain)
        fits.append(fit)
        models |= {"persistence": persistence} if persistence else {}
    if "lapse_rate" in wanted:
        lapse_rate, fit = open_lapse_rate(task, domain)
        fits.append(fit)
        models |= {"lapse_rate": lapse_rate} if lapse_rate else {}
    models |= {name: FileForecaster(one, domain, plan.device) for name, one in data.files.items()}
    notes = training_years_warnings(fits, correctors)
    notes += [note for name, folds in (own | correctors).items() for note in unfitted_warnings(name, folds)]
    notes += [f"{name}: {note}" for name, folds in correctors.items() if (note := station_note(folds))]
    notes += [note for name, folds in correctors.items() for note in notes_on_times(name, folds, *forecasts.times())]
    if forecasts.members == 1:
        notes.append(
            "the forecasts have one member: their CRPS, plain and fair, is the absolute error, and they have no spread"
        )
    notes += [unknown] if (unknown := list_unknown(forecasts.meanings)) else []
    table = Path(cfg.run_dir, TRUTH_TABLE)
    notes += mesh.run_on_first(lambda: data_warnings(plan.source(dates), task, dates, cfg.max_members, table=table))
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


def score_entrants(
    plan: Plan, entrants: Entrants, data: ScoredData, partial_scores: PartialScores, mesh: Mesh
) -> Scoreboard:
    """Score all models; the runs of a model are joined."""
    cfg, choice, files = plan.cfg, plan.choice, plan.files
    starts, leads = data.forecasts.times()
    cells = len(plan.task.targets) * math.prod(data.forecasts.grid.shape)
    climate = choice.open_climate(
        data.domain, plan.task, plan.split.dates("train", plan.task.lead_times), plan.dates,
        lambda days: plan.source(days).fingerprint,
    )  # fmt: skip
    past, current = plan.open_past()
    options = ScoringOptions(
        cfg.batch_size, cfg.seed, plan.member_counts, written={*entrants.correctors, *entrants.own},
        levels=cfg.quantile_levels, methods=plan.methods, past=past, current=current,
        noise=noise_by_name(plan, entrants.correctors),
        optional=["climatology", "persistence"], device=plan.device,
        groups=batch_groups(entrants.compared.values(), data.valid), scores=choice.scores, diagrams=choice.diagrams,
        thresholds=choice.thresholds, extremeness=climate,
        undrawn={name for name, file in files.items() if not file.drawn},
        blocks=longest_lead_blocks(starts.numpy(), leads.numpy(), cells),
        memory_bytes=cfg.memory_bytes,
        partial=partial_scores,
    )  # fmt: skip
    with scoring_workers(plan.cluster) as workers:
        options = replace(options, workers=workers, jobs=plan.cluster.at_once)
        board = score_models(entrants.models, data.forecasts, data.weights, entrants.oracle, options, mesh)
    board = replace(pool_runs(board, plan.runs), lost=mesh.broadcast(dict(board.lost)))
    drawn = {name for name, file in files.items() if file.drawn} | ({"lapse_rate"} & {*entrants.models})
    alone = with_first_runs(entrants.compared, plan.runs)
    return replace(board, independent=drawn | {name for name, one in alone.items() if claims(one.first.model).any_size})


def training_dates(split: Split, scored: str, task: Task) -> list[tuple[Dates, Dates]]:
    """Return the training dates of a reference and the dates that it forecasts, for every fold if all are scored."""
    folds = [split]
    if scored == "held_out" and split.fold is None and split.folds is not None:
        folds = [split.leave_out(fold) for fold in range(1, split.folds + 1)]
    return [(fold.dates("train", task.lead_times), fold.dates(scored, task.lead_times)) for fold in folds]


def corrector_paths(cfg: DictConfig) -> dict[str, list[Path]]:
    """Return the corrector files by name; a list or a pattern gives the correctors of several folds.

    The runs of a model with several training runs have names of their own.
    """
    given = plain(cfg)["correctors"] or {}
    if not isinstance(given, dict):
        raise InputError(f"correctors must be {{NAME: path, ...}}, got {given!r}")
    for name in given:
        check_name(str(name))
    found = {}
    for name, path in name_runs(given).items():
        patterns = path if isinstance(path, list) else [path]
        if not patterns or not all(isinstance(pattern, str) for pattern in patterns):
            raise InputError(f"correctors.{name} must be a path, or a list of paths of all folds, got {path!r}")
        found[str(name)] = [
            file for pattern in patterns for file in (expand_paths(pattern) if has_magic(pattern) else [Path(pattern)])
        ]
    return found


def fingerprint_inputs(plan: Plan) -> dict[str, Any]:
    """Return fingerprints of everything that the scores depend on: options, data, corrector and forecast files."""
    beside = ["run_dir", "correctors", "forecasts", "write_forecasts", "mesh", "member_counts"]
    beside += ["device", "cluster", "batch_size", "memory_bytes"]  # the scores do not depend on them
    options = {name: value for name, value in plain(plan.cfg).items() if name not in beside}
    found: dict[str, Any] = {"sizes": list(plan.member_counts)} if plan.member_counts else {}
    if plan.files:
        found["forecasts"] = {name: file.fingerprint for name, file in plan.files.items()}
    return {
        **found,
        "options": fingerprint_of(options),
        "data": plan.source(plan.dates).fingerprint,
        "deepweather": version("deepweather"),
        "correctors": {name: " ".join(sha256_of(path)[:16] for path in files) for name, files in plan.paths.items()},
        **mask_hashes(plan.regions),
        **plan.choice.inputs,
    }


def target_folders(run_dir: Path, task: Task) -> list[Path]:
    """Return the folder of each target's results: `run_dir` itself if there is a single target."""
    if len(task.targets) == 1:
        return [run_dir]
    return [run_dir / re.sub("[:-]", "_", str(target).replace("@", "")) for target in task.targets]


def load_finished(
    run_dir: str | Path, folders: Collection[Path], inputs: Mapping[str, Any]
) -> list[dict[str, Any]] | None:
    """Return the scores in `folders` if all have this format and these inputs and `run_dir` a report, else None."""
    found: list[dict[str, Any]] = []
    if not Path(run_dir, "report.html").exists():
        return None
    for folder in folders:
        try:
            scores = json.loads((folder / "scores.json").read_text("utf-8"))
        except (OSError, ValueError):
            return None
        same = scores.get("format") == SCORES_FORMAT and scores.get("inputs") == inputs
        if not same or not (folder / "scores.csv").exists():
            return None
        found.append(scores)
    return found


def land_share(archive: Archive, forecasts: ForecastDataset) -> np.ndarray | None:
    """Return the land-sea mask (H, W) of the archive, or None if it has none on this grid."""
    if "lsm" not in archive.static:
        return None
    try:
        return static_on(forecasts.grid, archive.static, "lsm")
    except InputError:
        return None


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


@dataclass(frozen=True)
class Shown:
    """The scores of one target, the rows of its scorecard, and its forecasts on maps."""

    scores: dict[str, Any]
    gains: Sequence[ScoreRow]
    cases: Mapping[str, ExampleForecast]
    experts: ExpertMap | None


@dataclass(frozen=True)
class Evaluation:
    """Everything that scores, report and tables need; `publish` writes the results."""

    plan: Plan
    data: ScoredData
    entrants: Entrants
    board: Scoreboard
    about: Mapping[str, Any]
    notes: Sequence[str]
    mesh: Mesh
    facts: Mapping[str, str]
    """End, duration and energy of the run."""

    @property
    def models(self) -> dict[str, Forecaster]:
        """All models; of a model with several runs its first one."""
        return with_first_runs(self.entrants.models, self.plan.runs)

    @property
    def alone(self) -> dict[str, Corrector]:
        """The given correctors; {} if one of them consists of the correctors of several folds."""
        given = self.entrants.correctors
        one_each = all(len(folds.correctors) == 1 for folds in given.values())
        return {name: folds.first for name, folds in given.items()} if one_each else {}

    def publish(self) -> None:
        """Print the tables, then write scores and report. All ranks compute the shown forecasts."""
        run_dir, folders = Path(self.plan.cfg.run_dir), self.plan.folders
        with Progress("scores with their intervals"):
            found = self.mesh.run_on_first(lambda: [self._scores(target) for target in range(len(folders))])
        # The user sees the results first: the files and figures take longer than the scores of a station.
        say("\n\n".join(plain_table(scores) for scores, _ in found))
        shown = [self._shown(target, folder, *found[target]) for target, folder in enumerate(folders)]
        with Progress("figures and tables of the report"):
            self.mesh.run_on_first(lambda: self._write(shown))
        wrote = ", ".join(f"{folder}/scores.json" for folder in folders)
        say(f"wrote {wrote} and {run_dir}/report.html")

    def _shown(self, target: int, folder: Path, scores: dict[str, Any], rows: Sequence[ScoreRow]) -> Shown:
        """Write the tables of a target; return its scores, and the forecasts that the report shows."""
        with Progress("tables of the scores"):
            gains, shown, shares = self.mesh.run_on_first(lambda: self._tables(target, folder, scores, rows))
        best, domain, device = scores["best"]["model"], self.data.domain, self.plan.device
        forecasts, raw, model = self.data.forecasts, self.models["raw"], self.models[best]
        cases = {
            name: show_forecast(self.board, forecasts, row, target, raw, model, domain, device, shares[name])
            for name, row in watched(shown.items(), "forecasts of the report: forecast", len(shown))
        }
        experts = None
        if best in self.alone:
            experts = show_experts(self.alone[best].model, forecasts, shown["median"], model, domain, device)
        return Shown(scores, gains, cases, experts)

    def _scores(self, target: int) -> tuple[dict[str, Any], Sequence[ScoreRow]]:
        """Return the scores of a target, and their rows."""
        plan, board = self.plan, self.board
        meaning = self.data.forecasts.meanings[plan.task.target_channels[target]].to_json()
        rows = ScoreRows.of(board, target, meaning["units"])
        scores = {**scores_of(board, target, rows), **self.about}
        scores |= {"meaning": meaning, "units": scores["units"] or meaning["units"]}
        scores["warnings"] = [*self.notes, *scores["warnings"]]
        scores["best"] = choose_shown(plan.cfg.shown_corrector, self.alone, scores, plan.runs)
        return with_gates(scores, self._claims()), rows.rows

    def _tables(
        self, target: int, folder: Path, scores: Mapping[str, Any], rows: Sequence[ScoreRow]
    ) -> tuple[list[ScoreRow], dict[str, int], dict[str, float]]:
        """Write the tables; return the rows of the scorecard, and the rows and gains of the shown forecasts."""
        board = self.board
        write_score_table(folder / "scores.csv", rows)
        write_score_file(folder / "scores.nc", board, target, rows, scores["meaning"]["units"])
        write_start_table(folder / "starts.csv", board, target)
        write_station_table(folder / "stations.csv", board, target, scores["units"])
        best = scores["best"]["model"]
        wanted = best, DISTRIBUTION, board.judging_score(best)
        gains = [row for row in rows if (row.model, row.form, row.score) == wanted]
        shown = chosen_forecasts(board, target, best, self._lead)
        shares = {name: gain_of(board, target, best, self._lead, row) for name, row in shown.items()}
        return gains, shown, shares

    @property
    def _lead(self) -> int:
        """The longest lead time that was scored, which the maps show."""
        return int(self.board.lead_times.max())

    def _claims(self) -> dict[str, MemberCountClaim]:
        plan, entrants = self.plan, self.entrants
        trained = {
            name: training_members(corrector, path, plan.member_counts)
            for name, path, corrector in (each_file(plan, entrants.correctors) if plan.member_counts else ())
        }
        board, runs = self.board, plan.runs
        compared = {name: folds.first for name, folds in entrants.compared.items() if name not in board.lost}
        return member_count_claims(
            with_first_runs(compared, runs), with_first_runs(trained, runs), plan.member_counts, board.tallies
        )

    def _map_data(self, target: int, shown: Shown) -> MapData:
        lead, grid = self._lead, self.board.grid
        place = self.board.task.lead_times.index(lead)
        crps, fair, bias, squared, expected = (
            {name: tally.per_cell[statistic][place, target].value for name, tally in self.board.tallies.items()}
            for statistic in ("crps", "crps_fair", "error", "squared_error", "expected_squared_error")
        )
        # The twin has an oracle, and other simulations are not read from files.
        archive, land = self.plan.archive, self.data.land
        simulated = archive.oracle is not None or not isinstance(archive, Archive)
        return MapData(
            grid, lead, crps, fair, bias, shown.cases, land, shows_earth(grid, land, simulated), squared, expected,
            significant=self._significant(target, shown.scores["best"]["model"]), experts=shown.experts,
        )  # fmt: skip

    def _significant(self, target: int, best: str) -> np.ndarray | None:
        """Return where the shown model and raw differ at the longest lead time, None if there are too few dates."""
        board, statistic = self.board, self.board.judging_score(best)
        model, raw = (board.tallies[name].per_block(statistic) for name in (best, "raw"))
        if model is None or raw is None or (blocks := board.tallies["raw"].blocks) is None:
            return None
        times = block_times(blocks, board.init_times)
        return significant_cells(model[:, target], raw[:, target], times)

    def _write(self, shown: Sequence[Shown]) -> None:
        from evaluation.report.page import write_report  # imports matplotlib

        run_dir, folders = Path(self.plan.cfg.run_dir), self.plan.folders
        targets = [
            TargetReport(
                "" if folder == run_dir else folder.name, one.scores, self._map_data(target, one), one.gains,
                StartScores.read(folder / "starts.csv"),
            )
            for target, (folder, one) in enumerate(zip(folders, shown, strict=True))
        ]  # fmt: skip
        write_report(run_dir, targets, self.facts)
        given = with_first_runs({**self.entrants.own, **self.entrants.correctors}, self.plan.runs)
        for folder, one in zip(folders, shown, strict=True):
            if folds := given.get(one.scores["best"]["model"]):
                first = folds.first
                facts = summary_rows(first.task, first.grid, first.spec, first.provenance)
                write_model_card(folder / "model_card.md", one.scores, facts, len(folds.correctors))
            else:
                (folder / "model_card.md").unlink(missing_ok=True)
        # The scores are written last: if they exist, the report and the table are complete.
        for folder, one in zip(folders, shown, strict=True):
            with atomic_write(folder / "scores.json", "w") as file:
                json.dump(one.scores, file, indent=1, allow_nan=False)


if __name__ == "__main__":
    main()
