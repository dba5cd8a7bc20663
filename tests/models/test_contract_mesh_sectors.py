"""Every model of conf/model on several ranks gives the numbers that it gives on one: on sectors of longitudes."""

import pytest
from model_tiles import assert_same


@pytest.mark.parametrize("mesh", [(1, 2), (1, 3), (1, 4)], ids=lambda mesh: f"{mesh[0]}x{mesh[1]}")
def test_sectors_give_the_numbers_of_the_whole(mesh, whole, toy):
    assert_same(mesh, whole, toy)
