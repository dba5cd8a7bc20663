"""Averages in bins of the forecast probability of each threshold: for the Brier score's parts, reliability and ROC."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import numpy as np
import torch
from torch import Tensor

from evaluation.kernels.edge_search import bins_between
from evaluation.scores.case import Case
from evaluation.scores.ratios import divide
from evaluation.scores.score import Binned, CellStatistic, Score, Settings

_LOW = np.concatenate(
    [
        np.geomspace(1e-6, 1e-4, 4, endpoint=False),
        np.geomspace(1e-4, 1 / 53, 16, endpoint=False),
        np.array([1, 2 ** (1 / 3), 2 ** (2 / 3), 2, 6**0.5, *range(3, 27)]) / 53,
    ]
)
EDGES = np.concatenate([[0.0], _LOW, 1 - _LOW[::-1], [1.0]])
"""Edges of the bins: steps of 1/53, and of a factor of 1.4 between 10⁻⁴ and 3/53 from either end.

The probabilities k/M of up to 52 members lie in bins of their own, so that nothing is lost. 53 is a prime: none of them
lies so close to an edge that rounding moves it to the next bin.
"""
BINS = len(EDGES) - 1
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


def bins_of(probability: Tensor) -> Tensor:
    """Return the bin of each probability, int64; an edge belongs to the bin above it, and NaN to any bin."""
    if probability.device.type == "cpu":
        return torch.from_numpy(bins_between(probability.numpy(), EDGES[1:-1]))
    return torch.bucketize(probability.contiguous(), torch.from_numpy(EDGES[1:-1]).to(probability), right=True)


def _binned(case: Case) -> Binned:
    probability, outcome = of_known(case.once(probabilities), case), of_known(case.once(outcomes), case)
    return Binned(bins_of(probability), BINS, (case.once(known_events), probability, outcome))


def _balanced(case: Case) -> Binned:
    p, o, c = (case.once(function) for function in (probabilities, outcomes, climate_probabilities))
    relative = p * (1 - c) / (p * (1 - c) + (1 - p) * c)
    # In single precision, a smaller c is a rounding error.
    possible = (c > EDGES[1]) & (c < EDGES[-2]) & (case.once(known_events) > 0)
    weighted = (values.masked_fill(~possible, 0) for values in (o * (1 - c), (1 - o) * c))
    return Binned(bins_of(relative), BINS, tuple(weighted))


def climate_probabilities(case: Case) -> Tensor:
    """Return the probability of each event in the climatology, (K, B, T, H, W).

    It is 1/2 without climatology, and for percentiles of climatology, which are equally rare everywhere.
    """
    half = torch.full_like(case.truth, 0.5)
    if case.climate is None:
        return torch.stack([half] * len(case.events))
    return torch.stack([torch.where(event.fixed, event.probability(case.climate), half) for event in case.events])


PROBABILITY_BINS = CellStatistic(_binned, size=lambda settings: 3 * BINS * threshold_count(settings))
BALANCED_BINS = CellStatistic(_balanced, size=lambda settings: 2 * BINS * threshold_count(settings))
"""Cases with the event, with the weight 1 - c, and cases without it, with the weight c, in bins of the probability q.

c is the probability of the event in the climatology. With these weights the event is as frequent as its opposite in
every place (overlap weights; Li et al. 2018, doi:10.1080/01621459.2016.1260466). The odds of q are those of the
forecast probability p divided by those of c: q = p(1 - c)/(p(1 - c) + (1 - p)c), which is 1/2 for climatology itself. A
forecast then gains nothing from the knowledge where the event is frequent (Hamill & Juras 2006, doi:10.1256/qj.06.25).
Without climatology c is 1/2, q is p, and all cases weigh the same.
"""


def threshold_count(settings: Settings) -> int:
    """Return the largest number of thresholds of a target."""
    return max(map(len, settings.thresholds), default=0)


def threshold_labels(settings: Settings, target: int) -> tuple[str, ...]:
    """Return the labels of the thresholds of a target."""
    return tuple(threshold.label for threshold in settings.thresholds[target])


def no_thresholds(settings: Settings) -> str:
    """Return why scores of thresholds cannot be computed, "" if they can."""
    return "" if threshold_count(settings) else "there are no thresholds; give some by the option thresholds"


EVENT_KNOWN = CellStatistic(lambda case: case.once(known_events), size=threshold_count)
"""1 where the event has a limit. Scores of thresholds are divided by its average, so that only these cells count."""


def where_known(name: str, cells: Callable[[Case], Tensor]) -> dict[str, CellStatistic]:
    """Return the statistics of a score with a number for each event, which counts where the event is known."""
    return {name: CellStatistic(cells, size=threshold_count), "event_known": EVENT_KNOWN}


event_score = partial(Score, units="", labels=threshold_labels, missing=no_thresholds)
"""A score with a number for each threshold."""


def what_is_mixed(settings: Settings) -> str:
    """Return how a score that compares cases with an event and without it treats places of different climate."""
    if not settings.climatology:
        return (
            " Places and seasons of different climate are pooled, because there is no climatology reference: a "
            "forecast that only knows where and when the event is frequent seems to have skill (Hamill & Juras 2006)."
        )
    if all(one.climatological for of_target in settings.thresholds for one in of_target):
        return ""
    return (
        " For a fixed threshold, the odds of the forecast probability count relative to those of its probability c in "
        "the climatology, and cases with and without the event weigh 1 − c and c: climatology itself is no better than "
        "a constant forecast (Hamill & Juras 2006). Cells where c is 0 or 1, to 10⁻⁶, do not count."
    )


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
        starts = np.searchsorted(EDGES, np.arange(count) / count)
        return ProbabilityBins(
            *(np.add.reduceat(part, starts, axis=-1) for part in (self.share, self.probability, self.outcome))
        )


def rates(balanced_bins: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return hit rate and false-alarm rate (..., K, bins + 1) of warnings, and the frequency of the event, (..., K).

    `balanced_bins` are averages of the statistic `BALANCED_BINS`. The j-th warning is given from `EDGES[j]` on; the
    first is always given, the last never. NaN if the event always happens or never does.
    """
    events, others = np.moveaxis(balanced_bins.reshape(*balanced_bins.shape[:-1], -1, 2, BINS), -2, 0)
    hits, missed = events.sum(-1), others.sum(-1)
    return share_from(events), share_from(others), divide(hits, hits + missed)


def share_from(parts: np.ndarray) -> np.ndarray:
    """Return the share of the total in each bin and all bins after it, (..., bins + 1); NaN if the total is 0."""
    from_bin = np.flip(np.cumsum(np.flip(parts, -1), -1), -1)
    whole = from_bin[..., :1]
    found = np.concatenate([from_bin, np.zeros_like(whole)], axis=-1) / np.where(whole > _NOTHING, whole, np.nan)
    return found.clip(0, 1)
