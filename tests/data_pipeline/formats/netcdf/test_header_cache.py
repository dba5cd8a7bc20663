"""The cache of headers: files are opened once, and nothing but the file's content decides what is read."""

import os

import netCDF4
import numpy as np
import pytest
from netcdf_parts import K, ramp, variables

from data_pipeline.common.errors import InputError
from data_pipeline.formats.netcdf.header import netcdf_header
from data_pipeline.formats.netcdf.header_cache import LARGEST_HEADER
from data_pipeline.formats.open import ensemble_fields, open_analysis
from data_pipeline.formats.reader_versions import READER_VERSIONS


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch):
    monkeypatch.setenv("DEEPWEATHER_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


@pytest.fixture
def opened(monkeypatch):
    """The names of the files that the NetCDF library opened."""
    names = []
    original = netCDF4.Dataset

    def count(path, *arguments, **options):
        names.extend([] if arguments else [path.name])  # a mode is given where tests write
        return original(path, *arguments, **options)

    monkeypatch.setattr(netCDF4, "Dataset", count)
    return names


def same(one, other):
    """Whether two headers are equal, with types and bits of numbers."""

    def plain(value):
        if isinstance(value, np.ndarray | np.generic):
            return type(value), value.dtype.kind, value.shape, value.tolist()
        return type(value), value

    def describe(header):
        coordinates = [
            (c.name, c.role, c.dimensions, plain(c.values), {k: plain(v) for k, v in c.attributes.items()},
             c.bounds and plain(c.bounds.values))
            for c in header.coordinates
        ]  # fmt: skip
        data = [
            (d.name, d.dimensions, d.shape, {k: plain(v) for k, v in d.attributes.items()}) for d in header.variables
        ]
        return coordinates, data, header.file

    return describe(one) == describe(other)


def test_a_file_is_opened_once(plain, tmp_path, opened):
    paths = [plain.cfgrib(tmp_path / f"{k}.nc", starts=(96 * k,)) for k in range(3)]
    first = ensemble_fields(paths, variables("2t"), (24,))
    assert opened == ["0.nc", "1.nc", "2.nc"]
    again = ensemble_fields(paths, variables("2t"), (24,))
    assert len(opened) == 3
    np.testing.assert_array_equal(first.init_times, again.init_times)
    outs = np.empty((2, 3, 1, 4, 6))
    for fields, out in zip((first, again), outs, strict=True):
        fields.read(1, 0, out)
    np.testing.assert_array_equal(*outs)


def test_a_cached_header_equals_the_file(file, opened):
    """Bounds, members named by texts, packed values, and attributes that are numbers, arrays and texts."""
    path = file(
        {
            "time": (("time",), [24.0, 48.0], {"units": "hours since 2000-01-01", "bounds": "cells"}),
            "cells": (("time", "bnds"), [[0.0, 24.0], [24.0, 48.0]], {}),
            "member": (("member",), np.array(["m1", "m2"]), {"standard_name": "realization"}),
        },
        {
            "t2m": (
                ("time", "member", "lat", "lon"), ramp(2, 2, 4, 6).astype(np.int16),
                {**K, "scale_factor": np.float32(0.1), "add_offset": 250.0, "flags": np.arange(3, dtype=np.int8),
                 "_FillValue": np.int16(-9), "cell_methods": "time: mean"},
            )
        },
    )  # fmt: skip
    fresh, cached = netcdf_header(path), netcdf_header(path)
    assert opened == ["file.nc"]
    assert same(fresh, cached)
    fresh_bounds, cached_bounds = (next(c.bounds for c in h.coordinates if c.bounds) for h in (fresh, cached))
    np.testing.assert_array_equal(fresh_bounds.values, cached_bounds.values)


@pytest.mark.parametrize("change", ["content", "date", "reader"])
def test_a_changed_file_or_reader_is_read_again(plain, tmp_path, opened, monkeypatch, change):
    path = plain.cfgrib(tmp_path / "a.nc", starts=(0,))
    status = path.stat()
    assert netcdf_header(path).coordinates[1].values.tolist() == [0]
    if change == "content":
        plain.cfgrib(path, starts=(96,))
    elif change == "date":
        os.utime(path, ns=(status.st_atime_ns, status.st_mtime_ns + 1))
    else:
        monkeypatch.setitem(READER_VERSIONS, "netcdf", READER_VERSIONS["netcdf"] + 1)
    assert netcdf_header(path).coordinates[1].values.tolist() == [96 if change == "content" else 0]
    assert opened == ["a.nc", "a.nc"]


@pytest.mark.parametrize("damage", [b"", b"rubbish" * 99])
def test_a_damaged_cache_is_replaced(plain, tmp_path, opened, cache, damage):
    path = plain.cfgrib(tmp_path / "a.nc")
    fresh = netcdf_header(path)
    (stored,) = cache.rglob("*.index")
    stored.write_bytes(damage)
    assert same(netcdf_header(path), fresh)
    assert len(opened) == 2
    assert same(netcdf_header(path), fresh)
    assert len(opened) == 2


def test_values_that_were_not_kept_are_read_from_the_file(plain, tmp_path, opened, monkeypatch):
    """A later version of this project may take more variables for coordinates."""
    path = plain.cfgrib(tmp_path / "a.nc", {"t2m": K, "height": {"units": "m"}}, starts=(0,))
    with monkeypatch.context() as earlier:
        earlier.setattr("data_pipeline.formats.cf.header._coordinate_role", lambda *_: None)
        netcdf_header(path)
    header = netcdf_header(path)
    assert len(opened) == 2
    assert {"time", "latitude"} <= {coordinate.name for coordinate in header.coordinates}


def test_large_coordinates_are_not_kept(plain, tmp_path, cache):
    size = int((LARGEST_HEADER / 8) ** 0.5)
    across = (("y", "x"), np.zeros((size, size)), {"units": "degrees_north"})
    path = plain.write(tmp_path / "a.nc", {"lat2": across, "lon2": (*across[:2], {"units": "degrees_east"})}, {})
    netcdf_header(path)
    assert not list(cache.rglob("*.index"))


def test_a_file_that_cannot_be_read_leaves_nothing_in_the_cache(file, cache):
    path = file(
        {"time": ((), 0.0, {"units": "hours since 2000-01-01"})},
        {"t2m": (("lat", "lon"), ramp(4, 6), K)},
        file_format="NETCDF3_CLASSIC",
    )
    whole = path.read_bytes()
    path.write_bytes(whole[: whole.rfind(np.array(273, ">f4").tobytes()) + 3])
    with pytest.raises(InputError, match="is cut off"):
        open_analysis(path)
    assert not list(cache.rglob("*.index"))
