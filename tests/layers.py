"""Every layer of `models/layers`, with the grids and meshes of their tests."""

import torch
from torch import nn

from data_pipeline.grid import Grid
from models.layers.convolution import Conv2d, ConvTranspose2d
from models.layers.gate import SphereGate
from models.layers.locally_connected import LocallyConnected
from models.layers.loss_term import loss_terms
from models.layers.mixture import Routing, SpatialMixture
from models.layers.norms import BatchNorm2d, ChannelNorm, FieldNorm
from models.layers.resolution import Downsample, MaxPool2d, Upsample
from models.parallel.exchange import allsum

GRIDS = {
    "odd rows": Grid.regular(17, 26),
    "half shifted": Grid(tuple(85.5 - 9.0 * k for k in range(20)), tuple(9.0 * k for k in range(40))),
    "area": Grid(tuple(60.0 - 2.5 * k for k in range(19)), tuple(2.5 * k - 10 for k in range(22))),
    "odd columns": Grid(tuple(90 - 10.0 * k for k in range(19)), tuple(k * 360 / 27 for k in range(27))),
}
"""Rows at both poles, rows beside the poles, no poles, and columns whose opposite lies between two others."""
MESHES = [(3, 1), (2, 2)]
"""Bands and sectors: a band without a pole; corners, and tiles whose opposites beyond a pole are others."""


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


class Mixtures(nn.Module):
    """Mixtures in place of convolutions, in sequence and at two resolutions, with every kind of gate."""

    def __init__(self, grid):
        super().__init__()
        self.down = Downsample(grid)
        gate = nn.Sequential(Conv2d(self.down.out, 4, 4), nn.GELU(), nn.Conv2d(4, 5, 1))
        self.fine = SpatialMixture(grid, 2, 4, 6, gate=SphereGate(grid, 4, 6, degree=3))
        self.coarse = SpatialMixture(self.down.out, 4, 2, 5, gate=gate, routing=Routing(0.6, 0.5))
        self.up, self.last = Upsample(grid), SpatialMixture(grid, 6, 1, 3)

    def forward(self, x):
        x = torch.tanh(self.fine(x))
        return self.last(torch.cat([x, self.up(self.coarse(self.down(x)))], 1))


LAYERS = {
    "conv 3": lambda grid: Conv2d(grid, 2, 3),
    "conv 5": lambda grid: Conv2d(grid, 2, 3, 5),
    "conv 5 of zeros beyond": lambda grid: Conv2d(grid, 2, 3, 5, beyond_zero=True),
    "conv 5 of winds": lambda grid: Conv2d(grid, 2, 3, 5, parity=(1, -1)),
    "down": Downsample,
    "down down": lambda grid: nn.Sequential(first := Downsample(grid), Downsample(first.out)),
    "down up": lambda grid: nn.Sequential(Downsample(grid), Upsample(grid)),
    "conv 2": lambda grid: Conv2d(grid, 2, 3, 2),
    "max pool 2": MaxPool2d,
    "transposed conv 2": lambda grid: nn.Sequential(MaxPool2d(grid), ConvTranspose2d(grid, 2, 3)),
    "field norm": lambda grid: FieldNorm(grid, 2),
    "batch norm": lambda grid: BatchNorm2d(grid, 2),
    "mixture": lambda grid: SpatialMixture(grid, 2, 2, 4),
    "weighted mixture": lambda grid: SpatialMixture(grid, 2, 3, 4, scale_by_gate=True, routing=None),
    "mixtures": Mixtures,
    "locally connected": lambda grid: LocallyConnected(grid, 2, 3, smoothness_penalty=0.7),
    "net": Net,
}


def inputs(grid):
    """The input of a layer, and weights for a sum of its outputs."""
    torch.manual_seed(3)
    return torch.randn(2, 2, *grid.shape, dtype=torch.float64), torch.randn(2, 8, *grid.shape, dtype=torch.float64)


def results(layer, x, weights):
    """The output of a layer, and the gradients of a weighted sum of it by input and parameters."""
    x = x.clone().requires_grad_()
    y = layer(x)
    ((y * weights[:, : y.shape[1], : y.shape[2], : y.shape[3]]).sum() + loss_terms(layer)).backward()
    return y.detach(), x.grad, [parameter.grad for parameter in layer.parameters()]


def make_layer(name, grid):
    """A layer in double precision, with the same parameters on every grid, tile and rank."""
    torch.manual_seed(4)
    return LAYERS[name](grid).double()


def differences(domain, name, expected):
    """Largest relative differences between whole globe and tiles: output, input gradient, parameter gradients."""
    y, for_input, for_parameters = expected
    x, weights = inputs(domain.grid)
    out = domain
    while out.shape != y.shape[-2:]:
        out = out.coarsen()
    rows, columns = out.tile
    found = results(make_layer(name, domain), domain.cut(x), weights[..., rows, :][..., columns])
    largest = [(found[0] - out.cut(y)).abs().max(), (found[1] - domain.cut(for_input)).abs().max()]
    for one, many in zip(for_parameters, found[2], strict=True):
        largest.append((allsum(many, domain) - one).abs().max() / one.abs().max())
    return [float(difference) for difference in largest]
