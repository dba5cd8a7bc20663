"""Patches against slices of the field; on tiles, every patch of the globe has exactly one rank."""

import pytest
import torch
import torch.distributed as dist
from ranks import run_on_ranks
from torch.nn import functional

from data_pipeline.common.errors import InputError
from data_pipeline.grid import Grid
from models.layers.patches import Patches
from models.parallel.domain import Domain

GRID = Grid.regular(11, 16)
"""3 x 5 patches of 3 x 3 cells; 2 rows and one column belong to no patch."""
WHOLE = torch.randn(2, 2, *GRID.shape, dtype=torch.float64, generator=torch.Generator().manual_seed(4))


def slice_patches(first, last, left, right):
    """The patches from one row and column to another, by slices."""
    found = [
        WHOLE[..., 3 * i : 3 * i + 3, 3 * j : 3 * j + 3].flatten(1)
        for i in range(first, last)
        for j in range(left, right)
    ]
    return torch.stack(found, 1) if found else WHOLE.new_zeros(2, 0, 18)


@pytest.mark.parametrize("size", [1, 2, 5])
def test_a_linear_layer_on_patches_is_a_convolution_of_their_stride(size):
    weight = torch.randn(4, 2, size, size, dtype=torch.float64)
    found = (Patches(GRID, size)(WHOLE) @ weight.flatten(1).T).movedim(-1, 1)
    torch.testing.assert_close(found, functional.conv2d(WHOLE, weight, stride=size).flatten(2))


MESHES = [(4, 1), (2, 2)]
"""Bands and sectors; the last of four bands has no patch."""


def patches_of_rank(rank):
    """For each mesh: the patches of a rank, and the gradient of a sum of their squares."""
    found = []
    for mesh in MESHES:
        domain = Domain.split(GRID, *mesh, rank, dist.group.WORLD.group_name)
        x, layer = domain.cut(WHOLE).clone().requires_grad_(), Patches(domain, 3)
        patches = layer(x)
        patches.square().sum().backward()
        found.append((patches.detach(), x.grad, layer.count))
    return found


def test_every_patch_has_one_rank():
    for mesh, ranks in zip(MESHES, zip(*run_on_ranks(4, patches_of_rank), strict=True), strict=True):
        for rank, (found, gradient, count) in enumerate(ranks):
            rows, columns = Domain.split(GRID, *mesh).tile_of(rank)
            first, last = (min(-(-row // 3), 3) for row in (rows.start, rows.stop))
            left, right = (min(-(-column // 3), 5) for column in (columns.start, columns.stop))
            assert found.equal(slice_patches(first, last, left, right))
            expected = 2 * WHOLE
            expected[..., 9:, :] = expected[..., 15:] = 0
            assert gradient.equal(expected[..., rows, columns])
            assert count == 15
        counts = [found.shape[1] for found, *_ in ranks]
        assert sum(counts) == 15
        assert (0 in counts) == (mesh == (4, 1))


def test_a_grid_without_a_whole_patch_is_refused():
    with pytest.raises(InputError, match=r"patches of 12 x 12 cells needs 12 rows and columns or more, got 11 x 16"):
        Patches(GRID, 12)
