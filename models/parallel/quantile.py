"""Exact quantiles of fields whose tiles are on several ranks, without gathering the fields."""

from __future__ import annotations

from math import floor

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

from models.parallel.domain import Domain
from models.parallel.exchange import sum_over

DIGITS = ((21, 11), (10, 11), (0, 10))
"""Lowest bit and number of bits of each digit of a 32-bit number; the first digit resolves steps of 25 %."""


def quantile(x: Tensor, share: float, domain: Domain) -> Tensor:
    """Return the `share` quantile of all values of each sample of `x` (B, C, H, W), which must be >= 0: (B,).

    The quantile is interpolated linearly between its two neighbouring values. Radix selection finds these digit by
    digit: ranks count how often each digit occurs, sum the counts, and continue with the values that have the same
    leading digits. This works because non-negative floats have the order of their bits, read as integers.
    """
    values = x.shape[1] * domain.shape[0] * domain.shape[1]
    return _quantile(x.detach().float().flatten(1), share, values, domain.sharers)


@torch.library.custom_op("deepweather::quantile", mutates_args=())
def _quantile(x: Tensor, share: float, values: int, group: str) -> Tensor:
    position = share * (values - 1)
    at = floor(position)
    if not group:
        # One rank. On a CPU a partition is much faster than sorting.
        parted = torch.from_numpy(np.partition(x.numpy(), at, axis=1)) if x.device.type == "cpu" else x.sort(1).values
        return torch.lerp(parted[:, at], parted[:, min(at + 1, values - 1) :].amin(1), position - at)
    bits = x.view(torch.int32)
    # For the lower and the upper neighbour: how many values with the same leading digits come before it.
    before = (torch.arange(2, device=x.device) + at).clamp(max=values - 1).repeat(len(x), 1)
    found = torch.zeros_like(before, dtype=torch.int32)
    for first, size in DIGITS:
        # Both values of a sample are searched with the same counts until their first digit is known.
        counts = sum_over(group, _counts(bits, found if first + size < 32 else found[:, :1], first, size))
        upto = counts.cumsum(-1).expand(-1, 2, -1)
        digit = (upto <= before[..., None]).sum(-1)
        before = before - functional.pad(upto, (1, 0)).gather(-1, digit[..., None])[..., 0]
        found += digit.int() << first
    lower, upper = found.view(torch.float32).unbind(1)
    return torch.lerp(lower, upper, position - at)


def _counts(bits: Tensor, found: Tensor, first: int, size: int) -> Tensor:
    """Return the counts (B, n, 2^size) of the next digit among values with the leading digits of `found` (B, n).

    Other values are counted in an extra bin. Selecting values instead would make the host wait for their number.
    """
    known, bins = min(first + size, 31), 1 << size
    digit, one = ((bits >> first) & (bins - 1)).long(), torch.ones_like(bits)
    counted = []
    for value in found.unbind(1):
        place = torch.where(bits >> known == (value >> known)[:, None], digit, bins)
        counted.append(bits.new_zeros(len(bits), bins + 1).scatter_add_(1, place, one)[:, :bins])
    return torch.stack(counted, 1)


@_quantile.register_fake
def _(x: Tensor, share: float, values: int, group: str) -> Tensor:
    return x.new_empty(len(x))
