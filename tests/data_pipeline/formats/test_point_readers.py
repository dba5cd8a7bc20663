"""Readers of fields at points: which points, from which rows of a file, how often."""

import pickle

import numpy as np
import pytest

from data_pipeline.common.errors import InputError
from data_pipeline.formats.loaded import LoadedReader
from data_pipeline.formats.selected_points import PointReader, SelectedPointsReader
from data_pipeline.grids.points import Points

FILE = Points((1, 2, 3, 4), (10, 20, 30, 40), ids=("a", "b", "c", "d"))
MINE = Points((3, 1, 9), (30, 10, 90), ids=("c", "a", "x"))
ALL = slice(None)


class Source:
    """Fields whose value is 100 times their number plus their cell, row by row; `windows` are those that were read."""

    def __init__(self, grid=FILE, columns=1):
        self.grid, self.windows, self._cells = grid, [], np.arange(len(grid.latitudes)).reshape(-1, columns)

    def read(self, wanted, out, window):
        self.windows.append(window[0])
        values = np.where(wanted[..., None, None] < 0, np.nan, 100 * wanted[..., None, None] + self._cells)
        out[...] = values[..., window[0], :][..., window[1]]


def read(reader, wanted, window, shape, dtype=np.float32):
    out = np.empty((*np.shape(wanted), *shape), dtype)
    reader.read(np.array(wanted), out, window)
    return out


# Fields in memory


def test_the_source_is_read_once_and_fields_are_copied():
    source = Source()
    reader = LoadedReader(source, 4)
    for _ in range(3):
        out = read(reader, [[3, -1], [0, 2]], (slice(1, 3), ALL), (2, 1))
        np.testing.assert_array_equal(out[..., 0], [[[301, 302], [np.nan, np.nan]], [[1, 2], [201, 202]]])
        out[:] = 0  # a change by the caller does not reach the fields in memory
    assert read(reader, [2], (1, 0), ()) == 201
    assert len(source.windows) == 1


def test_each_precision_is_read_once():
    """Double precision is not that of fields that were read in single precision before."""
    source = Source()
    source._cells = source._cells / 3
    reader = LoadedReader(source, 4)
    for _ in range(2):
        for precision in (np.float32, np.float64):
            assert read(reader, [1], (ALL, ALL), (4, 1), precision)[0, 2, 0] == precision(100 + 2 / 3)
    assert len(source.windows) == 2


def test_a_copy_for_another_process_holds_no_fields():
    reader = LoadedReader(Source(), 400)
    read(reader, [0], (ALL, ALL), (4, 1))
    copy = pickle.dumps(reader)
    assert len(copy) < 2000
    assert read(pickle.loads(copy), [1], (ALL, ALL), (4, 1))[0, 1, 0] == 101


# Some points of a file


def test_points_come_in_the_wanted_order_from_the_rows_in_between():
    for rows, expected, windows in (
        (ALL, [502, 500, np.nan], [slice(0, 3)]),
        (slice(0, 1), [502], [slice(2, 3)]),
        (slice(2, 3), [np.nan], []),
        (np.array([1, 0]), [500, 502], [slice(0, 3)]),
    ):
        source = Source()
        found = read(SelectedPointsReader.of(source, MINE), [5, -1], (rows, ALL), (len(expected), 1))
        np.testing.assert_array_equal(found[0, :, 0], expected)
        assert np.isnan(found[1]).all()
        assert source.windows == windows
        assert read(SelectedPointsReader.of(source, MINE), [5], (1, 0), ()) == 500


def test_stations_without_a_common_id_are_refused():
    with pytest.raises(InputError, match=r"no station has the id of another: .*x.* and .*a.*; give the same stations"):
        SelectedPointsReader.of(Source(), Points((9,), (90,), ids=("x",)))


def test_points_are_cells_row_by_row_and_other_rows_are_not_read():
    points = Points((0.0,) * 12, tuple(range(12)))
    for rows, window in ((slice(5, 7), slice(1, 2)), (slice(7, 12), slice(1, 3)), (np.array([11, 8]), slice(2, 3))):
        source, numbers = Source(points, columns=4), np.arange(12)[rows]
        found = read(PointReader(points, source, 4), [1, 0], (rows, ALL), (len(numbers), 1))
        np.testing.assert_array_equal(found[..., 0], [100 + numbers, numbers])
        assert source.windows == [window]
