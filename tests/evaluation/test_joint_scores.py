"""Scores over cells, lead times and targets through `score_models`: written members, whole starts, parts, refusals."""

import numpy as np
import pytest
import scoringrules
import torch
from score_cases import net, past

from data_pipeline.grid import Grid
from data_pipeline.sample import Sample
from data_pipeline.task import Task
from evaluation.regions import region_weights
from evaluation.report.tables import method_table
from evaluation.scores import all_scores, default_scores
from evaluation.scoring.scoring import ScoringOptions, score_models
from evaluation.tables.score_json import scores_of
from evaluation.tables.score_rows import ScoreRows
from models.members.coupling import written_members
from models.members.options import CorrectionOptions
from models.statistical.raw import Raw

GRID = Grid.regular(9, 8)
TASK = Task("two", ["2t", "10u"], ["2t", "10u"], [24, 72])
JOINT = {name: score for name, score in all_scores().items() if score.joint}
REGIONS = region_weights(GRID)


@pytest.fixture(scope="module")
def data(toy):
    """Six starts with both lead times and one with the first alone, in any order."""
    data = toy(TASK, GRID, 13)
    data.samples = [one._replace(init_time=data[k - k % 2].init_time) for k, one in enumerate(data.samples)]
    data.samples = [data[k] for k in (12, 5, 0, 3, 8, 1, 2, 11, 4, 9, 10, 7, 6)]
    data.samples[4].target[0, 1, 2] = torch.nan
    return data


def score_all(data, **options):
    models = {"raw": Raw(TASK, GRID), "climatology": past, "net": net}
    chosen = ScoringOptions(scores=(*default_scores(), *JOINT.values()), written={"net"}, **options)
    return score_models(models, data, REGIONS, options=chosen)


def expected_scores(members, batch, target):
    """Energy and variogram scores of scoringrules (plain and fair), averaged with the area, by what they are over."""
    M, area = len(members), np.broadcast_to(GRID.weights[:, None], GRID.shape)
    x, y = members.double().numpy(), batch.target.double().numpy()
    keys = list(zip(batch.init_time.tolist(), batch.lead_time.tolist(), strict=True))
    pairs = [[keys.index((start, lead)) for lead in (24, 72)] for start, lead in sorted(keys) if lead == 72]

    def blocks(fields):
        return fields[..., :8, :].reshape(*fields.shape[:-2], 2, 4, 2, 4).swapaxes(-3, -2)

    vectors = {
        "cells": [blocks(one[..., target, :, :]).reshape(*one.shape[:-3], 2, 2, 16) for one in (x, y)],
        "lead_times": [np.moveaxis(one[..., pairs, target, :, :], -3, -1) for one in (x, y)],
        "targets": [np.moveaxis((one - 279) / 10, -3, -1) for one in (x, y)],
    }
    places = np.array([(i, j) for i in range(4) for j in range(4)])
    distance = np.linalg.norm(places[:, None] - places, axis=-1)
    found = {}
    for kind, (forecast, truth) in vectors.items():
        d = truth.shape[-1]
        weights = 1 / np.where(np.eye(d), np.inf, distance if kind == "cells" else 1)
        size = blocks(area).sum((-2, -1)) if kind == "cells" else area
        size = np.where(np.isfinite(truth).all(-1), size, 0)
        for name, compute, further in (
            ("energy_score", scoringrules.es_ensemble, {}),
            ("variogram_score", scoringrules.vs_ensemble, {"p": 0.5, "w": weights / weights.sum()}),
        ):
            for ending, estimator in (("", "nrg"), ("_fair", "fair")):
                values = compute(
                    truth.reshape(-1, d), np.moveaxis(forecast.reshape(M, -1, d), 0, 1), estimator=estimator, **further
                )
                values = np.nan_to_num(values.reshape(size.shape))
                found[f"{name}_{kind}{ending}"] = np.average(values, weights=size)
    return found


