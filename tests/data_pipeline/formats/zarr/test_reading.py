"""How often chunks are read, which regions are kept, and readings in other threads and processes."""

import multiprocessing
import pickle
import warnings
from collections import Counter
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
import zarr

from data_pipeline.formats.open import ensemble_fields
from data_pipeline.formats.zarr import zarr_catalog as reader
from data_pipeline.task import Variable

T = [Variable("t", 500), Variable("t", 850)]
ONE = {"time": 1, "prediction_timedelta": 1}


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
