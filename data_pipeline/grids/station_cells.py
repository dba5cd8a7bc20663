"""StationCells: the cells of a gridded forecast whose weighted sum is the forecast of each station."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

from data_pipeline.common.errors import InputError
from data_pipeline.grid import COORDINATE_TOLERANCE, unit_vectors

StationMethod = Literal["nearest", "land", "height", "bilinear"]
STATION_METHODS: tuple[StationMethod, ...] = ("nearest", "land", "height", "bilinear")
"""How cells are chosen; see `regridding.stations.stations_on`."""
RADIUS_KM = 6371.0
"""Kilometres. Distances are those along chords, which differ from great circles by 1 % at 3,000 km."""


@dataclass(frozen=True)
class StationCells:
    """Positions of K cells for each of n stations, and their `weights`, (n, K) each; the weights of a station sum to 1.

    `method` is that of `regridding.stations.stations_on`, which chose them.
    Cells are known by their positions, not by their numbers in a file, so that every grid that contains them will do:
    another file format, a part of the globe, or a finer grid.
    """

    latitudes: tuple[tuple[float, ...], ...]
    longitudes: tuple[tuple[float, ...], ...]
    weights: tuple[tuple[float, ...], ...]
    method: str

    def __post_init__(self) -> None:
        if not np.shape(self.latitudes) == np.shape(self.longitudes) == np.shape(self.weights) or not self.latitudes:
            raise InputError("the cells of stations need as many latitudes as longitudes and weights")
        if abs(np.sum(self.weights, axis=1) - 1).max() > 1e-6:
            raise InputError("the weights of the cells of each station must sum to 1")

    @classmethod
    def of(cls, method: str, latitudes: np.ndarray, longitudes: np.ndarray, weights: np.ndarray) -> StationCells:
        """Return the cells of arrays (n, K)."""
        return cls(_rows(latitudes), _rows(longitudes), _rows(weights), method)

    @classmethod
    def of_json(cls, values: Mapping[str, Any]) -> StationCells:
        """Return the cells from what `dataclasses.asdict` made of them."""
        return cls.of(values["method"], *(np.array(values[name]) for name in ("latitudes", "longitudes", "weights")))

    def at(self, positions: np.ndarray) -> StationCells:
        """Return the cells of some stations."""
        return StationCells.of(self.method, *(each[positions] for each in self._arrays))

    def same(self, other: StationCells, positions: np.ndarray) -> np.ndarray:
        """Return whether each station has the cells of the station `positions` of `other`, (n,)."""
        (north, east, weight), others = self._arrays, tuple(np.array(part)[positions] for part in other._arrays)
        if north.shape != others[0].shape:
            return np.zeros(len(north), bool)
        apart = np.maximum(abs(north - others[0]), abs((east - others[1] + 180) % 360 - 180)) * (weight > 0)
        return np.asarray(((apart <= 2 * COORDINATE_TOLERANCE) & (abs(weight - others[2]) < 1e-2)).all(1))

    def mean(self, values: np.ndarray) -> np.ndarray:
        """Return the weighted mean (n,) of `values` (n, K) of the cells."""
        return np.asarray((np.array(self.weights) * values).sum(1))

    def distances(self, latitudes: np.ndarray, longitudes: np.ndarray) -> np.ndarray:
        """Return the mean distance (km) of each station at these positions (n,) from its cells, (n,)."""
        north, east, _ = self._arrays
        apart = unit_vectors(latitudes, longitudes)[:, None] - unit_vectors(north, east)
        return self.mean(RADIUS_KM * np.sqrt(np.square(apart).sum(-1)))

    @property
    def _arrays(self) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        return np.array(self.latitudes), np.array(self.longitudes), np.array(self.weights)


def _rows(values: np.ndarray) -> tuple[tuple[float, ...], ...]:
    return tuple(map(tuple, values.tolist()))
