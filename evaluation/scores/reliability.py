"""Reliability: how often an event happens where it has a given forecast probability."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from evaluation.kernels.isotonic import isotonic_regression
from evaluation.scores.binned_probability import (
    BINS,
    PROBABILITY_BINS,
    ProbabilityBins,
    event_score,
    no_thresholds,
    threshold_labels,
)
from evaluation.scores.effective_cases import cases_per_weight
from evaluation.scores.score import Diagram, Settings

CORP = "Dimitriadis, Gneiting & Jordan 2021, doi:10.1073/pnas.2016191118"
SHOWN_BINS = 11
"""Bins of the diagram."""
DRAWS = 10_000


def _curves(settings: Settings, target: int, probability_bins: np.ndarray) -> Mapping[str, Mapping[str, np.ndarray]]:
    starts = ProbabilityBins.of_starts(probability_bins)
    found = {}
    for k, label in enumerate(threshold_labels(settings, target)):
        of_threshold = ProbabilityBins(*(part[:, k] for part in (starts.share, starts.probability, starts.outcome)))
        found[label] = reliability_curve(of_threshold.merged(SHOWN_BINS))
    return found


def reliability_curve(starts: ProbabilityBins) -> dict[str, np.ndarray]:
    """Return the reliability diagram of one threshold from the contributions of each start, (starts, bins).

    `x` is the mean probability of a bin, `y` the frequency of the event in it, `share` its share of the cases.
    Consistency bars reach from `low` to `high`: 90 % of the frequencies of a reliable forecast lie there (Bröcker &
    Smith 2007, doi:10.1175/WAF993.1). They are drawn for the number of independent cases that follows from the
    variation between starts. `calibrated` is the frequency that isotonic regression gives. Bins without a case are left
    out.
    """
    share, probability, outcome = (part.sum(0) for part in (starts.share, starts.probability, starts.outcome))
    used = share > 0
    share, x, y = share[used], probability[used] / share[used], outcome[used] / share[used]
    departure = starts.outcome - starts.probability
    residuals = departure[:, used] - starts.share[:, used] * (y - x)
    residuals = residuals[starts.share.sum(1) > 0]
    cases = cases_per_weight(residuals, share * x * (1 - x)) * share
    bars = np.full((2, len(x)), np.nan)
    if np.isfinite(cases).all():
        whole = np.maximum(np.round(cases), 1).astype(np.int64)
        draws = np.random.default_rng(0).binomial(whole, x.clip(0, 1), (DRAWS, len(x))) / whole
        bars = np.quantile(draws, [0.05, 0.95], axis=0)
    return {
        "x": x, "y": y, "share": share / share.sum(), "low": bars[0], "high": bars[1],
        "calibrated": isotonic_regression(y, share),
    }  # fmt: skip


def corp_parts(bins: ProbabilityBins) -> tuple[np.ndarray, np.ndarray]:
    """Return miscalibration and discrimination, (...): the parts of the Brier score by isotonic regression.

    Miscalibration is the Brier score minus the Brier score of the calibrated probabilities. Discrimination is the Brier
    score of the base rate minus that of the calibrated probabilities. Miscalibration - discrimination + uncertainty is
    the Brier score.
    """
    s = bins.base_rate[..., None]
    used = bins.share > 0
    share = np.where(used, bins.share, 0)
    p, o = (np.where(used, part / np.where(used, share, 1), 0) for part in (bins.probability, bins.outcome))
    c = isotonic_regression(o, share)
    known = s[..., 0] * 0  # NaN stays NaN
    miscalibration = (share * ((p - o) ** 2 - (c - o) ** 2)).sum(-1)
    return miscalibration + known, (share * ((s - o) ** 2 - (c - o) ** 2)).sum(-1)


def _part(number: int, probability_bins: np.ndarray) -> np.ndarray:
    return corp_parts(ProbabilityBins.of_thresholds(probability_bins))[number]


MISCALIBRATION = event_score(
    name="brier_miscalibration",
    title="miscalibration",
    text="By how much isotonic regression, which replaces each probability by the frequency of the event, would lower "
    f"the Brier score: 0 for a reliable forecast. Computed from the averages of {BINS} bins, which is exact for up to "
    "52 members.",
    reference=CORP,
    statistics={"probability_bins": PROBABILITY_BINS},
    value=lambda probability_bins: _part(0, probability_bins),
    best="zero",
)
DISCRIMINATION = event_score(
    name="brier_discrimination",
    title="discrimination",
    text="By how much the Brier score of the probabilities after isotonic regression is below that of the base rate. "
    "Pooled as the resolution.",
    reference=CORP,
    statistics={"probability_bins": PROBABILITY_BINS},
    value=lambda probability_bins: _part(1, probability_bins),
    best="high",
)
RELIABILITY_CURVE = Diagram(
    name="reliability",
    title="Reliability",
    text="Frequency of the event (y) in bins of its forecast probability (x), with the `share` of the cases. 90 % of "
    "the frequencies of a reliable forecast lie between `low` and `high`; `calibrated` is from isotonic regression.",
    reference="Bröcker & Smith 2007, doi:10.1175/WAF993.1; " + CORP,
    statistics={"probability_bins": PROBABILITY_BINS},
    value=_curves,
    missing=no_thresholds,
    by_start=True,
)
SCORES = (MISCALIBRATION, DISCRIMINATION)
DIAGRAMS = (RELIABILITY_CURVE,)
