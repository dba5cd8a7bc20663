"""Engine and Prediction: the two protocols between the program that corrects files and what computes a correction."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

from data_pipeline.common.errors import InputError
from data_pipeline.grid import Grid
from data_pipeline.grids.points import Points, has_ids
from data_pipeline.regridding.stations import stations_on
from data_pipeline.regridding.target import TargetGrid
from data_pipeline.task import Task
from data_pipeline.variables.meaning import Meaning
from models.engines.families import Family
from models.engines.forecast import RawForecast
from models.parallel.domain import Domain
from models.parallel.single_process import Processes
from models.provenance.envelope import Envelope
from models.provenance.noise import Noise
from models.provenance.stations import StationCounts, describe_stations
from models.provenance.training_climate import TrainingClimate

if TYPE_CHECKING:
    import xarray as xr


@dataclass(frozen=True)
class CorrectorDescription:
    """What a corrector file says about itself, without its model."""

    task: Task
    grid: Grid
    meanings: tuple[Meaning, ...] = ()
    provenance: Mapping[str, Any] = field(default_factory=dict)
    target_grid: TargetGrid | None = None
    """The grid to which forecasts are brought; None if they must have the corrector's grid."""
    name: str = ""
    """Name of the corrector in messages, where one run uses several correctors."""
    path: Path | None = None
    sha256: str = ""
    """SHA-256 of the file at `path`."""
    envelope: Envelope | None = None
    """What the corrector has seen in training; None for a model that reads physical values."""
    noise: Noise | None = None
    """What `members=noise` draws from; None without it, and for an exported corrector."""

    @property
    def station_counts(self) -> StationCounts | None:
        """The stations of a corrector that was moved to other stations, else None."""
        return StationCounts.of(self.grid, self.provenance)

    @property
    def stations(self) -> str | None:
        """A sentence about the stations of a corrector that was moved to other stations, else None."""
        return describe_stations(self.task, self.grid, self.provenance)


class Prediction(Family, Protocol):
    """A `Family` of the targets in the cells (T, h, w) of this rank's tile, in float64 and physical units.

    The caller may change the arrays of quantiles.
    """

    @property
    def members(self) -> np.ndarray | None:
        """(M, T, h, w) if the model itself forecasts members, else None."""

    @property
    def unchanged(self) -> np.ndarray | None:
        """(T, h, w) True where the corrected forecast is the raw ensemble itself; None if there is no such cell."""


class Engine(Protocol):
    """Corrects forecasts on the tile `domain`."""

    @property
    def description(self) -> CorrectorDescription:
        """What the corrector file says about itself."""

    @property
    def domain(self) -> Domain:
        """The grid with this rank's tile."""

    @property
    def always(self) -> np.ndarray:
        """(C, h, w) 1 where every training sample has a value of all members; see `Normalizer`."""

    @property
    def known(self) -> np.ndarray:
        """(T, h, w) 0 where no training sample has a value of the target."""

    @property
    def climate(self) -> TrainingClimate | None:
        """The training climate of the inputs on the whole grid; None for a model that reads physical values."""

    def at(self, domain: Domain, static: xr.Dataset | None = None) -> Engine:
        """Return the engine at the stations of `domain`, which may be new; see `Corrector.at`."""

    def predict(self, forecast: RawForecast) -> Prediction:
        """Return the corrected distribution of a forecast on this rank's tile."""


def with_cells(
    engines: Sequence[Engine], stations: Points, grid: Grid, static: Callable[[Points], Mapping[Any, Any]]
) -> tuple[Points, str]:
    """Return `stations` with the cells of `grid` that the correctors would take, and a sentence; see `stations_on`."""
    cells = [getattr(engine.description.grid, "cells", None) for engine in engines]
    if not all(cells):
        raise InputError(
            "stations is for correctors that were trained with forecasts on a grid and observations at stations; leave "
            "it out"
        )
    methods = sorted({one.method for one in cells if one})
    if len(methods) > 1:
        raise InputError(
            f"the correctors take their forecasts from cells by {' and '.join(methods)}; give stations to one of them "
            "at a time"
        )
    return stations_on(stations, grid, methods[0], static)


def at_stations(engine: Engine, grid: Grid, processes: Processes, static: xr.Dataset | None = None) -> Engine:
    """Return the engine at the stations of an input, if both have stations and these differ, else as it is.

    `static` are the static fields at these stations.
    """
    own = engine.description.grid
    if not isinstance(own, Points) or not isinstance(grid, Points) or own.matches(grid):
        return engine
    if own.cells and not has_ids(grid):
        return engine  # the input has cells without rows and columns, in which the corrector finds its stations
    return engine.at(processes.domain(grid), static)
