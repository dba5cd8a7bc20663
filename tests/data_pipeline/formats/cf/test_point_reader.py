import numpy as np
import pytest

from data_pipeline.formats.cf.point_reader import PointReader
from data_pipeline.points import Points

VALUES = np.arange(24.0, dtype=np.float32).reshape(2, 3, 4)


class Source:
    """Two fields of 3 rows and 4 columns; records the rows that were read."""

    grid = None

    def read(self, wanted, out, window):
        self.rows = window[0]
        out[...] = VALUES[wanted][..., window[0], :]


@pytest.mark.parametrize(
    ("rows", "read"),
    [(slice(0, 12), (0, 3)), (slice(5, 7), (1, 2)), (slice(7, 12), (1, 3)), (np.array([11, 8]), (2, 3))],
)
def test_points_are_cells_row_by_row_and_other_rows_are_not_read(rows, read):
    source = Source()
    reader = PointReader(Points((0.0,) * 12, tuple(range(12))), source, 4)
    expected = VALUES.reshape(2, 12)[[1, 0]][:, rows]
    out = np.empty((*expected.shape, 1), np.float32)
    reader.read(np.array([1, 0]), out, (rows, slice(None)))
    np.testing.assert_array_equal(out[..., 0], expected)
    assert source.rows == slice(*read)
