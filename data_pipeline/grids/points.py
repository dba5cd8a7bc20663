"""Points: cells without neighbours, such as stations, or the cells of a projected or curvilinear grid."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from data_pipeline.common.errors import InputError
from data_pipeline.grid import COORDINATE_TOLERANCE, Grid

LARGEST_MOVE = 1.0
"""Greatest difference (degrees) between two positions of a station; forecasts often give that of the nearest cell."""


@dataclass(frozen=True)
class Points(Grid):
    """An unstructured grid: `latitudes` and `longitudes` of n points in any order, one point in each row.

    `altitudes` (m) and `ids` are empty if they are unknown. Stations have ids; the cells of a projected grid have none.
    All points have the same weight. Only models that claim `cellwise` work on points.

    >>> Points((47.3, 52.5), (11.4, 9.7), ids=("11120", "10338")).shape
    (2, 1)
    """

    altitudes: tuple[float, ...] = ()
    ids: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        for name in ("latitudes", "longitudes", "altitudes"):
            object.__setattr__(self, name, tuple(map(float, getattr(self, name))))
        object.__setattr__(self, "ids", tuple(map(str, self.ids)))
        count = len(self.latitudes)
        if not count:
            raise InputError("a set of points needs at least one point, got none")
        for name in ("longitudes", "altitudes", "ids"):
            found = len(getattr(self, name))
            if found != count and (found or name == "longitudes"):
                raise InputError(f"{count} points need as many {name}, got {found}")
        lat = np.array(self.latitudes)
        if not np.isfinite(lat).all() or abs(lat).max() > 90 + COORDINATE_TOLERANCE:
            raise InputError(f"latitudes of points must lie within [-90, 90], got {lat.min()} to {lat.max()}")
        for name in ("longitudes", "altitudes"):
            if not np.isfinite(getattr(self, name)).all():
                raise InputError(f"{name} of points must be finite numbers; some are missing")
        if len(set(self.ids)) < len(self.ids):
            repeated = next(name for k, name in enumerate(self.ids) if name in self.ids[:k])
            raise InputError(f"the station {repeated} occurs twice; give every station an id of its own")

    @property
    def shape(self) -> tuple[int, int]:
        """Rows and columns, (n, 1), so that fits can read bands of rows and bound their memory, as on a grid."""
        return len(self.latitudes), 1

    @property
    def periodic(self) -> bool:
        """False: points have no neighbours."""
        return False

    @cached_property
    def weights(self) -> np.ndarray:
        """The weight of each point, (n,): one."""
        return np.ones(len(self.latitudes))

    @property
    def cell_longitudes(self) -> np.ndarray:
        """The longitude of each point, (n, 1)."""
        return np.array(self.longitudes)[:, None]

    def coarsen(self) -> Grid:
        """Raise `InputError`, because points have no coarser grid."""
        raise InputError(f"{self} have no neighbours, so there is no coarser grid; choose a model of single cells")

    def matches(self, other: Grid) -> bool:
        """Return whether both have the same points in the same order, by id if both have ids, else by position."""
        if not isinstance(other, Points) or self.shape != other.shape:
            return False
        return self.ids == other.ids if self.ids and other.ids else self._distance(other, ...) <= COORDINATE_TOLERANCE

    def positions_in(self, other: Points) -> np.ndarray:
        """Return the index of each point in `other`, (n,), or -1 where `other` lacks the point.

        Points with ids are found by id, in any order; points without ids must be the same points in the same order.
        """
        if not (self.ids and other.ids):
            if not self.matches(other):
                raise InputError(
                    f"{self} and {other} are different points without ids; bring them to the same points, or add a "
                    'variable with the attribute cf_role = "timeseries_id"'
                )
            return np.arange(len(self.latitudes))
        index = {name: k for k, name in enumerate(other.ids)}
        found = np.array([index.get(name, -1) for name in self.ids])
        there = np.flatnonzero(found >= 0)
        if len(there) and self._distance(other, found[there], there) > LARGEST_MOVE:
            raise InputError(
                f"{self} and {other} have a station of the same id more than {LARGEST_MOVE:g}° apart; give different "
                "stations different ids"
            )
        return found

    def _distance(self, other: Points, theirs: Any, own: Any = ...) -> float:
        """Return the greatest difference of coordinates (degrees); 359.9°E is 0.1° from 0°E."""
        north = np.array(self.latitudes)[own] - np.array(other.latitudes)[theirs]
        east = (np.array(self.longitudes)[own] - np.array(other.longitudes)[theirs] + 180) % 360 - 180
        return float(max(abs(north).max(), abs(east).max()))

    def __str__(self) -> str:
        lat, lon, count = self.latitudes, self.longitudes, len(self.latitudes)
        what = "station" if self.ids else "point"
        if count == 1:
            return f"1 {what}, latitude {lat[0]:g}, longitude {lon[0]:g}"
        return f"{count} {what}s, latitudes {max(lat):g} to {min(lat):g}, longitudes {min(lon):g} to {max(lon):g}"


def grid_of_json(values: Mapping[str, Any]) -> Grid:
    """Return the grid or the points from the `values` that `dataclasses.asdict` made of it."""
    return (Points if "ids" in values else Grid)(**values)
