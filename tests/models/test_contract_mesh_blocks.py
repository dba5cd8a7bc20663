"""Every model of conf/model on several ranks gives the numbers that it gives on one: on blocks of both."""

import pytest
from model_tiles import assert_same


@pytest.mark.parametrize("mesh", [(2, 2)], ids=lambda mesh: f"{mesh[0]}x{mesh[1]}")
def test_blocks_give_the_numbers_of_the_whole(mesh, whole, toy):
    assert_same(mesh, whole, toy)
