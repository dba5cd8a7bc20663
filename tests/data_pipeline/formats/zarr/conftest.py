"""Zarr stores for tests, written and read by xarray: independent of the code under test."""

import shutil
import warnings
import zipfile
from pathlib import Path

import numpy as np
import pytest
import xarray as xr
from web_server import server  # noqa: F401 (a fixture)

NAMES = {"2m_temperature": "2t", "temperature": "t", "geopotential": "z"}
UNITS = {"2m_temperature": "K", "temperature": "K", "geopotential": "m**2 s**-2"}
SIZES = {"time": 3, "prediction_timedelta": 2, "number": 4, "level": 2, "latitude": 5, "longitude": 8}


class Stores:
    """Writes stores in the layouts of WeatherBench2 and ARCO-ERA5; all values of a store differ."""

    @staticmethod
    def weatherbench2(order=("time", "prediction_timedelta", "number", "level", "longitude", "latitude"), **changed):
        """Return forecasts as WeatherBench2 has them: longitudes before latitudes, south first."""
        return Stores._dataset(order, SIZES | changed, ("2m_temperature", "temperature"))

    @staticmethod
    def arco(**changed):
        """Return analyses as ARCO-ERA5 has them."""
        sizes = {name: SIZES[name] for name in ("time", "level", "latitude", "longitude")}
        dataset = Stores._dataset(tuple(sizes), sizes | changed, (*NAMES,))
        return dataset.sortby("latitude", ascending=False)

    @staticmethod
    def _dataset(order, sizes, names):
        axes = {
            "time": np.arange("2016-01-04", "2017-01-04", dtype="M8[D]").astype("M8[ns]"),
            "prediction_timedelta": np.arange(0, 240, 24).astype("m8[h]").astype("m8[ns]"),
            "number": np.arange(50),
            "realization": np.arange(50),
            "level": np.array([500, 850, 925, 1000]),
            "latitude": np.linspace(-60, 60, sizes["latitude"]),
            "longitude": np.arange(sizes["longitude"]) * 360 / sizes["longitude"] - 180,
        }
        fields = {}
        for k, name in enumerate(names):
            dimensions = [each for each in order if each != "level" or not name.startswith("2m")]
            shape = [sizes[each] for each in dimensions]
            values = 200 + 10 * k + np.arange(np.prod(shape), dtype=np.float32).reshape(shape) / 64
            fields[name] = (dimensions, values, {"units": UNITS[name]})
        return xr.Dataset(fields, {each: axes[each][: sizes[each]] for each in order})

    @staticmethod
    def write(dataset, path: Path, zarr_format=2, consolidated=True, **encoding) -> Path:
        """Write a store, every variable with the same `encoding`; `chunks` are sizes by dimension."""
        chunks = encoding.pop("chunks", {})
        shutil.rmtree(path, ignore_errors=True)
        settings = {
            name: {"chunks": tuple(min(chunks.get(d, n), n) for d, n in array.sizes.items()), **encoding}
            for name, array in dataset.data_vars.items()
        }
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            dataset.to_zarr(path, zarr_format=zarr_format, consolidated=consolidated, encoding=settings)
        return path

    @staticmethod
    def zipped(folder: Path, compression=zipfile.ZIP_STORED) -> Path:
        """Put a store into a zip file beside its folder."""
        with zipfile.ZipFile(path := folder.with_suffix(".zip"), "w", compression) as file:
            for each in sorted(folder.rglob("*")):
                file.write(each, each.relative_to(folder))
        return path

    @staticmethod
    def expected(dataset, name):
        """Return the values of a variable as this project orders them: north first, from the first meridian."""
        dataset = dataset.sortby("latitude", ascending=False).assign_coords(longitude=dataset.longitude % 360)
        array = dataset.sortby("longitude")[name]
        if "level" in array.dims:
            array = array.sortby("level", ascending=False)
        return array.transpose(..., "latitude", "longitude").values


@pytest.fixture(scope="session")
def stores() -> Stores:
    """The writer of stores."""
    return Stores()
