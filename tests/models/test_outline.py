"""Names and sizes of tensors are compared before memory is allocated."""

import pytest
import torch
from safetensors import safe_open
from safetensors.torch import load_file, save_file
from torch import nn

from data_pipeline.common.errors import InputError
from data_pipeline.grid import Grid
from data_pipeline.task import Task
from models import outline as module
from models.corrector import Corrector
from models.outline import check_memory, outline

TASK = Task("toy", ["2t"], ["2t"], [24])
GRID = Grid.regular(7, 8)
MLP = {"_target_": "models.networks.mlp.MLP", "width": 5}


@pytest.fixture
def saved(toy, tmp_path):
    """Save a corrector, with a change in its description."""

    def save(*change):
        path = tmp_path / "corrector.safetensors"
        Corrector(TASK, GRID, MLP, toy(TASK, GRID, 1).static).save(path)
        with safe_open(path, framework="pt") as file:
            text = file.metadata()["deepweather"]
        assert change[0] in text
        save_file(load_file(path), path, metadata={"deepweather": text.replace(*change)})
        return path

    return save


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        (
            ('"width": 5', '"width": 6'),
            r"model.network.0.weight is 5 x 9 x 1 x 1 in the file and 6 x 9 x 1 x 1 in the",
        ),
        (
            ('"width": 5', '"width": 5, "depth": 2'),
            r"model.network.3.weight is 2 x 5 x 1 x 1 in the file and 5 x 5 x 1",
        ),
        (
            ('"width": 5', '"width": 5, "cell_embedding": 1'),
            r"model.features.embedding is missing in the file and 1 x 7 x 8 in",
        ),
    ],
)
def test_the_first_tensor_that_differs_is_named(saved, change, sentence):
    with pytest.raises(InputError, match=sentence):
        Corrector.load(saved(*change))


def test_a_constructor_that_reads_values_has_no_outline():
    """Many image networks read their `drop path` rates from a tensor."""
    assert outline(lambda: nn.Linear(int(torch.linspace(0, 3, 4)[-1].item()), 2)) is None
    assert outline(lambda: nn.Linear(3, 2)).weight.shape == (2, 3)


def test_training_takes_four_times_the_weights(monkeypatch):
    """10 x 10 + 10 numbers of 4 bytes, four times, and a buffer of 3 numbers of 8 bytes: 1,784."""
    net = nn.Linear(10, 10)
    net.register_buffer("constant", torch.zeros(3, dtype=torch.float64))
    monkeypatch.setattr(module, "total_memory", lambda: 1784)
    check_memory("Net", net)
    monkeypatch.setattr(module, "total_memory", lambda: 1783)
    with pytest.raises(InputError, match=r"model Net has 110 parameters, whose training takes 0 GB, but this machine"):
        check_memory("Net", net)
