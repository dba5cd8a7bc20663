"""The verb `evaluate`: score correctors, the raw ensemble, climatology and the oracle on the same forecasts.

Writes `scores.json`, `scores.csv`, `report.html` and `figures/` into `run_dir`, or into one folder for each target of a
task with several targets. On a mesh all ranks score a part, and the first rank writes.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
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
from data_pipeline.forecast_file import ForecastFile, open_files
from data_pipeline.grid_coordinates import static_on
from data_pipeline.meaning import list_unknown
from data_pipeline.plausibility import data_warnings
from data_pipeline.split import Split
from data_pipeline.store import choose_source
from data_pipeline.task import Task
from evaluation.corrector_checks import (
    check_comparison,
    check_corrector,
    check_emos,
    check_enough_members,
    check_meanings,
    check_name,
    training_members,
)
from evaluation.file_forecasts import FileForecaster, notes_on, parse_forecasts
from evaluation.fold_correctors import FoldCorrectors, batch_groups
from evaluation.forecast_writer import check_writing, write_forecasts
from evaluation.leak_audit import audit
from evaluation.member_counts import MemberCountClaim, check_member_counts, member_count_claims, with_gates
from evaluation.partial_scores import PartialScores
from evaluation.references import (
    check_references,
    fit_persistence,
    fit_references,
    reference_warnings,
    tile_of,
    training_years_warnings,
    unfitted_warnings,
    valid_times,
)
from evaluation.regions import check_regions, mask_hashes, region_weights
from evaluation.report.coastlines import shows_earth
from evaluation.report.page import write_report
from evaluation.report.provenance import run_facts
from evaluation.report.shown_data import ExampleForecast, ExpertMap, MapData
from evaluation.report.tables import plain_table
from evaluation.score_options import ScoreChoice
from evaluation.score_table import write_score_table
from evaluation.scoreboard import SCORES_FORMAT, Scoreboard
from evaluation.scoring import Forecaster, Forecasts, ScoringOptions, score_models
from evaluation.scoring_workers import check_workers, scoring_workers
from evaluation.shown_cases import chosen_forecasts, gain_of, show_experts, show_forecast
from evaluation.shown_corrector import check_shown, choose_shown
from evaluation.significance.field_significance import longest_lead_blocks, significant_cells
from evaluation.start_table import write_start_table
from evaluation.station_table import write_station_table
from evaluation.training_runs import check_one_model, group_runs, name_runs, pool_runs, with_first_runs
from models.corrector import Corrector
from models.device import choose_device, watch_gpu
from models.members.options import QUANTILE_LEVELS
from models.parallel.domain import Domain
from models.parallel.mesh import Mesh, join_mesh
from models.protocol import claims


@verb("evaluate")
def main(cfg: DictConfig) -> None:
    """Evaluate on all ranks of the mesh."""
    with CostMeter() as meter, join_mesh(plain(cfg)["mesh"]) as mesh:
        run(cfg, mesh, meter)
        print_usage(meter, mesh)


def run(cfg: DictConfig, mesh: Mesh, meter: CostMeter) -> None:
    """Open correctors and data, score, write the results, print the table."""
    archive, split, task = build(cfg.data.archive), build(cfg.data.split), build(cfg.task)
    cluster: Cluster = build(cfg.cluster)
    source, dates = partial(choose_source, archive, cfg.data.store), split.dates(cfg.split, task.lead_times)
    paths, member_counts = corrector_paths(cfg), check_member_counts(plain(cfg)["member_counts"])
    runs = group_runs(list(paths))
    wanted = check_references(plain(cfg)["references"])
    regions = check_regions(plain(cfg)["regions"])
    given = parse_forecasts(plain(cfg)["forecasts"], paths)
    check_shown(cfg.shown_corrector, {*with_first_runs(paths, runs), *given})
    if given and member_counts:
        raise InputError("member_counts needs members of all models, but forecasts has files; leave out one of them")
    check_choice("quantile_levels", cfg.quantile_levels, QUANTILE_LEVELS)
    check_between("emos_minutes", cfg.emos_minutes, 0, math.inf)
    check_integer("batch_size", cfg.batch_size, 1)
    check_integer("memory_bytes", cfg.memory_bytes, 1)
    check_integer("seed", cfg.seed, 0)
    device, choice = choose_device(cfg.device, mesh), ScoreChoice.parse(plain(cfg), task)
    check_workers(cluster, mesh, device)
    watch_gpu(meter, device)
    correctors = {
        name: FoldCorrectors.of([Corrector.load(path) for path in watched(files, f"reading {name}: corrector")])
        for name, files in paths.items()
    }
    files = [
        (name, path, corrector)
        for name, folds in correctors.items()
        for path, corrector in zip(paths[name], folds.correctors, strict=True)
    ]
    for name, path, corrector in files:
        check_emos(name, corrector, path)
    check_one_model({name: folds.first for name, folds in correctors.items()}, runs)
    trained = (
        {name: training_members(corrector, path, member_counts) for name, path, corrector in files}
        if member_counts
        else {}
    )
    inputs = mesh.run_on_first(
        lambda: {
            **fingerprint_inputs(cfg, source(dates).fingerprint, paths, member_counts, given),
            **mask_hashes(regions),
            **choice.inputs,
        }
    )
    folders = target_folders(Path(cfg.run_dir), task)
    writing = check_writing(cfg.write_forecasts, mesh)
    if writing is None and (done := mesh.run_on_first(lambda: load_finished(folders, inputs))):
        say("\n\n".join(plain_table(scores) for scores in done))
        say(f"{cfg.run_dir} already holds the scores of these correctors and data; nothing was done")
        return

    # The first rank indexes the files and caches the index before the others open them.
    grid = mesh.run_on_first(lambda: ForecastDataset(source(dates), task, dates).grid)
    for name, path, corrector in files:
        check_corrector(corrector, path, task, grid, dates if len(paths[name]) == 1 else None)
    for name, folds in correctors.items():
        folds.check(name, dates)
    domain = mesh.domain(grid)
    forecasts = tile_of(domain, source(dates), task, dates, cfg.max_members)
    for _, path, corrector in files:
        check_meanings(corrector, path, task, forecasts.meanings)
    check_enough_members(member_counts, forecasts.members)
    opened, forecasts = open_files(given, forecasts, archive)
    say(f"{len(forecasts)} forecasts of {forecasts.members} members on {grid}")
    say("\n".join(forecasts.ledger.lines(cfg.split)))
    land = land_share(archive, forecasts)
    weights = region_weights(grid, land, regions)
    correctors = {name: folds.on(domain) for name, folds in correctors.items()}
    training = training_dates(split, cfg.split, task)
    # A corrector with the name emos takes the place of the one that would be fitted here.
    own = [name for name in wanted if name not in with_first_runs(correctors, runs)]
    compared, fits = fit_references(own, source, task, dates, training, cfg.max_members, domain, mesh, cfg.emos_minutes)
    persistence = None
    if "persistence" in wanted:
        # Stores have analyses at valid times, and few at starts.
        whole = source if cfg.data.store and not archive.exists else lambda _: archive
        persistence, fit = fit_persistence(whole, task, dates, training, domain)
        fits.append(fit)
    trained_here = {name: compared[name] for name in own if name == "emos" and name in compared}
    notes = training_years_warnings(fits, correctors)
    notes += [note for name, folds in (trained_here | correctors).items() for note in unfitted_warnings(name, folds)]
    notes += [unknown] if (unknown := list_unknown(forecasts.meanings)) else []
    notes += mesh.run_on_first(lambda: data_warnings(source(dates), task, dates, cfg.max_members))
    notes += notes_on(opened)
    compared |= correctors
    beside = {*opened, *(["persistence"] if persistence else [])}
    check_comparison({*compared, *beside}, [*reference_warnings(fits), *notes])
    notes += choice.check(task, forecasts.members, "climatology" in compared)
    model_climate = choice.open_climate(
        domain, task, split.dates("train", task.lead_times), dates, lambda days: source(days).fingerprint
    )
    models: dict[str, Forecaster] = {name: folds.bind(task, device) for name, folds in compared.items()}
    models |= {"persistence": persistence} if persistence else {}
    models |= {name: FileForecaster(one, domain, device) for name, one in opened.items()}
    oracle = open_oracle(archive, task, dates, domain, notes)
    starts, leads = forecasts.times()
    valid = (starts + 3600 * leads).numpy().astype("datetime64[s]")
    fitted = {name: folds for name, folds in compared.items() if name != "raw"}
    leaks = audit(fitted, valid, task.lead_times, split.gap_days)
    for note in leaks["notes"]:
        say(f"leak audit: {note}")
    partial_scores = PartialScores(Path(cfg.run_dir), json.dumps([inputs, *models], sort_keys=True), mesh)
    options = ScoringOptions(
        cfg.batch_size, cfg.seed, member_counts, written={*correctors, *trained_here}, levels=cfg.quantile_levels,
        optional=["climatology", "persistence"], device=device, groups=batch_groups(compared.values(), valid),
        scores=choice.scores, diagrams=choice.diagrams, thresholds=choice.thresholds, extremeness=model_climate,
        undrawn={name for name, file in given.items() if not file.drawn},
        blocks=longest_lead_blocks(starts.numpy(), leads.numpy()), memory_bytes=cfg.memory_bytes,
        partial=partial_scores,
    )  # fmt: skip
    with scoring_workers(cluster) as workers:
        options = replace(options, workers=workers, jobs=cluster.at_once)
        board = score_models(models, forecasts, weights, oracle, options, mesh)
    lost = mesh.broadcast(dict(board.lost))
    compared = {name: folds for name, folds in compared.items() if name not in lost}
    notes = list(dict.fromkeys([*reference_warnings(fits, lost), *notes]))
    check_comparison({*compared, *beside} - set(lost), notes)
    board, compared, models = (
        pool_runs(board, runs), with_first_runs(compared, runs), with_first_runs(models, runs)
    )  # fmt: skip
    independent = {name for name, folds in compared.items() if claims(folds.first.model).any_size}
    independent |= {name for name, file in given.items() if file.drawn}
    one_each = all(len(folds.correctors) == 1 for folds in correctors.values())
    about = {
        "format": SCORES_FORMAT, "split": cfg.split, "members": forecasts.members,
        "dates": dates.to_json(), "levels": cfg.quantile_levels, "ledger": forecasts.ledger.to_json(), "inputs": inputs,
        "leak_audit": leaks,
        "meanings": [forecasts.meanings[channel].to_json() for channel in task.target_channels],
    }  # fmt: skip
    one_of = {name: folds.first for name, folds in compared.items()}
    # The twin has an oracle, and other simulations are not read from files.
    simulated = archive.oracle is not None or not isinstance(archive, Archive)
    evaluation = Evaluation(
        replace(board, independent=independent), about, notes, cfg.shown_corrector,
        {name: folds.first for name, folds in correctors.items()} if one_each else {}, runs,
        member_count_claims(one_of, with_first_runs(trained, runs), member_counts), models, forecasts, land,
        simulated, mesh, device, run_facts(gather_usage(meter, mesh)),
    )  # fmt: skip
    say("\n\n".join([evaluation.publish(target, folder) for target, folder in enumerate(folders)]))
    if writing is not None:
        corrected = list(evaluation.board.written)
        wrote = write_forecasts(writing, models, forecasts, cfg.quantile_levels, cfg.seed, device, corrected)
        say(f"wrote {', '.join(map(str, wrote))}")
    partial_scores.remove()


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


def fingerprint_inputs(
    cfg: DictConfig,
    fingerprint: str,
    paths: Mapping[str, Sequence[Path]],
    member_counts: Collection[int] = (),
    given: Mapping[str, ForecastFile] | None = None,
) -> dict[str, Any]:
    """Return fingerprints of everything that the scores depend on: options, data, corrector and forecast files."""
    beside = ["run_dir", "correctors", "forecasts", "write_forecasts", "mesh", "member_counts"]
    beside += ["device", "cluster", "batch_size", "memory_bytes"]  # the scores do not depend on them
    options = {name: value for name, value in plain(cfg).items() if name not in beside}
    further: dict[str, Any] = {"sizes": list(member_counts)} if member_counts else {}
    if given:
        further["forecasts"] = {name: file.fingerprint for name, file in given.items()}
    return further | {
        "options": fingerprint_of(options),
        "data": fingerprint,
        "deepweather": version("deepweather"),
        "correctors": {name: " ".join(sha256_of(path)[:16] for path in files) for name, files in paths.items()},
    }


def target_folders(run_dir: Path, task: Task) -> list[Path]:
    """Return the folder of each target's results: `run_dir` itself if there is a single target."""
    if len(task.targets) == 1:
        return [run_dir]
    return [run_dir / re.sub("[:-]", "_", str(target).replace("@", "")) for target in task.targets]


