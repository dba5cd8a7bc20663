"""Layers and networks whose channels several ranks divide, against the same on one rank; bytes against the least."""

import math
from unittest.mock import patch

import pytest
import torch
from model_tiles import SPECS, TASK, area, cut, fit_corrector, relative, tensors
from model_tiles import batch as sample_batch
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
from models.parallel.exchange import allsum, count_sent_bytes
from models.parallel.mesh import Mesh, arrange_mesh
from models.parallel.redistribution import divide_channels, merge_tiles, sum_channels, sum_tiles

GRIDS = {
    "29 x 50": Grid.regular(29, 50),
    "half shifted": Grid(tuple(87.5 - 5.0 * k for k in range(36)), tuple(5.0 * k for k in range(72))),
    "area": Grid(tuple(60.0 - 2.5 * k for k in range(19)), tuple(2.5 * k - 10 for k in range(22))),
}
MESHES = [(1, 1, 1, 2), (1, 1, 1, 3), (1, 1, 1, 4), (1, 2, 1, 2), (1, 1, 2, 2)]
"""Data, bands, sectors, channels: the channel axis alone, and with each of the spatial axes."""
ON_MESHES = pytest.mark.parametrize("shape", MESHES, ids=lambda shape: "x".join(map(str, shape)))
CASES = SPECS | {"transformer of windows": SPECS["transformer"] | {"attention_window": 2}}
NETWORKS = ["unet", "smoe_unet", "transformer", "transformer_independent", "transformer of windows"]
"""Models whose convolutions the channel axis divides."""
PAIRS = {
    "few inputs": (5, 7, 3, 0.3),
    "many inputs": (11, 5, 3, 0.0),
    "large kernels": (4, 6, 5, 0.0),
}
"""Inputs, outputs, kernel and dropout of a pair of convolutions; most ranks have different numbers of channels."""