def test_scores_of_written_members_are_those_of_scoringrules(data, capsys):
    board = score_all(data)
    assert "scores over lead times leave out 1 starts" in capsys.readouterr().out
    batch = Sample(*(torch.stack(tensors) for tensors in zip(*data.samples, strict=True)))
    members = {
        "raw": batch.ensemble.movedim(1, 0), "net": written_members(net(batch), batch, TASK, GRID).members
    }  # fmt: skip
    for target in range(2):
        models = scores_of(board, target)["models"]
        own = {"raw": models["raw"], "net": models["net"]["members"]}
        expected = {name: expected_scores(values, batch, target) for name, values in members.items()}
        for name in JOINT:
            assert models["net"][name] is None, "a distribution has no members"
            assert own["raw"][name] == pytest.approx(expected["raw"][name], rel=1e-4), name
            if name.endswith("_fair"):
                assert name not in own["net"], "quantiles have no fair score"
                continue
            assert own["net"][name] == pytest.approx(expected["net"][name], rel=1e-4), name
            gain = 1 - expected["net"][name] / expected["raw"][name]
            assert own["net"]["skill"][name] == pytest.approx(gain, rel=1e-3), name
            low, high = own["net"]["ci95"][name]
            assert low < own["net"][name] < high


def test_methods_are_scored_side_by_side(data, capsys):
    """Each method has the scores of its own members; the differences from the first one have intervals."""
    methods = ("quantiles", "ecc-q", "member-by-member")
    board = score_all(data, methods=methods)
    batch = Sample(*(torch.stack(tensors) for tensors in zip(*data.samples, strict=True)))
    found = scores_of(board, 0)["models"]["net"]
    assert tuple(found["methods"]) == methods
    for method, entry in found["methods"].items():
        members = written_members(net(batch), batch, TASK, GRID, CorrectionOptions(members=method)).members
        for name, expected in expected_scores(members, batch, 0).items():
            if not name.endswith("_fair"):
                assert entry[name] == pytest.approx(expected, rel=1e-4), (method, name)
                if method != methods[0]:
                    minus = f"{name}_minus_members"
                    assert entry[minus] == pytest.approx(entry[name] - found["members"][name], abs=1e-6)
                    low, high = entry["ci95"][minus]
                    assert low < entry[minus] < high
    table = method_table(scores_of(board, 0))
    assert [row[0] for row in table.rows] == [f"net {method}" for method in methods]
    assert table.columns[1:3] == ["plain CRPS", "energy score over cells"]
    own, less = table.rows[1][2].split("\n")
    assert own == f"{found['methods']['ecc-q']['energy_score_cells']:.4g}"
    share = found["methods"]["ecc-q"]["energy_score_cells"] / found["members"]["energy_score_cells"] - 1
    assert less.startswith(f"{100 * share:+.1f} % [".replace("-", "−"))


def test_scores_over_lead_times_are_of_no_single_lead_time_or_hour(data):
    rows = [row for row in ScoreRows.of(score_all(data), 0).rows if row.model == "raw"]
    over = {name for name, score in JOINT.items() if score.joint == "lead_times"}
    whole = {row.score for row in rows if (row.lead_time, row.hour) == ("all", "all")}
    parts = {row.score for row in rows if (row.lead_time, row.hour) != ("all", "all")}
    assert over <= whole
    assert parts == whole - over
    assert over <= {row.score for row in rows if row.region == "tropics"}


def sums(board):
    tallies = {**board.tallies, "written": board.written["net"]}
    return {
        (name, s): tally.per_forecast[s].total
        for name, tally in tallies.items()
        for s in JOINT
        if name != "climatology"
    }


def test_batches_hold_whole_starts_of_any_size(data, capsys):
    whole = sums(score_all(data))
    for options in ({"batch_size": 1}, {"batch_size": 5}, {"memory_bytes": 1}):
        for key, found in sums(score_all(data, **options)).items():
            np.testing.assert_allclose(found, whole[key], rtol=1e-10, err_msg=str(key))
    assert "scoring the 2 lead times of a start together takes about" in capsys.readouterr().out


def test_a_start_whose_lead_times_have_different_correctors_is_left_out(data, capsys):
    groups = np.zeros(13, int)
    split = next(k for k, one in enumerate(data.samples) if int(one.lead_time) == 72)
    groups[split] = 1
    start = data[split].init_time
    found, whole = score_all(data, groups=groups), score_all(data)
    assert "scores over lead times leave out 2 starts" in capsys.readouterr().out
    lost = np.array([bool(one.init_time == start) for one in data.samples])
    for name in JOINT:
        ours, every = (board.tallies["raw"].per_forecast[name].total for board in (found, whole))
        np.testing.assert_allclose(ours[~lost], every[~lost], rtol=1e-10, err_msg=name)
        over_leads = JOINT[name].joint == "lead_times"
        assert (not ours[lost].any()) == over_leads, name
        if not over_leads:
            np.testing.assert_allclose(ours[lost], every[lost], rtol=1e-10, err_msg=name)
