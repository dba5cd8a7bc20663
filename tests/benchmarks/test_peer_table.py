"""The table of peers: a peer that cannot run has a row with the reason, and wrong numbers are refused."""

import sys
from pathlib import Path

import numpy as np
import pytest
import zarr

from benchmarks.peers import Row, peer_rows, table


@pytest.fixture
def store(tmp_path):
    """Two samples of one member and variable, whose mean is 2.5."""
    array = zarr.open_group(tmp_path, mode="w").create_array("ensemble", shape=(2, 1, 1, 2, 2), dtype="float32")
    array[:] = np.arange(1, 9).reshape(array.shape) - 2
    return tmp_path


def test_a_reader_runs_in_the_other_environment_and_other_numbers_are_refused(store):
    (row,) = peer_rows("samples", ("zarr",), store, Path(sys.executable), 1, 2.5)
    assert row.seconds > 0
    assert row.version == zarr.__version__
    with pytest.raises(AssertionError, match="zarr"):
        peer_rows("samples", ("zarr",), store, Path(sys.executable), 1, 2.6)


def test_a_missing_peer_has_a_row_with_the_reason(tmp_path):
    (row,) = peer_rows("grib", ("earthkit-data",), tmp_path, Path(sys.executable), 1, 0.0)
    assert "No module named 'earthkit'" in row.note
    lines = "\n".join(table([Row("grib", "this project", "", 0.5), row, Row("grib", "other", "1", 1.0)])).splitlines()
    assert lines[2] == "| grib | this project |  | 500 ms | 1 |  |"
    assert lines[3] == f"| grib | earthkit-data |  |  |  | not measured: {row.note} |"
    assert lines[4] == "| grib | other | 1 | 1 s | 2 |  |"
