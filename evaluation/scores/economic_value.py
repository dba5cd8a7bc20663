"""Relative economic value: the gain of a user who can protect against an event, for every ratio of cost to loss."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from evaluation.scores.binned_probability import (
    BINS,
    PROBABILITY_BINS,
    ProbabilityBins,
    no_thresholds,
    threshold_labels,
)
from evaluation.scores.ratios import divide
from evaluation.scores.score import Diagram, Score, Settings

RICHARDSON = "Richardson 2000, doi:10.1002/qj.49712656313"
COST_LOSS = np.linspace(0.01, 0.99, 99)
"""Ratios of cost to loss of the curve."""


def economic_value(
    hit_rate: np.ndarray, false_alarm_rate: np.ndarray, base_rate: np.ndarray, ratio: np.ndarray | float
) -> np.ndarray:
    """Return the relative economic value of warnings for a user with the `ratio` α of cost to loss.

        V = (min(α, s) - F α(1 - s) + H s(1 - α) - s) / (min(α, s) - sα)

    H and F are hit rate and false-alarm rate, s is the base rate. 1 is a perfect forecast, 0 the better of always and
    never protecting (Richardson 2000, doi:10.1002/qj.49712656313).
    """
    s = base_rate
    without = np.minimum(ratio, s)
    saved = without - false_alarm_rate * ratio * (1 - s) + hit_rate * s * (1 - ratio) - s
    return divide(saved, without - s * ratio)


def _largest(probability_bins: np.ndarray) -> np.ndarray:
    hits, false_alarms = ProbabilityBins.of_thresholds(probability_bins).rates()
    return (hits - false_alarms).max(-1)


def _curves(settings: Settings, target: int, probability_bins: np.ndarray) -> Mapping[str, Mapping[str, np.ndarray]]:
    bins = ProbabilityBins.of_thresholds(probability_bins)
    hits, false_alarms = bins.rates()
    found = {}
    for k, label in enumerate(threshold_labels(settings, target)):
        values = economic_value(hits[k], false_alarms[k], bins.base_rate[k], COST_LOSS[:, None])
        # The first bin whose probabilities are all at least α.
        own = np.ceil(COST_LOSS * BINS - 1e-9).astype(int)
        found[label] = {
            "x": COST_LOSS, "y": values.max(1), "as_forecast": values[np.arange(len(COST_LOSS)), own],
        }  # fmt: skip
    return found


LARGEST_VALUE = Score(
    name="economic_value",
    title="largest economic value",
    text="The largest relative economic value over all users and warnings: the largest difference of hit rate and "
    "false-alarm rate, which a user whose ratio of cost to loss is the frequency of the event can have.",
    reference=RICHARDSON,
    statistics={"probability_bins": PROBABILITY_BINS},
    value=_largest,
    best="one",
    units="",
    labels=threshold_labels,
    missing=no_thresholds,
)
VALUE_CURVE = Diagram(
    name="economic_value",
    title="Relative economic value",
    text="Share of the possible savings (y) of a user with the ratio x of cost to loss who warns at the best "
    "probability; `as_forecast`: who warns where the forecast probability is at least x. 0 is the better of always "
    "and never protecting.",
    reference=RICHARDSON,
    statistics={"probability_bins": PROBABILITY_BINS},
    value=_curves,
    missing=no_thresholds,
)
SCORES = (LARGEST_VALUE,)
DIAGRAMS = (VALUE_CURVE,)
