"""Damaged files of `benchmarks.fuzz_grib` are written or refused; the benchmark itself tries ten thousand."""

import pytest

from benchmarks.fuzz_grib import GOOD, damaged, forecasts, outcome

ONCE_WRONG = (67, 68, 90, 98, 148, 291, 432, 434, 574, 575, 647, 656, 1752, 4812, 5364)
"""Files that once gave a traceback, an endless loop or gigabytes of memory."""


@pytest.fixture(scope="module")
def originals():
    return forecasts()


@pytest.mark.parametrize("every", [True, False])
def test_damaged_files_are_written_or_refused(tmp_path, originals, every):
    found = {n: outcome(tmp_path, damaged(originals, n), every) for n in (*range(40), *ONCE_WRONG)}
    assert {n: what for n, what in found.items() if what not in GOOD} == {}
    assert set(found.values()) == set(GOOD)
