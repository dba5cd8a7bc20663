"""Backbone: any module that keeps the numbers of rows and columns; errors for all others."""

import pytest
import torch
from safetensors import safe_open
from safetensors.torch import load_file, save_file

from data_pipeline.common.errors import InputError
from data_pipeline.grid import Grid
from data_pipeline.task import Task
from models.corrector import Corrector, build_model
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


def test_a_file_that_names_another_package_is_refused_before_it_is_imported(tmp_path, toy, monkeypatch):
    path = tmp_path / "corrector.safetensors"
    Corrector(TASK, GRID, spec(backbone=RESNET), toy(TASK, GRID, 1).static).save(path)
    with safe_open(path, framework="pt") as file:
        text = file.metadata()["deepweather"]
    (tmp_path / "malware.py").write_text("raise SystemExit('imported')")
    monkeypatch.syspath_prepend(tmp_path)
    save_file(load_file(path), path, {"deepweather": text.replace("weathernets.resnet.ResNet", "malware.ResNet")})
    with pytest.raises(
        InputError, match=r"model.backbone: malware.ResNet is not in models, torch.nn, weathernets, the"
    ):
        Corrector.load(path)
