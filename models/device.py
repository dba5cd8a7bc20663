"""Device on which a verb computes, from its option `device`, and its cost."""

from __future__ import annotations

import torch

from data_pipeline.common.checks import check_choice
from data_pipeline.common.cost_meter import CostMeter
from data_pipeline.common.errors import InputError


def choose_device(option: object, ranks: int) -> torch.device:
    """Return the device for the option `device`; `auto` is a GPU if there is one and `ranks` is 1."""
    check_choice("device", option, ("auto", "cpu", "gpu"))
    if option == "gpu" and not torch.cuda.is_available():
        raise InputError("device=gpu, but PyTorch finds no usable GPU; set device=cpu or device=auto")
    if option == "gpu" and ranks > 1:
        raise InputError(f"device=gpu supports one process, and mesh has {ranks}; set mesh=[1,1] or device=cpu")
    gpu = option == "gpu" or (option == "auto" and ranks == 1 and torch.cuda.is_available())
    return torch.device("cuda" if gpu else "cpu")


def watch_gpu(meter: CostMeter, device: torch.device) -> None:
    """Let `meter` measure the GPU of this process too; does nothing for a CPU."""
    if device.type == "cuda":
        uuid = f"GPU-{getattr(torch.cuda.get_device_properties(device), 'uuid', None)}"
        meter.watch_gpu(uuid, lambda: torch.cuda.max_memory_allocated(device))
