"""The option `device`: `auto` is a GPU only if there is one and there is one process."""

import pytest
import torch

from data_pipeline.common.errors import InputError
from models.device import choose_device


@pytest.mark.parametrize(
    ("option", "ranks", "gpu", "expected"),
    [
        ("cpu", 1, True, "cpu"), ("auto", 1, True, "cuda"), ("auto", 1, False, "cpu"), ("auto", 2, True, "cpu"),
        ("gpu", 1, True, "cuda"),
    ],
)  # fmt: skip
def test_the_chosen_device(option, ranks, gpu, expected, monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: gpu)
    assert choose_device(option, ranks).type == expected


@pytest.mark.parametrize(
    ("option", "ranks", "gpu", "message"),
    [
        ("gpu", 1, False, "device=gpu, but PyTorch finds no usable GPU; set device=cpu"),
        ("gpu", 4, True, r"device=gpu supports one process, and mesh has 4; set mesh=\[1,1\]"),
        ("cuda", 1, True, "device must be one of auto, cpu, gpu, got 'cuda'"),
    ],
)
def test_an_impossible_device_is_an_error(option, ranks, gpu, message, monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: gpu)
    with pytest.raises(InputError, match=f"^{message}"):
        choose_device(option, ranks)
