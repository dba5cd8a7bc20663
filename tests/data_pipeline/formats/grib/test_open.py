"""Files of GRIB messages as datasets and as fields. `test_sources.py` has the contract of all formats."""

import numpy as np
import pytest
import xarray as xr
from hypothesis import given, settings
from hypothesis import strategies as st
from netcdf_parts import variables

from data_pipeline.common.errors import InputError
from data_pipeline.formats import datasets
from data_pipeline.formats.datasets import select_variable
from data_pipeline.formats.grib import grib_reader as reader
from data_pipeline.formats.open import ensemble_fields, open_analysis, open_ensemble, open_static
from data_pipeline.grid import Grid
from data_pipeline.samples.pseudo_members import pseudo_members, read_moments
from data_pipeline.task import Variable
from data_pipeline.writing import Encoder

PACKING = 2e-3
"""Largest packing error of the test files."""


# Dimensions, coordinates and values


def test_9999_is_a_value_beside_missing_values(tmp_path):
    field = np.linspace(9990, 10010, 40).reshape(5, 8)
    field[2, 2], field[0, 0] = np.nan, 9999
    (tmp_path / "file").write_bytes(Encoder(Grid.regular(5, 8), bitsPerValue=24).encode(field, shortName="t"))
    np.testing.assert_allclose(open_ensemble(tmp_path / "file").t.values.squeeze(), field, atol=0.01)


def test_a_surface_field_and_a_pressure_level_with_one_name_are_both_read(writer, tmp_path):
    path = writer.forecast(tmp_path / "file", ("z", "z@500"))
    dataset = open_ensemble(path, variables("z", "z@500"))
    for variable in variables("z", "z@500"):
        field = select_variable(dataset, variable)[0, 1, 2]
        np.testing.assert_allclose(field, writer.value(variable, 1998, 24, 3), atol=PACKING)
    assert list(open_ensemble(path, variables("z"))) == ["z"]


# Lazy reading


@settings(max_examples=25)
@given(st.data())
def test_any_part_of_the_cube_equals_the_same_part_of_the_loaded_cube(writer, tmp_path_factory, data):
    path = tmp_path_factory.getbasetemp() / "part"
    if not path.exists():
        writer.forecast(path, ("t@500", "t@850"))
    dataset = open_ensemble(path, chunks=None)
    whole = dataset.t.copy().load()
    key = {}
    for name, size in dataset.t.sizes.items():
        one = st.integers(-size, size - 1)
        some = st.lists(one, max_size=4)
        ahead = st.builds(slice, st.none() | one, st.none() | one, st.sampled_from([None, 1, 2]))
        part = ahead | st.just(slice(None, None, -1))
        key[name] = data.draw(st.just(slice(None)) | one | some | part, label=name)
    xr.testing.assert_identical(dataset.t.isel(key).load(), whole.isel(key))


def test_only_the_indexed_fields_are_decoded(writer, tmp_path, monkeypatch):
    path = writer.forecast(tmp_path / "file", ("2t", "z@500"))
    decoded, original = [], reader.read_values
    monkeypatch.setattr(reader, "read_values", lambda *arguments: decoded.append(1) or original(*arguments))
    dataset = open_ensemble(path, chunks=None)
    part = dataset["2t"].isel(init_time=1, lead_time=[0, 2])
    assert not decoded
    assert part.values.shape == (2, 3, 5, 8)
    assert len(decoded) == 6


def test_different_cubes_have_different_dask_names(writer, tmp_path):
    path = writer.forecast(tmp_path / "file", ("2t", "skt"))
    names = [open_ensemble(path, variables(name)).get(name).data.name for name in ("2t", "skt", "2t")]
    assert names[0] == names[2] != names[1]
    writer.forecast(path, ("2t", "skt"), bitsPerValue=8)
    assert open_ensemble(path, variables("2t"))["2t"].data.name != names[0]


def test_a_file_changed_after_opening_is_noticed(writer, tmp_path):
    path = writer.forecast(tmp_path / "file")
    dataset = open_ensemble(path, chunks=None)
    path.write_bytes(path.read_bytes()[:-200])
    with pytest.raises(InputError, match="file has changed since it was opened; run again"):
        dataset["2t"].load()
    path.unlink()
    with pytest.raises(InputError, match=r"cannot read .*file \(No such file"):
        dataset["2t"].isel(number=0).load()


# Fields


@pytest.fixture(scope="module")
def file(writer, tmp_path_factory):
    return writer.forecast(tmp_path_factory.mktemp("fields") / "file", ("2t", "z@500", "t@850", "t@500"))


WANTED, LEADS = variables("t@850", "2t", "z@500"), (24, 48)


def test_arrays_with_gaps_in_memory_are_filled(file):
    fields, wanted = ensemble_fields(file, WANTED, LEADS), np.s_[1, 1, [2, 0, 0]]
    whole = np.empty((3, 3, 5, 8))
    fields.read(fields.cells[wanted], whole)
    out, moments = (np.full((count, 3, 2, 16), -1, np.float32)[..., ::2] for count in (3, 2))
    fields.read(fields.cells[wanted], out, (slice(1, 3), slice(None)))
    read_moments(fields.reader, fields.cells[wanted], moments, (slice(1, 3), slice(None)))
    np.testing.assert_array_equal(out, whole[:, :, 1:3].astype(np.float32))
    np.testing.assert_array_equal(moments, pseudo_members(out))


