"""`evaluate` on another device, the stand-in of `tests/standin_device.py`, gives the scores of the CPU."""

import numpy as np
import standin_device
import torch
from ranks import run_on_ranks

from data_pipeline.grid import Grid
from data_pipeline.task import Task
from data_pipeline.thresholds import parse_thresholds
from evaluation.regions import region_weights
from evaluation.scores import all_diagrams, all_scores
from evaluation.scoring import ScoringOptions, score_models
from models.corrector import Corrector

GRID = Grid.regular(5, 8)
TASK = Task("toy", ["msl", "2t"], ["2t"], [24, 48])
ROUNDING = 2.0**-22 * 300 * GRID.shape[0] * GRID.shape[1]
"""Of the sum over all cells of differences between temperatures near 300 K in single precision."""


def scores(toy, device):
    """The sums of every score and diagram, of EMOS, climatology and the raw ensemble."""
    data, models = toy(TASK, GRID, 40), {}
    for name, kind in {"raw": "raw.Raw", "climatology": "climatology.Climatology", "emos": "emos.EMOS"}.items():
        corrector = Corrector(TASK, GRID, {"_target_": f"models.statistical.{kind}"}, data.static)
        corrector.fit(data)
        models[name] = corrector.eval().to(device)
    options = ScoringOptions(
        8, device=torch.device(device), written={"emos"}, scores=list(all_scores().values()),
        diagrams=list(all_diagrams().values()), thresholds=parse_thresholds(["> 280 K"], TASK),
    )  # fmt: skip
    board = score_models(models, data, region_weights(GRID), options=options)
    tallies = board.tallies | {f"written {name}": tally for name, tally in board.written.items()}
    return {name: tally.arrays() for name, tally in tallies.items()}


def scores_on_standin(rank, toy):
    standin_device.install()
    return scores(toy, standin_device.NAME)


def test_scores_on_another_device_are_those_of_the_cpu(toy):
    (found,) = run_on_ranks(1, scores_on_standin, toy, fresh=True)
    for model, expected in scores(toy, "cpu").items():
        for name, sums in expected.items():
            # Some values are in single precision, from compiled code on the CPU and from PyTorch elsewhere.
            size = np.abs(np.nan_to_num(sums.astype(float))).max(initial=0)
            np.testing.assert_allclose(
                found[model][name], sums, rtol=0, atol=ROUNDING + 1e-5 * size, err_msg=f"{model}: {name}"
            )
