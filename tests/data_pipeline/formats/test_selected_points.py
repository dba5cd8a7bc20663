import numpy as np
import pytest

from data_pipeline.common.errors import InputError
from data_pipeline.formats.selected_points import SelectedPointsReader
from data_pipeline.points import Points

FILE = Points((1, 2, 3, 4), (10, 20, 30, 40), ids=("a", "b", "c", "d"))
MINE = Points((3, 1, 9), (30, 10, 90), ids=("c", "a", "x"))


class Source:
    """Fields whose value is 100 times their number plus their point; records the rows that were read."""

    grid = FILE

    def __init__(self):
        self.rows = []

    def read(self, wanted, out, window):
        self.rows.append(window[0])
        values = 100 * wanted[..., None, None] + np.arange(4)[:, None]
        out[...] = np.where(wanted[..., None, None] < 0, np.nan, values)[..., window[0], :]


def read(reader, window, shape):
    out = np.empty((2, *shape), np.float32)
    reader.read(np.array([5, -1]), out, window)
    return out


def test_points_come_in_the_wanted_order_and_unknown_points_are_missing():
    source = Source()
    found = read(SelectedPointsReader.of(source, MINE), (slice(None), slice(None)), (3, 1))
    np.testing.assert_array_equal(found[0, :, 0], [502, 500, np.nan])
    assert np.isnan(found[1]).all()
    assert source.rows == [slice(0, 3)]


@pytest.mark.parametrize(
    ("rows", "expected"), [(slice(0, 1), [502]), (slice(2, 3), [np.nan]), (np.array([1, 0]), [500, 502])]
)
def test_only_the_rows_in_between_are_read(rows, expected):
    source = Source()
    found = read(SelectedPointsReader.of(source, MINE), (rows, slice(None)), (len(expected), 1))
    np.testing.assert_array_equal(found[0, :, 0], expected)
    assert len(source.rows) == np.isfinite(expected).any()


def test_a_single_row_and_column_have_no_dimensions():
    found = read(SelectedPointsReader.of(Source(), MINE), (1, 0), ())
    assert found[0] == 500


def test_the_message_counts_both_sides():
    text = SelectedPointsReader.of(Source(), MINE).describe()
    assert text == "found at 2 of 3 stations of the ensemble, the first without is x; 2 of 4 stations are not used"


def test_stations_without_a_common_id_are_refused():
    with pytest.raises(InputError, match=r"no station has the id of another: .*x.* and .*a.*; give the same stations"):
        SelectedPointsReader.of(Source(), Points((9,), (90,), ids=("x",)))
