"""Messages whose headers describe another grid than their values fill, and files with random damage."""

import numpy as np
import pytest

from benchmarks.fuzz_grib import GOOD, damaged, forecasts, outcome
from data_pipeline.common.errors import InputError
from data_pipeline.formats.grib.table import Table
from data_pipeline.formats.open import open_ensemble
from data_pipeline.grid import Grid
from data_pipeline.writing import Encoder

GRID = Grid.regular(5, 8)
SECTION = {1: 8 + 52, 2: 16 + 21}
"""Positions of the grid section of GRIB1 (section 2) and GRIB2 (section 3) in messages without local definitions."""


def message(edition, field=None, grid=GRID):
    field = np.random.default_rng(0).normal(280, 5, grid.shape) if field is None else field
    return bytearray(Encoder(grid, edition=edition, shortName="2t").encode(field))


def put(content, octet, size, value):
    """Write a number into an octet of the grid section, counted from 1 as in the WMO Manual on Codes."""
    at = SECTION[content[7]] + octet - 1
    content[at : at + size] = value.to_bytes(size, "big")


def table_of_bytes(tmp_path, *contents):
    (tmp_path / "file.grib").write_bytes(b"".join(contents))
    return Table.of(tmp_path / "file.grib")


@pytest.mark.parametrize(
    ("edition", "changes", "problem"),
    [
        (1, [(7, 2, 60_000), (9, 2, 60_000)], "60000 x 60000 points;"),
        (1, [(7, 2, 250)], r"5 x 250 points, which do not fit into its \d+ bytes"),
        (1, [(9, 2, 0)], "0 x 8 points;"),
        (1, [(11, 3, 95_000)], "latitudes 95 and -90"),
        (2, [(31, 4, 3_000_000_000), (7, 4, 3_000_000_000)], "points"),
        (2, [(31, 4, 200_000)], "5 x 200000 points;"),
        (2, [(31, 4, 9)], "5 x 9 points, but states 40 points"),
        (2, [(31, 4, 100), (7, 4, 500)], r"5 x 100 points, which do not fit into its \d+ bytes"),
        (2, [(60, 4, 2_000_000_000)], "longitudes 0 and 2000"),
    ],
)
def test_a_grid_that_the_message_cannot_hold_is_refused_by_file_and_byte(tmp_path, edition, changes, problem):
    sound, damaged = message(edition), message(edition)
    for change in changes:
        put(damaged, *change)
    place = rf"file\.grib is damaged: the message at byte {len(sound)} describes a .*{problem}"
    with pytest.raises(InputError, match=place):
        table_of_bytes(tmp_path, sound, damaged)


@pytest.mark.parametrize(("edition", "changes"), [(1, [(7, 2, 5000)]), (2, [(31, 4, 5000), (7, 4, 25_000)])])
def test_a_bitmap_must_have_a_bit_for_each_point(tmp_path, edition, changes):
    field = np.zeros(GRID.shape)
    field[0, 0] = np.nan
    content = message(edition, field)
    assert table_of_bytes(tmp_path, content).kinds[0].layout.columns == 8
    for change in changes:
        put(content, *change)
    with pytest.raises(InputError, match="5 x 5000 points, which do not fit"):
        table_of_bytes(tmp_path, content)


@pytest.mark.parametrize("edition", [1, 2])
def test_a_constant_field_may_have_more_points_than_its_message_has_bits(tmp_path, edition):
    grid = Grid.regular(181, 360)
    content = message(edition, np.full(grid.shape, 280.0), grid)
    assert 8 * len(content) < 181 * 360
    (tmp_path / "file.grib").write_bytes(content)
    assert (open_ensemble(tmp_path / "file.grib")["2t"].values == 280).all()


# Damaged files of `benchmarks.fuzz_grib`, which tries ten thousand

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
