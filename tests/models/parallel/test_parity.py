"""Winds across the poles: a constant vector stays constant beyond the pole, also on tiles with overlapped exchange."""

from unittest.mock import patch

import numpy as np
import pytest
import torch
import torch.distributed as dist
from ranks import run_on_ranks
from specs import SPECS

from data_pipeline.dataset import batches
from data_pipeline.grid import Grid
from data_pipeline.task import Task
from models.corrector import build_model
from models.layers import convolution
from models.layers.convolution import Conv2d
from models.layers.padding import HaloPad
from models.networks.error_climate import ErrorClimate
from models.parallel.domain import Domain
from models.parallel.exchange import allsum

GRIDS = {
    "poles": Grid.regular(33, 64),
    "half shifted": Grid(tuple(np.arange(87.5, -90, -5)), tuple(np.arange(0, 360, 5.0))),
}
WINDS = Task("winds", ["10u", "t@850", "v@500"], ["10u", "t@850"], [24, 48], ["lsm"])
SPATIAL = [
    "blend_unet", "deep_weather", "ens10_unet", "lenet", "poet", "smoe_unet", "transformer", "transformer_independent",
    "unet",
]  # fmt: skip


def constant_wind(latitudes, longitudes):
    """Eastward and northward component of the vector (3, -2, 1), and its length, at points of the sphere."""
    lat, lon = np.radians(latitudes)[:, None], np.radians(longitudes)[None, :]
    x, y, z = 3.0, -2.0, 1.0
    east = y * np.cos(lon) - x * np.sin(lon) + 0 * lat
    north = z * np.cos(lat) - np.sin(lat) * (x * np.cos(lon) + y * np.sin(lon))
    return torch.tensor(np.stack([east, north, np.full_like(east, 14**0.5)]))


@pytest.mark.parametrize("grid", GRIDS.values(), ids=GRIDS)
def test_a_constant_wind_continues_across_the_poles(grid):
    """Beyond the pole, the components are those of the same meridian at latitudes above 90 degrees."""
    H, W = grid.shape
    step = grid.latitudes[0] - grid.latitudes[1]
    rows = grid.latitudes[0] - step * np.arange(-3, H + 2)
    columns = grid.longitudes[0] + 360 / W * np.arange(-1, W + 4)
    window = HaloPad(grid, ((-3, H + 2),), ((-1, W + 4),), parity=(-1, -1, 1)).double()
    torch.testing.assert_close(window(constant_wind(grid.latitudes, grid.longitudes)), constant_wind(rows, columns))


def test_an_area_has_no_pole():
    grid = Grid(tuple(60.0 - 2.5 * k for k in range(9)), tuple(2.5 * k for k in range(12)))
    x = torch.randn(2, *grid.shape)
    sides = ((-1, 10),), ((-1, 13),)
    assert torch.equal(HaloPad(grid, *sides, parity=(-1, 1))(x), HaloPad(grid, *sides)(x))


def test_zero_padding_has_no_pole():
    x, sides = torch.randn(2, 33, 64), (((-1, 34),), ((-1, 65),))
    assert torch.equal(
        HaloPad(GRIDS["poles"], *sides, True, parity=(-1, 1))(x), HaloPad(GRIDS["poles"], *sides, True)(x)
    )


def test_every_channel_has_a_parity_or_none_has():
    with pytest.raises(ValueError, match="parity has 2 entries for 3 input channels"):
        Conv2d(GRIDS["poles"], 3, 1, parity=(1, -1))


def test_parity_is_not_saved():
    assert set(Conv2d(GRIDS["poles"], 2, 1, parity=(1, -1)).state_dict()) == {"weight", "bias"}


def results(layer, x):
    """Output, gradient of the input, and gradients of the parameters of a weighted sum."""
    x = x.clone().requires_grad_()
    weights = layer.out.cut(torch.sin(torch.arange(33.0 * 64, dtype=torch.float64)).view(33, 64))
    y = layer(x)
    (y * weights).sum().backward()
    return y.detach(), x.grad, [parameter.grad for parameter in layer.parameters()]


