"""The coasts of the Earth, offline, and whether the data of a map are from the Earth at all.

Simulated archives have invented continents. Their coast is the contour of their own land mask.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from importlib.resources import files

import numpy as np

from data_pipeline.grid import Grid

AGREEMENT = 0.95
"""Smallest share of the area where a land mask of the Earth agrees with the one-degree mask of the coastlines. Masks of
the Earth agree in 0.966 of it on 33 x 64 points and in 0.985 on 121 x 240; the twin's continents, which look like ours,
in 0.936. A mask that agrees less is drawn itself, which is never wrong."""


@dataclass(frozen=True)
class Coastlines:
    """Lines in degrees, longitudes within [-180, 180]; `land` (180, 360) is true on land, from 90 N and 180 W."""

    lines: tuple[np.ndarray, ...]
    land: np.ndarray

    @classmethod
    @cache
    def load(cls) -> Coastlines:
        """Return the coastlines of the package; coastlines.md beside the file states their source and licence."""
        with files("evaluation.report").joinpath("coastlines.npz").open("rb") as file, np.load(file) as content:
            points = content["steps"].astype(np.int64).cumsum(1).T * float(content["unit"])
            land = np.unpackbits(content["land"])[: 180 * 360].reshape(180, 360).astype(bool)
            return cls(tuple(np.split(points, content["starts"][1:-1])), land)

    def within(self, west: float, east: float, south: float, north: float) -> list[np.ndarray]:
        """Return the lines that touch a box, moved by whole turns to its longitudes; it may cross the date line."""
        found = []
        for line in self.lines:
            (left, low), (right, high) = line.min(0), line.max(0)
            if high < south or low > north:
                continue
            turns = range(int(np.ceil((west - right) / 360)), int(np.floor((east - left) / 360)) + 1)
            found += [line + np.array([360.0 * turn, 0.0]) for turn in turns]
        return found

    def is_land(self, latitudes: np.ndarray, longitudes: np.ndarray) -> np.ndarray:
        """Return whether the one-degree cells at these positions are land."""
        rows = np.clip(np.floor(90 - latitudes), 0, 179).astype(int)
        columns = np.floor((longitudes + 180) % 360).astype(int) % 360
        return self.land[rows, columns]


def shows_earth(grid: Grid, land: np.ndarray | None, simulated: bool) -> bool:
    """Return whether maps of `grid` get the coasts of the Earth.

    They do not if the data are `simulated`, or if the archive's `land` share (H, W) is that of another planet: it
    agrees with the Earth's in less than AGREEMENT of the area.
    """
    if simulated or land is None:
        return not simulated
    known = np.isfinite(land)
    if not known.any():
        return True
    same = (land > 0.5) == Coastlines.load().is_land(grid.cell_latitudes, grid.cell_longitudes)
    weights = np.broadcast_to(np.array(grid.weights)[:, None], grid.shape)
    return bool(np.average(same[known], weights=weights[known]) >= AGREEMENT)
