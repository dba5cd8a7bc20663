"""Cells that layers send on several ranks, against the cells with a non-zero derivative."""

import pytest
import torch
from layers import GRIDS, LAYERS, MESHES

from models.parallel.domain import Domain
from models.parallel.exchange import Exchange


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


SINGLE = ("conv 2", "conv 3", "conv 5", "strided conv 3", "down", "mean pool 2", "mixture")
"""Layers with one exchange each."""


@pytest.mark.parametrize("mesh", MESHES, ids=str)
@pytest.mark.parametrize("name", SINGLE)
def test_layers_send_only_the_cells_that_are_needed(name, mesh):
    """`test_traffic.py` counts the bytes that ranks really send."""
    for title, grid in GRIDS.items():
        assert planned_cells(*mesh, grid, name) == least_cells_by_derivatives(*mesh, grid, name), title
