"""How often chunks are read and decoded, and the bytes of plain chunks that are read."""

import os
import threading
from collections import Counter
from concurrent.futures import ThreadPoolExecutor

import numcodecs
import numpy as np
import pytest

from data_pipeline.formats.open import ensemble_fields
from data_pipeline.formats.zarr import codecs, reader
from data_pipeline.formats.zarr.chunk_cache import ChunkCache
from data_pipeline.task import Variable

T = [Variable("t", 500), Variable("t", 850)]


@pytest.fixture
def decoded(monkeypatch):
    """Count the decodings of chunks, by their bytes."""
    counts = Counter()
    original = codecs.ChunkDecoder.decode

    def decode(self, stored, out=None):
        counts[bytes(stored)] += 1
        return original(self, stored, out)

    monkeypatch.setattr(codecs.ChunkDecoder, "decode", decode)
    monkeypatch.setattr(reader, "_cache", ChunkCache())
    return counts


def read_all(fields):
    """Read all samples one after the other."""
    starts, leads = len(fields.init_times), len(fields.lead_times)
    out = np.zeros((starts, leads, len(fields.numbers), len(fields.variables), *fields.grid.shape), np.float32)
    for start in range(starts):
        for lead in range(leads):
            fields.read(start, lead, out[start, lead])
    return out


def expected(stores, dataset):
    """Return the values with 500 hPa before 850 hPa, as `T` has them."""
    return stores.expected(dataset, "temperature")[..., ::-1, :, :]


@pytest.mark.parametrize("chunks", [{"time": 1, "prediction_timedelta": 1}, {"prediction_timedelta": 1}, {}], ids=str)
def test_each_chunk_is_decoded_once(stores, tmp_path, decoded, chunks):
    """All levels and members of one reading, and all starts and lead times of consecutive ones."""
    dataset = stores.weatherbench2()
    path = stores.write(dataset, tmp_path / "a.zarr", chunks=chunks, compressors=numcodecs.Zstd())
    fields = ensemble_fields(path, T, [0, 24])
    decoded.clear()
    found = read_all(fields)
    np.testing.assert_array_equal(found, expected(stores, dataset))
    files = [file for file in (path / "temperature").iterdir() if not file.name.startswith(".")]
    assert decoded == Counter({file.read_bytes(): 1 for file in files})


def test_the_cache_is_bounded_and_keeps_the_last():
    cache = ChunkCache(max_bytes=3000)
    loaded = []

    def get(key, size=1000):
        def load():
            loaded.append(key)
            return np.zeros(size, np.uint8)

        return cache.get(key, load)

    for key in "abcabc":
        get(key)
    assert loaded == ["a", "b", "c"]
    get("a")
    get("d")  # in place of b, the one that was used longest ago
    get("a")
    get("b")
    assert loaded == ["a", "b", "c", "d", "b"]
    get("large", 3001)
    get("large", 3001)
    assert loaded[-2:] == ["large", "large"]
    assert cache._bytes == 3000


def test_threads_wait_for_one_of_them():
    cache, loaded, ready = ChunkCache(), [], threading.Barrier(8)

    def load():
        loaded.append(1)
        return np.zeros(10)

    def work(_):
        ready.wait()
        cache.get("chunk", load)

    with ThreadPoolExecutor(8) as pool:
        list(pool.map(work, range(8)))
    assert len(loaded) == 1


def test_a_failed_reading_is_tried_again():
    cache = ChunkCache()

    def fail():
        raise ValueError

    with pytest.raises(ValueError, match=r"^$"):
        cache.get("chunk", fail)
    assert cache.get("chunk", lambda: np.ones(1)) == 1


def test_only_the_rows_of_plain_chunks_are_read(stores, tmp_path, monkeypatch):
    """Members 1 and 3, rows 1 and 2 of 5, from a chunk that holds everything."""
    dataset = stores.weatherbench2(("time", "prediction_timedelta", "number", "level", "latitude", "longitude"))
    dataset = dataset.sortby("latitude", ascending=False).assign_coords(longitude=dataset.longitude + 180)
    path = stores.write(dataset, tmp_path / "a.zarr", compressors=None)
    fields = ensemble_fields(path, T, [0, 24])
    sizes, original = [], os.preadv

    def preadv(descriptor, buffers, offset):
        sizes.append(sum(buffer.nbytes for buffer in buffers))
        return original(descriptor, buffers, offset)

    monkeypatch.setattr(reader.os, "preadv", preadv)
    out = np.zeros((2, 2, 2, 8), np.float32)
    fields.read(2, 1, out, slice(1, 3), [1, 3])
    np.testing.assert_array_equal(out, dataset.temperature.values[2, 1, [1, 3], :, 1:3])
    assert sizes == [2 * 8 * 4] * 4
