"""Gain in lead time: how many hours earlier the raw ensemble is as good as a model."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from evaluation.significance.intervals import estimates
from evaluation.tables.score_rows import Finisher, merge


def lead_gains(finisher: Finisher, name: str) -> dict[str, dict[str, Any]] | None:
    """Return the gain in hours at each lead time of a model, and its 95 % interval; None for fewer than two lead times.

    By the score that judges the model. `hours` is None beyond the scored lead times: the gain is then `at_least` or
    `at_most` another number of hours. Only starts with all lead times count.
    """
    board = finisher.board
    leads = [lead for lead in board.task.lead_times if (board.lead_times == lead).any()]
    if name == "raw" or len(leads) < 2:
        return None
    starts, position = np.unique(board.init_times, return_inverse=True)
    own, raw = (finisher.mean(tally, board.judging_score(name, "raw")) for tally in board.judged(name, "raw"))
    raw_by_lead = [merge(raw, position, len(starts), board.lead_times == lead) for lead in leads]
    found = {}
    for lead in leads:
        means = [merge(own, position, len(starts), board.lead_times == lead), *raw_by_lead]
        complete = np.all([mean.weight > 0 for mean in means], axis=0)
        (equal,) = estimates(lead_of_equal_score(leads), means, starts)
        ends, known = equal.interval, bool(np.isfinite(equal.value))
        value, *of_raw = (mean[complete].sum(0).value for mean in means)
        found[str(lead)] = {
            "hours": lead - equal.value if known else None,
            "ci95": [lead - ends[1], lead - ends[0]] if known and ends else None,
            "at_least": lead - leads[0] if value < of_raw[0] else None,
            "at_most": lead - leads[-1] if value > max(of_raw) else None,
        }
    return found


def lead_of_equal_score(leads: Sequence[float]) -> Callable[..., np.ndarray]:
    """Return the function from a model's score and raw's scores at `leads` to the lead time where both are equal.

    The score of raw is interpolated linearly. A score that falls with lead time is replaced by the largest one before
    it, so that there is one such lead time. The result is NaN outside the range of raw's scores.
    """
    hours = np.asarray(leads, float)

    def equal(model: np.ndarray, *raw: np.ndarray) -> np.ndarray:
        rising = np.maximum.accumulate(np.stack(raw, -1), axis=-1)
        after = np.clip((rising < np.asarray(model)[..., None]).sum(-1), 1, len(hours) - 1)
        low, high = (np.take_along_axis(rising, k[..., None], -1)[..., 0] for k in (after - 1, after))
        with np.errstate(invalid="ignore", divide="ignore"):
            share = (model - low) / (high - low)
        share = np.where((share >= 0) & (share <= 1), share, np.nan)
        return np.asarray(hours[after - 1] + share * (hours[after] - hours[after - 1]))

    return equal
