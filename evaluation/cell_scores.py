"""Scores of a predictive distribution in every grid cell.

They can be averaged over cells and dates. Functions that are not linear (roots, ratios, skills) are in `metrics` and
are applied to complete averages. A cell with NaN truth gives NaN, and has no weight in the averages.
"""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from data_pipeline.common.errors import InputError
from models.distribution import Distribution, Ensemble, Patched

CELL_SCORES = ("crps", "crps_fair", "error", "squared_error", "expected_squared_error")


def cell_scores(distribution: Distribution, truth: Tensor, drawn: bool = True) -> dict[str, Tensor]:
    """Return each of `CELL_SCORES` in the shape of `truth`; for `drawn` see `expected_squared_error`."""
    error = distribution.mean - truth
    return {
        "crps": distribution.crps(truth),
        "crps_fair": distribution.crps(truth, fair=True),
        "error": error,
        "squared_error": error.square(),
        "expected_squared_error": torch.where(truth.isnan(), truth, expected_squared_error(distribution, drawn)),
    }


def expected_squared_error(distribution: Distribution, drawn: bool = True) -> Tensor:
    """Return the expected squared error of the mean if the truth is drawn from the distribution.

    This is the variance. For M members that are random draws it is (M + 1)/M times their unbiased variance, because
    their mean is uncertain too (Fortin et al. 2014, doi:10.1175/JHM-D-14-0008.1). For members that are quantiles of a
    distribution (`drawn` false) the factor is 1: their mean is the distribution's mean.
    """
    if isinstance(distribution, Patched):
        inner, outer = (expected_squared_error(part, drawn) for part in (distribution.inner, distribution.outer))
        return torch.where(distribution.where, inner, outer)
    variance = distribution.std.square()
    if not isinstance(distribution, Ensemble):
        return variance
    M = len(distribution.members)
    if M < 2:
        raise InputError("an ensemble of one member has no spread; use at least two members")
    return variance * ((M + 1) / M) if drawn else variance


def is_ensemble(distribution: Distribution) -> bool:
    """Return whether a model's forecasts are members, also where untrained cells have the raw members."""
    return isinstance(distribution.inner if isinstance(distribution, Patched) else distribution, Ensemble)


def calibration_bin(distribution: Distribution, truth: Tensor, uniform: Tensor, bins: int) -> Tensor:
    """Return the bin (0 ... bins - 1) of the truth in the rank or PIT histogram, as int64.

    For an ensemble, the rank of the truth among the members; ties are broken at random (Hamill 2001,
    doi:10.1175/1520-0493(2001)129<0550:IORHFV>2.0.CO;2). For other distributions, the probability integral transform
    F(y-) + u (F(y) - F(y-)), which is uniform also where the distribution has point masses (Czado et al.
    2009, doi:10.1111/j.1541-0420.2009.01191.x). `uniform` holds u in [0, 1) in the shape of `truth`;
    cells without truth get an arbitrary bin.
    """
    if isinstance(distribution, Patched):
        parts = (distribution.inner, distribution.outer)
        inner, outer = (calibration_bin(part, truth, uniform, bins) for part in parts)
        return torch.where(distribution.where, inner, outer)
    if isinstance(distribution, Ensemble):
        below = (distribution.members < truth).sum(0)
        equal = (distribution.members == truth).sum(0)
        return below + (uniform * (equal + 1)).long().clamp(max=equal)
    upper = distribution.cdf(truth)
    lower = distribution.cdf(torch.nextafter(truth, torch.full_like(truth, -torch.inf)))
    probability = (lower + uniform * (upper - lower)).nan_to_num(0.0)
    return (probability * bins).long().clamp(0, bins - 1)


def tie_breaker(seed: int, init_time: Tensor, lead_time: Tensor, shape: tuple[int, ...]) -> Tensor:
    """Return the `uniform` of `calibration_bin` for a batch of forecasts, (B, *shape).

    The draws are seeded per forecast, so that scores do not depend on the order or the batch size.
    """
    draws = [
        np.random.default_rng([seed, int(start) % 2**63, int(lead)]).random(shape, dtype=np.float32)
        for start, lead in zip(init_time, lead_time, strict=True)
    ]
    return torch.from_numpy(np.stack(draws))
