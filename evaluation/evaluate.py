"""The verb `evaluate`: score correctors, the raw ensemble, climatology and the oracle on the same forecasts.

Writes `scores.json`, `report.html` and `figures/` into `run_dir`, or into one folder for each target of a task with
several targets. On a mesh all ranks score a part, and the first rank writes.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
import torch
from omegaconf import DictConfig

from conf import build, plain, verb
from data_pipeline.archive import Archive, grid_of
from data_pipeline.common.checks import check_choice, check_integer
from data_pipeline.common.errors import InputError
from data_pipeline.common.files import atomic_write
from data_pipeline.dataset import ForecastDataset
from data_pipeline.sample import Sample
from data_pipeline.store import choose_source
from data_pipeline.task import Task
from evaluation.aggregation import region_weights
from evaluation.corrector_checks import (
    check_comparison,
    check_corrector,
    check_emos,
    check_enough_members,
    check_name,
    training_members,
)
from evaluation.figures import ExampleForecast, MapData
from evaluation.member_counts import MemberCountClaim, check_member_counts, member_count_claims, with_gates
from evaluation.references import (
    check_references,
    climatology_warnings,
    fit_references,
    tile_of,
    training_years_warnings,
    unfitted_warnings,
    valid_times,
)
from evaluation.report import write_report
from evaluation.scoreboard import Scoreboard
from evaluation.scoring import Forecaster, Forecasts, ScoringOptions, score_models, to_device
from evaluation.shown_corrector import check_shown, choose_shown
from evaluation.tables import plain_table
from models.corrector import Corrector
from models.coupling import QUANTILE_LEVELS
from models.device import choose_device
from models.parallel.domain import Domain
from models.parallel.exchange import assemble
from models.parallel.mesh import Mesh, join_mesh
from models.protocol import claims

SCORES_FORMAT = 2
"""Version of `scores.json`; results of another version are computed again."""


@verb("evaluate")
def main(cfg: DictConfig) -> None:
    """Evaluate on all ranks of the mesh."""
    with join_mesh(plain(cfg)["mesh"]) as mesh:
        run(cfg, mesh)


def run(cfg: DictConfig, mesh: Mesh) -> None:
    """Open correctors and data, score, write the results, print the table."""
    archive, split, task = build(cfg.data.archive), build(cfg.data.split), build(cfg.task)
    source, years = partial(choose_source, archive, cfg.data.store), split.years(cfg.split)
    paths, member_counts = corrector_paths(cfg), check_member_counts(plain(cfg)["member_counts"])
    wanted = check_references(plain(cfg)["references"])
    check_shown(cfg.shown_corrector, paths)
    check_choice("quantile_levels", cfg.quantile_levels, QUANTILE_LEVELS)
    check_integer("batch_size", cfg.batch_size, 1)
    check_integer("seed", cfg.seed, 0)
    device = choose_device(cfg.device, mesh.ranks)
    correctors = {name: Corrector.load(path) for name, path in paths.items()}
    for name, path in paths.items():
        check_emos(name, correctors[name], path)
    trained = (
        {name: training_members(correctors[name], path, member_counts) for name, path in paths.items()}
        if member_counts
        else {}
    )
    inputs = mesh.run_on_first(lambda: fingerprint_inputs(cfg, source(years).fingerprint, paths, member_counts))
    folders = target_folders(Path(cfg.run_dir), task)
    if done := mesh.run_on_first(lambda: load_finished(folders, inputs)):
        mesh.print("\n\n".join(plain_table(scores) for scores in done))
        mesh.print(f"{cfg.run_dir} already holds the scores of these correctors and data; nothing was done")
        return

    # The first rank indexes the files and caches the index before the others open them.
    grid = mesh.run_on_first(lambda: ForecastDataset(source(years), task, years).grid)
    for name, path in paths.items():
        check_corrector(correctors[name], path, task, grid, years)
    domain = mesh.domain(grid)
    forecasts = tile_of(domain, source(years), task, years, cfg.max_members)
    check_enough_members(member_counts, forecasts.members)
    mesh.print(f"{len(forecasts)} forecasts of {forecasts.members} members on {grid}")
    if forecasts.skipped_message:
        mesh.print(forecasts.skipped_message)
    every = int((~np.isnat(valid_times(source(years), task, years))).sum())
    correctors = {name: corrector.on(domain) for name, corrector in correctors.items()}
    training = split.years("train")
    compared, climatology = fit_references(wanted, source, task, years, training, cfg.max_members, domain, mesh)
    notes = [*climatology_warnings(climatology), *climatology.notes, *training_years_warnings(climatology, correctors)]
    notes += [note for name, corrector in correctors.items() for note in unfitted_warnings(name, corrector)]
    compared |= correctors
    check_comparison(compared, notes)
    models = {name: corrector.to(device).bind(task) for name, corrector in compared.items()}
    land, oracle = land_share(archive, forecasts), open_oracle(archive, task, years, domain)
    options = ScoringOptions(
        cfg.batch_size, cfg.seed, member_counts, written=set(correctors), levels=cfg.quantile_levels,
        optional=["climatology"], device=device,
    )  # fmt: skip
    board = score_models(models, forecasts, region_weights(grid, land), oracle, options, mesh)
    if lost := mesh.broadcast(dict(board.lost)):
        compared = {name: corrector for name, corrector in compared.items() if name not in lost}
        notes = [
            *climatology_warnings(climatology, lost["climatology"]),
            *(n for n in notes if not n.startswith("climatology")),
        ]
        check_comparison(compared, notes)
    independent = {name for name, corrector in compared.items() if claims(corrector.model).any_size}
    about = {
        "format": SCORES_FORMAT, "split": cfg.split, "years": [min(years), max(years)], "members": forecasts.members,
        "levels": cfg.quantile_levels, "unverified": every - len(forecasts), "inputs": inputs,
    }  # fmt: skip
    evaluation = Evaluation(
        replace(board, independent=independent), about, notes, cfg.shown_corrector, correctors,
        member_count_claims(compared, trained, member_counts), models, forecasts, land, mesh, device,
    )  # fmt: skip
    mesh.print("\n\n".join([evaluation.publish(target, folder) for target, folder in enumerate(folders)]))


def corrector_paths(cfg: DictConfig) -> dict[str, Path]:
    """Return the corrector files by name."""
    given = plain(cfg)["correctors"] or {}
    if not isinstance(given, dict):
        raise InputError(f"correctors must be {{NAME: path, ...}}, got {given!r}")
    for name in given:
        check_name(str(name))
    return {str(name): Path(path) for name, path in given.items()}


def fingerprint_inputs(
    cfg: DictConfig, fingerprint: str, paths: Mapping[str, Path], member_counts: Collection[int] = ()
) -> dict[str, Any]:
    """Return fingerprints of everything that the scores depend on: options, data and corrector files."""
    beside = ("run_dir", "correctors", "mesh", "member_counts", "device")
    options = {name: value for name, value in plain(cfg).items() if name not in beside}
    return ({"sizes": list(member_counts)} if member_counts else {}) | {
        "options": hashlib.sha256(json.dumps(options, sort_keys=True).encode()).hexdigest()[:16],
        "data": fingerprint,
        "deepweather": version("deepweather"),
        "correctors": {name: hashlib.sha256(path.read_bytes()).hexdigest()[:16] for name, path in paths.items()},
    }


def target_folders(run_dir: Path, task: Task) -> list[Path]:
    """Return the folder of each target's results: `run_dir` itself if there is a single target."""
    if len(task.targets) == 1:
        return [run_dir]
    return [run_dir / f"{target.name}{target.level or ''}" for target in task.targets]


