"""Averages over several training runs of one model, so that intervals hold over dates and training seeds."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import reduce
from operator import add
from typing import Any

import numpy as np

from evaluation.scoring.aggregation import WeightedMean


@dataclass(frozen=True)
class RunMean(WeightedMean):
    """Averages of models, some of which have several training runs.

    `runs[MODEL]` holds these averages once for each run of a model, with the run's average in place of the mean over
    all runs of the model.
    """

    runs: Mapping[str, tuple[WeightedMean, ...]]

    @classmethod
    def over(cls, model: str, runs: Sequence[WeightedMean]) -> RunMean:
        """Return the mean of one model over its runs, which have the same cells and forecasts."""
        whole = reduce(add, runs)
        return cls(whole.total / len(runs), whole.weight / len(runs), {model: tuple(runs)})

    def __getitem__(self, index: Any) -> RunMean:
        return self.each(lambda mean: mean[index])

    def each(self, change: Callable[[WeightedMean], WeightedMean]) -> RunMean:
        """Return the same averages after a linear `change` of all sums."""
        whole = change(WeightedMean(self.total, self.weight))
        runs = {model: tuple(change(run) for run in means) for model, means in self.runs.items()}
        return RunMean(whole.total, whole.weight, runs)


def run_variances(score: Callable[..., np.ndarray], means: Sequence[WeightedMean]) -> Iterator[tuple[np.ndarray, int]]:
    """Yield for each model with several runs the variance of the score by its seeds, and its degrees of freedom.

    The score is computed with the averages of one run in place of the model's mean over its runs. The variance of the
    mean over S runs is the variance of these S scores, divided by S.
    """
    counts = {model: len(runs) for mean in means if isinstance(mean, RunMean) for model, runs in mean.runs.items()}
    for model, count in counts.items():
        scores = []
        for run in range(count):
            chosen = [
                mean.runs[model][run] if isinstance(mean, RunMean) and model in mean.runs else mean for mean in means
            ]
            scores.append(np.atleast_1d(score(*(mean.sum(0).value for mean in chosen))))
        yield np.var(scores, axis=0, ddof=1) / count, count - 1
