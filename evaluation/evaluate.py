"""The verb `evaluate`: score correctors, the raw ensemble, climatology and the oracle on the same forecasts.

Writes `scores.json`, `report.html` and `figures/` into `run_dir`; a task with several targets gets one folder
each. On a mesh all ranks score their part, and the first one writes.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Collection, Mapping
from functools import partial
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
import torch
from omegaconf import DictConfig

from conf import build, plain, verb
from data_pipeline.archive import Archive, grid_of
from data_pipeline.checks import whole
from data_pipeline.dataset import ForecastDataset
from data_pipeline.errors import InputError
from data_pipeline.files import atomic_write
from data_pipeline.sample import Sample
from data_pipeline.source import Source
from data_pipeline.store import source_for
from data_pipeline.task import Task
from evaluation.aggregation import region_weights
from evaluation.guard import check_comparison, check_corrector, check_name, check_sizes, training_size
from evaluation.pictures import Example, Fields, best_model
from evaluation.report import write_report
from evaluation.scoreboard import Scoreboard
from evaluation.scoring import Forecasts, Model, score_models
from evaluation.sizes import Claim, claims_of, ensemble_sizes, judged
from evaluation.tables import plain_table
from models.corrector import Corrector, reference
from models.spatial.domain import Domain
from models.spatial.exchange import assemble
from models.spatial.mesh import Mesh, joined

FORMAT = 1
"""Version of `scores.json`; results of another version are made anew."""


@verb("evaluate")
def main(cfg: DictConfig) -> None:
    """Do all of it on every rank of the mesh."""
    with joined(plain(cfg)["mesh"]) as mesh:
        run(cfg, mesh)


def run(cfg: DictConfig, mesh: Mesh) -> None:
    """Open everything, score, write, print the table."""
    archive, split, task = build(cfg.data.archive), build(cfg.data.split), build(cfg.task)
    source, years = partial(source_for, archive, cfg.data.store), split.years(cfg.split)
    paths, sizes = corrector_paths(cfg), ensemble_sizes(plain(cfg)["sizes"])
    whole("batch_size", cfg.batch_size, 1)
    whole("seed", cfg.seed, 0)
    correctors = {name: Corrector.load(path) for name, path in paths.items()}
    trained = {name: training_size(correctors[name], path, sizes) for name, path in paths.items()} if sizes else {}
    inputs = mesh.once(lambda: describe(cfg, source(years).fingerprint, paths, sizes))
    folders = target_folders(Path(cfg.run_dir), task)
    if done := mesh.once(lambda: finished(folders, inputs)):
        mesh.say("\n\n".join(plain_table(scores) for scores in done))
        mesh.say(f"{cfg.run_dir} holds the scores of these correctors and data already; nothing was done")
        return

    # The first rank finds out what is there and leaves it in the cache before all others look.
    grid = mesh.once(lambda: ForecastDataset(source(years), task, years).grid)
    for name, path in paths.items():
        check_corrector(correctors[name], path, task, grid, years)
    domain = mesh.domain(grid)
    forecasts = tile_of(domain, source(years), task, years, cfg.members)
    check_sizes(sizes, forecasts.members)
    mesh.say(f"{len(forecasts)} forecasts of {forecasts.members} members on {grid}")
    if forecasts.omission:
        mesh.say(forecasts.omission)
    correctors = {name: corrector.on(domain) for name, corrector in correctors.items()}
    correctors = references(source, task, years, split.years("train"), cfg.members, domain, mesh) | correctors
    check_comparison(correctors, split.years("train"))
    models = {name: corrector.bind(task) for name, corrector in correctors.items()}
    land, oracle = land_share(archive, forecasts), open_oracle(archive, task, years, domain)
    regions = region_weights(grid, land)
    board = score_models(models, forecasts, regions, oracle, cfg.batch_size, cfg.seed, mesh, sizes)
    about = {
        "format": FORMAT, "split": cfg.split, "years": [min(years), max(years)], "members": forecasts.members,
        "inputs": inputs,
    }  # fmt: skip
    claims = claims_of(correctors, trained, sizes)
    tables = [
        publish(folder, board, target, about, claims, models, forecasts, land, mesh)
        for target, folder in enumerate(folders)
    ]
    mesh.say("\n\n".join(tables))


def tile_of(
    domain: Domain, source: Source, task: Task, years: Collection[int], members: int | None = None
) -> ForecastDataset:
    """Open the forecasts that are valid in `years` where the own tile of `domain` lies, of the first `members`."""
    rows, columns = domain.tile
    return ForecastDataset(source, task, years, members=members, rows=rows, columns=columns)


def references(
    source: Callable[[Collection[int]], Source],
    task: Task,
    years: Collection[int],
    training: Collection[int],
    members: int | None,
    domain: Domain,
    mesh: Mesh,
) -> dict[str, Corrector]:
    """Return the raw ensemble, and climatology where there are `training` years to fit it on."""
    # Cells do not ask each other, so that all ranks can share the globe, those of the data axis too.
    shared = mesh.shared(domain.grid)

    def made(name: str, years: Collection[int]) -> Corrector:
        open_years = partial(tile_of, shared, source(years), years=years, members=members)
        return reference(name, task, shared, open_years).on(domain)

    found = {"raw": made("raw", years)}
    if forecasts_in(source(training), task, training):
        mesh.say("fitting climatology on the training years")
        found["climatology"] = made("climatology", training)
    else:
        mesh.say(f"no climatology: no forecast is valid in {min(training)}-{max(training)}")
    return found


def forecasts_in(source: Source, task: Task, years: Collection[int]) -> bool:
    """Return whether any forecast of the targets is valid in `years`, be there an analysis or not."""
    starts = source.ensemble_fields(task.targets, task.lead_times).init_times.astype("datetime64[h]")
    valid = starts[:, None] + np.array(task.lead_times)
    return bool(set(valid.astype("datetime64[Y]").astype(int).ravel() + 1970) & set(years))


def corrector_paths(cfg: DictConfig) -> dict[str, Path]:
    """Return the corrector files by the names they are reported under."""
    given = plain(cfg)["correctors"] or {}
    if not isinstance(given, dict):
        raise InputError(f"correctors must be {{NAME: path, ...}}, got {given!r}")
    for name in given:
        check_name(str(name))
    return {str(name): Path(path) for name, path in given.items()}


def describe(
    cfg: DictConfig, fingerprint: str, paths: Mapping[str, Path], sizes: Collection[int] = ()
) -> dict[str, Any]:
    """Return what the scores depend on: options, data, and the contents of the corrector files."""
    beside = ("run_dir", "correctors", "mesh", "sizes")
    options = {name: value for name, value in plain(cfg).items() if name not in beside}
    return ({"sizes": list(sizes)} if sizes else {}) | {
        "options": hashlib.sha256(json.dumps(options, sort_keys=True).encode()).hexdigest()[:16],
        "data": fingerprint,
        "deepweather": version("deepweather"),
        "correctors": {name: hashlib.sha256(path.read_bytes()).hexdigest()[:16] for name, path in paths.items()},
    }


def target_folders(run_dir: Path, task: Task) -> list[Path]:
    """Return where the results of each target go: `run_dir` itself where there is but one."""
    if len(task.targets) == 1:
        return [run_dir]
    return [run_dir / f"{target.name}{target.level or ''}" for target in task.targets]


def finished(folders: Collection[Path], inputs: Mapping[str, Any]) -> list[dict[str, Any]] | None:
    """Return the scores that are there already, if they are of this format and these inputs, else None."""
    found = []
    for folder in folders:
        try:
            scores = json.loads((folder / "scores.json").read_text("utf-8"))
        except (OSError, ValueError):
            return None
        same = scores.get("format") == FORMAT and scores.get("inputs") == inputs
        if not same or not (folder / "report.html").exists():
            return None
        found.append(scores)
    return found


def land_share(archive: Archive, forecasts: ForecastDataset) -> np.ndarray | None:
    """Return the land-sea mask (H, W) of the archive, or None where it has none on this grid."""
    if "lsm" not in archive.static or not grid_of(archive.static).matches(forecasts.grid):
        return None
    return archive.static["lsm"].values


def open_oracle(archive: Archive, task: Task, years: Collection[int], domain: Domain) -> ForecastDataset | None:
    """Return the oracle's forecasts that are valid in `years`, or None where there are none."""
    if archive.oracle is None:
        return None
    if not forecasts_in(archive.oracle, task, years):
        return None
    return tile_of(domain, archive.oracle, task.only_targets(), years)