def load_finished(folders: Collection[Path], inputs: Mapping[str, Any]) -> list[dict[str, Any]] | None:
    """Return the scores in `folders` if all have this format and these inputs, else None."""
    found = []
    for folder in folders:
        try:
            scores = json.loads((folder / "scores.json").read_text("utf-8"))
        except (OSError, ValueError):
            return None
        same = scores.get("format") == SCORES_FORMAT and scores.get("inputs") == inputs
        if not same or not (folder / "report.html").exists():
            return None
        found.append(scores)
    return found


def land_share(archive: Archive, forecasts: ForecastDataset) -> np.ndarray | None:
    """Return the land-sea mask (H, W) of the archive, or None if it has none on this grid."""
    if "lsm" not in archive.static or not grid_of(archive.static).matches(forecasts.grid):
        return None
    return archive.static["lsm"].values


def open_oracle(archive: Archive, task: Task, years: Collection[int], domain: Domain) -> ForecastDataset | None:
    """Return the oracle's forecasts that are valid in `years`, or None if there are none."""
    if archive.oracle is None:
        return None
    if not len(valid_times(archive.oracle, task, years)):
        return None
    return tile_of(domain, archive.oracle, task.only_targets(), years)


@dataclass(frozen=True)
class Evaluation:
    """Everything that scores, report and table need; `publish` writes the results of one target."""

    board: Scoreboard
    about: Mapping[str, Any]
    notes: Sequence[str]
    best: str | None
    correctors: Mapping[str, Corrector]
    claims: Mapping[str, MemberCountClaim]
    models: Mapping[str, Forecaster]
    forecasts: Forecasts
    land: np.ndarray | None
    mesh: Mesh
    device: torch.device

    def publish(self, target: int, folder: Path) -> str:
        """Write scores and report of one target; return the table as text. All ranks compute the example forecast."""
        lead = int(self.board.lead_times.max())  # maps show the longest lead time that was scored
        scores, best, row = self.mesh.run_on_first(lambda: self._scores(target, lead))
        domain = self.mesh.domain(self.board.grid)
        example = example_of(self.forecasts[row], target, self.models["raw"], self.models[best], domain, self.device)
        self.mesh.run_on_first(lambda: self._write(folder, scores, self._map_data(target, lead, example)))
        return plain_table(scores) + f"\nwrote {folder}/scores.json and {folder}/report.html"

    def _scores(self, target: int, lead: int) -> tuple[dict[str, Any], str, int]:
        """Return the scores, the model that the report shows, and the row of its example forecast."""
        scores = self.board.scores(target)
        unverified = self.about["unverified"]
        scores["left_out"] |= {"forecasts": unverified}
        scores |= {key: value for key, value in self.about.items() if key != "unverified"}
        scores["warnings"] = [*self.notes, *scores["warnings"]]
        scores["best"] = choose_shown(self.best, self.correctors, scores)
        best = scores["best"]["model"]
        return with_gates(scores, self.claims), best, typical_forecast(self.board, target, best, lead)

    def _map_data(self, target: int, lead: int, example: ExampleForecast) -> MapData:
        place = self.board.task.lead_times.index(lead)
        crps, fair, bias = (
            {name: tally.per_cell[statistic][place, target].value for name, tally in self.board.tallies.items()}
            for statistic in ("crps", "crps_fair", "error")
        )
        return MapData(self.board.grid, lead, crps, fair, bias, example, self.land)

    def _write(self, folder: Path, scores: Mapping[str, Any], fields: MapData) -> None:
        write_report(folder, scores, fields)
        # The scores are written last: if they exist, the report is complete.
        with atomic_write(folder / "scores.json", "w") as file:
            json.dump(scores, file, indent=1, allow_nan=False)


