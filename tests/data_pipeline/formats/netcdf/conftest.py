"""NetCDF files for tests, written and read with netCDF4 only: independent of the code under test."""

from collections.abc import Mapping, Sequence
from pathlib import Path

import netCDF4
import numpy as np
import pytest

HOURS = {"units": "hours since 2000-01-01", "calendar": "standard"}
CFGRIB = {
    "time": {"standard_name": "forecast_reference_time", **HOURS},
    "step": {"standard_name": "forecast_period", "units": "hours"},
    "number": {"standard_name": "realization", "units": "1"},
    "isobaricInhPa": {"standard_name": "air_pressure", "units": "hPa"},
    "latitude": {"standard_name": "latitude", "units": "degrees_north"},
    "longitude": {"standard_name": "longitude", "units": "degrees_east"},
}
"""The coordinates of a file as written by cfgrib and xarray."""


class Plain:
    """Writes and reads NetCDF without the code under test."""

    lat, lon = np.array([60.0, 45.0, 30.0, 15.0]), np.array([0.0, 60.0, 120.0, 180.0, 240.0, 300.0])

    @staticmethod
    def write(
        path: Path,
        coordinates: Mapping[str, tuple[Sequence[str], object, Mapping[str, object]]],
        variables: Mapping[str, tuple[Sequence[str], np.ndarray, Mapping[str, object]]],
        file_format: str = "NETCDF4",
        **attributes: object,
    ) -> Path:
        """Write coordinates and variables, each as (dimensions, values, attributes)."""
        with netCDF4.Dataset(path, "w", format=file_format) as file:
            file.setncatts(attributes)
            for name, (dimensions, values, own) in {**coordinates, **variables}.items():
                values = np.asarray(values)
                for dimension, size in zip(dimensions, values.shape, strict=True):
                    if dimension not in file.dimensions:
                        file.createDimension(dimension, size)
                own = dict(own)
                fill = own.pop("_FillValue", None)
                kind = str if values.dtype.kind in "UO" else values.dtype
                variable = file.createVariable(name, kind, dimensions, fill_value=fill)
                variable.set_auto_maskandscale(False)
                variable.setncatts(own)
                variable[...] = values.astype(object) if kind is str else values
        return path

    @classmethod
    def cfgrib(
        cls,
        path: Path,
        names: Mapping[str, Mapping[str, object]] | None = None,
        starts: Sequence[int] = (0, 96),
        steps: Sequence[int] = (0, 24, 48),
        numbers: Sequence[int] = (1, 2, 3),
        levels: Sequence[int] = (),
        **changed: Mapping[str, object],
    ) -> Path:
        """Write forecasts in the layout of cfgrib and xarray; `changed` replaces attributes of coordinates.

        Values depend on their coordinates, so that all fields differ.
        """
        axes = {"number": numbers, "time": starts, "step": steps, "isobaricInhPa": levels}
        axes = {name: np.array(values) for name, values in axes.items() if len(values)}
        axes |= {"latitude": cls.lat, "longitude": cls.lon}
        coordinates = {
            name: ((name,), values, {**CFGRIB[name], **changed.get(name, {})}) for name, values in axes.items()
        }
        variables = {
            name: (tuple(axes), cls.values(name, axes).astype(np.float32), own)
            for name, own in (names or {"t2m": {"units": "K", "GRIB_shortName": "2t"}}).items()
        }
        return cls.write(path, coordinates, variables)

    @staticmethod
    def values(name: str, axes: Mapping[str, np.ndarray]) -> np.ndarray:
        """Return values that differ for every variable, time, member, level and grid cell."""
        total = np.zeros([len(values) for values in axes.values()]) + 250 + sum(name.encode()) % 7
        for k, values in enumerate(axes.values()):
            shape = [-1 if j == k else 1 for j in range(len(axes))]
            total = total + np.sin((k + 1) * np.asarray(values, float) + 0.3 * k).reshape(shape)
        return total


@pytest.fixture(scope="session")
def plain() -> Plain:
    """The writer and reader of NetCDF files."""
    return Plain()


@pytest.fixture
def file(plain, tmp_path):
    """A function that writes a file from coordinates and variables on a fixed grid."""

    def write(coordinates, fields, name="file.nc", **options):
        grid = {
            "lat": (("lat",), plain.lat, {"units": "degrees_north"}),
            "lon": (("lon",), plain.lon, {"units": "degrees_east"}),
        }
        return plain.write(tmp_path / name, {**grid, **coordinates}, fields, **options)

    return write
