"""The device of the tests that train, evaluate and correct: `make test-gpu` runs them on a GPU.

The default is `cpu`; PyTorch then finds no GPU, in the commands of the tests neither. Tests of ranks use a GPU if there
is one for each rank: NCCL refuses two ranks on one GPU.
"""

import os

import pytest
import torch

TESTED = os.environ.get("DEEPWEATHER_DEVICE", "cpu")
BACKEND = {"cpu": "gloo", "cuda": "cpu:gloo,cuda:nccl"}
"""Backends of PyTorch's process groups."""


def check_tested_device():
    """Hide the GPUs from tests of the CPU; end the tests if there is no GPU for those of `cuda`."""
    if TESTED not in BACKEND:
        raise pytest.UsageError(f"DEEPWEATHER_DEVICE must be cpu or cuda, got {TESTED!r}")
    if TESTED == "cpu":
        os.environ["CUDA_VISIBLE_DEVICES"] = ""
    elif not torch.cuda.is_available():
        raise pytest.UsageError("DEEPWEATHER_DEVICE=cuda, but PyTorch finds no usable GPU; set DEEPWEATHER_DEVICE=cpu")


def accelerator(ranks=1):
    """Return `trainer.accelerator`, or the option `device`, of a test of so many ranks."""
    return "gpu" if TESTED == "cuda" and ranks <= torch.cuda.device_count() else "cpu"


def device_of(ranks, rank):
    """Return the device of a rank of a test."""
    return torch.device("cuda", rank) if accelerator(ranks) == "gpu" else torch.device("cpu")