@torch.no_grad()
def example_of(
    sample: Sample, target: int, raw: Forecaster, model: Forecaster, domain: Domain, device: torch.device | str = "cpu"
) -> ExampleForecast:
    """Return one forecast before and after its correction, on the whole grid; `sample` is this rank's tile."""
    batch = to_device(Sample(*(tensor[None] for tensor in sample)), device)
    before, after = raw(batch), model(batch)
    tiles = torch.stack([field[0, target] for field in (batch.target, before.mean, after.mean, after.std)])
    return ExampleForecast(int(sample.init_time), int(sample.lead_time), *assemble(tiles.cpu(), domain).numpy())


def typical_forecast(board: Scoreboard, target: int, best: str, lead: int) -> int:
    """Return the row of the forecast with the median gain of `best` over the raw ensemble."""
    rows = np.flatnonzero(board.lead_times == lead)
    everywhere = list(board.regions).index("global")
    score = "crps_fair" if board.fair_is_valid(best) else "crps"
    raw, model = (board.tallies[name].per_forecast[score][rows, target, everywhere].value for name in ("raw", best))
    order = np.argsort(raw - model)  # NaN, of forecasts without score, comes last
    return int(rows[order[(np.isfinite(raw - model).sum() - 1) // 2]])


if __name__ == "__main__":
    main()
