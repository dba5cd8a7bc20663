"""All scores through a tally, by forecast and region, equal those of the cells of the region."""

import numpy as np
import pytest
import torch
from score_cases import changed, draws, score_of

from data_pipeline.grid import Grid
from data_pipeline.task import Task
from data_pipeline.variables.thresholds import Threshold
from evaluation.regions import region_weights
from evaluation.scores import all_diagrams, all_scores, statistics_of
from evaluation.scores.case import Case
from evaluation.scores.score import Settings
from evaluation.scores.threshold import make_events
from evaluation.scoring.aggregation import Tally
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


def part_of(case, thresholds, function):
    """A case with a function applied to all its tensors."""
    truth, climate = function(case.truth), changed(case.climate, function)
    return Case(
        changed(case.forecast, function), truth, function(case.uniform), 7,
        events=make_events(thresholds, climate, truth), climate=climate, extremeness=function(case.extremeness),
    )  # fmt: skip


def cells(case, target):
    """The case of the unmasked cells of one target, as one row."""
    keep = case.valid[:, target]

    def pick(tensor):
        return tensor[..., :, target, :, :][..., keep].reshape(*tensor.shape[:-4], 1, 1, 1, -1)

    return part_of(case, (THRESHOLDS[target],), pick)


@pytest.mark.parametrize("kind", ["members", "normal", "both"])
def test_scores_of_a_tally_are_those_of_its_cells(kind):
    case = case_of(kind)
    settings = Settings(TASK, 7, THRESHOLDS, climatology=True, extremeness=True)
    statistics = statistics_of(*all_scores().values(), *all_diagrams().values())
    tally = Tally("model", 3, settings, region_weights(GRID), statistics)
    for rows in ([0, 2], [1]):
        some = part_of(case, THRESHOLDS, lambda tensor, rows=rows: tensor[..., rows, :, :, :])
        tally.add(np.array(rows), np.zeros(len(rows), int), some)
    region = list(region_weights(GRID)).index("unweighted")
    for target in range(2):
        whole = cells(case, target)
        for score in all_scores().values():
            if score.joint or score.name == "fss":
                continue  # several cells or both targets together: test_joint.py, test_fractions.py
            means = {name: tally.per_forecast[name][:, target, region].sum(0).value for name in score.statistics}
            found = np.asarray(score.value(**means))
            count = len(score.labels_of(settings, target)) if score.labels else 1
            expected = np.asarray(score_of(score.name, whole))
            np.testing.assert_allclose(
                found.ravel()[:count], expected.ravel()[:count], rtol=1e-10, atol=1e-12, err_msg=score.name
            )
