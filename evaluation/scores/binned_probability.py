"""Averages in bins of the forecast probability of each threshold: for the Brier score's parts, reliability and ROC."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from evaluation.scores.case import Case
from evaluation.scores.score import Binned, CellStatistic, Settings

BINS = 51
"""Bins of equal width. The probabilities k/M of up to 50 members lie in bins of their own, so that nothing is lost."""
_NOTHING = 1e-12
"""A share of the cases below this is a rounding error."""


def probabilities(case: Case) -> Tensor:
    """Return the forecast probability of each event, (K, B, T, H, W)."""
    return torch.stack([event.probability(case.forecast) for event in case.events])


def outcomes(case: Case) -> Tensor:
    """Return 1 for each event that happened and 0 for the others, (K, B, T, H, W)."""
    return torch.stack([event.outcome(case.truth) for event in case.events])


def known_events(case: Case) -> Tensor:
    """Return 1 where an event has a limit and 0 where climatology has none, (K, B, T, H, W); equal for all models."""
    return torch.stack([event.limit.isfinite().expand_as(case.truth).to(case.truth) for event in case.events])


def of_known(values: Tensor, case: Case) -> Tensor:
    """Return values (K, B, T, H, W) of the events, 0 where an event has no limit."""
    return values.masked_fill(case.once(known_events) == 0, 0)


def _binned(case: Case) -> Binned:
    probability, outcome = of_known(case.once(probabilities), case), of_known(case.once(outcomes), case)
    index = (probability.nan_to_num(0) * BINS).long().clamp(0, BINS - 1)
    return Binned(index, BINS, (case.once(known_events), probability, outcome))


PROBABILITY_BINS = CellStatistic(_binned, size=lambda settings: 3 * BINS * threshold_count(settings))
EVENT_KNOWN = CellStatistic(lambda case: case.once(known_events), size=lambda settings: threshold_count(settings))
"""1 where the event has a limit. Scores of thresholds are divided by its average, so that only these cells count."""


def threshold_count(settings: Settings) -> int:
    """Return the largest number of thresholds of a target."""
    return max(map(len, settings.thresholds), default=0)


def threshold_labels(settings: Settings, target: int) -> tuple[str, ...]:
    """Return the labels of the thresholds of a target."""
    return tuple(threshold.label for threshold in settings.thresholds[target])


def no_thresholds(settings: Settings) -> str:
    """Return why scores of thresholds cannot be computed, "" if they can."""
    return "" if threshold_count(settings) else "there are no thresholds; give some by the option thresholds"


@dataclass(frozen=True)
class ProbabilityBins:
    """Averages over all cases of 1 (`share`), of the probability and of the outcome in each bin, (..., bins)."""

    share: np.ndarray
    probability: np.ndarray
    outcome: np.ndarray

    @classmethod
    def of_thresholds(cls, averages: np.ndarray) -> ProbabilityBins:
        """Return the averages (..., K, bins) of K thresholds from the averages of the statistic `PROBABILITY_BINS`."""
        parts = np.moveaxis(averages.reshape(*averages.shape[:-1], -1, 3, BINS), -2, 0)
        known = parts[0].sum(-1, keepdims=True)
        return cls(*(parts / np.where(known > _NOTHING, known, np.nan)))

    @classmethod
    def of_starts(cls, contributions: np.ndarray) -> ProbabilityBins:
        """Return the bins of each start, (starts, K, bins); the contributions of all starts add up to the average."""
        return cls(*np.moveaxis(contributions.reshape(len(contributions), -1, 3, BINS), -2, 0))

    @property
    def base_rate(self) -> np.ndarray:
        """Frequency of the event, (...)."""
        return self.outcome.sum(-1)

    def merged(self, count: int) -> ProbabilityBins:
        """Return the averages in `count` bins, for display; the probabilities k/M of M < `count` stay apart."""
        groups = np.arange(BINS) * count // BINS
        starts = np.flatnonzero(np.diff(groups, prepend=-1))
        return ProbabilityBins(
            *(np.add.reduceat(part, starts, axis=-1) for part in (self.share, self.probability, self.outcome))
        )

    def rates(self) -> tuple[np.ndarray, np.ndarray]:
        """Return hit rate and false-alarm rate of the warnings at rising probability, (..., bins + 1).

        The j-th warning is given from bin j on; the first is always given, the last never. NaN if the event always
        happens or never does.
        """
        return share_from(self.outcome), share_from(self.share - self.outcome)


def share_from(parts: np.ndarray) -> np.ndarray:
    """Return the share of the total in each bin and all bins after it, (..., bins + 1); NaN if the total is 0."""
    from_bin = np.flip(np.cumsum(np.flip(parts, -1), -1), -1)
    whole = from_bin[..., :1]
    found = np.concatenate([from_bin, np.zeros_like(whole)], axis=-1) / np.where(whole > _NOTHING, whole, np.nan)
    return found.clip(0, 1)
