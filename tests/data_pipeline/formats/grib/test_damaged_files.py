"""Damaged files of `benchmarks.fuzz_grib` are written or refused; the benchmark itself tries ten thousand."""

import eccodes
import pytest

from benchmarks.fuzz_grib import GOOD, damaged, forecasts, kept, outcome

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


@pytest.mark.parametrize("edition", [0, 1])
def test_changed_headers_are_noticed_and_new_values_where_none_are_expected(originals, edition):
    first, second, third = originals[edition]

    def changed(key, value):
        handle = eccodes.codes_new_from_message(second)
        values = eccodes.codes_get_double_array(handle, "values")
        eccodes.codes_set(handle, key, value) if key else eccodes.codes_set_double_array(handle, "values", values + 1)
        message = eccodes.codes_get_message(handle)
        eccodes.codes_release(handle)
        return first + message + third

    before = first + second + third
    for key in ("dataDate", 20200102), ("perturbationNumber", 4), ("endStep", 48), ("Ni", 15):
        assert not kept(before, changed(*key), 1), key
    after = changed("", None)
    assert kept(before, after, 1)
    assert not kept(before, after, 0)
    assert not kept(before, after[: -len(third)], 1)
