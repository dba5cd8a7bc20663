"""Scoring of all models: all are scored in the same cells, on any device, and continue from sums of the same inputs."""

import math
from dataclasses import replace

import numpy as np
import pytest
import standin_device
import torch
from ranks import run_on_ranks
from tested_device import device_of

from data_pipeline.cluster import LocalProcesses, Threads
from data_pipeline.common.errors import InputError
from data_pipeline.common.threads import BUDGET
from data_pipeline.grid import Grid
from data_pipeline.sample import verifiable
from data_pipeline.task import Task
from data_pipeline.variables.thresholds import parse_thresholds
from evaluation.regions import region_weights
from evaluation.scores import all_diagrams, all_scores
from evaluation.scoring import partial_scores
from evaluation.scoring.partial_scores import PartialScores
from evaluation.scoring.scoring import ScoringOptions, check_workers, score_models, scoring_workers
from evaluation.tables.score_json import scores_of
from models.corrector import Corrector
from models.distribution import Normal
from models.parallel.mesh import Mesh
from models.statistical.raw import Raw

GRID = Grid.regular(5, 8)
TASK = Task("toy", ["msl", "2t"], ["2t"], [24, 48])
REGIONS = region_weights(GRID)


def centred(batch):
    """A minimal model."""
    mean = batch.ensemble.mean(1)[:, [1]]
    return Normal(mean, torch.ones_like(mean))


def run(data, oracle=None, **options):
    models, chosen = {"raw": Raw(TASK, GRID), "net": centred}, ScoringOptions(device=device_of(1, 0), **options)
    return score_models(models, data, REGIONS, oracle, chosen)


def test_a_cell_without_all_members_is_scored_for_no_model(toy):
    data = toy(TASK, GRID, 4)
    sample = data.samples[1]
    sample.mask[1, 2, 3] = False
    sample.ensemble[0, 1, 2, 3] = math.nan
    data.samples[1] = sample._replace(target=sample.target.clone())
    data.samples[1].target[0, 4, 4] = math.nan
    board = run(data)
    for tally in board.tallies.values():
        unscored = tally.per_cell["crps"].weight[:, 0].sum(0) < 4
        assert np.argwhere(unscored).tolist() == [[2, 3], [4, 4]]


def test_a_mask_of_another_variable_does_not_matter(toy):
    batch = next(iter(torch.utils.data.DataLoader(toy(TASK, GRID, 2), batch_size=2)))
    batch.mask[:, 0] = False
    assert torch.equal(verifiable(batch, TASK.target_channels), batch.target)


def test_the_oracle_is_found_by_date(toy):
    """The oracle may have another order, other forecasts and another number of members."""
    data = toy(TASK, GRID, 6)
    oracle = toy(replace(TASK, inputs=TASK.targets), GRID, 8, members=9, seed=3)
    full = run(data, oracle).oracle
    assert full.settings.bins == 10
    assert (full.per_forecast["crps"].weight > 0).all()
    oracle.samples = [oracle.samples[k] for k in (7, 5, 1, 2)]
    part = run(data, oracle, batch_size=3).oracle
    counted = part.per_forecast["crps"].weight[:, 0, 0] > 0
    assert counted.tolist() == [False, True, True, False, False, True]


def test_forecasts_without_a_value_are_left_out_of_the_comparisons_of_an_optional_model(toy):
    """The scores against the reference are those of the other forecasts alone; the model's own scores do not change."""
    task = Task("toy", ["2t"], ["2t"], [24, 48])
    data, raw = toy(task, GRID, 9), Raw(task, GRID)
    # Both lead times of a start: the other one of the lost forecasts is kept.
    data.samples = [one._replace(init_time=data[k - k % 2].init_time) for k, one in enumerate(data.samples)]
    lost = [(data[k].init_time, data[k].lead_time) for k in (2, 5)]

    def reference(batch):
        mean = batch.ensemble.mean(1) + 1
        for start, lead in lost:
            mean[(batch.init_time == start) & (batch.lead_time == lead), :, 0, 0] = torch.nan
        return Normal(mean, torch.ones_like(mean))

    models = {"raw": raw, "climatology": reference}
    found = score_models(models, data, REGIONS, options=ScoringOptions(4, optional=["climatology"]))
    kept = torch.utils.data.Subset(data, [k for k in range(9) if k not in (2, 5)])
    kept.task, kept.grid, kept.members = data.task, data.grid, data.members
    expected = scores_of(score_models(models, kept, REGIONS, options=ScoringOptions(4)), 0)
    scores = scores_of(found, 0)
    assert scores["left_out"]["forecasts_without_value"] == {"climatology": 2}
    assert scores["warnings"] == [
        "climatology has no value in 2 of 9 forecasts: its own scores and its comparisons are of the others"
    ]
    assert expected["warnings"] == []
    for key in ("crps", "rmse", "skill_vs_raw"):
        one, other = (each["models"]["climatology"][key] for each in (scores, expected))
        assert one == pytest.approx(other, rel=1e-6), key
    one, other = (each["pairs"]["climatology"]["raw"]["crps_minus"] for each in (scores, expected))
    assert one == pytest.approx(other, rel=1e-6)
    one, other = (each["models"]["raw"]["skill_vs_climatology"] for each in (scores, expected))
    assert one == pytest.approx(other, rel=1e-6)
    alone = scores_of(score_models({"raw": raw}, data, REGIONS), 0)
    assert scores["models"]["raw"]["crps"] == alone["models"]["raw"]["crps"]
    assert scores["models"]["raw"]["crps"] != expected["models"]["raw"]["crps"]
    np.testing.assert_allclose(
        found.tallies["climatology"].per_cell["crps"].value,
        score_models(models, kept, REGIONS).tallies["climatology"].per_cell["crps"].value,
    )