def pair(grid, inputs, outputs, kernel, dropout):
    """A pair of convolutions with norm and dropout between them, of plain layers on one rank."""
    torch.manual_seed(4)
    domain = Domain.of(grid)
    if domain.channel_axis:
        layers = [
            FilterConv2d(domain, inputs, outputs, kernel), DividedChannelNorm(domain, outputs), nn.GELU(),
            DividedDropout(domain, dropout, outputs), ChannelConv2d(domain, outputs, outputs, kernel),
        ]  # fmt: skip
    else:
        layers = [
            Conv2d(grid, inputs, outputs, kernel), ChannelNorm(outputs), nn.GELU(),
            Dropout(grid, dropout, channels=True), Conv2d(grid, outputs, outputs, kernel),
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


def pairs_on_rank(rank, shape, overlap):
    """Largest relative differences between one process and the ranks of a mesh."""
    mesh, found = arrange_mesh(*shape), {}
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


@ON_MESHES
def test_a_pair_of_convolutions_gives_the_results_of_one_process(shape):
    for found in run_on_ranks(math.prod(shape), pairs_on_rank, shape, False):
        for case, largest in found.items():
            assert largest < 1e-12, case


def test_convolutions_that_overlap_give_the_results_of_one_process():
    for found in run_on_ranks(4, pairs_on_rank, (1, 2, 1, 2), True):
        assert max(found.values()) < 1e-12


# Redistribution.


def moves_on_rank(rank, shape):
    """The part of each function's result, and the gradient that comes back for its input."""
    mesh, grid = arrange_mesh(*shape), GRIDS["29 x 50"]
    domain, found = mesh.domain(grid), []
    whole = 1 + torch.arange(2 * 7 * 29 * 50.0).view(2, 7, 29, 50)
    merged, own = domain.merge(), domain.own_channels(7)
    for move, given, expected in (
        (merge_tiles, domain.cut(whole), merged.cut(whole)),
        (divide_channels, domain.cut(whole), merged.cut(whole)[:, own]),
        (sum_channels, merged.cut(whole) * (rank + 1), merged.cut(whole)[:, own]),
        (sum_tiles, merged.cut(whole) * (rank + 1), domain.cut(whole)),
    ):
        given = given.clone().requires_grad_()
        y = move(given, domain)
        # The number of ranks that use each input is its derivative in the sum of all outputs.
        (uses,) = torch.autograd.grad(y.sum(), given)
        found.append(((y / expected).detach().numpy(), uses.numpy()))
    return found


@pytest.mark.parametrize("shape", [(1, 1, 1, 3), (1, 2, 1, 2), (2, 1, 1, 2)], ids=str)
def test_ranks_move_and_add_channels_and_rows(shape):
    ranks, channels = math.prod(shape), shape[3]
    for rank, found in enumerate(run_on_ranks(ranks, moves_on_rank, shape)):
        first = rank // channels * channels  # one sector: ranks of a channel axis are neighbours
        total = sum(range(first + 1, first + channels + 1))
        for (ratio, uses), factor, used in zip(found, (1, 1, total, total), (channels, 1, 1, 1), strict=True):
            assert ratio.min() == pytest.approx(factor)
            assert ratio.max() == pytest.approx(factor)
            assert (uses == used).all()


# Networks.


@pytest.fixture(scope="module")
def whole(tmp_path_factory, toy):
    """The file of state, results and gradients of every network on one process."""
    found, grid = {}, GRIDS["29 x 50"]
    for name in NETWORKS:
        task = needed_task(CASES[name], TASK)
        corrector = fit_corrector(CASES[name], toy(task, grid, 8), grid)
        found[name] = corrector.state_dict(), *tensors(corrector, sample_batch(toy, task, grid), area(grid))
    path = tmp_path_factory.mktemp("networks") / "tensors.pt"
    torch.save(found, path)
    return path


def networks_on_rank(rank, shape, path, toy):
    """Largest relative differences of mean, spread, score and gradients of each network."""
    expected, found, grid = torch.load(path), {}, GRIDS["29 x 50"]
    domain = arrange_mesh(*shape).domain(grid)
    for name, (state, fields, sums) in expected.items():
        if "windows" in name and domain.tiles[0] > 2:
            continue  # four bands of eight rows are not enough for shifted windows
        task = needed_task(CASES[name], TASK)
        corrector = fit_corrector(CASES[name], toy(task, grid, 8), domain)
        corrector.load_state_dict(state)
        assert sum(isinstance(layer, FilterConv2d) for layer in corrector.modules()) >= 3
        own = tensors(corrector, cut(sample_batch(toy, task, grid), domain), domain.cut(area(grid)))
        pairs = [(a, domain.cut(b)) for a, b in zip(own[0], fields, strict=True)]
        pairs += [(allsum(a, domain), b) for a, b in zip(own[1], sums, strict=True)]
        found[name] = max(relative(a.nan_to_num(), b.nan_to_num()) for a, b in pairs)
    return found


@pytest.mark.parametrize("shape", [(1, 1, 1, 2), (1, 1, 1, 4), (1, 2, 1, 2), (1, 1, 2, 2)], ids=str)
def test_networks_give_the_results_of_one_process(shape, whole, toy):
    for found in run_on_ranks(math.prod(shape), networks_on_rank, shape, whole, toy):
        assert len(found) >= len(NETWORKS) - 1
        for name, largest in found.items():
            assert largest < 1e-12, (name, largest)


# Bytes.


def bytes_on_rank(rank, shape):
    """Bytes that this rank sends, by grid and pair, forward and backward."""
    mesh, found = arrange_mesh(*shape), {}
    for title, grid in GRIDS.items():
        domain = mesh.domain(grid)
        for name, options in PAIRS.items():
            layer = pair(domain, *options)
            x = torch.ones(2, options[0], *domain.own_shape, dtype=torch.float64, requires_grad=True)
            with count_sent_bytes() as forward:
                y = layer(x)
            with count_sent_bytes() as backward:
                y.sum().backward()
            sent = forward["halo"] + forward["channels"], backward["halo gradient"] + backward["channels gradient"]
            found[title, name] = (*sent, forward["sum"], backward["sum"])
    return found


def least_bytes(grid, shape, inputs, outputs, kernel):
    """The least that all ranks send in one direction, in numbers: from the derivatives of layers on one process.

    A rank computes its share of filters, or the part of all filters that its share of channels contributes; it needs
    each input that it lacks once, and each other rank's part of its outputs once. The second convolution sums.
    """
    _, bands, sectors, channels = shape
    domain = Domain.split(grid, bands, sectors)
    fine = Domain.split(grid, bands * channels, sectors)
    layer = Conv2d(grid, 1, 1, kernel)
    nn.init.ones_(layer.weight)
    gathered = divided = summed = 0
    for rank in range(domain.ranks):
        x = torch.ones(1, 1, *grid.shape, requires_grad=True)
        layer(x)[..., *domain.tile_of(rank)].sum().backward()
        asked = x.grad[0, 0] != 0
        cells = torch.zeros(grid.shape)[domain.tile_of(rank)].numel()
        row, column = divmod(rank, sectors)
        for k in range(channels):
            tile = fine.tile_of((row * channels + k) * sectors + column)
            own = asked[tile].sum().item()
            few, many = (round((k + 1) * n / channels) - round(k * n / channels) for n in (inputs, outputs))
            gathered += inputs * (asked.sum().item() - own)
            divided += few * (asked.sum().item() - own) + many * cells * (channels - 1)
            halo = asked.sum().item() - asked[domain.tile_of(rank)].sum().item()
            summed += many * halo + outputs * own * (channels - 1)
    return min(gathered, divided) + summed if inputs >= channels else gathered + summed


@ON_MESHES
def test_a_pair_of_convolutions_sends_only_the_bytes_that_are_needed(shape):
    ranks = run_on_ranks(math.prod(shape), bytes_on_rank, shape)
    for title, name in ranks[0]:
        least = least_bytes(GRIDS[title], shape, *PAIRS[name][:3]) * 2 * 8
        assert [sum(rank[title, name][way] for rank in ranks) for way in (0, 1)] == [least, least], (title, name)
        # Norm: every rank adds two numbers for each cell of its merged tile, in both directions.
        rows, columns = GRIDS[title].shape
        norm = 2 * rows * columns * shape[3] * 2 * 8
        assert [sum(rank[title, name][way] for rank in ranks) for way in (2, 3)] == [norm, norm]


def test_both_ways_of_the_first_convolution_are_tested():
    domain = Domain.split(GRIDS["29 x 50"], 2, channel_axis=ChannelAxis(2))
    assert [FilterConv2d(domain, *PAIRS[name][:3]).gathers for name in PAIRS] == [True, False, True]


# Refusals.


def test_too_few_channels_are_refused():
    domain = Domain.split(GRIDS["29 x 50"], 4, channel_axis=ChannelAxis(4))
    with pytest.raises(InputError, match=r"4 ranks cannot divide the 3 channels of a layer; take fewer ranks on the"):
        ResidualBlock(domain, 2, 3, 0.0, wide=True)


def test_a_model_without_wide_layers_is_refused():
    mesh = Mesh(2, 1, 1, 2)
    for name, refused in (("unet", False), ("lenet", True)):
        domain = Domain.split(GRIDS["29 x 50"], 2, channel_axis=ChannelAxis(2))
        model = build_model(SPECS[name], needed_task(SPECS[name], TASK), domain)
        if not refused:
            check_channel_axis(model, mesh)
            continue
        with pytest.raises(InputError, match=r"LeNet has no wide layers .* set trainer\.mesh=\[2,2,1\]"):
            check_channel_axis(model, mesh)
