"""A stand-in for Triton on machines without a GPU: kernels run one program after another, in PyTorch on the CPU.

    with with_kernels():
        layer(x)     # computed by the project's Triton kernels

A pointer is an array and indices into it. The stand-in shows that a kernel computes the right numbers and writes each
of them; types, layouts, compilation and speed need Triton itself.
"""

import importlib
import inspect
import sys
from contextlib import contextmanager
from itertools import product
from types import ModuleType, SimpleNamespace
from unittest.mock import patch

import torch
from tested_device import TESTED

from evaluation.scoring import aggregation
from models.layers.kernels import choice

MODULES = (
    "models.layers.kernels.channel_mask",
    "models.layers.kernels.channel_norm",
    "models.layers.kernels.globe_window",
    "models.layers.kernels.resampling",
    "evaluation.kernels.gpu_scores",
)
"""All modules with kernels."""
_place, _sizes = [0, 0, 0], [1, 1, 1]


class Pointer:
    """Numbers of a tensor in the order of memory, and indices of some of them."""

    def __init__(self, flat, index):
        self.flat, self.index, self.dtype = flat, index, SimpleNamespace(element_ty=flat.dtype)

    @classmethod
    def of(cls, tensor):
        size = tensor.untyped_storage().nbytes() // tensor.element_size() - tensor.storage_offset()
        return cls(torch.as_strided(tensor.detach(), (size,), (1,), tensor.storage_offset()), torch.tensor(0))

    def __add__(self, offset):
        return Pointer(self.flat, self.index + offset)


class Kernel:
    """A kernel; `kernel[grid](*arguments)` runs it."""

    def __init__(self, function):
        self.function, self.parameters = function, list(inspect.signature(function).parameters.values())

    def __getitem__(self, grid):
        def run(*arguments, num_warps=4):
            given = [
                Pointer.of(one) if isinstance(one, torch.Tensor)
                else one if "constexpr" in str(parameter.annotation) else torch.tensor(one)
                for one, parameter in zip(arguments, self.parameters, strict=True)
            ]  # fmt: skip
            _sizes[:] = [*grid, 1, 1][:3]
            for _place[:] in product(*map(range, _sizes)):
                self.function(*given)

        return run

    def __call__(self, *arguments):
        """A kernel may call another one."""
        return self.function(*arguments)


def _load(pointer, mask=None, other=0):
    index, mask = torch.broadcast_tensors(pointer.index, torch.tensor(True) if mask is None else mask)
    found = pointer.flat[torch.where(mask, index, 0)]
    return torch.where(mask, found, torch.as_tensor(other).to(found.dtype))


def _store(pointer, value, mask=None):
    index, value, mask = torch.broadcast_tensors(pointer.index, value, torch.tensor(True) if mask is None else mask)
    pointer.flat[index[mask]] = value[mask].to(pointer.flat.dtype)


def _jit(function=None, **_):
    return Kernel(function) if function else Kernel


def _language():
    return SimpleNamespace(
        constexpr=lambda value: value, static_range=range, load=_load, store=_store,
        program_id=lambda axis: torch.tensor(_place[axis]), num_programs=lambda axis: torch.tensor(_sizes[axis]),
        arange=torch.arange, zeros=lambda shape, dtype: torch.zeros(shape, dtype=dtype),
        sum=lambda x, axis: x.sum(axis), where=lambda mask, a, b: torch.where(torch.as_tensor(mask), a, b),
        sqrt=torch.sqrt, erf=torch.erf, exp=torch.exp, abs=torch.abs, minimum=_of_two(torch.minimum),
        maximum=_of_two(torch.maximum), float32=torch.float32, float64=torch.float64, int32=torch.int32,
        int64=torch.int64,
    )  # fmt: skip


def _of_two(function):
    return lambda a, b: function(torch.as_tensor(a), torch.as_tensor(b))


@contextmanager
def with_kernels():
    """Inside the block all layers and scores are computed by the kernels: on a GPU by Triton, else by the stand-in."""
    if TESTED == "cuda":
        yield
        return
    fake = ModuleType("triton")
    fake.jit, fake.language = _jit, _language()
    fake.cdiv, fake.next_power_of_2 = lambda a, b: -(-a // b), lambda n: 1 << max(n - 1, 0).bit_length()
    names = {"triton": fake, "triton.language": fake.language}
    with patch.dict(sys.modules, names):
        for name in MODULES:
            sys.modules.pop(name, None)
            importlib.import_module(name)
        with _kernels(True):
            yield


def without_kernels():
    """Return a block in which PyTorch's operators compute everything."""
    return _kernels(False)


@contextmanager
def _kernels(used):
    with patch.object(choice, "on_gpu", lambda x: used), patch.object(aggregation, "on_gpu", lambda x: used):
        yield
