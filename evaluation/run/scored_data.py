"""The forecasts that an evaluation scores, and the regions of their cells."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from data_pipeline.archive import Archive
from data_pipeline.common.errors import InputError
from data_pipeline.common.messages import say
from data_pipeline.dataset import ForecastDataset
from data_pipeline.grids.grid_coordinates import static_on
from data_pipeline.sources.forecast_file import OpenedForecast, open_files
from evaluation.forecasters.corrector_checks import check_corrector, check_enough_members, check_meanings
from evaluation.forecasters.fold_correctors import FoldCorrectors
from evaluation.forecasters.references import tile_of
from evaluation.regions import region_weights
from evaluation.run.given_correctors import each_file, station_regions
from evaluation.run.plan import Plan
from models.parallel.domain import Domain
from models.parallel.mesh import Mesh
from models.protocol import claims


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
    options, task, dates, source = plan.options, plan.task, plan.dates, plan.source(plan.dates)
    # The first rank indexes the files and caches the index before the others open them.
    grid = mesh.run_on_first(lambda: ForecastDataset(source, task, dates).grid)
    for name, path, corrector in each_file(plan, correctors):
        check_corrector(corrector, path, task, grid, dates if len(plan.paths[name]) == 1 else None)
    for name, folds in correctors.items():
        folds.check(name, dates)
    domain = mesh.domain(grid)
    forecasts = tile_of(domain, source, task, dates, options["max_members"])
    if not all(claims(corrector.model).any_groups for _, _, corrector in each_file(plan, correctors)):
        forecasts = forecasts.with_all_groups()
    for _, path, corrector in each_file(plan, correctors):
        check_meanings(corrector, path, task, forecasts.meanings)
    check_enough_members(plan.member_counts, forecasts.members)
    files, forecasts = open_files(plan.files, forecasts, plan.archive)
    say(f"{len(forecasts)} forecasts of {forecasts.members} members on {grid}")
    say("\n".join(forecasts.ledger.lines(options["split"])))
    land = land_share(plan.archive, forecasts)
    weights = region_weights(grid, land, plan.regions) | station_regions(correctors, grid)
    return ScoredData(domain, forecasts, files, land, weights)


def land_share(archive: Archive, forecasts: ForecastDataset) -> np.ndarray | None:
    """Return the land-sea mask (H, W) of the archive, or None if it has none on this grid."""
    if "lsm" not in archive.static:
        return None
    try:
        return static_on(forecasts.grid, archive.static, "lsm")
    except InputError:
        return None
