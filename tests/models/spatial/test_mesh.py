"""Layers on several ranks against the same layers on one."""

import pytest
import torch
import torch.distributed as dist
from ranks import together
from torch import nn

from data_pipeline.grid import Grid
from models.spatial.attention import WindowAttention
from models.spatial.convolution import Conv2d, ConvTranspose2d
from models.spatial.domain import Domain
from models.spatial.exchange import allsum, counting
from models.spatial.local import LocallyConnected
from models.spatial.normalization import ChannelNorm, GroupNorm
from models.spatial.resolution import AvgPool2d, Downsample, MaxPool2d, Upsample

GRIDS = {
    "33 x 64": Grid.regular(33, 64),
    "29 x 50": Grid.regular(29, 50),
    "37 x 72": Grid.regular(37, 72),
    "half shifted": Grid(tuple(87.5 - 5.0 * k for k in range(36)), tuple(5.0 * k for k in range(72))),
    "area": Grid(tuple(60.0 - 2.5 * k for k in range(19)), tuple(2.5 * k - 10 for k in range(22))),
    "odd columns": Grid(tuple(90 - 7.5 * k for k in range(25)), tuple(k * 360 / 45 for k in range(45))),
}
MESHES = [(2, 1), (1, 2), (3, 1), (1, 3), (4, 1), (2, 2), (1, 4)]


class Net(nn.Module):
    """Every layer once, at two resolutions."""

    def __init__(self, grid):
        super().__init__()
        self.fine, self.down = Conv2d(grid, 2, 4, 5), Downsample(grid)
        self.coarse, self.norm = Conv2d(self.down.out, 4, 4), ChannelNorm(4)
        self.up, self.last = Upsample(grid), Conv2d(grid, 8, 1)

    def forward(self, x):
        x = torch.tanh(self.fine(x))
        return self.last(torch.cat([x, self.up(self.norm(self.coarse(self.down(x))))], 1))


LAYERS = {
    "conv 3": lambda grid: Conv2d(grid, 2, 3),
    "conv 5": lambda grid: Conv2d(grid, 2, 3, 5),
    "down": Downsample,
    "down down": lambda grid: nn.Sequential(first := Downsample(grid), Downsample(first.out)),
    "down up": lambda grid: nn.Sequential(Downsample(grid), Upsample(grid)),
    "conv 2": lambda grid: Conv2d(grid, 2, 3, 2),
    "strided conv 3": lambda grid: Conv2d(grid, 2, 3, 3, stride=2),
    "strided conv 4": lambda grid: Conv2d(grid, 2, 4, 4, stride=2, groups=2),
    "max pool 2": MaxPool2d,
    "max pool 3": lambda grid: MaxPool2d(grid, 3),
    "mean pool 2": AvgPool2d,
    "transposed conv 2": lambda grid: nn.Sequential(AvgPool2d(grid), ConvTranspose2d(grid, 2, 3)),
    "transposed conv 3": lambda grid: nn.Sequential(Downsample(grid), ConvTranspose2d(grid, 2, 3, 3)),
    "transposed conv 4": lambda grid: nn.Sequential(Downsample(grid), ConvTranspose2d(grid, 2, 3, 4)),
    "group norm": lambda grid: GroupNorm(grid, 2, 2),
    "locally connected": lambda grid: LocallyConnected(grid, 2, 3),
    "windows": lambda grid: WindowAttention(grid, 2, 1, 5),
    "shifted windows": lambda grid: WindowAttention(grid, 2, 2, 4, shift=True),
    "net": Net,
}


def one_and_many(rank, bands, sectors, grid, name):
    """Largest differences between the whole and the tiles: output, input gradient, parameter gradients (relative)."""
    domain = Domain.split(grid, bands, sectors, rank, dist.group.WORLD)
    torch.manual_seed(3)
    x = torch.randn(2, 2, *grid.shape, dtype=torch.float64)
    torch.manual_seed(4)
    whole = LAYERS[name](grid).double()
    torch.manual_seed(4)
    tiled = LAYERS[name](domain).double()
    ours, theirs = domain.cut(x).clone().requires_grad_(), x.clone().requires_grad_()
    expected, found = whole(theirs), tiled(ours)
    out = domain
    while out.own_shape != found.shape[-2:]:
        out = out.coarsen()
    weights = torch.randn(expected.shape, dtype=torch.float64)
    (expected * weights).sum().backward()
    (found * out.cut(weights)).sum().backward()
    differences = [(found - out.cut(expected)).abs().max(), (ours.grad - domain.cut(theirs.grad)).abs().max()]
    for one, many in zip(whole.parameters(), tiled.parameters(), strict=True):
        differences.append((allsum(many.grad, domain) - one.grad).abs().max() / one.grad.abs().max())
    return [float(difference) for difference in differences]


def all_layers(rank, bands, sectors):
    return {
        (title, name): one_and_many(rank, bands, sectors, grid, name)
        for title, grid in GRIDS.items()
        for name in LAYERS
    }


@pytest.mark.parametrize("mesh", MESHES, ids=lambda mesh: f"{mesh[0]}x{mesh[1]}")
def test_tiles_give_the_numbers_of_the_whole(mesh):
    for found in together(mesh[0] * mesh[1], all_layers, *mesh):
        for case, differences in found.items():
            assert max(differences) < 1e-12, (case, differences)


def bytes_of(rank, bands, sectors, grid, name):
    """Bytes sent by this rank forward and backward."""
    domain = Domain.split(grid, bands, sectors, rank, dist.group.WORLD)
    layer = LAYERS[name](domain)
    x = torch.ones(3, 2, *domain.own_shape, requires_grad=True)
    with counting() as forward:
        y = layer(x)
    with counting() as backward:
        y.sum().backward()
    return forward["halo"], backward["halo gradient"]


def needed(bands, sectors, grid, name):
    """Cells of others that any output of a tile depends on, by the derivative of the whole: the least to be sent."""
    domain = Domain.split(grid, bands, sectors)
    layer = LAYERS[name](grid)
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


SINGLE = ("conv 2", "conv 3", "conv 5", "strided conv 3", "down", "mean pool 2")
"""Layers with one exchange each."""


@pytest.mark.parametrize("mesh", [(2, 1), (1, 3), (2, 2), (4, 1)], ids=lambda mesh: f"{mesh[0]}x{mesh[1]}")
def test_no_byte_travels_that_is_not_needed(mesh):
    found = together(mesh[0] * mesh[1], all_bytes, *mesh)
    for title, name in found[0]:
        least = needed(*mesh, GRIDS[title], name) * 3 * 2 * 4
        assert sum(rank[title, name][0] for rank in found) == least, (title, name)
        assert sum(rank[title, name][1] for rank in found) == least, (title, name)
