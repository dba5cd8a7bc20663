"""The Brier score of thresholds, plain and fair, and its three parts."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from evaluation.scores.binned_probability import (
    BINS,
    PROBABILITY_BINS,
    ProbabilityBins,
    event_score,
    of_known,
    outcomes,
    probabilities,
    where_known,
)
from evaluation.scores.case import Case
from models.distribution import Distribution

MURPHY = "Murphy 1973, doi:10.1175/1520-0450(1973)012<0595:ANVPOT>2.0.CO;2"


def _brier(case: Case) -> Tensor:
    return of_known((case.once(probabilities) - case.once(outcomes)).square(), case)


def _brier_fair(case: Case) -> Tensor:
    return of_known(case.once(_brier) - sampling_variance(case.forecast, case.once(probabilities)), case)


def sampling_variance(forecast: Distribution, probability: Tensor) -> Tensor:
    """Return p(1 - p)/(M - 1), by which few members raise the Brier score; 0 for a distribution in closed form."""

    def variance(part: Distribution) -> Tensor:
        if (members := part.as_members) is None:
            return torch.zeros_like(probability)
        M = len(members)
        return probability * (1 - probability) / (M - 1) if M > 1 else torch.full_like(probability, torch.nan)

    return forecast.scored(variance)


def brier_parts(bins: ProbabilityBins) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return reliability, resolution and uncertainty, (...), of averages (..., bins).

    They are Σ n (p - o)², Σ n (o - s)² and s(1 - s). n is the share of a bin, p its mean probability, o the frequency
    of the event in the bin, and s the frequency of the event in all bins. If a bin holds only one probability, as for
    up to 52 members, reliability - resolution + uncertainty is the Brier score.
    """
    s = bins.base_rate[..., None]
    share = np.where(bins.share > 0, bins.share, np.nan)
    reliability = np.nansum((bins.probability - bins.outcome) ** 2 / share, -1)
    resolution = np.nansum((bins.outcome - bins.share * s) ** 2 / share, -1)
    known = s[..., 0] * 0  # NaN stays NaN
    return reliability + known, resolution + known, bins.base_rate * (1 - bins.base_rate)


def _part(number: int, probability_bins: np.ndarray) -> np.ndarray:
    return brier_parts(ProbabilityBins.of_thresholds(probability_bins))[number]


BRIER = event_score(
    name="brier",
    title="Brier score",
    text="Mean of (p − o)²: p is the forecast probability that the threshold is passed, o is 1 if it was and 0 if not.",
    reference="Brier 1950, doi:10.1175/1520-0493(1950)078<0001:VOFEIT>2.0.CO;2",
    statistics=where_known("brier", lambda case: case.once(_brier)),
    best="low",
)
BRIER_FAIR = event_score(
    name="brier_fair",
    title="fair Brier score",
    text="The Brier score that infinitely many members of the same kind would have: (p − o)² − p(1 − p)/(M − 1). Equal "
    "to the Brier score for a distribution in closed form.",
    reference="Ferro 2014, doi:10.1002/qj.2270",
    statistics=where_known("brier_fair", _brier_fair),
    best="low",
)
BRIER_RELIABILITY = event_score(
    name="brier_reliability",
    title="reliability part of the Brier score",
    text=f"Σ n (p − o)² over {BINS} bins of the probability, with the share n of the cases, their mean probability "
    "p and the frequency o of the event: 0 if the event is as frequent as forecast.",
    reference=MURPHY,
    statistics={"probability_bins": PROBABILITY_BINS},
    value=lambda probability_bins: _part(0, probability_bins),
    best="zero",
)
BRIER_RESOLUTION = event_score(
    name="brier_resolution",
    title="resolution part of the Brier score",
    text="Σ n (o − s)² over the same bins, with the frequency s of the event over all cases: high if the forecast "
    "tells cases with the event from cases without it. Cases of all places are pooled: for a fixed threshold, a "
    "forecast that only knows the climate of each place has resolution too.",
    reference=MURPHY,
    statistics={"probability_bins": PROBABILITY_BINS},
    value=lambda probability_bins: _part(1, probability_bins),
    best="high",
)
BRIER_UNCERTAINTY = event_score(
    name="brier_uncertainty",
    title="uncertainty part of the Brier score",
    text="s(1 − s) with the frequency s of the event: the Brier score of the constant forecast s, equal for all "
    "models.",
    reference=MURPHY,
    statistics={"probability_bins": PROBABILITY_BINS},
    value=lambda probability_bins: _part(2, probability_bins),
    best=None,
)
SCORES = (BRIER, BRIER_FAIR, BRIER_RELIABILITY, BRIER_RESOLUTION, BRIER_UNCERTAINTY)
