"""Order of a field's numbers in memory: channels last, which makes convolutions faster (decision 014)."""

from __future__ import annotations

import torch
from torch import Tensor


def empty_field(like: Tensor, rows: int, columns: int) -> Tensor:
    """Return an empty tensor (..., rows, columns), with channels last in memory where this makes layers faster."""
    chosen = torch.channels_last if channels_go_last(like) else torch.contiguous_format
    return torch.empty((*like.shape[:-2], rows, columns), dtype=like.dtype, device=like.device, memory_format=chosen)


def channels_last(x: Tensor) -> Tensor:
    """Return `x` (B, C, H, W), with channels last in memory where this makes layers faster."""
    return x.contiguous(memory_format=torch.channels_last) if channels_go_last(x) else x


def channels_go_last(x: Tensor) -> bool:
    """Return whether `x` should have channels last: on CPUs and CUDA's GPUs, elsewhere if it has them already."""
    if x.ndim != 4:
        return False
    known = x.device.type in ("cpu", "cuda")
    return known or (x.is_contiguous(memory_format=torch.channels_last) and not x.is_contiguous())
