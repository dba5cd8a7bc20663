"""TargetGrid: the grid on which fields are read, and the method of regridding."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction

import numpy as np

from data_pipeline.common.checks import check_choice
from data_pipeline.common.errors import InputError
from data_pipeline.grid import Grid
from data_pipeline.grids.reduced_grid import ReducedGrid
from data_pipeline.regridding.grid_coverage import covered
from data_pipeline.regridding.weights import METHODS, Method

PARTS = ("ensemble", "analysis")
"""Parts of an archive whose grid `data.archive.grid` may name."""

SAME_POINTS = "points"
"""How a corrector of a part of a grid reads forecasts: at its points, whose values do not change."""
MINIMUM_DEGREES, MAXIMUM_DEGREES = 0.05, 45.0


@dataclass(frozen=True)
class TargetGrid:
    """The grid on which fields are read, and the `method` that regrids them.

    Without a method, values are taken from the field at the points of `grid`, or from the cells of its stations. If the
    field's own grid lacks one of these points, the field keeps its grid.
    """

    grid: Grid
    method: Method | None = None

    def __post_init__(self) -> None:
        if isinstance(self.grid, ReducedGrid):
            raise InputError(
                f"fields are read on regular grids, not on {self.grid}; set data.archive.grid to a number of degrees, "
                "such as 0.5"
            )
        if self.method is not None:
            check_choice("data.archive.regridding", self.method, METHODS)


def target_of(grid: Grid, method: str | None) -> TargetGrid | None:
    """Return the target of forecasts on other grids: by a method, at the same points, or at stations; else None."""
    if method in METHODS:
        return TargetGrid(grid, method)
    return TargetGrid(grid) if method == SAME_POINTS or getattr(grid, "cells", None) else None


def check_grid_option(value: object) -> None:
    """Raise `InputError` unless `data.archive.grid` is None, a part of the archive, or a number of degrees."""
    if value is None or value in PARTS:
        return
    if type(value) not in (int, float) or not MINIMUM_DEGREES <= value <= MAXIMUM_DEGREES:  # type: ignore[operator]
        raise InputError(
            f"data.archive.grid must be ensemble, analysis or a number of degrees from {MINIMUM_DEGREES:g} to "
            f"{MAXIMUM_DEGREES:g}, got {value!r}"
        )


def regular_grid(degrees: float, sources: Sequence[Grid]) -> Grid:
    """Return the regular grid with steps of `degrees` in the area that all `sources` cover.

    Its points belong to the global grid with rows at both poles and a column at 0° east. Longitudes begin at the
    western edge of the area.
    """
    step = Fraction(degrees).limit_denominator(10_000)
    rows, columns = 180 / step, 360 / step
    if rows.denominator != 1:
        raise InputError(
            f"data.archive.grid={degrees:g} does not divide 180 degrees into equal steps; choose a number such as "
            "0.25, 0.5, 1.5 or 2"
        )
    latitudes = np.array([90 - float(k * step) for k in range(int(rows) + 1)])
    longitudes = np.array([float(k * step) for k in range(int(columns))])
    for source in sources:
        if type(source) not in (Grid, ReducedGrid):
            raise InputError(
                f"fields of {source} cannot be brought to a grid; leave out data.archive.grid, or interpolate first, "
                "for instance with cdo -f grb remapbil,r720x361 IN OUT"
            )
    inside = [covered(source, latitudes, longitudes) for source in sources]
    latitudes, longitudes = (
        axis[np.logical_and.reduce(kept)]
        for axis, kept in zip((latitudes, longitudes), zip(*inside, strict=True), strict=True)
    )
    if len(latitudes) < 2 or len(longitudes) < 2:
        raise InputError(
            f"data.archive.grid={degrees:g} has fewer than 2 x 2 points in the area that all files have "
            f"({'; '.join(dict.fromkeys(map(str, sources)))}); choose smaller steps"
        )
    return Grid(tuple(latitudes.tolist()), tuple(_from_west(longitudes, float(step)).tolist()))


def _from_west(longitudes: np.ndarray, step: float) -> np.ndarray:
    """Return increasing longitudes that begin after the widest gap, also if the area crosses 0° east."""
    gaps = np.diff(np.append(longitudes, longitudes[0] + 360))
    if (gaps < 1.5 * step).all():
        return longitudes
    if (gaps > 1.5 * step).sum() > 1:
        raise InputError(
            "the area that all files have consists of several parts; set data.archive.grid to ensemble or analysis"
        )
    first = int(gaps.argmax()) + 1
    return np.concatenate([longitudes[first:] - 360, longitudes[:first]]) if first < len(longitudes) else longitudes