def test_an_array_of_another_shape_is_refused(file):
    fields = ensemble_fields(file, WANTED, LEADS)
    with pytest.raises(ValueError, match=r"the array to fill is \(3, 2, 5, 8\), the fields asked for are \(3, 3\)"):
        fields.read(fields.cells[0, 0], np.empty((3, 2, 5, 8), np.float32))


def test_members_in_several_files_and_units_are_read_in_one(writer, tmp_path):
    """Precipitation in metres and in kilograms per square metre, one file for each member."""
    paths = [writer.forecast(tmp_path / str(k), ("tp",), numbers=(k,)) for k in (1, 3)]
    fields = ensemble_fields([*paths, writer.rain(tmp_path / "2", numbers=(2,))], [Variable("tp")], [24])
    assert fields.meanings[0].units == "m"
    out, moments = np.empty((3, 1, 5, 8), np.float32), np.empty((2, 1, 5, 8), np.float32)
    fields.read(fields.cells[0, 0], out)
    expected = [factor * writer.value(Variable("tp"), 1998, 24, k) for k, factor in ((1, 1), (2, 1e-3), (3, 1))]
    np.testing.assert_allclose(out[:, 0], expected, rtol=1e-5)
    read_moments(fields.reader, fields.cells[0, 0], moments)
    np.testing.assert_array_equal(moments, pseudo_members(out))


def test_arrays_larger_than_the_memory_are_refused(file, monkeypatch):
    dataset = open_ensemble(file, WANTED, LEADS, chunks=None)
    monkeypatch.setattr(datasets, "MACHINE_BYTES", 12 * 5 * 8 * 4 - 1)
    with pytest.raises(InputError, match=r"12 fields of 5 x 8 points .* choose a part of them"):
        dataset["2t"].load()
    assert dataset["2t"].isel(init_time=0).load().shape == (2, 3, 5, 8)


# Missing fields


def test_steps_that_are_not_whole_hours_are_refused_unless_others_are_selected(writer, tmp_path):
    encoder = Encoder(writer.grid, edition=2, shortName="2t", typeOfLevel="heightAboveGround", level=2)
    field = np.zeros(writer.grid.shape)
    path = tmp_path / "file"
    messages = [encoder.encode(field, indicatorOfUnitOfTimeRange=0, forecastTime=k) for k in (60, 90)]
    path.write_bytes(b"".join(messages))
    with pytest.raises(InputError, match=rf"file \(byte {len(messages[0])}\) is not valid a whole number of hours"):
        open_ensemble(path)
    assert open_ensemble(path, lead_times=[1]).lead_time.values.tolist() == [1]


# Contradictions


def test_coordinates_with_rounding_differences_are_one_grid(tmp_path):
    value = np.zeros((3, 360))
    paths = []
    for k, first in enumerate((0.0, 0.001)):
        grid = Grid((50, 49, 48), tuple(first + np.arange(360) * 0.999))
        paths.append(tmp_path / f"file{k}")
        paths[-1].write_bytes(Encoder(grid, typeOfLevel="surface", level=0).encode(value, shortName=("2t", "skt")[k]))
    assert len(open_ensemble(paths)) == 2


# Analyses and static fields


def test_only_the_starts_of_forecasts_are_analyses(writer, tmp_path):
    path = writer.forecast(tmp_path / "forecast", numbers=(0,))
    assert open_analysis(path).sizes["time"] == 2
    writer.forecast(path, leads=(24, 48), numbers=(0,))
    with pytest.raises(InputError, match=r"forecast has forecasts but no analysis \(step 0\)"):
        open_analysis(path)


def test_static_fields_of_any_date_are_at_the_surface(writer, tmp_path):
    for name, year in (("lsm", 1998), ("z", 2018)):
        writer.forecast(tmp_path / name, (name,), (year,), (0,), (0,))
    dataset = open_static([tmp_path / "lsm", tmp_path / "z"])
    assert set(dataset) == {"lsm", "z"}
    assert dataset.lsm.dims == ("latitude", "longitude")
    np.testing.assert_allclose(dataset.lsm, writer.value(Variable("lsm"), 1998, 0, 0), atol=PACKING)
    assert set(open_static(tmp_path / "*", ["z"])) == {"z"}
    with pytest.raises(InputError, match="has no orog; it has lsm, z"):
        open_static(tmp_path / "*", ["orog"])
    mixed = writer.forecast(tmp_path / "mixed", ("z", "z@500"), (1998,), (0,), (0,))
    assert list(open_static(mixed)) == ["z"]
    writer.forecast(mixed, ("z@500",))
    with pytest.raises(InputError, match=r"mixed has no fields at the surface but z@500"):
        open_static(mixed)
