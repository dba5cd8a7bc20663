"""Bytes that layers send on several ranks, against the cells with a non-zero derivative."""

import pytest
import torch
import torch.distributed as dist
from layers import GRIDS, LAYERS
from ranks import run_on_ranks

from models.layers.loss_term import loss_terms
from models.parallel.domain import Domain
from models.parallel.exchange import count_sent_bytes


def bytes_of(rank, bands, sectors, grid, name):
    """Bytes sent by this rank forward and backward."""
    domain = Domain.split(grid, bands, sectors, rank, dist.group.WORLD.group_name)
    layer = LAYERS[name](domain)
    x = torch.ones(3, 2, *domain.own_shape, requires_grad=True)
    with count_sent_bytes() as forward:
        y = layer(x)
    with count_sent_bytes() as backward:
        (y.sum() + loss_terms(layer)).backward()
    return forward["halo"], backward["halo gradient"]


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


def all_bytes(rank, bands, sectors):
    return {(title, name): bytes_of(rank, bands, sectors, GRIDS[title], name) for title in GRIDS for name in SINGLE}


SINGLE = ("conv 2", "conv 3", "conv 5", "strided conv 3", "down", "mean pool 2", "mixture")
"""Layers with one exchange each."""


@pytest.mark.parametrize("mesh", [(2, 1), (1, 3), (2, 2), (4, 1)], ids=lambda mesh: f"{mesh[0]}x{mesh[1]}")
def test_layers_send_only_the_bytes_that_are_needed(mesh):
    found = run_on_ranks(mesh[0] * mesh[1], all_bytes, *mesh)
    for title, name in found[0]:
        least = least_cells_by_derivatives(*mesh, GRIDS[title], name) * 3 * 2 * 4
        assert sum(rank[title, name][0] for rank in found) == least, (title, name)
        assert sum(rank[title, name][1] for rank in found) == least, (title, name)
