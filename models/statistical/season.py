"""The time of the year as predictors: harmonics of the day on which a forecast is valid."""

from __future__ import annotations

import math

import torch
from torch import Tensor

DAY, FOUR_YEARS, EPOCH = 86400, 1461, 365
"""Seconds of a day, days from one leap year's end to the next one's, days from 1 January 1969 to 1970."""
YEAR = FOUR_YEARS / 4
"""Days of a year."""


def season(init_time: Tensor, lead_time: Tensor, harmonics: int = 1) -> Tensor:
    """Return cosine and sine of each harmonic of the year, (B, 2·harmonics), ordered cos, sin, cos, sin, ...

    `init_time` (B,) counts seconds since 1970-01-01 UTC, `lead_time` (B,) hours.

    >>> season(torch.tensor([0]), torch.tensor([0]), harmonics=2)
    tensor([[1., 0., 1., 0.]])
    """
    return day_harmonics(day_of_year(init_time, lead_time), harmonics)


def day_of_year(init_time: Tensor, lead_time: Tensor) -> Tensor:
    """Return the day of the year on which each forecast is valid, 1 to 366, exact from 1901 to 2099.

    >>> day_of_year(torch.tensor([951782400]), torch.tensor([24]))  # 29 February 2000 and a day
    tensor([61])
    """
    days = (init_time + 3600 * lead_time).div(DAY, rounding_mode="floor")
    # A cycle of three years and a leap year; the 366th day of the last belongs to no fifth year.
    day = (days + EPOCH).remainder(FOUR_YEARS)
    year = day.div(365, rounding_mode="floor").clamp(max=3)
    return day - 365 * year + 1


def day_harmonics(day: Tensor, harmonics: int = 1) -> Tensor:
    """Return cos kφ and sin kφ for φ = 2π(day - 1)/365.25 and k = 1..harmonics, (B,) to (B, 2·harmonics)."""
    phase = (2 * math.pi / YEAR) * (day.to(torch.get_default_dtype()) - 1)
    angle = phase[..., None] * torch.arange(1, harmonics + 1, device=day.device)
    return torch.stack([angle.cos(), angle.sin()], dim=-1).flatten(-2)
