"""Winds across the poles: a constant vector stays constant beyond the pole, and signs follow the inputs."""

import math

import numpy as np
import pytest
import torch
from specs import SPECS

from data_pipeline.dataset import batches
from data_pipeline.grid import Grid
from data_pipeline.task import Task
from models.corrector import build_model
from models.layers.convolution import Conv2d
from models.layers.padding import HaloPad
from models.networks.error_climate import ErrorClimate
from models.parallel.domain import Domain

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


def test_zero_padding_has_no_pole_and_every_channel_has_a_parity_or_none():
    x, sides = torch.randn(2, 33, 64), (((-1, 34),), ((-1, 65),))
    assert torch.equal(
        HaloPad(GRIDS["poles"], *sides, True, parity=(-1, 1))(x), HaloPad(GRIDS["poles"], *sides, True)(x)
    )
    assert set(Conv2d(GRIDS["poles"], 2, 1, parity=(1, -1)).state_dict()) == {"weight", "bias"}
    with pytest.raises(ValueError, match="parity has 2 entries for 3 input channels"):
        Conv2d(GRIDS["poles"], 3, 1, parity=(1, -1))


def test_tiles_at_the_poles_cannot_overlap_and_the_others_can():
    """They change signs after their halo has arrived. `test_mesh.py` compares the values of "conv 5 of winds"."""
    for mesh, overlapping in (((3, 1), [1]), ((1, 3), []), ((4, 2), [2, 3, 4, 5])):
        layers = [
            Conv2d(Domain.split(Grid.regular(181, 360), *mesh, rank), 3, 2, parity=(-1, 1, -1))
            for rank in range(math.prod(mesh))
        ]
        assert [rank for rank, layer in enumerate(layers) if layer._work] == overlapping


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
