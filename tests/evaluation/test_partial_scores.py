"""Sums of an interrupted run: the next run continues from them, unless anything differs that they depend on."""

import numpy as np
import pytest
import torch

from data_pipeline.grid import Grid
from data_pipeline.task import Task
from evaluation import partial_scores
from evaluation.partial_scores import PartialScores
from evaluation.regions import region_weights
from evaluation.scoring import ScoringOptions, score_models
from models.distribution import Normal
from models.parallel.mesh import Mesh
from models.statistical.raw import Raw

GRID = Grid.regular(5, 8)
TASK = Task("toy", ["msl", "2t"], ["2t"], [24, 48])


class Ended(Exception):  # noqa: N818 - not an error
    """Ends scoring as a killed process would."""


def run(data, partial=None, end_after=None):
    """Score one forecast after the other; return the board and the number of forecasts that were scored."""
    calls = []

    def centred(batch):
        if len(calls) == end_after:
            raise Ended
        calls.append(len(batch.target))
        mean = batch.ensemble.mean(1)[:, [1]]
        return Normal(mean, torch.ones_like(mean))

    options = ScoringOptions(batch_size=1, written={"net"}, partial=partial)
    board = score_models({"raw": Raw(TASK, GRID), "net": centred}, data, region_weights(GRID), None, options)
    return board, sum(calls)


@pytest.fixture(autouse=True)
def no_wait(monkeypatch):
    monkeypatch.setattr(partial_scores, "EVERY_SECONDS", 0.0)
    monkeypatch.setattr(partial_scores, "WRITING_SHARE", float("inf"))


def keep(folder, key="inputs"):
    return PartialScores(folder, key, Mesh.single())


def test_the_next_run_scores_only_the_rest(toy, tmp_path, capsys):
    data = toy(TASK, GRID, 7)
    expected, count = run(data)
    assert count == 7
    with pytest.raises(Ended):
        run(data, keep(tmp_path), end_after=3)
    board, count = run(data, keep(tmp_path))
    assert count == 4
    assert "3 of 7 forecasts were scored by an earlier run" in capsys.readouterr().out
    for found, whole in ((board.tallies, expected.tallies), (board.written, expected.written)):
        for name, tally in whole.items():
            for kind in ("per_forecast", "per_cell"):
                for statistic, mean in getattr(tally, kind).items():
                    other = getattr(found[name], kind)[statistic]
                    np.testing.assert_allclose(other.total, mean.total, rtol=1e-12, atol=1e-12)
                    np.testing.assert_allclose(other.weight, mean.weight, rtol=1e-12)


def test_sums_of_other_inputs_or_an_unreadable_file_are_not_used(toy, tmp_path):
    data = toy(TASK, GRID, 4)
    with pytest.raises(Ended):
        run(data, keep(tmp_path), end_after=2)
    assert run(data, keep(tmp_path, "other inputs"))[1] == 4
    (file,) = tmp_path.iterdir()
    file.write_bytes(file.read_bytes()[:1000])
    assert run(data, keep(tmp_path))[1] == 4
    keep(tmp_path).remove()
    assert list(tmp_path.iterdir()) == []
