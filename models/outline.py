"""Outline: build a model without memory for its tensors, to check their names and sizes first."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.nn.modules.module import (
    register_module_module_registration_hook,
    register_module_parameter_registration_hook,
)

from data_pipeline.common.errors import InputError
from data_pipeline.common.machine_memory import total_memory


def outline(build: Callable[[], nn.Module]) -> nn.Module | None:
    """Return the model that `build` builds, on the device `meta`, where tensors have sizes but no values.

    Return None for a model whose constructor reads values. No model of this project does (contract tests).
    """
    try:
        with torch.device("meta"):
            return build()
    except InputError:
        raise
    except Exception as error:
        if "overflow" in str(error).lower():
            raise InputError(f"a tensor of the model has too many elements ({error}); make the model smaller") from None
        return None


def check_tensors(path: Path | str, name: str, model: nn.Module, found: Mapping[str, tuple[int, ...]]) -> None:
    """Raise InputError if the shapes `found` in file `path` are not those of the tensors of `model`, called `name`."""
    expected = {name: tuple(tensor.shape) for name, tensor in model.state_dict().items()}
    for tensor in {**expected, **found}:
        if expected.get(tensor) != found.get(tensor):
            raise InputError(
                f"{path} holds a model {name} of another version: {tensor} is {_size(found, tensor)} in the "
                f"file and {_size(expected, tensor)} in the model; train it again"
            )


MODULES_PER_TENSOR, SPARE_MODULES = 10, 1000
"""A model may have `MODULES_PER_TENSOR` modules for each tensor of its file, and `SPARE_MODULES` more."""


@contextmanager
def limited_modules(path: Path | str, tensors: int) -> Iterator[None]:
    """Raise `InputError` inside the block if a model gets far more modules than `tensors` tensors need.

    The description of a few bytes can ask for millions of layers, which need memory even without their tensors.
    """
    most, count = MODULES_PER_TENSOR * tensors + SPARE_MODULES, 0

    def register(*_: object) -> None:
        nonlocal count
        count += 1
        if count > most:
            raise InputError(
                f"{path} describes a model of more than {most} modules and weights, and holds {tensors} tensors"
            )

    # A list of layers registers none of them before it is complete, but each layer registers its weights at once.
    handles = [
        hook(register)
        for hook in (register_module_module_registration_hook, register_module_parameter_registration_hook)
    ]
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()


MAY_BE_NAN = ("coefficients", "quantile_table")
"""Buffers that are NaN where the training data did not suffice for a fit."""


def check_finite(path: Path | str, tensors: Mapping[str, Tensor]) -> None:
    """Raise `InputError` for infinite numbers, and for NaN except where it means a cell without a fit."""
    for name, tensor in tensors.items():
        if not tensor.is_floating_point():
            continue
        broken = tensor.isinf() if name.rpartition(".")[2] in MAY_BE_NAN else ~tensor.isfinite()
        if broken.any():
            raise InputError(
                f"{path} has weights that are not finite ({name}), because its training diverged or the file was "
                "changed; train it again, for example with a lower learning rate"
            )


def check_memory(name: str, model: nn.Module) -> None:
    """Raise InputError if weights, gradients, both moments of Adam and buffers exceed the memory of this machine."""
    parameters = sum(parameter.numel() for parameter in model.parameters())
    needed = sum(4 * p.nbytes for p in model.parameters()) + sum(buffer.nbytes for buffer in model.buffers())
    if needed > (available := total_memory()):
        raise InputError(
            f"model {name} has {parameters:,} parameters, whose training takes {needed / 1e9:,.0f} GB, but this "
            f"machine has {available / 1e9:,.0f} GB of memory; make it smaller, for example by model.width"
        )


def _size(shapes: Mapping[str, tuple[int, ...]], tensor: str) -> str:
    if tensor not in shapes:
        return "missing"
    return " x ".join(map(str, shapes[tensor])) or "a single number"
