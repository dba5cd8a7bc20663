"""Sample: one forecast as tensors, the only shapes that models see.

Dimension letters, here and everywhere: B batch, M members, C input channels, S static channels, T targets,
H latitude rows (north first), W longitude columns.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor


class Sample(NamedTuple):
    """One forecast start and lead time in physical units; a batch has a leading B on every field.

    A NamedTuple, because PyTorch collates it and Lightning moves it between devices without code of ours.
    """

    ensemble: Tensor
    """(M, C, H, W) members of every input, in the order of `Task.channels`; anything where `mask` is False.

    A channel of the analysis is the same in all members.
    """
    mask: Tensor
    """(C, H, W) True where all members have a value (sea-surface temperature has none on land)."""
    static: Tensor
    """(S, H, W) fields that do not change with time, in the order of `Task.static_names`."""
    target: Tensor
    """(T, H, W) verifying analysis, in the order of `Task.targets`; NaN where there is none."""
    init_time: Tensor
    """() start of the forecast, int64 seconds since 1970-01-01 UTC."""
    lead_time: Tensor
    """() int64 hours from the start to the time that the forecast is valid."""


def verifiable(sample: Sample, target_channels: Sequence[int]) -> Tensor:
    """Return the truth (..., T, H, W) of a sample or batch, NaN where a raw member of the target is missing.

    Training, validation and evaluation count the same cells: those where this is finite.
    """
    return sample.target.masked_fill(~sample.mask[..., list(target_channels), :, :], torch.nan)
