"""The CRPS in its parts: over-forecast, under-forecast and spread; reliability and potential."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from evaluation.scores.case import Case
from evaluation.scores.score import CellStatistic, Score
from models.distribution import Distribution, in_double

HERSBACH = "Hersbach 2000, doi:10.1175/1520-0434(2000)015<0559:DOTCRP>2.0.CO;2"
KERNEL_PARTS = "over-forecast", "spread", "under-forecast"
_FAR = 40.0
"""Standard deviations below the mean of a value that lies below the distribution in double precision."""


def spread_part(forecast: Distribution) -> Tensor:
    """Return ½ E|X - X'| of two independent draws, (*S), in double precision.

    A value y below all others has E|X - y| = E X - y, so that its CRPS is E X - y - ½ E|X - X'|.
    """
    exact = in_double(forecast)
    mean, below = exact.mean, exact.mean - _FAR * exact.std
    return mean - below - exact.crps(below)


def _kernel_parts(case: Case) -> Tensor:
    members = case.forecast.as_members
    absolute = None if members is None else (members - case.truth).abs().double().mean(0)
    spread = spread_part(case.forecast) if absolute is None else absolute - case.crps
    absolute = case.crps + spread  # E|X - y|; E(X - y) is the error
    return torch.stack([(absolute + case.error) / 2, spread, (absolute - case.error) / 2])


def _gaps(case: Case) -> Tensor:
    """Return the widths between members below and above the truth, and whether it lies outside, (2(M + 1), B, T, H, W).

    The first M numbers are β for the bins 0 ... M - 1 (below the first member, then between members), the next M are α
    for the bins 1 ... M. The last two are 1 where the truth is below all members, and 1 where it is below the last.
    """
    members = case.forecast.as_members
    if members is None or len(members) + 1 != case.bins:
        return case.truth.new_full((2 * case.bins, *case.truth.shape), torch.nan)
    difference = (members - case.truth).sort(0).values
    zero = torch.zeros_like(difference[:1])
    above, below = difference.clamp(min=0), difference.clamp(max=0)
    outside = torch.stack([difference[0] > 0, difference[-1] > 0]).to(difference)
    return torch.cat([above.diff(dim=0, prepend=zero), below.diff(dim=0, append=zero), outside])


def hersbach_parts(gaps: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return reliability and potential CRPS, (...), from averages (..., 2(M + 1)) of `_gaps`; their sum is the CRPS.

    Bin i of M + 1 has the probability p = i/M, the mean width g = α + β and the frequency o = β/g of a truth below it.
    Reliability is Σ g (o - p)², the potential Σ g o (1 - o). In both outer bins, o is the frequency of a truth below
    the first member, or below the last one, and g the mean width where the truth lies outside.
    """
    M = gaps.shape[-1] // 2 - 1
    beta, alpha, outside = gaps[..., 1:M], gaps[..., M : 2 * M - 1], gaps[..., 2 * M :]
    p, width = np.arange(1, M) / M, alpha + beta
    width = np.where(width == 0, 1, width)
    reliability = ((beta * (1 - p) - alpha * p) ** 2 / width).sum(-1)
    potential = (alpha * beta / width).sum(-1)
    ends, rare = gaps[..., [0, 2 * M - 1]], np.stack([outside[..., 0], 1 - outside[..., 1]], -1)
    return reliability + (ends * rare).sum(-1), potential + (ends * (1 - rare)).sum(-1)


GAPS = CellStatistic(_gaps, size=lambda settings: 2 * settings.bins)
_MEMBERS = (
    "Only for as many members as the raw ensemble has, such as those that correct writes: null for distributions. Few "
    "members raise it, so that only the same number can be compared."
)
CRPS_PARTS = Score(
    name="crps_parts",
    title="parts of the CRPS",
    text="E max(X − y, 0) (over-forecast), ½ E|X − X′| (spread) and E max(y − X, 0) (under-forecast) for independent "
    "draws X and X′ of the forecast. The CRPS is over-forecast + under-forecast − spread. The fair CRPS of M members "
    "has the same first two, and M/(M − 1) times the spread.",
    reference="Gneiting & Raftery 2007, doi:10.1198/016214506000001437",
    statistics={"crps_parts": CellStatistic(_kernel_parts, size=len(KERNEL_PARTS))},
    best=None,
    labels=KERNEL_PARTS,
)
CRPS_RELIABILITY = Score(
    name="crps_reliability",
    title="reliability part of the CRPS",
    text="Σ g (o − p)² over the bins between sorted members, with their mean width g, the probability p below a bin "
    "and the frequency o of an analysis below it: 0 if each rank is as frequent as it should be. " + _MEMBERS,
    reference=HERSBACH,
    statistics={"crps_gaps": GAPS},
    value=lambda crps_gaps: hersbach_parts(crps_gaps)[0],
    best="low",
)
CRPS_POTENTIAL = Score(
    name="crps_potential",
    title="potential CRPS",
    text="The CRPS minus its reliability part: what would remain if each rank were as frequent as it should be. It is "
    "the uncertainty minus the resolution; the CRPS of climatology minus it is the resolution. " + _MEMBERS,
    reference=HERSBACH,
    statistics={"crps_gaps": GAPS},
    value=lambda crps_gaps: hersbach_parts(crps_gaps)[1],
    best="low",
)
SCORES = (CRPS_PARTS, CRPS_RELIABILITY, CRPS_POTENTIAL)
