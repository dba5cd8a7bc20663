"""Layers and networks whose channels several ranks divide, against the same on one rank."""

import math
from unittest.mock import patch

import numpy as np
import pytest
import torch
from model_tiles import SPECS, TASK, differences, relative, save_expected_results
from ranks import run_on_ranks
from torch import nn

from data_pipeline.common.errors import InputError
from data_pipeline.grid import Grid
from models.corrector import build_model, needed_task
from models.layers import convolution
from models.layers.channel_axis import (
    ChannelConv2d,
    DividedChannelNorm,
    DividedDropout,
    FilterConv2d,
    check_channel_axis,
)
from models.layers.convolution import Conv2d
from models.layers.dropout import Dropout
from models.layers.norms import ChannelNorm
from models.networks.trunk import ResidualBlock
from models.parallel.domain import ChannelAxis, Domain
from models.parallel.exchange import allsum
from models.parallel.mesh import Mesh, arrange_mesh
from models.parallel.redistribution import divide_channels, merge_tiles, sum_channels, sum_tiles

GRIDS = {
    "odd rows": Grid.regular(17, 26),
    "half shifted": Grid(tuple(82.5 - 15.0 * k for k in range(12)), tuple(15.0 * k for k in range(24))),
    "area": Grid(tuple(60.0 - 2.5 * k for k in range(13)), tuple(2.5 * k - 10 for k in range(16))),
}
MESHES = [(1, 1, 1, 2), (1, 2, 1, 2)]
"""Data, bands, sectors, channels: the channel axis alone, and with bands. `networks_on_rank` adds sectors."""
NETWORKS = ["smoe_unet", "transformer"]
"""Models whose convolutions the channel axis divides, but those whose layers these have."""
PAIRS = {"few inputs": (5, 7, 0.3), "many inputs": (11, 5, 0.0)}
"""Inputs, outputs and dropout of a pair of convolutions; most ranks have different numbers of channels."""


def pair(grid, inputs, outputs, dropout):
    """A pair of convolutions with norm and dropout between them, of plain layers on one rank."""
    torch.manual_seed(4)
    domain = Domain.of(grid)
    if domain.channel_axis:
        layers = [
            FilterConv2d(domain, inputs, outputs), DividedChannelNorm(domain, outputs), nn.GELU(),
            DividedDropout(domain, dropout, outputs), ChannelConv2d(domain, outputs, outputs),
        ]  # fmt: skip
    else:
        layers = [
            Conv2d(grid, inputs, outputs), ChannelNorm(outputs), nn.GELU(),
            Dropout(grid, dropout, channels=True), Conv2d(grid, outputs, outputs),
        ]  # fmt: skip
    nn.init.normal_(layers[1].weight)
    nn.init.normal_(layers[1].bias)
    return nn.Sequential(*layers).double()


def results(layer, x, weights):
    """The output of a layer, and the gradients of a weighted sum of it by input and parameters."""
    x = x.clone().requires_grad_()
    torch.manual_seed(9)  # masks of dropout
    y = layer(x)
    (y * weights).sum().backward()
    return [y.detach(), x.grad], [parameter.grad for parameter in layer.parameters()]


def compare_pairs(mesh, overlap=False):
    """Largest relative differences between one process and the ranks of a mesh."""
    found = {}
    for title, grid in GRIDS.items():
        domain = mesh.domain(grid)
        for name, options in PAIRS.items():
            torch.manual_seed(3)
            x, weights = (torch.randn(2, options[k], *grid.shape, dtype=torch.float64) for k in (0, 1))
            one = results(pair(grid, *options), x, weights)
            with patch.object(convolution, "overlaps", lambda work, device: overlap and work > 0):
                many = results(pair(domain, *options), domain.cut(x), domain.cut(weights))
            compared = [(a, domain.cut(b)) for a, b in zip(many[0], one[0], strict=True)]
            compared += [(allsum(a, domain), b) for a, b in zip(many[1], one[1], strict=True)]
            found[title, name] = max(relative(a, b) for a, b in compared)
    return found


# Redistribution.