def test_an_optional_model_without_any_value_is_left_out(toy):
    task = Task("toy", ["2t"], ["2t"], [48])
    data = toy(task, GRID, 3)

    def reference(batch):
        mean = batch.ensemble.mean(1)
        mean[..., 3, 3] = torch.nan
        return Normal(mean, torch.ones_like(mean))

    models, options = {"raw": Raw(task, GRID), "climatology": reference}, ScoringOptions(optional=["climatology"])
    board = score_models(models, data, REGIONS, options=options)
    assert board.lost == {"climatology": 3}
    assert list(board.tallies) == ["raw"]


def test_a_forecast_that_exceeds_the_memory_is_scored_and_said(toy, capsys):
    data = toy(TASK, GRID, 4)
    small, large = run(data, memory_bytes=1), run(data)
    (line,) = [line for line in capsys.readouterr().out.splitlines() if "memory_bytes" in line]
    assert line.endswith("more than memory_bytes=1")
    found, expected = (board.tallies["net"].per_forecast["crps"].total for board in (small, large))
    np.testing.assert_allclose(found, expected, rtol=1e-10)


def test_a_cluster_is_refused_beside_ranks_or_an_accelerator():
    cpu = torch.device("cpu")
    check_workers(LocalProcesses(), Mesh.single(), cpu)
    check_workers(Threads(), Mesh(data=2), torch.device("cuda"))
    with pytest.raises(InputError, match=r"mesh has 2 ranks; leave out one of them"):
        check_workers(LocalProcesses(), Mesh(data=2), cpu)
    with pytest.raises(InputError, match=r"device is cuda; set device=cpu"):
        check_workers(LocalProcesses(), Mesh.single(), torch.device("cuda"))


def test_threads_limit_those_of_pytorch_and_of_the_kernels(monkeypatch):
    limits = []
    monkeypatch.setattr(torch, "set_num_threads", limits.append)
    monkeypatch.setattr(BUDGET, "limit", limits.append)
    with scoring_workers(Threads(3)) as workers:
        assert workers is None
    with scoring_workers(Threads()):
        assert limits == [3, 3]


def test_sums_of_other_inputs_or_an_unreadable_file_are_not_used(toy, tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(partial_scores, "EVERY_SECONDS", 0.0)
    monkeypatch.setattr(partial_scores, "WRITING_SHARE", float("inf"))
    data = toy(TASK, GRID, 4)

    def continues(key):
        run(data, batch_size=1, partial=PartialScores(tmp_path, key, Mesh.single()))
        return "were scored by an earlier run" in capsys.readouterr().out

    assert [continues(key) for key in ("inputs", "inputs", "other inputs")] == [False, True, False]
    (file,) = tmp_path.iterdir()
    file.write_bytes(file.read_bytes()[:1000])
    assert not continues("other inputs")


ROUNDING = 2.0**-22 * 300 * GRID.shape[0] * GRID.shape[1]
"""Of the sum over all cells of differences between temperatures near 300 K in single precision."""


def sums_on(toy, device):
    """The sums of every score and diagram, of EMOS, climatology and the raw ensemble."""
    data, models = toy(TASK, GRID, 24), {}
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
    return sums_on(toy, standin_device.NAME)


def test_scores_on_another_device_are_those_of_the_cpu(toy):
    (found,) = run_on_ranks(1, scores_on_standin, toy, fresh=True)
    for model, expected in sums_on(toy, "cpu").items():
        for name, sums in expected.items():
            # Some values are in single precision, from compiled code on the CPU and from PyTorch elsewhere.
            size = np.abs(np.nan_to_num(sums.astype(float))).max(initial=0)
            np.testing.assert_allclose(
                found[model][name], sums, rtol=0, atol=ROUNDING + 1e-5 * size, err_msg=f"{model}: {name}"
            )
