"""Stores in the layouts of WeatherBench2 and ARCO-ERA5 give the values that xarray reads, and read each chunk once."""

import multiprocessing
import pickle
import warnings
import zipfile
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from itertools import cycle

import numcodecs
import numpy as np
import pytest
import zarr
from hypothesis import given, settings
from hypothesis import strategies as st

from data_pipeline.formats.open import ensemble_fields, open_analysis, open_ensemble
from data_pipeline.formats.zarr import zarr_catalog as reader
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


# How often chunks are read, which regions are kept, and readings in other threads and processes

T = [Variable("t", 500), Variable("t", 850)]


@pytest.fixture
def chunks_read(monkeypatch):
    """Count the readings of chunks of temperature, by their keys."""
    counts = Counter()
    original = zarr.storage.LocalStore.get

    async def get(self, key, *arguments, **options):
        if key.startswith("temperature/"):
            counts[key] += 1
        return await original(self, key, *arguments, **options)

    monkeypatch.setattr(zarr.storage.LocalStore, "get", get)
    monkeypatch.setattr(reader, "_kept", reader.KeptRegions())
    return counts


def read_all(fields):
    """Read all samples one after the other."""
    starts, leads = len(fields.init_times), len(fields.lead_times)
    out = np.zeros((starts, leads, len(fields.numbers), len(fields.variables), *fields.grid.shape), np.float32)
    for start in range(starts):
        for lead in range(leads):
            fields.read(fields.cells[start, lead], out[start, lead])
    return out


def expected(stores, dataset):
    """Return the values with 500 hPa before 850 hPa, as `T` has them."""
    return stores.expected(dataset, "temperature")[..., ::-1, :, :]


@pytest.mark.parametrize("chunks", [ONE, {"prediction_timedelta": 1}, {}], ids=str)
def test_each_chunk_is_read_once(stores, tmp_path, chunks_read, chunks):
    """All levels and members of one reading, and all starts and lead times of consecutive ones."""
    dataset = stores.weatherbench2()
    path = stores.write(dataset, tmp_path / "a.zarr", chunks=chunks)
    fields = ensemble_fields(path, T, [0, 24])
    chunks_read.clear()
    np.testing.assert_array_equal(read_all(fields), expected(stores, dataset))
    files = [f"temperature/{file.name}" for file in (path / "temperature").iterdir() if file.name[0] != "."]
    assert chunks_read == dict.fromkeys(files, 1)


def test_no_chunk_but_that_of_the_wanted_members_is_read(stores, tmp_path, chunks_read):
    path = stores.write(stores.weatherbench2(), tmp_path / "a.zarr", chunks=ONE | {"number": 1})
    fields = ensemble_fields(path, T, [0, 24])
    chunks_read.clear()
    fields.read(fields.cells[2, 1, [1, 3]], np.zeros((2, 2, 2, 8), np.float32), (slice(1, 3), slice(None)))
    assert chunks_read == {"temperature/2.1.1.0.0.0": 1, "temperature/2.1.3.0.0.0": 1}


def test_kept_regions_are_bounded_and_the_last_ones():
    kept, read = reader.KeptRegions(max_bytes=3000), []

    def get(key, size=1000):
        return kept.get(key, lambda: (read.append(key), np.zeros(size, np.uint8))[1])

    for key in "abcabcadab":  # d in place of b, the one that was used longest ago
        get(key)
    assert read == ["a", "b", "c", "d", "b"]
    get("large", 3001)
    get("a")
    assert read[-2:] == ["large", "a"]
    with pytest.raises(ZeroDivisionError):
        kept.get("e", lambda: 1 / 0)
    assert kept.get("e", lambda: np.ones(1)) == 1


def sample(task):
    """Return one sample."""
    fields, key = task
    out = np.zeros((4, 2, 5, 8), np.float32)
    fields.read(fields.cells[key], out)
    return out


@pytest.mark.parametrize("zipped", [True, False], ids=["zip", "folder"])
def test_other_threads_and_processes_read_the_same(stores, tmp_path, zipped):
    """Also a fork of a process that has read, and has a thread that holds the lock of the kept regions."""
    dataset = stores.weatherbench2()
    path = stores.write(dataset, tmp_path / "a.zarr", chunks={"time": 2, "prediction_timedelta": 1})
    if zipped:
        path = stores.zipped(path)
    fields = ensemble_fields(path, T, [0, 24])
    fields = pickle.loads(pickle.dumps(fields))
    keys = [*np.ndindex(3, 2)] * 4
    tasks = [(fields, key) for key in keys]
    with ThreadPoolExecutor(8) as pool, warnings.catch_warnings(action="ignore", category=DeprecationWarning):
        found = [*pool.map(sample, tasks)]
        with reader._kept._lock, multiprocessing.get_context("fork").Pool(1) as processes:
            found += processes.map_async(sample, tasks).get(timeout=60)
    for key, values in zip(keys * 2, found, strict=True):
        np.testing.assert_array_equal(values, expected(stores, dataset)[key])
