"""The law of identity: other contents, another fingerprint; equal fingerprints, equal samples bit for bit.

A new format or data source without an entry in `WRITERS` (`weather_files.py`) fails the last test.
"""

import ast
import os
import shutil
from dataclasses import fields

import numpy as np
import pytest
import torch
from conftest import ROOT
from hypothesis import given, settings
from hypothesis import strategies as st
from weather_files import GRID, OUTER, TASK, WEATHER, WRITERS, write, write_grib

from data_pipeline.archive import Archive
from data_pipeline.common import identity
from data_pipeline.common.errors import InputError
from data_pipeline.dataset import ForecastDataset
from data_pipeline.dates import Dates
from data_pipeline.formats.reader_versions import COMMON_READERS, READER_VERSIONS
from data_pipeline.store import Store
from data_pipeline.synthetic.heat import Heat


def samples(source):
    """Return all tensors of all samples."""
    data = ForecastDataset(source, TASK, Dates.all())
    return [tensor for sample in map(data.__getitem__, range(len(data))) for tensor in sample]


def equal(one, other):
    """Whether samples are equal bit for bit."""
    pairs = zip(samples(one), samples(other), strict=True)
    return all(torch.equal(a.nan_to_num(-1), b.nan_to_num(-1)) for a, b in pairs)


def with_values(data, name, values):
    """Return a dataset with other values of a variable."""
    return data.assign({name: data[name].copy(data=values)})


def change_value(draw, data):
    """Another value in one cell."""
    name = draw(st.sampled_from(list(data.data_vars)))
    values = data[name].values.copy()
    values[tuple(draw(st.integers(0, size - 1)) for size in values.shape)] += draw(st.sampled_from([-50, 1, 50]))
    return with_values(data, name, values)


def change_field(draw, data):
    """Another field, with the same least and largest value."""
    name = draw(st.sampled_from(list(data.data_vars)))
    values = data[name].values.copy()
    place = tuple(draw(st.integers(0, size - 1)) for size in values.shape[:-2])
    values[place] = values[place][::-1, ::-1]
    return with_values(data, name, values)


def change_name(draw, data):
    """Another name of a variable."""
    return data.rename({"lsm": "z"} if "lsm" in data else {"2t": "skt"})


def change_units(draw, data):
    """Other units of a variable, with the same numbers."""
    name = draw(st.sampled_from(list(data.data_vars)))
    return data.assign({name: data[name].assign_attrs(units="%" if name == "lsm" else "degC")})


def change_level(draw, data):
    """Another pressure level."""
    return data.assign_coords(level=("level", [700.0], data.level.attrs))


def change_level_type(draw, data):
    """Another type of level, with the same number."""
    return data.assign_coords(level=("level", data.level.values, {"standard_name": "model_level_number", "units": "1"}))


def change_time(draw, data):
    """All fields a day later."""
    axis = "time" if "time" in data.coords else "init_time"
    return data.assign_coords({axis: (axis, data[axis].values + np.timedelta64(24, "h"), data[axis].attrs)})


CHANGES = {
    change_value: [*OUTER],
    change_field: [*OUTER],
    change_name: [*OUTER],
    change_units: [*OUTER],
    change_level: ["ensemble", "analysis"],
    change_level_type: ["ensemble", "analysis"],
    change_time: ["ensemble", "analysis"],
}
"""Changes, and the parts in which they are possible."""


VARIANTS = {"grib edition 2", "netcdf 4"} | {name for name in WRITERS if name.startswith("zarr") and len(name) > 6}
"""Sources that state names, levels and times as another source does."""


def possible(name, change):
    """Whether a source can have a change: GRIB has the units of the variable, a store the variables of its task."""
    if change is change_units:
        return not name.startswith("grib")
    if name in VARIANTS and change in (change_name, change_level, change_level_type, change_time):
        return False
    return name != "store" or change in (change_value, change_field)


