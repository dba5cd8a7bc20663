"""Reliability: how often an event happens where it has a given forecast probability."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from evaluation.scores.binned_probability import PROBABILITY_BINS, ProbabilityBins, no_thresholds, threshold_labels
from evaluation.scores.effective_cases import cases_per_weight
from evaluation.scores.score import Diagram, Score, Settings

CORP = "Dimitriadis, Gneiting & Jordan 2021, doi:10.1073/pnas.2016191118"
SHOWN_BINS = 11
"""Bins of the diagram."""
DRAWS = 10_000
_ROWS_AT_ONCE = 512
"""Rows of a block of the isotonic regression; a row needs 51 x 51 means."""


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


def isotonic_regression(values: np.ndarray, weights: np.ndarray) -> np.ndarray:
    """Return the rising sequence with the smallest weighted squared distance to `values`, along the last axis.

    The i-th number is the maximum over a <= i of the minimum over b >= i of the mean of the values from a to b (Barlow
    et al. 1972, theorem 1.4). Values without weight have no influence, and the numbers in their places have no meaning.
    """
    shape, K = values.shape, values.shape[-1]
    value, weight = (one.reshape(-1, K) for one in np.broadcast_arrays(values, weights))
    found = np.empty(value.shape)
    for start in range(0, len(value), _ROWS_AT_ONCE):
        rows = slice(start, start + _ROWS_AT_ONCE)
        total, mass = (
            np.concatenate([np.zeros((len(one), 1)), one.cumsum(1)], 1)
            for one in (weight[rows] * value[rows], weight[rows])
        )
        sums, masses = (one[:, None, 1:] - one[:, :-1, None] for one in (total, mass))
        means = np.where(masses > 0, sums / np.where(masses > 0, masses, 1), np.inf)
        smallest = np.minimum.accumulate(means[..., ::-1], axis=2)[..., ::-1]
        found[rows] = np.where(np.tri(K, dtype=bool).T, smallest, -np.inf).max(1)
    return found.reshape(shape)


def corp_parts(bins: ProbabilityBins) -> tuple[np.ndarray, np.ndarray]:
    """Return miscalibration and discrimination, (...): the parts of the Brier score by isotonic regression.

    Miscalibration is the Brier score minus the Brier score of the calibrated probabilities. Discrimination is the Brier
    score of the base rate minus that of the calibrated probabilities. Miscalibration - discrimination + uncertainty is
    the Brier score.
    """
    s = bins.base_rate[..., None]
    # Members give few different probabilities: bins that are empty everywhere are left out.
    somewhere = np.atleast_1d((bins.share > 0).reshape(-1, bins.share.shape[-1]).any(0))
    somewhere[0] = True  # no threshold of this target: one empty bin
    share, probability, outcome = (part[..., somewhere] for part in (bins.share, bins.probability, bins.outcome))
    used = share > 0
    share = np.where(used, share, 0)
    p, o = (np.where(used, part / np.where(used, share, 1), 0) for part in (probability, outcome))
    c = np.where(used, isotonic_regression(o, share), 0)
    known = s[..., 0] * 0  # NaN stays NaN
    miscalibration = (share * ((p - o) ** 2 - (c - o) ** 2)).sum(-1)
    return miscalibration + known, (share * ((s - o) ** 2 - (c - o) ** 2)).sum(-1)


def _part(number: int, probability_bins: np.ndarray) -> np.ndarray:
    return corp_parts(ProbabilityBins.of_thresholds(probability_bins))[number]


MISCALIBRATION = Score(
    name="brier_miscalibration",
    title="miscalibration",
    text="By how much isotonic regression, which replaces each probability by the frequency of the event, would lower "
    "the Brier score: 0 for a reliable forecast. Computed from the averages of 51 bins, which is exact for up to 50 "
    "members.",
    reference=CORP,
    statistics={"probability_bins": PROBABILITY_BINS},
    value=lambda probability_bins: _part(0, probability_bins),
    best="zero",
    units="",
    labels=threshold_labels,
    missing=no_thresholds,
)
DISCRIMINATION = Score(
    name="brier_discrimination",
    title="discrimination",
    text="By how much the Brier score of the probabilities after isotonic regression is below that of the base rate.",
    reference=CORP,
    statistics={"probability_bins": PROBABILITY_BINS},
    value=lambda probability_bins: _part(1, probability_bins),
    best="high",
    units="",
    labels=threshold_labels,
    missing=no_thresholds,
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
