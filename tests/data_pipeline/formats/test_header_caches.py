"""The caches of headers: files are read once, and nothing but their present content decides what is read."""

import json
import os
import shutil
import sys
import zlib
from pathlib import Path

import numpy as np
import pytest
import weather_files
import xarray as xr
from netcdf_parts import K, ramp
from weather_files import weather

from data_pipeline.common.errors import InputError
from data_pipeline.formats.grib.cache import table_of
from data_pipeline.formats.grib.table import Table
from data_pipeline.formats.netcdf.file import NetCDFFile
from data_pipeline.formats.netcdf.netcdf_header import LARGEST_HEADER, netcdf_header
from data_pipeline.formats.reader_versions import READER_VERSIONS
from data_pipeline.grid import Grid


def write_grib(path, year=1998):
    starts = np.array([f"{year}-01-04"], "M8[ns]")
    data = weather((0,), (1, 2), (), starts, ("2t", "msl"), Grid.regular(9, 14))["ensemble"]
    weather_files.write_grib(path, "ensemble", data)
    return path


def write_netcdf(path, year=1998):
    """Bounds, members named by texts, packed values, and attributes that are numbers, arrays and texts."""
    axes = {
        "time": ("time", [24.0, 48.0], {"units": f"hours since {year}-01-01", "bounds": "cells"}),
        "member": ("member", ["m1", "m2"], {"standard_name": "realization"}),
        "lat": ("lat", [60.0, 45, 30, 15], {"units": "degrees_north"}),
        "lon": ("lon", np.arange(6) * 60.0, {"units": "degrees_east"}),
    }
    packing = {"scale_factor": np.float32(0.1), "add_offset": 250.0, "flags": np.arange(3, dtype=np.int8)}
    own = {**K, **packing, "cell_methods": "time: mean"}
    values = ramp(2, 2, 4, 6).astype(np.int16)
    fields = {"t2m": ((*axes,), values, own), "cells": (("time", "bnds"), [[0.0, 24.0], [24.0, 48.0]])}
    encoding = {name: {"_FillValue": None} for name in (*axes, "cells")} | {"t2m": {"_FillValue": np.int16(-9)}}
    xr.Dataset(fields, axes).to_netcdf(path, engine="netcdf4", encoding=encoding)
    return path


def grib_headers(path):
    table = table_of(path)
    return table.path, table.kinds, table.records.tobytes()


def netcdf_headers(path):
    """All of a header, with types and all digits of numbers."""
    header = netcdf_header(path)
    with np.printoptions(floatmode="unique", threshold=sys.maxsize):
        return header.file, repr(header.coordinates), repr(header.variables)


FORMATS = {"grib": (write_grib, grib_headers), "netcdf": (write_netcdf, netcdf_headers)}


