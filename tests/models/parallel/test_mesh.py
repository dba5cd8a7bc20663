"""Layers on several ranks against the same layers on one, and the cells that they send against those they need."""

import pytest
import torch
import torch.distributed as dist
from layers import GRIDS, LAYERS, MESHES, differences, inputs, make_layer, results
from ranks import run_on_ranks

from models.parallel.domain import Domain
from models.parallel.exchange import Exchange

READ_OTHERS = (
    "conv 3", "conv 5", "conv 5 of zeros beyond", "conv 5 of winds", "conv 2", "down", "down down",
    "max pool 2", "transposed conv 2",
)  # fmt: skip


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """A file with the results of layers on whole grids, computed once for all meshes.

    All layers are on the first grid, and the layers that read other cells on the others; bands skip two of those, whose
    columns are special.
    """
    path = tmp_path_factory.mktemp("whole") / "results.pt"
    cases = [(title, name) for title in GRIDS for name in LAYERS if title == "odd rows" or name in READ_OTHERS]
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
        if sectors > 1 or title in ("odd rows", "half shifted")
    }


@pytest.mark.parametrize("mesh", MESHES, ids=lambda mesh: f"{mesh[0]}x{mesh[1]}")
def test_tiles_give_the_results_of_the_whole_globe(mesh, whole):
    for found in run_on_ranks(mesh[0] * mesh[1], all_layers, *mesh, whole):
        for case, largest in found.items():
            assert max(largest) < 1e-12, (case, largest)


def planned_cells(bands, sectors, grid, name):
    """Cells that all ranks send forward; the backward pass sends as many."""
    ranks = [LAYERS[name](Domain.split(grid, bands, sectors, rank)) for rank in range(bands * sectors)]
    parts = [value for layer in ranks for module in layer.modules() for value in vars(module).values()]
    return sum(part.plan.cells_sent for part in parts if isinstance(part, Exchange))


def least_cells_by_derivatives(bands, sectors, grid, name):
    """Cells of other ranks with a non-zero derivative of any output of a tile: the minimum to be sent."""
    domain = Domain.split(grid, bands, sectors)
    # In evaluation mode, because training damps errors.
    layer = LAYERS[name](grid).eval()
    for parameter in layer.parameters():
        torch.nn.init.ones_(parameter)
    count = 0
    for rank in range(domain.ranks):
        x = torch.ones(1, 2, *grid.shape, requires_grad=True)
        y = layer(x)
        out = Domain.split(grid, bands, sectors)
        while out.shape != y.shape[-2:]:
            out = out.coarsen()
        y[..., *out.tile_of(rank)].sum().backward()
        asked = x.grad[0, 0] != 0
        asked[domain.tile_of(rank)] = False
        count += int(asked.sum())
    return count


SINGLE = ("conv 2", "conv 3", "conv 5", "down", "mixture")
"""Layers with one exchange each."""


@pytest.mark.parametrize("mesh", MESHES, ids=str)
@pytest.mark.parametrize("name", SINGLE)
def test_layers_send_only_the_cells_that_are_needed(name, mesh):
    """`test_traffic.py` counts the bytes that ranks really send."""
    for title, grid in GRIDS.items():
        assert planned_cells(*mesh, grid, name) == least_cells_by_derivatives(*mesh, grid, name), title
