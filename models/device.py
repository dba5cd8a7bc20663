"""Device: where a verb computes, after its option `device`."""

from __future__ import annotations

import torch

from data_pipeline.common.checks import check_choice
from data_pipeline.common.errors import InputError


def device_of(option: object, ranks: int) -> torch.device:
    """Return the device of the option `device`: `auto` takes a GPU where there is one, and one process."""
    check_choice("device", option, ("auto", "cpu", "gpu"))
    if option == "gpu" and not torch.cuda.is_available():
        raise InputError("device=gpu, but PyTorch finds no GPU that it can use here; take device=cpu or auto")
    if option == "gpu" and ranks > 1:
        raise InputError(f"device=gpu is for one process, and mesh has {ranks}; take mesh=[1,1], or device=cpu")
    gpu = option == "gpu" or (option == "auto" and ranks == 1 and torch.cuda.is_available())
    return torch.device("cuda" if gpu else "cpu")
