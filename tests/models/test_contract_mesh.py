"""Every model of conf/model that claims `tiles` on several ranks gives the numbers that it gives on one."""

import pytest
from model_tiles import BUILT, CASES, MORE, SPECS, assert_same, work_out

from data_pipeline.grid import Grid

MESHES = [(2, 1), (3, 1), (4, 1), (1, 2), (1, 3), (1, 4), (2, 2)]


def test_every_model_of_this_project_claims_tiles():
    """A model that forgot the claim would be left out below without a word."""
    assert BUILT.keys() - SPECS.keys() == {"backbone"}, "which claims it with the option `tiles` only"


@pytest.fixture(scope="module")
def whole(tmp_path_factory, toy):
    """A file of what every model gives on whole grids, for comparison with tiles."""
    return work_out(tmp_path_factory.mktemp("whole") / "tensors.pt", toy, CASES + MORE)


@pytest.mark.parametrize("mesh", MESHES, ids=lambda mesh: f"{mesh[0]}x{mesh[1]}")
def test_tiles_give_the_numbers_of_the_whole(mesh, whole, toy):
    assert_same(mesh, whole, toy, CASES + MORE if mesh in ((3, 1), (2, 2)) else CASES)


def test_what_cells_share_in_part_is_fitted_alike_on_tiles(tmp_path, toy):
    cases = [("emos of partly one set", Grid.regular(7, 12))]
    assert_same((2, 2), work_out(tmp_path / "tensors.pt", toy, cases), toy, cases)


def test_a_network_of_many_blocks_gives_the_same_on_tiles(tmp_path, toy):
    cases = [("deep_weather by resnet2d", Grid.regular(17, 24))]
    assert_same((2, 2), work_out(tmp_path / "tensors.pt", toy, cases), toy, cases)


def test_a_backbone_of_layers_that_know_the_grid_works_on_tiles(tmp_path, toy):
    cases = [("backbone on tiles", Grid.regular(7, 12))]
    assert_same((1, 2), work_out(tmp_path / "tensors.pt", toy, cases), toy, cases)
