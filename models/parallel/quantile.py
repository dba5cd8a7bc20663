"""Quantiles of fields of which every rank has its tile: exact, though no rank sees the values of another."""

from __future__ import annotations

from math import floor

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

from models.parallel.domain import Domain
from models.parallel.exchange import sum_over

DIGITS = ((21, 11), (10, 11), (0, 10))
"""Where the digits of 32 bits begin, and how many bits they have; the first tells sizes 25 % apart."""


def quantile(x: Tensor, share: float, domain: Domain) -> Tensor:
    """Return for each sample of `x` (B, C, H, W), never negative, the `share` quantile of all its values, (B,).

    As usual, it lies on the line between the two values next to it. They are spelt out digit by digit: ranks count how
    often each digit occurs, sum up, and go on with the values that begin alike (a radix selection). This works
    because the bits of floats that are not negative, read as whole numbers, have the same order.
    """
    values = x.shape[1] * domain.shape[0] * domain.shape[1]
    return _quantile(x.detach().float().flatten(1), share, values, domain.sharers)


@torch.library.custom_op("deepweather::quantile", mutates_args=())
def _quantile(x: Tensor, share: float, values: int, group: str) -> Tensor:
    position = share * (values - 1)
    at = floor(position)
    if not group:
        # Nobody to count with; on a CPU a partition takes a fraction of the time of sorting.
        parted = torch.from_numpy(np.partition(x.numpy(), at, axis=1)) if x.device.type == "cpu" else x.sort(1).values
        return torch.lerp(parted[:, at], parted[:, min(at + 1, values - 1) :].amin(1), position - at)
    bits = x.view(torch.int32)
    # How many of the values that begin alike come before the lower of the two, and before the upper one.
    before = (torch.arange(2, device=x.device) + at).clamp(max=values - 1).repeat(len(x), 1)
    found = torch.zeros_like(before, dtype=torch.int32)
    for first, size in DIGITS:
        # Both values of a sample are looked for in the same list, until their first digit is known.
        counts = sum_over(group, _counts(bits, found if first + size < 32 else found[:, :1], first, size))
        upto = counts.cumsum(-1).expand(-1, 2, -1)
        digit = (upto <= before[..., None]).sum(-1)
        before = before - functional.pad(upto, (1, 0)).gather(-1, digit[..., None])[..., 0]
        found += digit.int() << first
    lower, upper = found.view(torch.float32).unbind(1)
    return torch.lerp(lower, upper, position - at)


def _counts(bits: Tensor, found: Tensor, first: int, size: int) -> Tensor:
    """Return how often each digit comes next in values that begin as those `found` (B, n) do, (B, n, 2^size).

    Values that begin otherwise are counted in a bin of their own, not left out: only the device knows how many are
    left, and the host would wait for it.
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
