"""Averages over several training runs of one model, so that intervals hold over dates and training seeds."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import reduce
from operator import add
from typing import Any

import numpy as np

from evaluation.aggregation import WeightedMean


@dataclass(frozen=True)
class RunMean(WeightedMean):
    """The average over all `runs` of a model, with the averages of each run."""

    model: str
    runs: tuple[WeightedMean, ...]

    @classmethod
    def over(cls, model: str, runs: Sequence[WeightedMean]) -> RunMean:
        """Return the average over runs on the same cells and forecasts."""
        whole = reduce(add, runs)
        return cls(whole.total, whole.weight, model, tuple(runs))

    def __getitem__(self, index: Any) -> RunMean:
        return self.each(lambda mean: mean[index])

    def each(self, change: Callable[[WeightedMean], WeightedMean]) -> RunMean:
        """Return the same average after a linear `change` of every run's sums."""
        whole = change(WeightedMean(self.total, self.weight))
        return RunMean(whole.total, whole.weight, self.model, tuple(change(run) for run in self.runs))


def run_variances(score: Callable[..., np.ndarray], means: Sequence[WeightedMean]) -> Iterator[tuple[np.ndarray, int]]:
    """Yield for each model with several runs the variance of the score by its seeds, and its degrees of freedom.

    The score is computed with the averages of one run in the place of all averages of this model. The variance of the
    mean over S runs is the variance of these S scores, divided by S.
    """
    for model in dict.fromkeys(mean.model for mean in means if isinstance(mean, RunMean)):
        count = min(len(mean.runs) for mean in means if isinstance(mean, RunMean) and mean.model == model)
        scores = []
        for run in range(count):
            chosen = [mean.runs[run] if isinstance(mean, RunMean) and mean.model == model else mean for mean in means]
            scores.append(np.atleast_1d(score(*(mean.sum(0).value for mean in chosen))))
        yield np.var(scores, axis=0, ddof=1) / count, count - 1
