"""Layout: the grid of a GRIB message, the order in which its values are stored, and whether the message can hold it.

One wrong octet can turn a small grid into one with billions of points.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import eccodes
import numpy as np

from data_pipeline.common.errors import InputError
from data_pipeline.formats.grib.keys import get_text, get_whole
from data_pipeline.formats.grib.positions import (
    ALONG_GRID,
    ALTERNATIVE_ROWS,
    I_NEGATIVELY,
    J_CONSECUTIVE,
    J_POSITIVELY,
    LINES,
    PLANES,
    flags_of,
    points_of,
    rising,
    section_of,
)
from data_pipeline.grid import COORDINATE_TOLERANCE, Grid
from data_pipeline.grids.reduced_grid import ReducedGrid

REGULAR = ("regular_ll", "regular_gg")
"""Grid types whose points are all combinations of latitudes and longitudes."""
REDUCED = ("reduced_gg", "healpix")
"""Grid types whose latitudes have different numbers of points; they are read as one row and regridded later."""
REMEDIES = {
    "sh": "sp2gp IN OUT",
    # GRIB has no positions of these cells, and bilinear weights need cells with four neighbours.
    "unstructured_grid": "remapdis,r720x361 -setgrid,CELLS.nc IN OUT, where CELLS.nc is the model's file of cells",
}
"""Operators of cdo that bring a grid type to a regular grid; `remapbil` does for all others."""

STAGGERED = 15
"""Bits of the scanning mode that offset rows or columns (GRIB2 flag table 3.4)."""


@dataclass(frozen=True)
class Layout:
    """The grid section of a message as plain numbers, which can be compared, hashed and cached.

    `north` to `east` are the edges, independent of the scanning direction. `gaussian` is the number of latitudes
    between a pole and the equator of a Gaussian grid, or HEALPix's Nside. A reduced grid has all points in one row;
    `counts` holds the number of points of each latitude. A grid whose rows are no latitudes has one column, a row for
    each point, and the description `section`; in the file, `across` points follow each other along i. For a grid that
    cannot be read, only `grid_type` is set.
    """

    grid_type: str
    rows: int = 0
    columns: int = 0
    north: float = 0.0
    south: float = 0.0
    west: float = 0.0
    east: float = 0.0
    gaussian: int = 0
    scanning: int = 0
    counts: tuple[int, ...] = ()
    section: str = ""
    across: int = 0
    along_grid: bool = False
    """Whether winds are along the rows and columns of a plane instead of eastward and northward."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "counts", tuple(self.counts))  # a list in the cache's JSON

    @classmethod
    def of(cls, handle: int) -> Layout:
        """Read the layout of an ecCodes message."""
        grid_type = eccodes.codes_get_string(handle, "gridType")
        if grid_type in REDUCED and (found := cls._of_reduced(handle, grid_type)):
            return found
        if grid_type not in (*REGULAR, *PLANES, *LINES):
            return cls(grid_type)
        scanning = eccodes.codes_get_long(handle, "scanningMode")
        if eccodes.codes_get_long(handle, "edition") == 1:
            scanning &= ~ALTERNATIVE_ROWS  # this bit is reserved in GRIB1
        if scanning & STAGGERED:
            return cls(f"staggered {grid_type}")
        if grid_type in LINES:
            if scanning:
                return cls(f"{grid_type} that is not stored from north to south and from west to east")
            points = eccodes.codes_get_long(handle, "numberOfDataPoints")
            return cls._of_points(handle, grid_type, points, 1, J_POSITIVELY)
        if any(eccodes.codes_is_missing(handle, count) for count in ("Ni", "Nj")):
            return cls(f"{grid_type} without its number of rows or columns")
        if grid_type in PLANES:
            columns, rows = (eccodes.codes_get_long(handle, key) for key in ("Ni", "Nj"))
            return cls._of_points(handle, grid_type, columns * rows, columns, scanning)

        def edges(axis: str, backwards: int) -> tuple[float, float]:
            first, last = (
                eccodes.codes_get_double(handle, f"{axis}Of{end}GridPointInDegrees") for end in ("First", "Last")
            )
            return (last, first) if backwards else (first, last)

        north, south = edges("latitude", scanning & J_POSITIVELY)
        west, east = edges("longitude", scanning & I_NEGATIVELY)
        return cls(
            grid_type,
            rows=eccodes.codes_get_long(handle, "Nj"),
            columns=eccodes.codes_get_long(handle, "Ni"),
            north=north, south=south, west=west, east=east,
            gaussian=eccodes.codes_get_long(handle, "N") if grid_type == "regular_gg" else 0,
            scanning=scanning,
        )  # fmt: skip

    @classmethod
    def _of_points(cls, handle: int, grid_type: str, points: int, across: int, scanning: int) -> Layout:
        """Return the layout of a grid whose rows are no latitudes."""
        return cls(
            grid_type, points, 1, scanning=scanning, section=section_of(handle, grid_type), across=across,
            along_grid=bool(flags_of(handle) & ALONG_GRID),
        )  # fmt: skip

    @classmethod
    def _of_reduced(cls, handle: int, grid_type: str) -> Layout | None:
        """Read the layout of a global reduced grid that is scanned from north to south; None for any other."""
        points = eccodes.codes_get_long(handle, "numberOfDataPoints")
        if grid_type == "healpix":
            nside = eccodes.codes_get_long(handle, "Nside")
            if eccodes.codes_get_string(handle, "orderingConvention") != "ring":
                return cls("healpix in nested order")
            return cls(grid_type, rows=1, columns=points, gaussian=nside)
        counts = tuple(eccodes.codes_get_array(handle, "pl").tolist())
        gaussian = eccodes.codes_get_long(handle, "N")
        first = eccodes.codes_get_double(handle, "longitudeOfFirstGridPointInDegrees")
        if len(counts) != 2 * gaussian or sum(counts) != points or abs(first) > COORDINATE_TOLERANCE:
            return None
        if eccodes.codes_get_long(handle, "scanningMode"):
            return None
        return cls(grid_type, rows=1, columns=points, gaussian=gaussian, counts=counts)

    @property
    def regular(self) -> bool:
        """Whether the values form rows and columns of a regular grid."""
        return self.grid_type in REGULAR

    @property
    def reduced(self) -> bool:
        """Whether the values are one row of a global reduced grid."""
        return self.grid_type in REDUCED and not self.section

    @property
    def readable(self) -> bool:
        """Whether the grid can be read: it is regular, reduced or has positions of its cells."""
        return self.regular or self.reduced or bool(self.section)

    @cached_property
    def grid(self) -> Grid:
        """The grid, north first; a global grid starts at its first longitude at or east of 0°."""
        if not self.readable:
            remedy = REMEDIES.get(self.grid_type, "remapbil,r720x361 IN OUT")
            raise InputError(
                f"the grid is {self.grid_type}; only latitude-longitude and Gaussian grids, HEALPix in ring order and "
                "grids of a projection can be read; request one of these from the provider, or interpolate with the "
                f"program cdo, which is installed by itself: cdo -f grb {remedy}"
            )
        if self.section:
            return points_of(self.section)
        if self.grid_type == "healpix":
            return ReducedGrid.healpix(self.gaussian)
        if self.counts:
            return ReducedGrid.gaussian(list(eccodes.codes_get_gaussian_latitudes(self.gaussian)), self.counts)
        return Grid(tuple(self._latitudes), tuple(self._longitudes[0]))

    @cached_property
    def straight(self) -> bool:
        """Whether the values are stored in the order of a field of `grid`."""
        if self.section:
            return self.scanning == J_POSITIVELY
        return self.reduced or (not self.scanning and not self._longitudes[1])

    def stored_rows(self, first: int, count: int) -> tuple[int, int]:
        """Return the first stored row, and the number of stored rows, that hold `count` rows of `grid` from `first` on.

        All rows are needed if rows are not stored contiguously, or are stored in alternating directions.
        """
        if self.straight:
            return first, count
        if self.section or self.scanning & (J_CONSECUTIVE | ALTERNATIVE_ROWS):
            return 0, self.rows
        return (self.rows - first - count if self.scanning & J_POSITIVELY else first), count

    def arrange(self, stored: np.ndarray) -> np.ndarray:
        """Return stored values as a field (H, W) of `grid`, or the values of `stored_rows` as part of a field."""
        if self.reduced:
            return stored.reshape(1, -1)
        if self.section and self.straight:
            return stored.reshape(-1, 1)
        across = self.across or self.columns
        if self.scanning & J_CONSECUTIVE:
            field = self._alternate(stored.reshape(across, -1)).T
        else:
            field = self._alternate(stored.reshape(-1, across))
        if self.section:
            return rising(field, self.scanning).reshape(-1, 1)
        return self._roll(self._flip(field), -1)

    def store(self, field: np.ndarray) -> np.ndarray:
        """Return a field (H, W) of `grid` as flat stored values: the inverse of `arrange`."""
        if self.section:
            field = rising(field.reshape(-1, self.across), self.scanning)
        else:
            field = self._flip(self._roll(field, 1))
        return self._alternate(field.T if self.scanning & J_CONSECUTIVE else field).ravel()

    def _flip(self, field: np.ndarray) -> np.ndarray:
        rows = slice(None, None, -1 if self.scanning & J_POSITIVELY else 1)
        columns = slice(None, None, -1 if self.scanning & I_NEGATIVELY else 1)
        return field[rows, columns]

    def _alternate(self, lines: np.ndarray) -> np.ndarray:
        """Reverse every second line if rows are scanned in alternating directions."""
        if self.scanning & ALTERNATIVE_ROWS:
            lines = lines.copy()
            lines[1::2] = lines[1::2, ::-1]
        return lines

    def _roll(self, field: np.ndarray, sign: int) -> np.ndarray:
        shift = self._longitudes[1]
        return np.roll(field, sign * shift, axis=1) if shift else field

    @cached_property
    def _latitudes(self) -> np.ndarray:
        # Computed from the edges, because increments are rounded, missing or wrong in many files.
        if not self.gaussian:
            return np.linspace(self.north, self.south, self.rows)
        every = np.array(list(eccodes.codes_get_gaussian_latitudes(self.gaussian)))
        return every[(every < self.north + COORDINATE_TOLERANCE) & (every > self.south - COORDINATE_TOLERANCE)]

    @cached_property
    def _longitudes(self) -> tuple[np.ndarray, int]:
        """The longitudes of `grid`, and the number of stored columns before the first of them."""
        count = self.columns
        span = (self.east - self.west) % 360 or (360.0 if count > 1 else 0.0)
        if count > 1 and abs(span * count / (count - 1) - 360) < max(COORDINATE_TOLERANCE, 3.6 / count):
            # A full circle: one step east of the last point lies the first point.
            around = (self.west + np.arange(count) * (360 / count)) % 360
            around[around > 360 - COORDINATE_TOLERANCE] = 0.0
            shift = int(around.argmin())
            return np.roll(around, -shift), shift
        west = self.west - 360 if self.west + span > 360 + COORDINATE_TOLERANCE else self.west
        return west + np.linspace(0, span, count), 0


