import pickle

import numpy as np
import pytest

from data_pipeline.formats.loaded import LOADED_BYTES, LoadedReader
from data_pipeline.points import Points

GRID = Points((1, 2, 3), (10, 20, 30))


class Source:
    """Fields whose value is 100 times their number plus their point; counts the reads."""

    grid = GRID
    reads = 0

    def read(self, wanted, out, window):
        Source.reads += 1
        out[...] = (100 * wanted[..., None, None] + np.arange(3)[:, None])[..., window[0], :][..., window[1]]


@pytest.fixture(autouse=True)
def _count():
    Source.reads = 0


def test_the_source_is_read_once_and_fields_are_copied():
    reader = LoadedReader(Source(), 4)
    out = np.empty((2, 2, 2, 1), np.float32)
    for _ in range(3):
        reader.read(np.array([[3, -1], [0, 2]]), out, (slice(1, 3), slice(None)))
    np.testing.assert_array_equal(out[..., 0], [[[301, 302], [np.nan, np.nan]], [[1, 2], [201, 202]]])
    out[:] = 0  # a change by the caller does not reach the fields in memory
    reader.read(np.array([[3, 3], [3, 3]]), out, (slice(1, 3), slice(None)))
    assert out[0, 0, 0, 0] == 301
    assert Source.reads == 1


def test_a_single_point_has_no_dimensions():
    out = np.empty(1, np.float32)
    LoadedReader(Source(), 4).read(np.array([2]), out, (1, 0))
    assert out[0] == 201


def test_double_precision_is_read_from_the_source():
    out = np.empty((1, 3, 1))
    LoadedReader(Source(), 4).read(np.array([1]), out, (slice(None), slice(None)))
    assert (out[0, 2, 0], Source.reads) == (102, 1)


def test_a_copy_for_another_process_holds_no_fields():
    reader = LoadedReader(Source(), 4)
    reader.read(np.array([0]), np.empty((1, 3, 1), np.float32), (slice(None), slice(None)))
    assert len(pickle.dumps(reader)) < 2000
    out = np.empty((1, 3, 1), np.float32)
    pickle.loads(pickle.dumps(reader)).read(np.array([1]), out, (slice(None), slice(None)))
    assert out[0, 1, 0] == 101


def test_large_archives_are_not_loaded():
    assert LoadedReader.suits(GRID, LOADED_BYTES // 12)
    assert not LoadedReader.suits(GRID, LOADED_BYTES // 12 + 1)
