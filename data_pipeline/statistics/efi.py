"""The extreme forecast index: how far an ensemble lies from what the model usually forecasts.

    EFI = 2/π ∫ (p - F(p)) / √(p (1 - p)) dp    over p from 0 to 1

where F(p) is the part of the ensemble below the quantile p of the climate: 1 if all members lie above
the climate, -1 if all lie below it, 0 if the ensemble is the climate (Lalaurette 2003, doi:10.1256/qj.02.152).
"""

from __future__ import annotations

from typing import Literal

import numpy as np

from data_pipeline.common.errors import InputError

LEVELS = np.linspace(0, 1, 21)
"""The quantiles of the climate."""

Form = Literal["reference", "exact"]


def efi(members: np.ndarray, climate: np.ndarray, form: Form = "exact") -> np.ndarray:
    """Return the index (...) of the members (M, ...) against evenly spaced quantiles of the climate (Q, ...).

    `exact` integrates with F linear between the quantiles; half of the members that equal a quantile, as many do
    where there is no rain, count as below it. `reference` is the rectangle rule over the inner quantiles with F from
    quantiles of the ensemble, as ENS-10 (Ashkboos et al. 2022) computes it: with 21 quantiles it stays within ±0.7914.
    NaN where a member or a quantile is.
    """
    if form not in ("reference", "exact"):
        raise InputError(f"the form of the EFI must be reference or exact, got {form!r}")
    if len(climate) < 3 or members.shape[1:] != climate.shape[1:]:
        raise ValueError(f"{members.shape} are no members for quantiles {climate.shape}")
    index = _exact(members, climate) if form == "exact" else _reference(members, climate)
    return np.where(np.isfinite(members).all(0) & np.isfinite(climate).all(0), index, np.nan)


def _exact(members: np.ndarray, climate: np.ndarray) -> np.ndarray:
    index = np.ones(members.shape[1:])
    for weight, quantile in zip(exact_weights(len(climate)), climate, strict=True):
        below = (members < quantile).mean(0) + 0.5 * (members == quantile).mean(0)
        index -= weight * below
    return index


def exact_weights(count: int) -> np.ndarray:
    """Return w with 2/π ∫ F(p) / √(p (1 - p)) dp = Σ w F, for F linear between `count` even levels.

    ∫ dp / √(p (1 - p)) = 2 arcsin √p and ∫ p dp / √(p (1 - p)) = arcsin √p - √(p (1 - p)). The weights sum to 2,
    and that of p itself is 1: hence EFI = 1 - Σ w F.
    """
    p = np.linspace(0, 1, count)
    angle = np.arcsin(np.sqrt(p))
    constant, linear = np.diff(2 * angle), np.diff(angle - np.sqrt(p * (1 - p)))
    width = np.diff(p)
    rising = (linear - p[:-1] * constant) / width  # of a line from 0 to 1 across each interval
    weights = np.zeros(count)
    weights[1:] += rising
    weights[:-1] += constant - rising
    return 2 / np.pi * weights


def _reference(members: np.ndarray, climate: np.ndarray) -> np.ndarray:
    count = len(climate)
    levels = np.linspace(0, 1, count)
    own = np.quantile(members, levels, axis=0)[:-1]
    index = np.zeros(members.shape[1:])
    for p, quantile in zip(levels[1:-1], climate[1:-1], strict=True):
        below = (own < quantile).sum(0) / (count - 1)
        index += (p - below) / np.sqrt(p * (1 - p))
    return 2 / np.pi / (count - 1) * index