def load_finished(folders: Collection[Path], inputs: Mapping[str, Any]) -> list[dict[str, Any]] | None:
    """Return the scores in `folders` if all have this format and these inputs, else None."""
    found = []
    for folder in folders:
        try:
            scores = json.loads((folder / "scores.json").read_text("utf-8"))
        except (OSError, ValueError):
            return None
        same = scores.get("format") == SCORES_FORMAT and scores.get("inputs") == inputs
        if not same or not all((folder / name).exists() for name in ("report.html", "scores.csv")):
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
class Evaluation:
    """Everything that scores, report and table need; `publish` writes the results of one target."""

    board: Scoreboard
    about: Mapping[str, Any]
    notes: Sequence[str]
    best: str | None
    correctors: Mapping[str, Corrector]
    runs: Mapping[str, Sequence[str]]
    claims: Mapping[str, MemberCountClaim]
    models: Mapping[str, Forecaster]
    forecasts: Forecasts
    land: np.ndarray | None
    simulated: bool
    mesh: Mesh
    device: torch.device
    facts: Mapping[str, str]
    """End, duration and energy of the run."""

    def publish(self, target: int, folder: Path) -> str:
        """Write scores and report of one target; return the table as text. All ranks compute the shown forecasts."""
        lead = int(self.board.lead_times.max())  # maps show the longest lead time that was scored
        with Progress("scores with their intervals"):
            scores, rows, gains = self.mesh.run_on_first(lambda: self._scores(target, lead))
        best, domain = scores["best"]["model"], self.mesh.domain(self.board.grid)
        raw, model = self.models["raw"], self.models[best]
        cases = {
            name: show_forecast(self.board, self.forecasts, row, target, raw, model, domain, self.device, gains[name])
            for name, row in watched(rows.items(), "forecasts of the report: forecast", len(rows))
        }
        experts = None
        if best in self.correctors:
            network = self.correctors[best].model
            experts = show_experts(network, self.forecasts, rows["median"], model, domain, self.device)
        with Progress("figures and tables of the report"):
            self.mesh.run_on_first(
                lambda: self._write(folder, target, scores, self._map_data(target, lead, best, cases, experts))
            )
        return plain_table(scores) + f"\nwrote {folder}/scores.json and {folder}/report.html"

    def _scores(self, target: int, lead: int) -> tuple[dict[str, Any], dict[str, int], dict[str, float]]:
        """Return the scores, and the rows and gains of the forecasts that the report shows."""
        scores = self.board.scores(target)
        scores |= {key: value for key, value in self.about.items() if key != "meanings"}
        scores["meaning"] = self.about["meanings"][target]
        scores["units"] = scores["units"] or scores["meaning"]["units"]
        scores["warnings"] = [*self.notes, *scores["warnings"]]
        scores["best"] = choose_shown(self.best, self.correctors, scores, self.runs)
        best = scores["best"]["model"]
        rows = chosen_forecasts(self.board, target, best, lead)
        gains = {name: gain_of(self.board, target, best, lead, row) for name, row in rows.items()}
        return with_gates(scores, self.claims), rows, gains

    def _map_data(
        self, target: int, lead: int, best: str, cases: Mapping[str, ExampleForecast], experts: ExpertMap | None
    ) -> MapData:
        place, grid = self.board.task.lead_times.index(lead), self.board.grid
        crps, fair, bias, squared, expected = (
            {name: tally.per_cell[statistic][place, target].value for name, tally in self.board.tallies.items()}
            for statistic in ("crps", "crps_fair", "error", "squared_error", "expected_squared_error")
        )
        return MapData(
            grid, lead, crps, fair, bias, cases, self.land, shows_earth(grid, self.land, self.simulated), squared,
            expected, significant=self._significant(target, best), experts=experts,
        )  # fmt: skip

    def _significant(self, target: int, best: str) -> np.ndarray | None:
        """Return where the shown model and raw differ at the longest lead time, None if there are too few dates."""
        statistic = "crps_fair" if self.board.fair_is_valid(best) else "crps"
        model, raw = (self.board.tallies[name].per_block(statistic) for name in (best, "raw"))
        return None if model is None or raw is None else significant_cells(model[:, target], raw[:, target])

    def _write(self, folder: Path, target: int, scores: Mapping[str, Any], fields: MapData) -> None:
        write_report(folder, scores, fields, self.facts)
        write_score_table(folder / "scores.csv", self.board, target, scores["units"])
        write_start_table(folder / "starts.csv", self.board, target)
        write_station_table(folder / "stations.csv", self.board, target, scores["units"])
        # The scores are written last: if they exist, the report and the table are complete.
        with atomic_write(folder / "scores.json", "w") as file:
            json.dump(scores, file, indent=1, allow_nan=False)


if __name__ == "__main__":
    main()