def every_source_but(one):
    """Return a decorator for tests of all other sources."""
    return pytest.mark.parametrize("first", [name for name in WRITERS if name != one], indirect=True)


@pytest.fixture(scope="module")
def first(request, tmp_path_factory):
    """The name of a source, its folder and its fingerprint."""
    folder = tmp_path_factory.mktemp("first")
    return request.param, folder, write(request.param, folder).fingerprint


@pytest.fixture
def sampled(monkeypatch):
    """Small files are hashed as large ones are."""
    monkeypatch.setattr(identity, "WHOLE_BYTES", 0)
    monkeypatch.setattr(identity, "BLOCK_BYTES", 64)
    monkeypatch.setattr(identity, "LEAST_BLOCKS", 2)


def changed_source(first, folder, draw, change):
    """Return a source, one part of which has changed, and the name of this part."""
    name, unchanged, _ = first
    part = draw(st.sampled_from(CHANGES[change]))
    shutil.rmtree(folder, ignore_errors=True)
    shutil.copytree(unchanged, folder, ignore=shutil.ignore_patterns(part, "store"))
    WRITERS[name][0](folder / part, part, change(draw, WEATHER[part]))
    return WRITERS[name][1](folder)


@pytest.mark.parametrize(
    ("first", "change"),
    [(name, change) for name in WRITERS for change in CHANGES if possible(name, change)],
    indirect=["first"],
    ids=lambda each: getattr(each, "__name__", each),
)
def test_a_change_changes_the_fingerprint(first, tmp_path_factory, change):
    folder = tmp_path_factory.mktemp("changed") / "data"

    @settings(max_examples=2 if change is change_value else 1)
    @given(st.data())
    def law(data):
        assert changed_source(first, folder, data.draw, change).fingerprint != first[2]

    law()


@every_source_but("store")
def test_a_changed_field_of_large_files_changes_the_fingerprint(first, tmp_path_factory, sampled):
    """Blocks stand for the values, but no field is without one. The archive of the store is one of these sources."""
    before = WRITERS[first[0]][1](first[1]).fingerprint
    folder = tmp_path_factory.mktemp("changed") / "data"

    @settings(max_examples=2)
    @given(st.data())
    def law(data):
        assert changed_source(first, folder, data.draw, change_field).fingerprint != before

    law()


@every_source_but("zarr url")
def test_a_copy_has_the_same_fingerprint_and_the_same_samples(first, tmp_path, request):
    """Except at a URL: there, the date of a file stands for its bytes. Of large files too, which are read in blocks."""
    name, folder, _ = first
    copy = shutil.copytree(folder, tmp_path / "copy", copy_function=shutil.copyfile)
    one, other = (WRITERS[name][1](each) for each in (folder, copy))
    assert one.fingerprint == other.fingerprint
    assert equal(one, other)
    request.getfixturevalue("sampled")
    one, other = (WRITERS[name][1](each) for each in (folder, copy))
    assert one.fingerprint == other.fingerprint


@pytest.mark.parametrize("large", [False, True], ids=["small", "large"])
@pytest.mark.parametrize("name", ["grib", "grib edition 2", "netcdf classic", "zarr 2 plain"])
def test_a_rewritten_file_of_the_same_size_and_time_is_read_anew(name, tmp_path, request, large):
    """No index, header or hash of the old file is used, in the process that had read it."""
    if large:
        request.getfixturevalue("sampled")
    source = write(name, tmp_path / "data")
    before, _ = source.fingerprint, samples(source)
    values = WEATHER["ensemble"]["2t"].values.copy()
    values[2] += 5  # in the middle of a GRIB file
    fresh = write(name, tmp_path / "fresh", ensemble=with_values(WEATHER["ensemble"], "2t", values))
    path, other = tmp_path / "data/ensemble", tmp_path / "fresh/ensemble"
    for file in [each for each in path.rglob("*") if each.is_file()] or [path]:
        new, status = other / file.relative_to(path), file.stat()
        assert new.stat().st_size == status.st_size
        shutil.copyfile(new, file)
        os.utime(file, ns=(status.st_atime_ns, status.st_mtime_ns))
    source = WRITERS[name][1](tmp_path / "data")
    assert before != source.fingerprint == fresh.fingerprint
    assert equal(source, fresh)


