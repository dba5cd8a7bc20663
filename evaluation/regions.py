"""Regions: the parts of the grid over which scores are averaged, each a field of weights.

Besides the regions of every evaluation, the option `regions` names boxes and masks:

    regions={alps: [48, 5, 44, 17], basin: {file: basins.nc, variable: danube}}
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import xarray as xr

from data_pipeline.common.errors import InputError
from data_pipeline.common.identity import sha256_of
from data_pipeline.grid import COORDINATE_TOLERANCE, Grid
from data_pipeline.grids.points import Points

TROPICS = 20.0
"""Latitude in degrees where the tropics end, as in the WMO's forecast verification."""
BUILT_IN = (
    "global", "unweighted", "north", "tropics", "south", "europe", "land", "sea", "new_stations", "training_stations",
)  # fmt: skip
COORDINATES = {"latitude": "lat", "longitude": "lon"}
"""Coordinates of a mask, and their short names."""
EDGE = 1e-6
"""Degrees by which coordinates may be rounded: a cell on the edge of a box is inside."""


@dataclass(frozen=True)
class Box:
    """All cells whose centres lie between two parallels and two meridians (degrees), eastwards from west to east.

    >>> Box("fiji", 0, 170, -30, -170).mask(Grid((0.0, -10.0), (0.0, 175.0, 185.0))).tolist()
    [[False, True, True], [False, True, True]]
    """

    name: str
    north: float
    west: float
    south: float
    east: float

    def __post_init__(self) -> None:
        edges = [self.north, self.west, self.south, self.east]
        if not -90 <= self.south <= self.north <= 90 or not all(-180 <= edge <= 360 for edge in (self.west, self.east)):
            raise InputError(
                f"regions.{self.name} must be [north, west, south, east] in degrees with 90 >= north >= south >= -90 "
                f"and west and east from -180 to 360, got {edges}"
            )

    def mask(self, grid: Grid) -> np.ndarray:
        """Return which cells (H, W) of a grid are inside."""
        width = 360.0 if self.east - self.west >= 360 else (self.east - self.west) % 360
        latitude, longitude = grid.cell_latitudes, grid.cell_longitudes
        rows = (latitude <= self.north + EDGE) & (latitude >= self.south - EDGE)
        return np.broadcast_to(rows & ((longitude - self.west + EDGE) % 360 <= width + 2 * EDGE), grid.shape)


EUROPE = Box("europe", 75, -12.5, 35, 42.5)
"""The box of ECMWF's headline scores."""


@dataclass(frozen=True)
class MaskFile:
    """All cells where a `variable` of a NetCDF file is at least one half; missing values are outside."""

    name: str
    file: str
    variable: str

    @property
    def fingerprint(self) -> str:
        """Hash of the file: the scores depend on it."""
        try:
            return sha256_of(self.file)[:16]
        except OSError as error:
            raise self._unreadable(error) from None

    def mask(self, grid: Grid) -> np.ndarray:
        """Return which cells (H, W) of a grid are inside; the file must have the same grid, in any order."""
        option = f"regions.{self.name}"
        try:
            with xr.open_dataset(self.file, engine="netcdf4", decode_times=False) as dataset:
                if self.variable not in dataset.data_vars:
                    known = ", ".join(map(str, dataset.data_vars)) or "no variable"
                    raise InputError(f"{option}: {self.file} has no variable {self.variable}; it has {known}")
                field = dataset[self.variable].load()
        except (OSError, ValueError) as error:
            raise self._unreadable(error) from None
        axes = {*COORDINATES, *COORDINATES.values()}
        field = field.squeeze([name for name, size in field.sizes.items() if size == 1 and name not in axes], drop=True)
        values = field.values if isinstance(grid, Points) else self._on_axes(field, grid)
        if values is None or values.size != np.prod(grid.shape):
            raise InputError(
                f"{option}: {self.variable} of {self.file} has the dimensions "
                f"{', '.join(f'{name} {size}' for name, size in field.sizes.items()) or 'of a single number'}, not the "
                f"grid of the forecasts ({grid}); bring the mask to that grid"
            )
        if not np.issubdtype(values.dtype, np.number) and values.dtype != bool:
            raise InputError(f"{option}: {self.variable} of {self.file} holds no numbers")
        values = values.reshape(grid.shape).astype(float)
        if not np.isfinite(values).any() or np.nanmin(values) < 0 or np.nanmax(values) > 1:
            raise InputError(
                f"{option}: {self.variable} of {self.file} must be 1 inside and 0 outside, or the fraction of each "
                "cell that is inside; it has other values"
            )
        return values >= 0.5

    def _unreadable(self, error: Exception) -> InputError:
        reason = "there is no such file" if isinstance(error, FileNotFoundError) else error
        return InputError(f"regions.{self.name}: cannot read the NetCDF file {self.file} ({reason})")

    def _on_axes(self, field: xr.DataArray, grid: Grid) -> np.ndarray | None:
        """Return the values (H, W), north first and in the order of the grid's longitudes; None on another grid."""
        field = field.rename({short: name for name, short in COORDINATES.items() if short in field.dims})
        if set(field.dims) != set(COORDINATES) or any(name not in field.coords for name in COORDINATES):
            return None
        places = []
        for name, wanted in (("latitude", grid.latitudes), ("longitude", grid.longitudes)):
            there = field[name].values.astype(float)
            apart = abs(np.subtract.outer(np.array(wanted), there))
            apart = np.minimum(apart, abs(apart - 360)) if name == "longitude" else apart
            if len(there) != len(wanted) or (apart.min(1) > COORDINATE_TOLERANCE).any():
                return None
            places.append(apart.argmin(1))
        values: np.ndarray = field.transpose("latitude", "longitude").values[np.ix_(*places)]
        return values


