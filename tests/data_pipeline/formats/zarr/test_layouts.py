"""Stores in the layouts of WeatherBench2 and ARCO-ERA5 give the values that xarray reads, however they are coded."""

import zipfile
from itertools import cycle

import numcodecs
import numpy as np
import pytest
import zarr
from hypothesis import given, settings
from hypothesis import strategies as st

from data_pipeline.formats.open import ensemble_fields, open_analysis, open_ensemble
from data_pipeline.task import Variable

NAMES = {"2m_temperature": "2t", "temperature": "t", "geopotential": "z"}
BLOSC = numcodecs.Blosc("lz4", 5, 1)
CODINGS = {
    "plain 2": {"zarr_format": 2, "compressors": None},
    "blosc 2": {"zarr_format": 2, "compressors": BLOSC},
    "filters 2": {"zarr_format": 2, "compressors": numcodecs.Zlib(1), "filters": [numcodecs.Shuffle(4)]},
    "plain 3": {"zarr_format": 3, "compressors": None},
    "blosc 3": {"zarr_format": 3, "compressors": zarr.codecs.BloscCodec(cname="zstd", shuffle="bitshuffle")},
    "checked 3": {"zarr_format": 3, "compressors": [zarr.codecs.GzipCodec(), zarr.codecs.Crc32cCodec()]},
}
ONE = {"time": 1, "prediction_timedelta": 1}
CHUNKS = ONE, {}, {"time": 2, "number": 3, "latitude": 2, "longitude": 3}


@pytest.mark.parametrize(("coding", "chunks"), [*zip(CODINGS, cycle(CHUNKS))], ids=str)
def test_forecasts_of_weatherbench2(stores, tmp_path, coding, chunks):
    dataset = stores.weatherbench2()
    path = stores.write(dataset, tmp_path / "ens.zarr", chunks=chunks, **CODINGS[coding])
    for each in (path, stores.zipped(path, zipfile.ZIP_DEFLATED)) if coding == "plain 2" else (path,):
        found = open_ensemble(each)
        np.testing.assert_array_equal(found["2t"].values, stores.expected(dataset, "2m_temperature"))
        np.testing.assert_array_equal(found["t"].values, stores.expected(dataset, "temperature"))
        assert found.init_time.values.tolist() == dataset.time.values.tolist()
        assert found.lead_time.values.tolist() == [0, 24]


def test_analyses_of_arco_era5_without_consolidated_metadata(stores, tmp_path):
    dataset = stores.arco()
    found = open_analysis(stores.write(dataset, tmp_path / "era5.zarr", 2, False, chunks={"time": 1}))
    for name, short_name in NAMES.items():
        np.testing.assert_array_equal(found[short_name].values, stores.expected(dataset, name))


@settings(max_examples=8)
@given(data=st.data())
def test_any_order_chunks_and_window(stores, tmp_path_factory, data):
    """Whatever the order of the dimensions and the chunks, rows, columns and members are those of xarray."""
    names = ("time", "prediction_timedelta", data.draw(st.sampled_from(["number", "realization"])), "level")
    order = data.draw(st.permutations([*names, "latitude", "longitude"]))
    dataset = stores.weatherbench2(order, realization=4, latitude=6)[["temperature"]]
    chunks = {name: data.draw(st.integers(1, size), name) for name, size in dataset.sizes.items()}
    compressors = data.draw(st.sampled_from([None, BLOSC]))
    path = stores.write(dataset, tmp_path_factory.mktemp("any") / "a.zarr", chunks=chunks, compressors=compressors)
    expected = stores.expected(dataset.transpose(*names, ...), "temperature")
    fields = ensemble_fields(path, [Variable("t", 850), Variable("t", 500)], [0, 24])
    first = data.draw(st.integers(0, 5))
    rows = slice(first, data.draw(st.integers(first, 6)))
    members = data.draw(st.lists(st.integers(0, 3), min_size=1, max_size=3))
    start, lead = data.draw(st.integers(0, 2)), data.draw(st.integers(0, 1))
    out = np.zeros((len(members), 2, rows.stop - rows.start, 8), np.float32)
    fields.read(fields.cells[start, lead, members], out, (rows, slice(None)))
    np.testing.assert_array_equal(out, expected[start, lead][members][:, :, rows])
    columns = data.draw(st.lists(st.integers(0, 7), min_size=1, unique=True))
    lazy = open_ensemble(path, chunks=None)["t"]
    np.testing.assert_array_equal(lazy[:, lead, :, 0, 2:5, columns].values, expected[:, lead, :, 0, 2:5][..., columns])
    np.testing.assert_array_equal(lazy[start, :, 1, :, 3, 4].values, expected[start, :, 1, :, 3, 4])
