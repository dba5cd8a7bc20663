"""Quantiles of fields of which every rank has its tile: exact, though no rank sees the values of another."""

from __future__ import annotations

from math import floor

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

from models.spatial.domain import Domain
from models.spatial.exchange import sum_over

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
    if not group and x.device.type == "cpu":
        # Nobody to count with, and a partition is many times as fast as counting.
        parted, at = torch.from_numpy(np.partition(x.numpy(), floor(position), axis=1)), floor(position)
        upper = parted[:, min(at + 1, values - 1) :].amin(1)
        return torch.lerp(parted[:, at], upper, position - at)
    # How many of the values that begin alike come before the lower of the two, and before the upper one.
    before = torch.tensor([floor(position), min(floor(position) + 1, values - 1)], device=x.device).repeat(len(x), 1)
    found = torch.zeros_like(before)
    left = list(x.view(torch.int32))
    for first, size in DIGITS:
        digits = [(part >> first) & ((1 << size) - 1) for part in left]
        counts = torch.stack([part.bincount(minlength=1 << size) for part in digits]).view(len(x), -1, 1 << size).int()
        upto = sum_over(group, counts).cumsum(-1).expand(-1, 2, -1)
        digit = (upto <= before[..., None]).sum(-1)
        before = before - functional.pad(upto, (1, 0)).gather(-1, digit[..., None])[..., 0]
        found += digit << first
        # Both values of a sample are looked for in the same list, until their first digit is known.
        each = digit.numel() // len(left)
        left = [left[k // each][digits[k // each] == wanted] for k, wanted in enumerate(digit.flatten())]
    lower, upper = found.int().view(torch.float32).unbind(1)
    return torch.lerp(lower, upper, position - floor(position))


@_quantile.register_fake
def _(x: Tensor, share: float, values: int, group: str) -> Tensor:
    return x.new_empty(len(x))
