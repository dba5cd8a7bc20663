"""A store has the same samples as its archive, bit for bit, and any NetCDF library reads it."""

import os
from dataclasses import replace

import numpy as np
import pytest
import xarray as xr
from hypothesis import given
from hypothesis import strategies as st

from data_pipeline.archive import Archive
from data_pipeline.common.errors import InputError
from data_pipeline.dataset import ForecastDataset
from data_pipeline.dates import Dates
from data_pipeline.formats.datasets import select_variable
from data_pipeline.formats.open import open_ensemble
from data_pipeline.formats.reader_versions import READER_VERSIONS
from data_pipeline.grid import Grid
from data_pipeline.store import Store, choose_source
from data_pipeline.store import store_catalog as reader
from data_pipeline.store.store_catalog import FIELD_LOCATION, StoreReader


def test_a_store_of_moments_has_no_members(tmp_path, task, make):
    store = make(tmp_path, moments=True)
    assert ForecastDataset(store, task, [2015], moments=True).members == 4
    with pytest.raises(InputError, match=f"the store {tmp_path} holds only mean and spread .* leave out data.store"):
        ForecastDataset(store, task, [2015])
    with pytest.raises(InputError, match="but its members are needed"):
        ForecastDataset(store, task, [2015], moments=True, members=2)


def test_any_netcdf_library_reads_the_files(archive, store, task):
    files = sorted(store.folder.glob("samples-*.nc"))
    assert len(files) == 3
    with xr.open_mfdataset(files, combine="nested", concat_dim="sample", data_vars="minimal") as found:
        assert [*found.channel.values] == ["2t", "t@850", "sst"]
        assert [*found.channel_units.values] == ["K", "K", "K"]
        assert [*found.target_channel.values] == ["t@850", "2t"]
        np.testing.assert_array_equal(found.latitude, store.grid.latitudes)
        np.testing.assert_array_equal(found.number, store.contents.numbers)
        lead = found.lead_time.values * np.timedelta64(1, "h")
        np.testing.assert_array_equal(found.time, found.init_time.values + lead)
        theirs = open_ensemble(archive.ensemble, task.inputs, task.lead_times, missing="mask", chunks=None)
        for k in range(found.sizes["sample"]):
            at = {"init_time": found.init_time.values[k], "lead_time": found.lead_time.values[k]}
            for c, variable in enumerate(task.inputs):
                np.testing.assert_array_equal(found.ensemble[k, :, c], select_variable(theirs, variable).sel(at))


def test_years_outside_the_store_are_read_from_the_archive(archive, tmp_path, task, make):
    store = make(tmp_path, dates=[2016])
    with pytest.raises(InputError, match=f"the store {tmp_path} was made without 2015-01-01; .* leave out data.store"):
        ForecastDataset(store, task, [2015, 2016])
    assert choose_source(archive, None, Dates.of_years([2016])) is archive
    assert choose_source(archive, tmp_path, Dates.of_years([2015])) is archive
    chosen = choose_source(archive, tmp_path, Dates.of_years([2016]))
    assert isinstance(chosen, Store)
    assert chosen.contents == store.contents


def test_a_store_of_other_files_or_of_another_reader_is_refused(archive, store, tmp_path, monkeypatch):
    dates = Dates.of_years([2016])
    (tmp_path / "ensemble").write_bytes(b"GRIB")
    other = Archive([f"{tmp_path}/ensemble"], archive.analysis)
    with pytest.raises(InputError, match=f"{store.folder} was made from other files than data.archive now names"):
        choose_source(other, store.folder, dates)
    gone = Archive([f"{tmp_path}/nothing*"], archive.analysis, missing="mask")
    assert isinstance(choose_source(gone, store.folder, dates), Store)
    monkeypatch.setitem(READER_VERSIONS, "grib", READER_VERSIONS["grib"] + 1)
    with pytest.raises(InputError, match="another version of deepweather read them"):
        choose_source(replace(archive), store.folder, dates)


def test_a_file_that_shrinks_after_opening_is_named(copy, task):
    dataset = ForecastDataset(Store(copy), task, [2015])
    os.truncate(copy / "samples-00000.nc", 20_000)
    with pytest.raises(InputError, match=r"samples-00000.nc has become shorter since it was opened; make the store"):
        list(dataset)
    (copy / "samples-00000.nc").unlink()
    with pytest.raises(InputError, match=r"cannot read .*samples-00000.nc \(No such file or directory\)"):
        list(dataset)


# Any fields, window and precision agree with plain indexing of the same values

H, W = 5, 7
GRID = Grid.regular(H, 8)
GRID = Grid(GRID.latitudes, GRID.longitudes[:W])
HEADER = (13, 40)
"""Bytes before the values in each of two files."""


@pytest.fixture(scope="module")
def stored(tmp_path_factory):
    """Twelve fields in two files, adjacent but for field 4, which is not stored; and their values."""
    folder, values = tmp_path_factory.mktemp("values"), np.random.default_rng(0).normal(size=(12, H, W))
    values = values.astype(np.float32)
    locations = np.empty(12, FIELD_LOCATION)
    for file, part in enumerate((slice(0, 7), slice(7, 12))):
        (folder / str(file)).write_bytes(bytes(HEADER[file]) + values[part].tobytes())
        locations["file"][part] = file
        locations["offset"][part] = HEADER[file] + 4 * H * W * np.arange(part.stop - part.start)
    locations["offset"][4], values[4] = -1, np.nan
    return StoreReader(GRID, (folder / "0", folder / "1"), locations), values


def windows(size):
    bands = st.slices(size).filter(lambda part: len(range(size)[part]))
    positions = st.lists(st.integers(0, size - 1), min_size=1, max_size=size, unique=True).map(np.array)
    return st.one_of(st.just(slice(None)), bands, positions, st.integers(0, size - 1))


WANTED = st.one_of(
    st.lists(st.integers(-1, 11), min_size=1, max_size=12),
    st.integers(0, 11).flatmap(lambda k: st.integers(k + 1, 12).map(lambda end: [*range(k, end)])),
)


@given(WANTED, windows(H), windows(W), st.sampled_from([np.float32, np.float64]), st.sampled_from([64, 1 << 22]))
def test_every_window_agrees_with_plain_indexing(stored, wanted, rows, columns, dtype, piece_bytes):
    store_reader, values = stored
    everything = np.concatenate([values, np.full((1, H, W), np.nan, np.float32)])  # index -1 is the last
    expected = everything[wanted][:, rows][..., columns].astype(dtype)
    out = np.full(expected.shape, np.inf, dtype)
    # One size of pieces divides each field, the other holds all fields.
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(reader, "PIECE_BYTES", piece_bytes)
        store_reader.read(np.array(wanted), out, (rows, columns))
    np.testing.assert_array_equal(out, expected)


def test_an_output_array_of_another_shape_is_refused(stored):
    with pytest.raises(ValueError, match=r"the output array has shape \(2, 5, 7\), the array of fields \(3,\)"):
        stored[0].read(np.arange(3), np.empty((2, H, W), np.float32), (slice(None), slice(None)))
