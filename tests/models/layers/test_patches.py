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


def test_patches_are_slices():
    layer = Patches(GRID, 3)
    assert layer.count == 15
    assert layer(WHOLE).equal(slice_patches(0, 3, 0, 5))


@pytest.mark.parametrize("size", [1, 2, 5])
def test_a_linear_layer_on_patches_is_a_convolution_of_their_stride(size):
    weight = torch.randn(4, 2, size, size, dtype=torch.float64)
    found = (Patches(GRID, size)(WHOLE) @ weight.flatten(1).T).movedim(-1, 1)
    torch.testing.assert_close(found, functional.conv2d(WHOLE, weight, stride=size).flatten(2))


def patches_of_rank(rank, bands, sectors):
    """The patches of a rank, and the gradient of a sum of their squares."""
    domain = Domain.split(GRID, bands, sectors, rank, dist.group.WORLD.group_name)
    x = domain.cut(WHOLE).clone().requires_grad_()
    layer = Patches(domain, 3)
    found = layer(x)
    found.square().sum().backward()
    return found.detach(), x.grad, layer.count


@pytest.mark.parametrize("mesh", [(5, 1), (2, 2), (1, 5)], ids=str)
def test_every_patch_has_one_rank(mesh):
    domain = Domain.split(GRID, *mesh)
    counts = []
    for rank, (found, gradient, count) in enumerate(run_on_ranks(5 if 5 in mesh else 4, patches_of_rank, *mesh)):
        rows, columns = domain.tile_of(rank)
        first, last = (min(-(-row // 3), 3) for row in (rows.start, rows.stop))
        left, right = (min(-(-column // 3), 5) for column in (columns.start, columns.stop))
        assert found.equal(slice_patches(first, last, left, right))
        expected = 2 * WHOLE
        expected[..., 9:, :] = expected[..., 15:] = 0
        assert gradient.equal(expected[..., rows, columns])
        assert count == 15
        counts.append(found.shape[1])
    assert sum(counts) == 15
    if mesh == (5, 1):
        assert 0 in counts, "one rank has no patch"


def test_a_grid_without_a_whole_patch_is_refused():
    with pytest.raises(InputError, match=r"patches of 12 x 12 cells needs 12 rows and columns or more, got 11 x 16"):
        Patches(GRID, 12)
