"""Predictors that several models share: harmonics of the time of the year, and the spread of the ensemble."""

from __future__ import annotations

import math

import torch
from torch import Tensor

SECONDS_PER_DAY = 86400
"""Seconds of a day."""
FOUR_YEARS = 1461
"""Days of four successive years, one of them a leap year."""
EPOCH = 365
"""Days from 1969-01-01, the day after a leap year, to 1970-01-01."""
YEAR = FOUR_YEARS / 4
"""Mean number of days of a year."""
SMALLEST_SPREAD = 1e-3
"""Smallest spread, in units of the variable's typical departure; keeps σ positive where all members agree."""


def annual_harmonics(init_time: Tensor, lead_time: Tensor, harmonics: int = 1) -> Tensor:
    """Return cosine and sine of each harmonic of the year, (B, 2·harmonics), in the order cos, sin, cos, sin, ...

    The phase is taken at the valid time. `init_time` (B,) counts seconds since 1970-01-01 UTC, `lead_time` (B,) hours.

    >>> annual_harmonics(torch.tensor([0]), torch.tensor([0]), harmonics=2)
    tensor([[1., 0., 1., 0.]])
    """
    phase = (2 * math.pi / YEAR) * (day_of_year(init_time, lead_time).to(torch.get_default_dtype()) - 1)
    angle = phase[..., None] * torch.arange(1, harmonics + 1, device=phase.device)
    return torch.stack([angle.cos(), angle.sin()], dim=-1).flatten(-2)


def day_of_year(init_time: Tensor, lead_time: Tensor) -> Tensor:
    """Return the day of the year of the valid time of each forecast, 1 to 366; exact from 1901 to 2099.

    >>> day_of_year(torch.tensor([951782400]), torch.tensor([24]))  # one day after 29 February 2000
    tensor([61])
    """
    days = (init_time + 3600 * lead_time).div(SECONDS_PER_DAY, rounding_mode="floor")
    # A cycle is three years of 365 days and a leap year, whose 366th day must not start a fifth year.
    day = (days + EPOCH).remainder(FOUR_YEARS)
    year = day.div(365, rounding_mode="floor").clamp(max=3)
    return day - 365 * year + 1


def spread(ensemble: Tensor) -> Tensor:
    """Return the unbiased standard deviation over the members, (B, M, ...) to (B, ...); zero for one member.

    The formula is written out, because `torch.std` over an inner dimension is four times slower on a CPU.
    """
    departure = ensemble - ensemble.mean(1, keepdim=True)
    return torch.sqrt(departure.square().sum(1) / max(ensemble.shape[1] - 1, 1))