Region = Box | MaskFile


def check_regions(option: object) -> tuple[Region, ...]:
    """Return the regions of the option `regions`: {NAME: [north, west, south, east] or {file: ..., variable: ...}}."""
    if option is None:
        return ()
    if not isinstance(option, dict):
        raise InputError(
            "regions must be {NAME: [north, west, south, east], ...} or {NAME: {file: PATH, variable: NAME}, ...}, "
            f"got {option!r}"
        )
    return tuple(_region(str(name), given) for name, given in option.items())


def _region(name: str, given: Any) -> Region:
    if name in BUILT_IN:
        raise InputError(f"regions.{name}: every evaluation has the region {name}; give yours another name")
    if not re.fullmatch(r"[\w.+-]+", name):
        raise InputError(f"regions: {name!r} is not a valid name; use letters, digits and . + - _")
    if (
        isinstance(given, dict)
        and set(given) == {"file", "variable"}
        and all(isinstance(v, str) for v in given.values())
    ):
        return MaskFile(name, **given)
    numbers = isinstance(given, Sequence) and [type(edge) in (int, float) for edge in given] == [True] * 4
    if not numbers:
        raise InputError(
            f"regions.{name} must be [north, west, south, east] in degrees, or {{file: PATH, variable: NAME}} of a "
            f"mask in a NetCDF file, got {given!r}"
        )
    return Box(name, *map(float, given))


def region_weights(grid: Grid, land: np.ndarray | None = None, regions: Sequence[Region] = ()) -> dict[str, np.ndarray]:
    """Return the weights (H, W) of the regions of every evaluation that hold a part of the grid, and of `regions`.

    The weight of a cell is its area; in `unweighted` it is 1. `land` is the land fraction of each cell; a cell with at
    least one half is a land point. Raises an `InputError` for one of `regions` without points.
    """
    area = np.broadcast_to(grid.weights[:, None], grid.shape)
    latitude = grid.cell_latitudes
    built_in = {
        "global": area,
        "unweighted": np.ones(grid.shape),
        "north": area * (latitude >= TROPICS),
        "tropics": area * (abs(latitude) < TROPICS),
        "south": area * (latitude <= -TROPICS),
        "europe": area * EUROPE.mask(grid),
    }
    if land is not None:
        built_in |= {"land": area * (land >= 0.5), "sea": area * (land < 0.5)}
    whole = ("global", "unweighted")
    found = {name: one for name, one in built_in.items() if one.any() and (name in whole or not one.all())}
    for region in regions:
        inside = region.mask(grid)
        if not inside.any():
            raise InputError(
                f"regions.{region.name} has no cell of the forecasts ({grid}); give a region that covers the centre of "
                "a cell"
            )
        found[region.name] = area * inside
    return found


def mask_hashes(regions: Sequence[Region]) -> dict[str, Any]:
    """Return {"masks": the hash of the file of each mask}, {} without masks."""
    found = {region.name: region.fingerprint for region in regions if isinstance(region, MaskFile)}
    return {"masks": found} if found else {}