def moves_of(mesh):
    """The part of each function's result, and the gradient that comes back for its input."""
    grid = GRIDS["odd rows"]
    domain, found = mesh.domain(grid), []
    whole = 1 + torch.arange(2 * 7 * 17 * 26.0).view(2, 7, 17, 26)
    merged, own = domain.merge(), domain.own_channels(7)
    for move, given, expected in (
        (merge_tiles, domain.cut(whole), merged.cut(whole)),
        (divide_channels, domain.cut(whole), merged.cut(whole)[:, own]),
        (sum_channels, merged.cut(whole) * (mesh.rank + 1), merged.cut(whole)[:, own]),
        (sum_tiles, merged.cut(whole) * (mesh.rank + 1), domain.cut(whole)),
    ):
        given = given.clone().requires_grad_()
        y = move(given, domain)
        # The number of ranks that use each input is its derivative in the sum of all outputs.
        (uses,) = torch.autograd.grad(y.sum(), given)
        found.append(((y / expected).detach().numpy(), uses.numpy()))
    return found


# Networks.


def networks_on_rank(rank, path, toy):
    """Largest relative differences of forecast, score and gradients of each network."""
    mesh = arrange_mesh(1, 1, 2, 2)
    for name in NETWORKS:
        model = build_model(SPECS[name], needed_task(SPECS[name], TASK), mesh.domain(GRIDS["odd rows"]))
        assert sum(isinstance(layer, FilterConv2d) for layer in model.modules()) >= 3
    return differences(mesh, path, toy, dict.fromkeys(NETWORKS, GRIDS["odd rows"]))


def test_networks_give_the_results_of_one_process(tmp_path, toy):
    path = save_expected_results(tmp_path / "tensors.pt", toy, dict.fromkeys(NETWORKS, GRIDS["odd rows"]))
    for found in run_on_ranks(4, networks_on_rank, path, toy):
        for name, (_, largest) in found.items():
            assert largest < 1e-12, name


# Checks of one mesh.


def checks_on_rank(rank, shape):
    mesh = arrange_mesh(*shape)
    overlapping = compare_pairs(mesh, overlap=True) if shape == (1, 2, 1, 2) else {}
    return compare_pairs(mesh), overlapping, moves_of(mesh)


@pytest.fixture(scope="module", params=MESHES, ids=str)
def checks(request):
    """A mesh, and the results of all its ranks."""
    return request.param, [*zip(*run_on_ranks(math.prod(request.param), checks_on_rank, request.param), strict=True)]


def test_a_pair_of_convolutions_gives_the_results_of_one_process(checks):
    for found in (*checks[1][0], *checks[1][1]):
        for case, largest in found.items():
            assert largest < 1e-12, case


def test_ranks_move_and_add_channels_and_rows(checks):
    (_, bands, sectors, channels), (_, _, moves) = checks
    for rank, found in enumerate(moves):
        band, _, sector = np.unravel_index(rank, (bands, channels, sectors))
        total = sum(1 + np.ravel_multi_index((band, k, sector), (bands, channels, sectors)) for k in range(channels))
        for (ratio, uses), factor, used in zip(found, (1, 1, total, total), (channels, 1, 1, 1), strict=True):
            assert ratio.min() == pytest.approx(factor)
            assert ratio.max() == pytest.approx(factor)
            assert (uses == used).all()


def test_both_ways_of_the_first_convolution_are_tested_and_too_few_channels_refused():
    domain = Domain.split(GRIDS["odd rows"], 2, channel_axis=ChannelAxis(2))
    assert [FilterConv2d(domain, *PAIRS[name][:2]).gathers for name in PAIRS] == [True, False]
    domain = Domain.split(GRIDS["odd rows"], 4, channel_axis=ChannelAxis(4))
    with pytest.raises(InputError, match=r"4 ranks cannot divide the 3 channels of a layer; take fewer ranks on the"):
        ResidualBlock(domain, 2, 3, 0.0, wide=True)


# Refusals.


def test_a_model_without_wide_layers_is_refused():
    mesh = Mesh(2, 1, 1, 2)
    for name, refused in (("unet", False), ("lenet", True)):
        domain = Domain.split(GRIDS["odd rows"], 2, channel_axis=ChannelAxis(2))
        model = build_model(SPECS[name], needed_task(SPECS[name], TASK), domain)
        if not refused:
            check_channel_axis(model, mesh)
            continue
        with pytest.raises(InputError, match=r"LeNet has no wide layers .* set trainer\.mesh=\[2,2,1\]"):
            check_channel_axis(model, mesh)
