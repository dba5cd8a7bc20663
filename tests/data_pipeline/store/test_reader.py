"""Reading any fields, window and precision agrees with plain indexing of the same values."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from data_pipeline.grid import Grid
from data_pipeline.store import store_catalog as reader
from data_pipeline.store.store_catalog import FIELD_LOCATION, StoreReader

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
