"""The given correctors: their files, their noise, and the stations of the data that are new to them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path

import numpy as np

from data_pipeline.common.errors import InputError
from data_pipeline.common.progress import watched
from data_pipeline.dataset import ForecastDataset
from data_pipeline.grid import Grid
from data_pipeline.grids.points import Points
from evaluation.forecasters.corrector_checks import EMOS_NAME, check_emos, training_members
from evaluation.forecasters.fold_correctors import FoldCorrectors
from evaluation.run.plan import Plan
from evaluation.run.training_runs import check_one_model
from models.corrector import Corrector
from models.members.methods import METHODS
from models.parallel.mesh import Mesh
from models.provenance.noise import Noise
from models.provenance.stations import StationCounts


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


def each_file(plan: Plan, correctors: Mapping[str, FoldCorrectors]) -> Iterator[tuple[str, Path, Corrector]]:
    """Yield the name, path and corrector of every corrector file."""
    for name, folds in correctors.items():
        for path, corrector in zip(plan.paths[name], folds.correctors, strict=True):
            yield name, path, corrector


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