MAX_POINTS = 1 << 28
"""Most points of a grid; a global grid with 0.02° between points has 162 million."""
MAX_CELLS = 1 << 24
"""Most points of a grid whose rows are no latitudes; the largest national models have 4 million."""
MAX_LINE = 1 << 17
"""Most rows, and most columns, of a regular grid; twice as many as GRIB1 can state."""
MAX_GAUSSIAN = 1 << 14
"""Largest number of latitudes between a pole and the equator of a Gaussian grid, and largest Nside of HEALPix."""
MAX_DEGREES = 720.0
"""Largest longitude of a grid's edge in an undamaged message; GRIB2 can state up to 4294°."""


def size_problem(handle: int, layout: Layout) -> str:
    """Return why an ecCodes message cannot hold the grid of its `layout`; an empty text if it can.

    Without a bitmap, simple packing stores every point in the same number of bits, which is 0 for a constant field. A
    bitmap takes one bit for each point.
    """
    if not layout.readable:
        return ""
    points = layout.rows * layout.columns
    described = f"describes a {layout.grid_type} grid of {layout.rows} x {layout.columns} points"
    most = MAX_CELLS if layout.section else MAX_POINTS
    if min(layout.rows, layout.columns) < 1 or points > most or layout.gaussian > MAX_GAUSSIAN:
        return described
    if layout.regular and max(layout.rows, layout.columns) > MAX_LINE:
        return described
    if layout.grid_type == "healpix" and points != 12 * layout.gaussian**2:
        return f"{described} with Nside {layout.gaussian}"
    if max(abs(edge) for edge in (layout.north, layout.south)) > 90.01:
        return f"describes a grid between latitudes {layout.north:g} and {layout.south:g}"
    if max(abs(edge) for edge in (layout.west, layout.east)) > MAX_DEGREES:
        return f"describes a grid between longitudes {layout.west:g} and {layout.east:g}"
    if get_whole(handle, "edition", 2) == 2 and (count := get_whole(handle, "numberOfDataPoints", points)) != points:
        return f"{described}, but states {count} points"
    if layout.gaussian and layout.regular and (found := len(layout._latitudes)) != layout.rows:
        return f"{described}, but {found} Gaussian latitudes lie between its edges"
    bits = get_whole(handle, "bitsPerValue", 0)
    if get_whole(handle, "bitmapPresent", 0):
        bits = 1
    elif get_text(handle, "packingType") != "grid_simple":
        bits = 0
    length = eccodes.codes_get_message_size(handle)
    return f"{described}, which do not fit into its {length} bytes" if bits * points > 8 * length else ""
