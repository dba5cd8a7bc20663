"""Every model of conf/model that claims `tiles` gives the same numbers on several ranks as on one."""

import pytest
from model_tiles import (
    BUILT,
    COARSE,
    NETWORKS,
    ODD,
    SHIPPED,
    SPECS,
    STATISTICAL,
    assert_same,
    save_expected_results,
)

from data_pipeline.grid import Grid

CASES = {
    (2, 2): [(name, ODD) for name in [*STATISTICAL, *NETWORKS]],
    (3, 1): [("emos of one set", ODD)] + [(name, COARSE) for name in NETWORKS if name in SHIPPED],
}
"""Models and grids by mesh. A model only combines layers, and `parallel/test_mesh.py` tests every layer on every
mesh. Tiles of 2 x 2 have neighbours on all sides, and the second of 3 bands has no pole. On bands, networks have their
shipped options, and one statistical model stands for all: they only sum over the globe."""


def test_every_model_of_this_project_claims_tiles():
    """The tests below skip a model without the claim."""
    assert BUILT.keys() - SPECS.keys() == {"backbone"}, "`backbone` claims tiles only if its option `tiles` is true"


@pytest.fixture(scope="module")
def whole(tmp_path_factory, toy):
    """The file of the results of every model on whole grids."""
    cases = dict.fromkeys(case for cases in CASES.values() for case in cases)
    return save_expected_results(tmp_path_factory.mktemp("whole") / "tensors.pt", toy, cases)


@pytest.mark.parametrize("mesh", CASES, ids=lambda mesh: f"{mesh[0]}x{mesh[1]}")
def test_tiles_give_the_results_of_the_whole_grid(mesh, whole, toy):
    assert_same(mesh, whole, toy, CASES[mesh])


def test_partly_shared_coefficients_are_the_same_on_tiles(tmp_path, toy):
    cases = [("emos of partly one set", Grid.regular(7, 12))]
    assert_same((2, 2), save_expected_results(tmp_path / "tensors.pt", toy, cases), toy, cases)


def test_a_network_of_many_blocks_gives_the_same_on_tiles(tmp_path, toy):
    cases = [("deep_weather by resnet2d", Grid.regular(17, 24))]
    assert_same((2, 2), save_expected_results(tmp_path / "tensors.pt", toy, cases), toy, cases)


def test_a_backbone_of_layers_built_on_the_grid_works_on_tiles(tmp_path, toy):
    cases = [("backbone on tiles", Grid.regular(7, 12))]
    assert_same((1, 2), save_expected_results(tmp_path / "tensors.pt", toy, cases), toy, cases)