def publish(
    folder: Path,
    board: Scoreboard,
    target: int,
    about: dict[str, Any],
    claims: Mapping[str, Claim],
    models: Mapping[str, Model],
    forecasts: Forecasts,
    land: np.ndarray | None,
    mesh: Mesh,
) -> str:
    """Write scores and report of one target; return the table for people. All ranks draw the example."""

    def choose() -> tuple[dict[str, Any], str, int]:
        scores = judged(board.scores(target) | about, claims)
        return scores, (best := best_model(scores)), typical_forecast(board, target, best, lead)

    def write() -> None:
        place = board.task.lead_times.index(lead)
        crps, bias = (
            {name: tally.per_cell[statistic][place, target].value for name, tally in board.tallies.items()}
            for statistic in ("crps", "error")
        )
        write_report(folder, scores, Fields(board.grid, lead, crps, bias, example, land))
        # The scores come last: where they are, the report is whole.
        with atomic_write(folder / "scores.json", "w") as file:
            json.dump(scores, file, indent=1, allow_nan=False)

    lead = int(board.lead_times.max())  # maps are of the longest one that was scored
    scores, best, row = mesh.once(choose)
    example = example_of(forecasts[row], target, models["raw"], models[best], mesh.domain(board.grid))
    mesh.once(write)
    return plain_table(scores) + f"\nwrote {folder}/scores.json and {folder}/report.html"


@torch.no_grad()
def example_of(sample: Sample, target: int, raw: Model, model: Model, domain: Domain) -> Example:
    """Return one forecast before and after its correction, on the whole grid of which `sample` is a tile."""
    batch = Sample(*(tensor[None] for tensor in sample))
    before, after = raw(batch), model(batch)
    tiles = torch.stack([field[0, target] for field in (batch.target, before.mean, after.mean, after.std)])
    return Example(int(sample.init_time), int(sample.lead_time), *assemble(tiles, domain).numpy())


def typical_forecast(board: Scoreboard, target: int, best: str, lead: int) -> int:
    """Return the row of the forecast at which the gain of `best` over the raw ensemble is the median."""
    rows = np.flatnonzero(board.lead_times == lead)
    everywhere = list(board.regions).index("global")
    raw, model = (board.tallies[name].per_forecast["crps"][rows, target, everywhere].value for name in ("raw", best))
    order = np.argsort(raw - model)  # NaN, where nothing could be scored, comes last
    return int(rows[order[(np.isfinite(raw - model).sum() - 1) // 2]])


if __name__ == "__main__":
    main()
