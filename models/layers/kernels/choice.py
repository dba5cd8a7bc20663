"""Choice between the project's GPU kernels and PyTorch's operators."""

from __future__ import annotations

from functools import cache

import torch
from torch import Tensor
from torch.nn import Parameter

from data_pipeline.common.messages import warn

DTYPES = torch.float32, torch.bfloat16, torch.float16
"""Types that the kernels read and write; they compute in float32."""


def usable(x: Tensor) -> bool:
    """Return whether the kernels of layers compute with `x`: on a GPU, outside code that PyTorch compiles.

    A subclass of tensors, such as those without values that the memory plan computes with, goes through operators.
    """
    return type(x) in (Tensor, Parameter) and x.dtype in DTYPES and not torch.compiler.is_compiling() and on_gpu(x)


def on_gpu(x: Tensor) -> bool:
    """Return whether `x` is on a GPU where Triton works."""
    return x.is_cuda and works()


@cache
def works() -> bool:
    """Return whether Triton compiles and starts a kernel here; a warning tells why not."""
    try:
        from models.layers.kernels.channel_norm import channel_norm

        like = torch.ones(1, 16, 1, 1, device="cuda")
        channel_norm(like, like[0, :, 0, 0], like[0, :, 0, 0], gelu=True)
    except Exception as error:  # Triton raises classes of its own, of its compilers and of the system
        why = (str(error).strip().splitlines() or [type(error).__name__])[0]
        warn(f"Triton does not work here ({why}); the GPU computes with PyTorch's own kernels, which take longer")
        return False
    return True
