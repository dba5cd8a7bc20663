"""The data of maps and cases in the report, beside the scores."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any

import numpy as np

from data_pipeline.grid import Grid
from data_pipeline.grids.points import Points
from evaluation.tables.csv_tables import StartScores
from evaluation.tables.score_rows import ScoreRow

PLUME_LEVELS = (0.05, 0.25, 0.5, 0.75, 0.95)
"""Levels of the corrected quantiles of a plume."""
OPTION, VALIDATION, SCORED = "option", "validation years", "scored years"
"""By what the shown corrector was chosen."""


def position_of(grid: Grid, cell: tuple[int, int]) -> tuple[float, float]:
    """Return latitude and longitude of a cell, the longitude from -180 to 180."""
    latitude = float(np.broadcast_to(grid.cell_latitudes, grid.shape)[cell])
    longitude = float(np.broadcast_to(grid.cell_longitudes, grid.shape)[cell])
    return latitude, (longitude + 180) % 360 - 180


def place_name(grid: Grid, cell: tuple[int, int]) -> str:
    """Return the position of a cell as text, with the id of a station.

    >>> place_name(Grid((40.0, 30.0), (0.0, 90.0, 180.0, 270.0)), (1, 3))
    '30°N 90°W'
    """
    latitude, longitude = position_of(grid, cell)
    place = f"{abs(latitude):.4g}°{'S' if latitude < 0 else 'N'} {abs(longitude):.4g}°{'W' if longitude < 0 else 'E'}"
    return f"{grid.ids[cell[0]]}, {place}" if isinstance(grid, Points) and grid.ids else place


def forecast_text(init_time: int, lead_time: int) -> str:
    """Return start (seconds since 1970), lead time (hours) and valid time of a forecast as text."""
    start = datetime.fromtimestamp(init_time, UTC)
    end = start + timedelta(hours=lead_time)
    return f"{start:%-d %B %Y, %H} UTC + {lead_time} h, valid {end:%-d %B %Y, %H} UTC"


@dataclass(frozen=True)
class Plume:
    """Forecasts of one cell from one start in physical units, for n lead times (hours).

    `members` (n, M) are the raw members, `quantiles` (n, 5) the corrected distribution's at PLUME_LEVELS, and `truth`
    (n,) the analysis. `choice` says why this cell is shown.
    """

    choice: str
    cell: tuple[int, int]
    leads: np.ndarray
    members: np.ndarray
    quantiles: np.ndarray
    truth: np.ndarray


@dataclass(frozen=True)
class ExampleForecast:
    """One forecast of the split; all fields (H, W) are in physical units. `gain` is its score below raw in per cent."""

    init_time: int
    lead_time: int
    truth: np.ndarray
    raw_mean: np.ndarray
    mean: np.ndarray
    std: np.ndarray
    plumes: tuple[Plume, ...] = ()
    gain: float = float("nan")

    @property
    def valid(self) -> str:
        """Start and valid time as text."""
        return forecast_text(self.init_time, self.lead_time)


@dataclass(frozen=True)
class ExpertMap:
    """The expert that a mixture chooses first in every cell (H, W), from 0, of `count` experts of the layer `layer`."""

    layer: str
    count: int
    chosen: np.ndarray


@dataclass(frozen=True)
class MapData:
    """Data of the maps at the longest lead time: averages (H, W) of each model, and single forecasts.

    `cases` has the forecasts with the `best`, `median` and `worst` gain of the shown model over raw, without repeats;
    there is always a median. `land` is the land fraction, None if it is unknown; `earth` is true if maps show the
    coasts of the Earth. `significant` (H, W) is true where the shown model and raw differ beyond chance, None without a
    test.
    """

    grid: Grid
    lead_time: int
    crps: Mapping[str, np.ndarray]
    crps_fair: Mapping[str, np.ndarray]
    bias: Mapping[str, np.ndarray]
    cases: Mapping[str, ExampleForecast]
    land: np.ndarray | None = None
    earth: bool = False
    squared_error: Mapping[str, np.ndarray] = field(default_factory=dict)
    expected_squared_error: Mapping[str, np.ndarray] = field(default_factory=dict)
    significant: np.ndarray | None = None
    experts: ExpertMap | None = None

    @property
    def example(self) -> ExampleForecast:
        """The forecast with the median gain."""
        return self.cases["median"]


@dataclass(frozen=True)
class TargetReport:
    """Everything that the page shows of one target.

    `folder` is the folder of its files beside the page, "" for the only target. `gains` are the rows of the shown model
    and the score that judges it, of all lead times, regions and seasons.
    """

    folder: str
    scores: Mapping[str, Any]
    fields: MapData
    gains: Sequence[ScoreRow] = ()
    starts: StartScores | None = None