@pytest.mark.parametrize("name", ["zarr 2", "zarr 3", "zarr 3 shards", "zarr url"])
def test_a_lost_chunk_changes_the_fingerprint(name, tmp_path):
    source = write(name, tmp_path / "data")
    before = source.fingerprint
    files = [path for path in (tmp_path / "data/ensemble/2t").rglob("*") if path.is_file() and "z" not in path.name]
    files[0].unlink()
    assert WRITERS[name][1](tmp_path / "data").fingerprint != before


def test_rain_in_the_tropics_is_seen_in_a_large_grib_file(tmp_path, sampled):
    """Least and largest value are the same, and both ends of each message are dry."""

    def fingerprint(columns):
        values = np.zeros(GRID.shape, "f4")
        values[6:11, columns] = 8
        data = WEATHER["analysis"][["2t"]].isel(time=[0])
        write_grib(tmp_path / "rain", "analysis", with_values(data, "2t", values[None]))
        return Archive([str(tmp_path / "rain")], [str(tmp_path / "rain")]).fingerprint

    assert fingerprint(slice(3, 6)) != fingerprint(slice(20, 23))


@pytest.mark.parametrize("file", ["samples-00000.nc", "static.nc"])
def test_a_store_whose_files_changed_is_refused(tmp_path, file):
    source = write("store", tmp_path / "data")
    content = bytearray((source.folder / file).read_bytes())
    content[-100] ^= 1
    (source.folder / file).write_bytes(content)
    with pytest.raises(InputError, match=rf"{file} has changed since it was written; run `deepweather prepare` again"):
        samples(Store(source.folder))


def test_an_edited_manifest_is_refused(tmp_path):
    manifest = write("store", tmp_path / "data").folder / "manifest.json"
    manifest.write_text(manifest.read_text().replace('"K"', '"degC"', 1))
    with pytest.raises(InputError, match=r"manifest.json was edited after the store was made; make a new store"):
        Store(manifest.parent)


def test_every_option_of_the_heat_experiment_changes_its_fingerprint():
    others = {"diffusivities": (0.01, 0.1)} | {one.name: one.default + 1 for one in fields(Heat) if one.type == "int"}
    assert {one.name for one in fields(Heat)} == {*others}
    prints = [Heat(**{name: value}).fingerprint for name, value in others.items()]
    assert len({*prints, Heat().fingerprint}) == len(others) + 1


def test_every_format_and_every_data_source_is_in_the_law():
    folders = (ROOT / "data_pipeline/formats").iterdir()
    shared = {"cf", "table"}  # NetCDF and Zarr share the reading of headers; tables are hashed whole (test_table.py)
    packages = {path.name for path in folders if (path / f"{path.name}_catalog.py").is_file()} - shared
    in_memory = {"dataset"}  # dask names the values: test_given_datasets.py
    assert {*READER_VERSIONS} - {*COMMON_READERS} == packages | {"table"} | in_memory
    assert {name.split()[0] for name in WRITERS} == packages | {"store", "arrays"}
    sources = set()
    for path in (ROOT / "data_pipeline").rglob("*.py"):
        for node in ast.parse(path.read_text()).body:
            if isinstance(node, ast.ClassDef) and path.name != "protocols.py":
                methods = {one.name for one in node.body if isinstance(one, ast.FunctionDef)}
                sources |= {node.name} if {"ensemble_fields", "fingerprint"} <= methods else set()
    assert sources == {"Archive", "Store", "ArraySource", "Heat"}
