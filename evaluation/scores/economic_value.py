"""Relative economic value: the gain of a user who can protect against an event, for every ratio of cost to loss."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from evaluation.scores.binned_probability import (
    BALANCED_BINS,
    EDGES,
    event_score,
    no_thresholds,
    rates,
    threshold_labels,
    what_is_mixed,
)
from evaluation.scores.ratios import divide
from evaluation.scores.score import Diagram, Settings

RICHARDSON = "Richardson 2000, doi:10.1002/qj.49712656313; Hamill & Juras 2006, doi:10.1256/qj.06.25"


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


def _largest(balanced_bins: np.ndarray) -> np.ndarray:
    hits, false_alarms, _ = rates(balanced_bins)
    return (hits - false_alarms).max(-1)


def _curves(settings: Settings, target: int, balanced_bins: np.ndarray) -> Mapping[str, Mapping[str, np.ndarray]]:
    hits, false_alarms, frequency = rates(balanced_bins)
    ratios = EDGES[1:-1]
    found = {}
    for k, label in enumerate(threshold_labels(settings, target)):
        values = economic_value(hits[k], false_alarms[k], frequency[k], ratios[:, None])
        # The warning from an edge on is that of the user with this ratio.
        found[label] = {"x": ratios, "y": values.max(1), "as_forecast": np.diagonal(values, 1)}
    return found


def _note(settings: Settings) -> str:
    mixed = what_is_mixed(settings)
    return mixed + (
        " The odds of x are relative to those of c: 0.5 is the user with the ratio c." if " c " in mixed else ""
    )


LARGEST_VALUE = event_score(
    name="economic_value",
    title="largest economic value",
    text="The largest relative economic value over all users and warnings: the largest difference of hit rate and "
    "false-alarm rate, which a user whose ratio of cost to loss is the frequency of the event can have.",
    reference=RICHARDSON,
    statistics={"balanced_bins": BALANCED_BINS},
    value=_largest,
    best="one",
    note=what_is_mixed,
)
VALUE_CURVE = Diagram(
    name="economic_value",
    title="Relative economic value",
    text="Share of the possible savings (y) of a user with the ratio x of cost to loss who warns at the best "
    "probability; `as_forecast`: who warns where the forecast probability is at least x. 0 is the better of always "
    "and never protecting.",
    reference=RICHARDSON,
    statistics={"balanced_bins": BALANCED_BINS},
    value=_curves,
    missing=no_thresholds,
    note=_note,
)
SCORES = (LARGEST_VALUE,)
DIAGRAMS = (VALUE_CURVE,)
