"""Points: cells without neighbours, such as stations, or the cells of a projected or curvilinear grid."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from data_pipeline.common.errors import InputError
from data_pipeline.common.extras import package
from data_pipeline.grid import COORDINATE_TOLERANCE, Grid, unit_vectors
from data_pipeline.grids.station_cells import StationCells

SMALL_MOVE, LARGEST_MOVE = 0.1, 1.0
"""Differences (degrees) between two positions of a station. Forecasts often have that of the nearest cell, so up
to `LARGEST_MOVE` is accepted; stations that moved by more than `SMALL_MOVE` are counted."""


@dataclass(frozen=True)
class FoundPoints:
    """The positions (n,) of points in another set, -1 where it lacks the point, and notes about ids and distances."""

    positions: np.ndarray
    notes: tuple[str, ...] = ()


@dataclass(frozen=True)
class Points(Grid):
    """An unstructured grid: `latitudes` and `longitudes` of n points in any order, one point in each row.

    `altitudes` (m), those of the forecast model at the points (`model_altitudes`, m) and `ids` are empty if they are
    unknown. Stations have ids; the cells of a projected grid have none. Stations of a gridded forecast have the `cells`
    that give each its forecast. All points have the same weight. Only models that claim `cellwise` work on points.

    >>> Points((47.3, 52.5), (11.4, 9.7), ids=("11120", "10338")).shape
    (2, 1)
    """

    altitudes: tuple[float, ...] = ()
    ids: tuple[str, ...] = ()
    model_altitudes: tuple[float, ...] = ()
    cells: StationCells | None = None

    def __post_init__(self) -> None:
        for name in ("latitudes", "longitudes", "altitudes", "model_altitudes"):
            object.__setattr__(self, name, tuple(map(float, getattr(self, name))))
        object.__setattr__(self, "ids", tuple(map(str, self.ids)))
        count = len(self.latitudes)
        if not count:
            raise InputError("a set of points needs at least one point, got none")
        for name in ("longitudes", "altitudes", "ids", "model_altitudes"):
            found = len(getattr(self, name))
            if found != count and (found or name == "longitudes"):
                raise InputError(f"{count} points need as many {name.replace('_', ' ')}, got {found}")
        if self.cells and len(self.cells.weights) != count:
            raise InputError(f"{count} stations need as many cells, got {len(self.cells.weights)}")
        lat = np.array(self.latitudes)
        if not np.isfinite(lat).all() or abs(lat).max() > 90 + COORDINATE_TOLERANCE:
            raise InputError(f"latitudes of points must lie within [-90, 90], got {lat.min()} to {lat.max()}")
        for name in ("longitudes", "altitudes", "model_altitudes"):
            if not np.isfinite(getattr(self, name)).all():
                raise InputError(f"{name.replace('_', ' ')} of points must be finite numbers; some are missing")
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

    def at(self, positions: np.ndarray) -> Points:
        """Return the points at some positions."""
        names = ("latitudes", "longitudes", "altitudes", "ids", "model_altitudes")
        found = {name: tuple(np.array(getattr(self, name))[positions]) for name in names if getattr(self, name)}
        return Points(**found, cells=self.cells and self.cells.at(positions))

    def matches(self, other: Grid) -> bool:
        """Return whether both have the same points in the same order, by id if both have ids, else by position.

        Stations whose forecasts come from different cells of a grid do not match.
        """
        if other is self:  # all messages of a grid share their points, and millions take a second
            return True
        if not isinstance(other, Points) or self.shape != other.shape:
            return False
        same_ids = bool(self.ids and other.ids)
        limit = LARGEST_MOVE if same_ids else COORDINATE_TOLERANCE
        return (
            (not same_ids or self.ids == other.ids)
            and bool(self._distance(other, ...).max() <= limit)
            and bool(self._of_same_cells(other, np.arange(len(self.latitudes))).all())
        )

    def _of_same_cells(self, other: Points, theirs: np.ndarray) -> np.ndarray:
        """Return whether the forecast of each station comes from the same cells in both, (n,); True if unknown."""
        if self.cells is None or other.cells is None:
            return np.ones(len(theirs), bool)
        return self.cells.same(other.cells, theirs)

    def positions_in(self, other: Points) -> np.ndarray:
        """Return the index of each point in `other`, (n,), or -1 where `other` lacks the point; see `found_in`."""
        return self.found_in(other).positions

    def found_in(self, other: Points) -> FoundPoints:
        """Find each point in `other`. Points without ids must be the same points, in any order.

        Points with ids are found by id, in any order. Numbers with and without leading zeros are the same id, unless
        one of the two sets has both. A station that is more than `LARGEST_MOVE` away is another one, so it is not
        found; if that concerns more than one station in ten, `InputError` is raised.
        """
        if not (self.ids and other.ids):
            positions = np.arange(len(self.latitudes)) if self.matches(other) else self._same_places(other)
            if positions is None:
                raise InputError(
                    f"{self} and {other} are different points without ids; bring them to the same points, or add a "
                    'variable with the attribute cf_role = "timeseries_id"'
                )
            return FoundPoints(positions)
        index = {name: k for k, name in enumerate(other.ids)}
        found = np.array([index.get(name, -1) for name in self.ids])
        bare, others = ([_without_zeros(name) for name in ids] for ids in (self.ids, other.ids))
        notes = []
        if len({*bare}) == len(bare) and len({*others}) == len(others):
            index = {name: k for k, name in enumerate(others)}
            again = np.array([index.get(name, -1) for name in bare])
            if (differ := again != found).any():
                k = int(differ.argmax())
                notes.append(
                    f"{differ.sum()} of them by ids without leading zeros ({self.ids[k]} is {other.ids[again[k]]})"
                )
            found = again
        there = np.flatnonzero(found >= 0)
        distance = np.zeros(len(found))
        distance[there] = self._distance(other, found[there], there)
        far = distance > LARGEST_MOVE
        if far.any():
            moved = _farthest(self.ids, distance, far)
            notes.append(f"{far.sum()} more than {LARGEST_MOVE:g}° away {moved}, left out as other stations")
        if far.sum() > max(1, len(there) // 10):
            raise InputError(
                f"{self} and {other} have {len(there)} equal ids, {notes[-1]}; give different stations different ids"
            )
        others_cells = (found >= 0) & ~far & ~self._of_same_cells(other, np.maximum(found, 0))
        if others_cells.any():
            raise InputError(
                f"the forecasts of {others_cells.sum()} stations, {self.ids[int(others_cells.argmax())]} the first, "
                "come from other cells of the grid than before; use the same data.archive.station_cells and static "
                "fields as in the training"
            )
        if (near := (distance > SMALL_MOVE) & ~far).any():
            moved = _farthest(self.ids, distance, near)
            notes.append(f"{near.sum()} of them {SMALL_MOVE:g}° to {LARGEST_MOVE:g}° away {moved}")
        return FoundPoints(np.where(far, -1, found), tuple(notes))

    def _same_places(self, other: Points) -> np.ndarray | None:
        """Return the index of each point in `other`; None unless both have the same points."""
        if self.shape != other.shape:
            return None
        with package("points in another order", "train"):
            from scipy.spatial import cKDTree
        distance, nearest = cKDTree(other.places).query(self.places)
        close = distance.max() <= np.radians(2 * COORDINATE_TOLERANCE)
        return nearest if close and len(np.unique(nearest)) == len(nearest) else None

    @property
    def places(self) -> np.ndarray:
        """The points on the unit sphere, (n, 3)."""
        return unit_vectors(self.latitudes, self.longitudes)

    def describe_moves(self, other: Points) -> str:
        """Return how many of the same stations are more than `LARGEST_MOVE` apart, and which; "" if none is."""
        distance = self._distance(other, ...)
        far = distance > LARGEST_MOVE
        moved = f"{far.sum()} of {len(far)} stations moved by more than {LARGEST_MOVE:g}°"
        return f"{moved} {_farthest(self.ids, distance, far)}" if far.any() else ""

    def _distance(self, other: Points, theirs: Any, own: Any = ...) -> np.ndarray:
        """Return the difference of coordinates (degrees) of each point; 359.9°E is 0.1° from 0°E."""
        north = np.array(self.latitudes)[own] - np.array(other.latitudes)[theirs]
        east = (np.array(self.longitudes)[own] - np.array(other.longitudes)[theirs] + 180) % 360 - 180
        return np.asarray(np.maximum(abs(north), abs(east)))

    def __str__(self) -> str:
        lat, lon, count = self.latitudes, self.longitudes, len(self.latitudes)
        what = "station" if self.ids else "point"
        if count == 1:
            return f"1 {what}, latitude {lat[0]:g}, longitude {lon[0]:g}"
        return f"{count} {what}s, latitudes {max(lat):g} to {min(lat):g}, longitudes {min(lon):g} to {max(lon):g}"


def station_fields(grid: Grid) -> dict[str, np.ndarray]:
    """Return static fields (n,) that follow from the coordinates of points, by name; {} for a grid.

    Each of them is there if it is known: `altitude`, `model_altitude`, `height_difference` (m, the station's altitude
    less the model's), and `cell_distance` (km), the distance of a station from the cells that give its forecast.
    """
    if not isinstance(grid, Points):
        return {}
    known = {"altitude": np.array(grid.altitudes), "model_altitude": np.array(grid.model_altitudes)}
    found = {name: values for name, values in known.items() if values.size}
    if len(found) == len(known):
        found["height_difference"] = found["altitude"] - found["model_altitude"]
    if grid.cells:
        found["cell_distance"] = grid.cells.distances(np.array(grid.latitudes), np.array(grid.longitudes))
    return found


def _farthest(ids: Sequence[str], distance: np.ndarray, moved: np.ndarray) -> str:
    """Return up to three of the stations that `moved`, with their distance (degrees)."""
    farthest = np.argsort(-distance * moved, kind="stable")[: min(3, int(moved.sum()))]
    named = ", ".join(f"{ids[k]} by {distance[k]:.2f}°" for k in farthest)
    return f"({named}{', ...' if moved.sum() > 3 else ''})"


def _without_zeros(name: str) -> str:
    """Return an id without leading zeros if it is a number."""
    return name.lstrip("0") or "0" if name.isdigit() else name


def has_ids(grid: Grid) -> bool:
    """Return whether a grid is one of stations, which have ids."""
    return isinstance(grid, Points) and bool(grid.ids)


def grid_of_json(values: Mapping[str, Any]) -> Grid:
    """Return the grid or the points from the `values` that `dataclasses.asdict` made of it."""
    if "ids" not in values:
        return Grid(**values)
    return Points(**{**values, "cells": StationCells.of_json(values["cells"]) if values["cells"] else None})
