"""Layers on several ranks against the same layers on one."""

import pytest
import torch
import torch.distributed as dist
from layers import GRIDS, LAYERS, MESHES, differences, inputs, make_layer, results
from ranks import run_on_ranks

from models.parallel.domain import Domain


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """A file with the results of all layers on whole grids, computed once for all meshes."""
    path = tmp_path_factory.mktemp("whole") / "results.pt"
    cases = [(title, name) for title in GRIDS for name in LAYERS]
    torch.save(
        {(title, name): results(make_layer(name, GRIDS[title]), *inputs(GRIDS[title])) for title, name in cases}, path
    )
    return path


def all_layers(rank, bands, sectors, path):
    expected = torch.load(path)
    return {
        (title, name): differences(
            Domain.split(GRIDS[title], bands, sectors, rank, dist.group.WORLD.group_name), name, case
        )
        for (title, name), case in expected.items()
    }


@pytest.mark.parametrize("mesh", MESHES, ids=lambda mesh: f"{mesh[0]}x{mesh[1]}")
def test_tiles_give_the_results_of_the_whole_globe(mesh, whole):
    for found in run_on_ranks(mesh[0] * mesh[1], all_layers, *mesh, whole):
        for case, largest in found.items():
            assert max(largest) < 1e-12, (case, largest)
