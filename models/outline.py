"""Outline: the sizes of all tensors of a model, before memory is taken for any of them."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from pathlib import Path

import torch
from torch import Tensor, nn

from data_pipeline.common.errors import InputError

LIMITS = ("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory/memory.limit_in_bytes")
"""Files in which a container says how much memory it may use."""


def outline(build: Callable[[], nn.Module]) -> nn.Module | None:
    """Return what `build` returns, on the device `meta`, where tensors have sizes but no values.

    None for a model whose constructor needs values, which the contract tests allow to no model of this project.
    """
    try:
        with torch.device("meta"):
            return build()
    except InputError:
        raise
    except Exception as error:
        if "overflow" in str(error).lower():
            raise InputError(
                f"the model would have more numbers than can be counted ({error}); make it smaller"
            ) from None
        return None


def check_tensors(path: Path | str, name: str, model: nn.Module, tensors: Mapping[str, Tensor]) -> None:
    """Refuse the file `path` of a model called `name` if its tensors are not those of `model`, by name and size."""
    expected, found = ({name: tuple(t.shape) for name, t in each.items()} for each in (model.state_dict(), tensors))
    for tensor in expected | found:
        if expected.get(tensor) != found.get(tensor):
            raise InputError(
                f"{path} holds a model {name} of another version of this: {tensor} is {_size(found, tensor)} in the "
                f"file and {_size(expected, tensor)} in the model; train it again"
            )


def check_memory(name: str, model: nn.Module, copies: int = 4) -> None:
    """Refuse a model that this machine cannot train: `copies` of all parameters, and the buffers, exceed its memory.

    Four copies are the weights, their gradients, and the two moments of Adam.
    """
    parameters = sum(parameter.numel() for parameter in model.parameters())
    needed = sum(copies * p.nbytes for p in model.parameters()) + sum(buffer.nbytes for buffer in model.buffers())
    if needed > (available := memory()):
        raise InputError(
            f"model {name} has {parameters:,} parameters, whose training takes {needed / 1e9:,.0f} GB, and this "
            f"machine has {available / 1e9:,.0f} GB of memory; make it smaller, for example by model.width"
        )


def memory() -> int:
    """Return the bytes of memory that this process may use: those of the machine, or of the container."""
    found = [os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")]
    for path in map(Path, LIMITS):
        if path.is_file() and (text := path.read_text().strip()).isdigit():
            found.append(int(text))
    return min(found)


def _size(shapes: Mapping[str, tuple[int, ...]], tensor: str) -> str:
    if tensor not in shapes:
        return "missing"
    return " x ".join(map(str, shapes[tensor])) or "a single number"
