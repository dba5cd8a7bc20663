"""All scores through a tally, by forecast and region, equal those of the cells of the region."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from score_cases import draws, score_of

from data_pipeline.grid import Grid
from data_pipeline.task import Task
from data_pipeline.thresholds import Threshold
from evaluation.aggregation import Tally
from evaluation.regions import region_weights
from evaluation.scores import all_diagrams, all_scores, statistics_of
from evaluation.scores.case import Case
from evaluation.scores.score import Settings
from evaluation.scores.threshold import make_events
from models.distribution import Ensemble, Normal, Patched

GRID = Grid.regular(4, 6)
TASK = Task("two", ["2t", "10u"], ["2t", "10u"], [24])
THRESHOLDS = ((Threshold(">", 0.2), Threshold("<=", 0.3, climatological=True)), (Threshold("<", -0.1),))
SHAPE = 3, 2, 4, 6


def case_of(kind):
    truth = draws(*SHAPE, seed=5)
    truth[1, 0, 2:] = torch.nan
    climate = Normal(draws(*SHAPE, seed=1) / 4, draws(*SHAPE, seed=2).exp())
    members = Ensemble(draws(6, *SHAPE, seed=3))
    normal = Normal(draws(*SHAPE, seed=3), draws(*SHAPE, seed=4).exp())
    forecast = {"members": members, "normal": normal, "both": Patched(truth.nan_to_num(0) > 0, members, normal)}[kind]
    return Case(
        forecast, truth, torch.rand(SHAPE), 7, events=make_events(THRESHOLDS, climate, truth), climate=climate,
        extremeness=draws(*SHAPE, seed=8).clamp(-1, 1),
    )  # fmt: skip


def cells(case, target):
    """The case of the unmasked cells of one target, as one row."""
    keep = case.valid[:, target]

    def pick(tensor):
        return tensor.expand(*tensor.shape[:-4], *SHAPE)[..., :, target, :, :][..., keep].reshape(
            *tensor.shape[:-4], 1, 1, 1, -1
        )

    def part(forecast):
        if isinstance(forecast, Patched):
            return Patched(pick(forecast.where), part(forecast.inner), part(forecast.outer))
        if isinstance(forecast, Ensemble):
            return Ensemble(pick(forecast.members))
        return Normal(pick(forecast.mu), pick(forecast.sigma))

    climate = part(case.climate)
    return Case(
        part(case.forecast), pick(case.truth), pick(case.uniform), 7,
        events=make_events((THRESHOLDS[target],), climate, pick(case.truth)), climate=climate,
        extremeness=pick(case.extremeness),
    )  # fmt: skip


@pytest.mark.parametrize("kind", ["members", "normal", "both"])
def test_scores_of_a_tally_are_those_of_its_cells(kind):
    case = case_of(kind)
    settings = Settings(TASK, 7, THRESHOLDS, climatology=True, extremeness=True)
    statistics = statistics_of(*all_scores().values(), *all_diagrams().values())
    tally = Tally("model", 3, settings, region_weights(GRID), statistics)
    for rows in ([0, 2], [1]):
        some = Case(
            part_of(case.forecast, rows), case.truth[rows], case.uniform[rows], 7,
            events=tuple(
                replace(event, limit=event.limit[rows] if event.limit.ndim == 4 else event.limit)
                for event in case.events
            ),
            climate=part_of(case.climate, rows), extremeness=case.extremeness[rows],
        )  # fmt: skip
        tally.add(np.array(rows), np.zeros(len(rows), int), some)
    region = list(region_weights(GRID)).index("unweighted")
    for target in range(2):
        whole = cells(case, target)
        for score in all_scores().values():
            if score.name == "energy_score":
                continue  # both targets together: test_analytic_truths.py
            means = {name: tally.per_forecast[name][:, target, region].sum(0).value for name in score.statistics}
            found = np.asarray(score.value(**means))
            count = len(score.labels(settings, target)) if score.labels else 1
            expected = np.asarray(score_of(score.name, whole))
            np.testing.assert_allclose(
                found.ravel()[:count], expected.ravel()[:count], rtol=1e-10, atol=1e-12, err_msg=score.name
            )


def part_of(forecast, rows):
    """The forecasts of some items of the batch."""
    if isinstance(forecast, Patched):
        return Patched(forecast.where[rows], part_of(forecast.inner, rows), part_of(forecast.outer, rows))
    if isinstance(forecast, Ensemble):
        return Ensemble(forecast.members[:, rows])
    return Normal(forecast.mu[rows], forecast.sigma[rows])
