"""Halo plans of all ranks, and errors, computed in one process."""

import pytest
import torch
from layers import GRIDS, LAYERS

from data_pipeline.common.errors import InputError
from data_pipeline.grid import Grid
from data_pipeline.task import Task
from models.layers.attention import WindowAttention
from models.layers.convolution import Conv2d
from models.layers.padding import HaloPad, pad
from models.networks.unet import UNet
from models.parallel.domain import Domain
from models.parallel.exchange import Exchange

TASK = Task("toy", ["2t", "msl"], ["2t"], [24], ["lsm"])
HALF_DEGREE = Grid.regular(361, 720)


def on_all_ranks(build, grid, bands, sectors=1):
    """The model of every rank, with its domain."""
    return [build(Domain.split(grid, bands, sectors, rank)) for rank in range(bands * sectors)]


def assert_plans_fit(models):
    """Check that rank q sends to rank r the cells that r expects, and that all windows equal the padded globe."""
    for of_all in zip(*(list(model.modules()) for model in models), strict=True):
        kept = [[value for value in vars(module).values() if isinstance(value, Exchange)] for module in of_all]
        for exchanges in zip(*kept, strict=True):
            for r, receiver in enumerate(exchanges):
                assert receiver.plan.receives == tuple(len(sender.plan.sends[r]) for sender in exchanges)
                assert not len(receiver.plan.sends[r])
            if isinstance(of_all[0], HaloPad):
                domains, plans = [exchange.domain for exchange in exchanges], [e.plan for e in exchanges]
                assert_windows_show_the_globe(domains, plans, of_all[0].beyond_zero)


def assert_windows_show_the_globe(domains, plans, beyond_zero=False):
    """Execute the plans and compare every cell of every window."""
    H, W = domains[0].shape
    globe = torch.arange(1.0, H * W + 1).view(H, W)
    wide = pad(globe, domains[0].grid, 4, 4, 4, 4)
    if beyond_zero:  # of a periodic grid
        wide[:4] = wide[-4:] = 0.0
    tiles = [domain.cut(globe) for domain in domains]
    for r, (domain, plan) in enumerate(zip(domains, plans, strict=True)):
        window = torch.zeros(plan.shape)
        window[plan.window] = tiles[r][plan.tile]
        window.view(-1)[plan.own_to] = tiles[r].reshape(-1)[plan.own_from]
        received = torch.cat([tile.reshape(-1)[q.sends[r]] for tile, q in zip(tiles, plans, strict=True)])
        window.view(-1)[plan.foreign_to] = received[plan.foreign_from]
        top, left = (
            tile.start + inner.start - block.start + 4
            for tile, inner, block in zip(domain.tile, plan.tile, plan.window, strict=True)
        )
        assert torch.equal(window, wide[top : top + plan.shape[0], left : left + plan.shape[1]])


@pytest.mark.parametrize("bands", [3, 8])
def test_uneven_bands_of_the_half_degree_grid(bands):
    """361 rows, and the 181, 91 and 46 of the coarser levels of a U-Net, over 3 and 8 ranks."""
    models = on_all_ranks(lambda domain: UNet(TASK, domain, width=1, depth=3), HALF_DEGREE, bands)
    assert sum(model.features.errors._domain.own_shape[0] for model in models) == 361
    assert_plans_fit(models)


def test_attention_on_the_half_degree_grid():
    assert_plans_fit(on_all_ranks(lambda domain: WindowAttention(domain, 2, 1, 8, True), HALF_DEGREE, 2, 4))


@pytest.mark.parametrize("name", LAYERS)
def test_plans_of_every_layer_are_consistent(name):
    for title in ("odd rows", "odd columns"):
        assert_plans_fit(on_all_ranks(LAYERS[name], GRIDS[title], 3, 2))


@pytest.mark.parametrize(
    ("build", "bands", "message"),
    [
        (
            lambda domain: UNet(TASK, domain, width=1, depth=3), 5,
            r"5 ranks cannot share the 4 rows of 4 x 8 points.*\(tiles end at \[1, 2, 2, 3, 4\]\); take fewer ranks",
        ),
        (lambda domain: WindowAttention(domain, 2, 1, 8), 3, "3 ranks cannot share the windows of 8 cells on 13; take"),
        (lambda domain: Conv2d(domain, 1, 1, 31), 2, "beyond the opposite pole of 13 x 32 points"),
    ],
    ids=["thin tiles", "few windows", "beyond the opposite pole"],
)  # fmt: skip
def test_every_rank_refuses_a_mesh_with_one_message(build, bands, message):
    messages = set()
    for rank in range(bands):
        with pytest.raises(InputError, match=message) as refused:
            build(Domain.split(Grid.regular(13, 32), bands, 1, rank))
        messages.add(str(refused.value))
    assert len(messages) == 1
