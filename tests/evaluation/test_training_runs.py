"""Several training runs of one model as one entry: its scores are means, its intervals hold over seeds too."""

import re
from dataclasses import replace

import numpy as np
import pytest
import torch
from memory_archive import GRID

from data_pipeline.common.errors import InputError
from data_pipeline.task import Task
from evaluation.regions import region_weights
from evaluation.run.training_runs import check_one_model, group_runs, name_runs, pool_runs, with_first_runs
from evaluation.scoring.scoring import ScoringOptions, score_models
from evaluation.tables.score_json import scores_of
from models.corrector import Corrector
from models.distribution import Normal
from models.statistical.raw import Raw

RUNS = {"net": ("net#1", "net#2", "net#3")}


@pytest.fixture(scope="module")
def board(toy):
    """Three runs of a model with different biases, beside raw and another model."""
    task = Task("toy", ["2t"], ["2t"], [48])

    def biased(amount):
        return lambda batch: Normal(batch.ensemble.mean(1) - 1 + amount, torch.ones_like(batch.target))

    models = {"raw": Raw(task, GRID), "other": biased(0.5)}
    models |= {run: biased(amount) for run, amount in zip(RUNS["net"], (0.1, 0.8, -0.4), strict=True)}
    options = ScoringOptions(member_counts=(2, 5), written=("other", *RUNS["net"]))
    return score_models(models, toy(task, GRID, 24), region_weights(GRID), None, options)


def test_runs_are_scored_under_names_of_their_own():
    given = {"emos": "e", "net": {"runs": ["a", ["b", "c"], "d"]}, "old": ["f", "g"]}
    named = name_runs(given)
    assert named == {"emos": "e", "net#1": "a", "net#2": ["b", "c"], "net#3": "d", "old": ["f", "g"]}
    assert group_runs(list(named)) == RUNS
    assert with_first_runs(named, RUNS) == {"emos": "e", "net": "a", "old": ["f", "g"]}
    assert list(with_first_runs(named, RUNS)) == ["emos", "net", "old"]


@pytest.mark.parametrize(
    ("given", "sentence"),
    [
        ({"net": {"runs": ["a"]}}, "correctors.net must be a path, a list of paths of all folds, or {runs: [A, B,"),
        ({"net": {"runs": "a"}}, "correctors.net must be a path"),
        ({"net": {"seeds": ["a", "b"]}}, "correctors.net must be a path"),
        ({"emos": {"runs": ["a", "b"]}}, "correctors.emos: an EMOS is fitted without a random seed"),
    ],
)
def test_wrong_runs_are_refused(given, sentence):
    with pytest.raises(InputError, match=re.escape(sentence)):
        name_runs(given)


def test_scores_of_runs_are_averages(board):
    """CRPS is the mean; the RMSE is the root of the mean of the squares."""
    single, scores = (scores_of(one, 0)["models"] for one in (board, pool_runs(board, RUNS)))
    assert list(scores) == ["raw", "other", "net"]
    runs = [single[run] for run in RUNS["net"]]
    assert scores["net"]["crps"] == pytest.approx(np.mean([run["crps"] for run in runs]))
    assert scores["net"]["rmse"] == pytest.approx(np.mean([run["rmse"] ** 2 for run in runs]) ** 0.5)
    assert scores["net"]["runs"] == pytest.approx([run["crps"] for run in runs])
    assert scores["other"]["runs"] is None
    assert scores["other"]["ci95"] == single["other"]["ci95"]
    assert scores["net"]["members"]["crps"] == pytest.approx(np.mean([run["members"]["crps"] for run in runs]))
    by_count = [run["by"]["members"]["2"]["crps"] for run in runs]
    assert scores["net"]["by"]["members"]["2"]["crps"] == pytest.approx(np.mean(by_count))
    maps = np.mean([board.tallies[run].per_cell["crps"].value for run in RUNS["net"]], axis=0)
    np.testing.assert_allclose(pool_runs(board, RUNS).tallies["net"].per_cell["crps"].value, maps)


def test_intervals_are_wider_where_runs_differ(board):
    """By the three runs' differences: their interval can be no narrower than without the seeds."""
    pooled = scores_of(pool_runs(board, RUNS), 0)["models"]["net"]
    twins = {"raw": board.tallies["raw"], "net#1": board.tallies["net#1"], "net#2": board.tallies["net#1"]}
    twins_board = replace(board, tallies=twins, by_member_count={}, written={})
    alike = scores_of(pool_runs(twins_board, {"net": ("net#1", "net#2")}), 0)["models"]["net"]
    alone = scores_of(board, 0)["models"]["net#1"]
    for key in ("crps", "rmse", "skill_vs_raw"):
        assert np.diff(pooled["ci95"][key]) > 1.1 * np.diff(alone["ci95"][key])
        assert alike["ci95"][key] == pytest.approx(alone["ci95"][key], rel=1e-4)


def test_runs_are_one_entry_of_an_evaluation(emos, scores_of, tmp_path, capsys):
    """From two files to scores and report; the name of the entry can be chosen."""
    corrector = Corrector.load(emos)
    with torch.no_grad():
        for parameter in corrector.model.parameters():
            parameter.mul_(1.05)
    corrector.save(tmp_path / "other.safetensors")
    option = f"correctors={{net: {{runs: [{emos}, {tmp_path}/other.safetensors]}}}}"
    scores = scores_of("run", option, "shown_corrector=net")
    assert list(scores["models"]) == ["raw", "climatology", "emos", "net"]
    assert len(scores["models"]["net"]["runs"]) == 2
    assert scores["best"] == {"model": "net", "by": "option"}
    assert "net" in capsys.readouterr().out


def test_runs_of_different_models_are_refused(emos):
    corrector = Corrector.load(emos)
    corrector.model.register_parameter("further", torch.nn.Parameter(torch.zeros(3)))
    with pytest.raises(InputError, match=r"correctors\.net: its runs are different models \(EMOS with \d+ parameters"):
        check_one_model({"net#1": Corrector.load(emos), "net#2": corrector}, {"net": ("net#1", "net#2")})
