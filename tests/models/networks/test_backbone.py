"""Backbone: any module that keeps the numbers of rows and columns; errors for all others."""

import pytest
import torch

from data_pipeline.common.errors import InputError
from data_pipeline.grid import Grid
from data_pipeline.task import Task
from models.corrector import build_model
from models.parallel.domain import Domain
from models.protocol import claims

TASK = Task("toy", ["2t", "msl"], ["2t"], [24])
GRID = Grid.regular(9, 12)
RESNET = {"_target_": "weathernets.resnet.ResNet", "width": 5}


def spec(**options):
    return {"_target_": "models.networks.backbone.Backbone"} | options


def test_output_channels_are_counted_without_random_numbers():
    torch.manual_seed(0)
    first = build_model(spec(), TASK, GRID)
    count = first.features.count
    random = torch.get_rng_state()
    torch.nn.Conv2d(count, 2, 1)  # the last layer of a linear regression
    expected = torch.get_rng_state()
    torch.set_rng_state(random)
    build_model(spec(), TASK, GRID)
    assert torch.equal(torch.get_rng_state(), expected)
    assert first.last.in_channels == count
    made = build_model(spec(backbone=RESNET), TASK, GRID)
    assert (made.last.in_channels, made.last.out_channels) == (5, 2)
    conv = {"_target_": "torch.nn.Conv2d", "out_channels": 3, "kernel_size": 3, "padding": 1}
    assert build_model(spec(backbone=conv), TASK, GRID).last.in_channels == 3


def test_tiles_are_claimed_only_by_the_option():
    halves = Domain.split(GRID, 1, 2)
    with pytest.raises(InputError, match=r"model Backbone works on whole fields .* mesh has 1 x 2 tiles"):
        build_model(spec(backbone=RESNET), TASK, halves)
    pointwise = {"_target_": "torch.nn.Conv2d", "out_channels": 3, "kernel_size": 1}
    assert claims(build_model(spec(backbone=pointwise, tiles=True), TASK, halves)).tiles
