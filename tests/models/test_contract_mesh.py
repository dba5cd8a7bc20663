"""Every model of conf/model that claims `tiles` gives the same numbers on several ranks as on one."""

from model_tiles import BUILT, CASES, FITTED, NETWORKS, SPECS, differences, save_expected_results
from ranks import run_on_ranks
from specs import quick_auto

from models.parallel.mesh import arrange_mesh


def test_every_model_of_this_project_claims_tiles():
    """The test below skips a model without the claim."""
    assert BUILT.keys() - SPECS.keys() == {"backbone"}


def on_tiles(rank, path, toy):
    """Compare bands of all models, and sectors of those that read other cells than their own."""
    with quick_auto():
        return [
            differences(arrange_mesh(1, 2), path, toy, CASES, FITTED),
            differences(arrange_mesh(1, 1, 2), path, toy, {name: CASES[name] for name in NETWORKS}),
        ]


def test_tiles_give_the_results_of_the_whole_grid(tmp_path, toy):
    """A model only combines layers, and `parallel/test_mesh.py` tests every layer on tiles with corners."""
    with quick_auto():
        path = save_expected_results(tmp_path / "tensors.pt", toy, CASES)
    for rank in run_on_ranks(2, on_tiles, path, toy):
        for name, (fit, results) in (case for found in rank for case in found.items()):
            assert fit < 1e-9, name
            assert results < 1e-12, name
