"""Scores of thresholds through `score_models` and `scores.json`: several targets, climatology, written members."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from score_cases import net, past

from data_pipeline.grid import Grid
from data_pipeline.task import Task
from data_pipeline.variables.thresholds import parse_thresholds
from evaluation.regions import region_weights
from evaluation.scores import all_diagrams, all_scores, default_scores
from evaluation.scores.extremes import index_of
from evaluation.scoring.scoring import ScoringOptions, score_models
from evaluation.tables.score_json import scores_of
from evaluation.tables.score_rows import ScoreRows
from models.distribution import Ensemble, Normal
from models.statistical.raw import Raw

GRID = Grid.regular(5, 8)
TASK = Task("two", ["2t", "10u"], ["2t", "10u"], [24, 48])
THRESHOLDS = parse_thresholds(["2t > 7 degC", "< 20 %", "2t >= 285 K"], TASK)
REGIONS = {name: region_weights(GRID)[name] for name in ("global", "unweighted")}


@pytest.fixture(scope="module")
def boards(toy):
    """The scoreboards with and without climatology."""
    data = toy(TASK, GRID, 12)
    data.samples[3].target[0, 1, 2] = torch.nan
    options = ScoringOptions(
        scores=tuple(all_scores().values()), diagrams=tuple(all_diagrams().values()), thresholds=THRESHOLDS,
        written={"net"}, extremeness=lambda batch: torch.full_like(batch.target, 0.5), optional=["climatology"],
    )  # fmt: skip
    models = {"raw": Raw(TASK, GRID), "climatology": past, "net": net}
    both = score_models(models, data, REGIONS, options=options)
    del models["climatology"]
    return data, both, score_models(models, data, REGIONS, options=options)


@pytest.fixture(scope="module")
def scores(boards):
    """The scores of both targets with and without climatology."""
    return [[scores_of(board, target) for target in (0, 1)] for board in boards[1:]]


def test_each_target_has_its_thresholds(boards, scores):
    data, board, _ = boards
    area = np.broadcast_to(GRID.weights[:, None], GRID.shape)
    truth, members = (torch.stack([getattr(sample, name) for sample in data]) for name in ("target", "ensemble"))
    for target, labels in enumerate((["> 7 degC", "< 20 %", ">= 285 K"], ["< 20 %"])):
        found = scores[0][target]
        assert found["definitions"]["brier"]["labels"] == labels
        assert list(found["models"]["raw"]["brier"]) == labels
        assert list(found["models"]["raw"]["diagrams"]["reliability"]) == labels
        for label in labels:
            limit, below = {"> 7 degC": (280.15, False), ">= 285 K": (285, False)}.get(label, (279 - 8.4162123, True))
            y, x = truth[:, target], members[:, :, target]
            p = ((x < limit) if below else (x > limit)).double().mean(1)
            square = (p - ((y < limit) if below else (y > limit)).double()).square().numpy()
            weights = np.where(y.isnan(), 0, area)
            expected = np.average(square, weights=weights)
            assert found["models"]["raw"]["brier"][label] == pytest.approx(expected, rel=1e-6)
        rows = [row for row in ScoreRows.of(board, target).rows if row.score == "brier" and row.model == "net"]
        assert list(dict.fromkeys(row.label for row in rows)) == labels


def test_without_climatology_its_percentiles_are_left_out(scores):
    with_it, (first, second) = scores
    assert list(first["models"]["raw"]["brier"]) == ["> 7 degC", ">= 285 K"]
    over_targets = {name for name, score in all_scores().items() if score.joint == "targets"}
    of_climatology = {
        "efi", "efi_roc_area", "sot_roc_area", "diagonal_score", "acc", "rps", "rps_fair", "rpss", "rpss_fair",
    }  # fmt: skip
    assert set(first["scores_left_out"]) == {*of_climatology, "seeps", *over_targets}
    assert "brier" not in second["models"]["raw"]
    assert set(with_it[0]["scores_left_out"]) == {"seeps"}, "no rain"


def test_fewer_members_have_the_same_events(boards, toy):
    options = ScoringOptions(
        scores=tuple(all_scores().values()), thresholds=THRESHOLDS, member_counts=[2], optional=["climatology"]
    )
    models = {"raw": Raw(TASK, GRID), "climatology": past, "net": net}
    found = score_models(models, toy(TASK, GRID, 6), REGIONS, options=options).by_member_count[2]["climatology"]
    other = score_models(models, toy(TASK, GRID, 6), REGIONS, options=replace(options, batch_size=1))
    whole = other.tallies["climatology"]
    np.testing.assert_allclose(found.per_forecast["brier"].total, whole.per_forecast["brier"].total, rtol=1e-9)


def test_the_index_of_rain_leaves_out_the_dry_climate(toy):
    """Half of this climate is below 0.1 mm."""
    task = Task("rain", ["tp:24h"], ["tp:24h"], [24, 48])
    data = toy(task, GRID, 6)

    def climate(batch):
        return Normal(torch.zeros_like(batch.target), torch.full_like(batch.target, 400))

    models = {"raw": Raw(task, GRID), "climatology": climate}
    scores = (*default_scores(), all_scores()["efi"])
    board = score_models(models, data, REGIONS, options=ScoringOptions(scores=scores))
    members = torch.stack([sample.ensemble[:, :1] for sample in data], 1)
    forecast, truth = Ensemble(members), torch.stack([sample.target for sample in data])
    index = index_of(forecast, Normal(torch.zeros_like(truth), torch.full_like(truth, 400)), 1e-4).abs()
    expected = np.average(index, weights=np.broadcast_to(GRID.weights[:, None], index.shape))
    assert scores_of(board, 0)["models"]["raw"]["efi"] == pytest.approx(expected, rel=1e-5)