@pytest.fixture
def cache(tmp_path, monkeypatch):
    monkeypatch.setenv("DEEPWEATHER_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


@pytest.fixture
def opened(monkeypatch):
    """The names of the files that were scanned or opened."""
    names, scan, open_netcdf = [], Table.of, NetCDFFile.open
    monkeypatch.setattr(Table, "of", lambda path: names.append(path.name) or scan(path))
    monkeypatch.setattr(NetCDFFile, "open", lambda file: names.append(file.path.name) or open_netcdf(file))
    return names


@pytest.fixture(params=FORMATS)
def indexed(request, tmp_path, cache, opened):
    """Format, file, and the function that returns its headers."""
    write, headers = FORMATS[request.param]
    (tmp_path / "data").mkdir()
    path = write(tmp_path / "data/file")
    return request.param, path, headers


def test_a_file_is_read_once_and_only_the_cache_is_written(indexed, cache, opened, monkeypatch):
    name, path, headers = indexed
    fresh = headers(path)
    assert headers(path) == fresh
    assert opened == ["file"]
    monkeypatch.chdir(path.parent)
    assert headers(Path("file"))[1:] == fresh[1:]
    assert opened == ["file"]
    assert [each.name for each in path.parent.iterdir()] == ["file"]
    assert [each.relative_to(cache).parts[0] for each in cache.rglob("*.index")] == [name]
    copy = shutil.copy2(path, path.with_name("copy"))
    assert headers(copy)[1:] == fresh[1:]
    assert opened == ["file", "copy"]


@pytest.mark.parametrize("change", ["content", "date", "reader"])
def test_a_changed_file_or_reader_is_read_again(indexed, opened, monkeypatch, change):
    name, path, headers = indexed
    status, fresh = path.stat(), headers(path)
    if change == "content":
        FORMATS[name][0](path, 2001)
    elif change == "date":
        os.utime(path, ns=(status.st_atime_ns, status.st_mtime_ns + 1))
    else:
        monkeypatch.setitem(READER_VERSIONS, name, READER_VERSIONS[name] + 1)
    opened.clear()
    again = headers(path)
    assert opened == ["file"]
    assert (again[1:] == fresh[1:]) == (change != "content")


def with_checksum(content):
    """A cache file with a correct checksum and any content."""
    return zlib.crc32(content).to_bytes(4, "little") + content


def line(header):
    text = json.dumps(header).encode()
    return len(text).to_bytes(8, "little") + text


def changed(**values):
    """Return a damage that changes values of the JSON."""

    def damage(content):
        length = int.from_bytes(content[4:12], "little")
        header = json.loads(content[12 : 12 + length])
        return with_checksum(
            line(header | {key: values[key] for key in values if key in header}) + content[12 + length :]
        )

    return damage


DAMAGE = {
    "empty": lambda content: b"",
    "flipped": lambda content: content[:-99] + bytes([content[-99] ^ 255]) + content[-98:],
    "half a record": lambda content: with_checksum(content[4:-3]),
    "no line": lambda content: with_checksum((10**6).to_bytes(8, "little")),
    "no json": lambda content: with_checksum((5).to_bytes(8, "little") + b"hello"),
    "no values": lambda content: with_checksum(line({"identity": "1"})),
    "fewer keys": changed(kinds=[{"short_name": "2t"}], variables={"t2m": []}),
    "other keys": changed(kinds=[{"unknown": 1}], variables={"t2m": {"unknown": 1}}),
    "a number": changed(kinds=5, variables=5),
    "nothing": changed(kinds=None, read=None),
}


def test_a_damaged_cache_is_replaced(indexed, cache, opened):
    _, path, headers = indexed
    fresh = headers(path)
    (stored,) = cache.rglob("*.index")
    content = stored.read_bytes()
    for damage in DAMAGE:
        stored.write_bytes(DAMAGE[damage](content))
        opened.clear()
        assert headers(path) == headers(path) == fresh, damage
        assert len(opened) == 1, damage


def test_a_cache_that_cannot_be_written_is_ignored(indexed, opened, tmp_path, monkeypatch):
    _, path, headers = indexed
    (tmp_path / "taken").write_text("not a folder")
    monkeypatch.setenv("DEEPWEATHER_CACHE", str(tmp_path / "taken"))
    assert headers(path) == headers(path)
    assert len(opened) == 2


def test_the_folder_of_the_cache(indexed, tmp_path, monkeypatch):
    name, path, headers = indexed
    monkeypatch.delenv("DEEPWEATHER_CACHE")
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    headers(path)
    assert len(list((tmp_path / "home/.cache/deepweather" / name).glob("*.index"))) == 1
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "xdg"))
    headers(path)
    assert len(list((tmp_path / "xdg/deepweather" / name).glob("*.index"))) == 1


def test_a_file_that_cannot_be_read_leaves_nothing_in_the_cache(indexed, cache):
    _, path, headers = indexed
    path.write_bytes(path.read_bytes()[:-10])
    with pytest.raises(InputError, match=r"cut off|cannot be read|truncated|damaged|\("):
        headers(path)
    path.unlink()
    with pytest.raises(InputError, match=r"cannot read .*file \(No such file"):
        headers(path)
    assert not list(cache.rglob("*.index"))


def test_values_that_were_not_kept_are_read_from_the_file(cache, tmp_path, opened, monkeypatch):
    """A later version of this project may take more variables for coordinates."""
    path = write_netcdf(tmp_path / "file")
    with monkeypatch.context() as earlier:
        earlier.setattr("data_pipeline.formats.cf.cf_header._coordinate_role", lambda *_: None)
        netcdf_header(path)
    header = netcdf_header(path)
    assert len(opened) == 2
    assert {"time", "lat"} <= {coordinate.name for coordinate in header.coordinates}


def test_large_coordinates_are_not_kept(tmp_path, cache):
    size = int((LARGEST_HEADER / 8) ** 0.5)
    lat, lon = ((("y", "x"), np.zeros((size, size)), {"units": f"degrees_{towards}"}) for towards in ("north", "east"))
    xr.Dataset(coords={"lat2": lat, "lon2": lon}).to_netcdf(tmp_path / "a.nc")
    netcdf_header(tmp_path / "a.nc")
    assert not list(cache.rglob("*.index"))