def make_convolution(grid):
    torch.manual_seed(4)
    return Conv2d(grid, 3, 2, 5, parity=(-1, 1, -1)).double()


def on_tiles(rank, bands, sectors):
    """Largest differences to the whole grid, and whether this rank computes while its halo is under way."""
    grid = GRIDS["poles"]
    torch.manual_seed(3)
    x = torch.randn(2, 3, *grid.shape, dtype=torch.float64)
    domain = Domain.split(grid, bands, sectors, rank, dist.group.WORLD.group_name)
    y, for_input, for_parameters = results(make_convolution(grid), x)
    calls = []

    def noticed(*arguments, convolve=convolution.convolve):
        calls.append(1)
        return convolve(*arguments)

    with (
        patch.object(convolution, "overlaps", lambda work, device: work > 0),
        patch.object(convolution, "convolve", noticed),
        patch.object(convolution, "overlapping_work", lambda exchange, weight, stride: int(exchange is not None)),
    ):
        found = results(make_convolution(domain), domain.cut(x))
    differences = [(found[0] - domain.cut(y)).abs().max(), (found[1] - domain.cut(for_input)).abs().max()]
    differences += [(allsum(a, domain) - b).abs().max() for a, b in zip(found[2], for_parameters, strict=True)]
    return max(map(float, differences)), bool(calls)


@pytest.mark.parametrize(("mesh", "overlapping"), [((3, 1), [1]), ((1, 3), []), ((2, 2), [])], ids=str)
def test_tiles_at_the_poles_change_signs_and_the_others_overlap(mesh, overlapping):
    found = run_on_ranks(mesh[0] * mesh[1], on_tiles, *mesh)
    assert max(difference for difference, _ in found) < 1e-12
    assert [rank for rank, (_, overlaps) in enumerate(found) if overlaps] == overlapping


def window_inputs(model, sample):
    """The input of each window of a model."""
    given = {}
    handles = [
        module.register_forward_pre_hook(lambda _, args, name=name: given.update({name: args[0]}))
        for name, module in model.named_modules()
        if isinstance(module, HaloPad)
    ]
    with torch.no_grad():
        model(sample)
    for handle in handles:
        handle.remove()
    return given


@pytest.mark.parametrize("name", SPATIAL)
def test_networks_set_the_parity_of_their_inputs(name, toy):
    """Where all winds and the errors of winds change sign, the fields that change sign are those of parity -1."""
    grid = Grid.regular(13, 20)
    torch.manual_seed(0)
    spec = SPECS[name] | ({"mixture": {"gate": "computed"}} if name == "smoe_unet" else {})
    model = build_model(spec, WINDS, grid).eval()
    climates = [module for module in model.modules() if isinstance(module, ErrorClimate)]
    for climate in climates:
        torch.nn.init.normal_(climate.bias)
        torch.nn.init.normal_(climate.residual)
    sample = next(iter(batches(toy(WINDS, grid, 2), 2)))
    sample = sample._replace(ensemble=sample.ensemble - 280)
    before = window_inputs(model, sample)
    for climate in climates:
        climate.bias[:, :, 0] *= -1
    after = window_inputs(model, sample._replace(ensemble=sample.ensemble * torch.tensor([-1, 1, -1])[:, None, None]))
    windows, found = dict(model.named_modules()), 0
    for place, x in before.items():
        turned = (after[place] + x).abs().amax((0, 2, 3)) <= 1e-6 * x.abs().amax((0, 2, 3))
        turned &= x.abs().amax((0, 2, 3)) > 0
        parity = windows[place].parity
        assert (turned.any() and parity is not None) or (not turned.any() and parity is None), place
        if parity is not None:
            assert parity.tolist() == (1 - 2 * turned.int()).tolist(), place
            found += 1
    assert found >= 1
