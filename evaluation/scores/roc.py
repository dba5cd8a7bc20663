"""The relative operating characteristic (ROC): hits against false alarms, and the area below this curve."""

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
from evaluation.scores.score import Diagram, Settings

ROC_REFERENCE = (
    "Mason 1982, Aust. Met. Mag. 30, 291-303; Wilks 2019, doi:10.1016/C2017-0-03921-6; Hamill & Juras 2006, "
    "doi:10.1256/qj.06.25"
)


def area_below(hit_rate: np.ndarray, false_alarm_rate: np.ndarray) -> np.ndarray:
    """Return the area below the curve by trapezoids, (...), for rates (..., points) that fall from 1 to 0."""
    mean = (hit_rate[..., 1:] + hit_rate[..., :-1]) / 2
    return (mean * -np.diff(false_alarm_rate, axis=-1)).sum(-1)


def _area(balanced_bins: np.ndarray) -> np.ndarray:
    return area_below(*rates(balanced_bins)[:2])


def _curves(settings: Settings, target: int, balanced_bins: np.ndarray) -> Mapping[str, Mapping[str, np.ndarray]]:
    hits, false_alarms, _ = rates(balanced_bins)
    found = {}
    for k, label in enumerate(threshold_labels(settings, target)):
        # Empty bins repeat a point and are left out.
        new = np.append(True, (np.diff(hits[k]) != 0) | (np.diff(false_alarms[k]) != 0))
        found[label] = {"x": false_alarms[k][new], "y": hits[k][new], "probability": EDGES[new]}
    return found


ROC_AREA = event_score(
    name="roc_area",
    title="ROC area",
    text="The chance that a case with the event had a higher forecast probability than a case without it: the area "
    "below the curve of hit rate against false-alarm rate. 1 is perfect, 0.5 is no better than a constant forecast.",
    reference=ROC_REFERENCE,
    statistics={"balanced_bins": BALANCED_BINS},
    value=_area,
    best="one",
    note=what_is_mixed,
)
ROC = Diagram(
    name="roc",
    title="ROC",
    text="Hit rate (y) against false-alarm rate (x) of warnings from each forecast `probability` on.",
    reference=ROC_REFERENCE,
    statistics={"balanced_bins": BALANCED_BINS},
    value=_curves,
    missing=no_thresholds,
    note=what_is_mixed,
)
SCORES = (ROC_AREA,)
DIAGRAMS = (ROC,)
