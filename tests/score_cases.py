"""Cases with random forecasts and truth, and the value of a score over them."""

from dataclasses import fields, is_dataclass, replace

import numpy as np
import torch

from data_pipeline.task import Task
from data_pipeline.variables.thresholds import Threshold
from evaluation.scores import all_diagrams, all_scores
from evaluation.scores.case import Case
from evaluation.scores.score import Binned, Settings
from evaluation.scores.threshold import make_events
from models.distribution import Ensemble, Normal

TASK = Task("t2m", ["2t"], ["2t"], [24])
THRESHOLDS = ((Threshold(">", 0.3), Threshold("<=", -0.5)),)


def draws(*shape, seed=0):
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def members_and_truth(M=7, starts=40, cells=25, seed=0):
    """Members that depend on the truth, (M, B, 1, 1, cells)."""
    signal = draws(starts, 1, 1, cells, seed=seed)
    truth = signal + draws(starts, 1, 1, cells, seed=seed + 1)
    return signal + 0.8 * draws(M, starts, 1, 1, cells, seed=seed + 2), truth


def make_case(forecast, truth, thresholds=THRESHOLDS, **further):
    events = make_events(thresholds, further.get("climate"), truth)
    uniform = torch.rand(truth.shape, generator=torch.Generator().manual_seed(9))
    return Case(forecast, truth, uniform, further.pop("bins", 8), events=events, **further)


def ensemble_case(**further):
    members, truth = members_and_truth(**further)
    return make_case(Ensemble(members), truth)


def normal_case(starts=40, cells=25, seed=0):
    members, truth = members_and_truth(2, starts, cells, seed)
    return make_case(Normal(members[0], members[1].abs() + 0.3), truth)


def averages(case, score):
    """The averages of each statistic over all cells, by loops over the definition."""
    found = {}
    for name, statistic in score.statistics.items():
        values = statistic.cells(case)
        if isinstance(values, Binned):
            values = one_hot(values)
        found[name] = values.double().flatten(-4).mean(-1).numpy()
    return found


def one_hot(binned):
    """The numbers (K, B, T, H, W) of a binned statistic."""
    index = binned.index if binned.index.ndim == 5 else binned.index[None]
    values = [value if value.ndim == 5 else value[None] for value in binned.values]
    return torch.cat(
        [torch.stack([v[k] * (index[k] == b) for b in range(binned.bins)]) for k in range(len(index)) for v in values]
    )


def score_of(name, case):
    """The score of a case in which all cells have the same weight."""
    score = all_scores()[name]
    return score.value(**averages(case, score))


def diagram_of(name, case, thresholds=THRESHOLDS):
    """The panels of a diagram; each item of the batch is one start."""
    diagram = all_diagrams()[name]
    settings = Settings(TASK, case.bins, thresholds, case.climate is not None)
    found = {}
    for key, statistic in diagram.statistics.items():
        values = statistic.cells(case)
        values = one_hot(values) if isinstance(values, Binned) else values
        by_start = np.moveaxis(values.double().mean((-3, -2, -1)).numpy(), -1, 0) / case.truth.shape[0]
        found[key] = by_start if diagram.by_start else by_start.sum(0)
    return diagram.value(settings, 0, **found)


def changed(value, function):
    """Return a distribution with a function applied to all its tensors."""
    if isinstance(value, torch.Tensor):
        return function(value)
    if not is_dataclass(value):
        return value
    return replace(value, **{field.name: changed(getattr(value, field.name), function) for field in fields(value)})


def autoregressive(starts, r, seed, count=1):
    """Return normal series (starts, count) of variance 1 with the correlation r of neighbours."""
    series = np.random.default_rng(seed).normal(size=(starts, count))
    for k in range(1, starts):
        series[k] = r * series[k - 1] + np.sqrt(1 - r**2) * series[k]
    return series


def past(batch):
    """A climatology that knows the mean of the toy."""
    mean = torch.full_like(batch.target, 279)
    return Normal(mean, torch.full_like(mean, 10))


def net(batch):
    """A correction of the toy's bias."""
    mean = batch.ensemble.mean(1) - 1
    return Normal(mean, torch.full_like(mean, 1.2))
