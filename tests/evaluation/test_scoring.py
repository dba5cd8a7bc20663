"""Scoring of all models: scores do not depend on batches, and all models are scored in the same cells."""

import math
from dataclasses import replace

import numpy as np
import pytest
import torch
from tested_device import device_of

from data_pipeline.cluster import LocalProcesses, Threads
from data_pipeline.common.errors import InputError
from data_pipeline.common.threads import BUDGET
from data_pipeline.grid import Grid
from data_pipeline.sample import verifiable
from data_pipeline.task import Task
from evaluation import partial_scores
from evaluation.partial_scores import PartialScores
from evaluation.regions import region_weights
from evaluation.scoring import ScoringOptions, score_models
from evaluation.scoring_workers import check_workers, scoring_workers
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


def test_scores_do_not_depend_on_the_batch_size(toy):
    data = toy(TASK, GRID, 7)
    one, many = run(data, batch_size=1), run(data, batch_size=4)
    for name, tally in one.tallies.items():
        np.testing.assert_allclose(tally.per_forecast["crps"].value, many.tallies[name].per_forecast["crps"].value)
        np.testing.assert_allclose(tally.per_forecast["rank"].total, many.tallies[name].per_forecast["rank"].total)


def test_every_forecast_has_its_row(toy):
    data = toy(TASK, GRID, 6)
    board = run(data)
    area = np.broadcast_to(GRID.weights[:, None], GRID.shape)
    for row, sample in enumerate(data):
        assert (board.init_times[row], board.lead_times[row]) == (sample.init_time, sample.lead_time)
        crps = Raw(TASK, GRID)(type(sample)(*(t[None] for t in sample))).crps(sample.target[None])
        found = board.tallies["raw"].per_forecast["crps"][row, 0, 0].value
        assert found == pytest.approx(np.average(crps[0, 0], weights=area), rel=1e-5)
    assert board.tallies["net"].per_cell["crps"].weight[:, 0, 2, 3].tolist() == [3, 3]


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
    task = Task("toy", ["2t"], ["2t"], [48])
    data, raw = toy(task, GRID, 9), Raw(task, GRID)
    lost = {int(data[k].init_time) for k in (2, 5)}

    def reference(batch):
        mean = batch.ensemble.mean(1) + 1
        mean[[int(start) in lost for start in batch.init_time], :, 0, 0] = torch.nan
        return Normal(mean, torch.ones_like(mean))

    models = {"raw": raw, "climatology": reference}
    found = score_models(models, data, REGIONS, options=ScoringOptions(4, optional=["climatology"]))
    kept = torch.utils.data.Subset(data, [k for k in range(9) if k not in (2, 5)])
    kept.task, kept.grid, kept.members = data.task, data.grid, data.members
    expected = score_models(models, kept, REGIONS, options=ScoringOptions(4)).scores(0)
    scores = found.scores(0)
    assert scores["left_out"]["forecasts_without_value"] == {"climatology": 2}
    assert scores["warnings"] == [
        "climatology has no value in 2 of 9 forecasts: its own scores and its comparisons are of the others"
    ]
    assert expected["warnings"] == []
    for key in ("crps", "rmse", "skill_vs_raw", "crps_minus_raw"):
        one, other = (each["models"]["climatology"][key] for each in (scores, expected))
        assert one == pytest.approx(other, rel=1e-6), key
    one, other = (each["models"]["raw"]["skill_vs_climatology"] for each in (scores, expected))
    assert one == pytest.approx(other, rel=1e-6)
    alone = score_models({"raw": raw}, data, REGIONS).scores(0)
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
    lines = [line for line in capsys.readouterr().out.splitlines() if "memory_bytes" in line]
    assert len(lines) == 1
    assert lines[0].endswith("more than memory_bytes=1")
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


class Ended(Exception):  # noqa: N818 - not an error
    """Ends scoring as a killed process would."""


def run_until(data, partial=None, end_after=None):
    """Score one forecast after the other; return the board and the number of forecasts that were scored."""
    calls = []

    def counted(batch):
        if len(calls) == end_after:
            raise Ended
        calls.append(len(batch.target))
        return centred(batch)

    options = ScoringOptions(batch_size=1, written={"net"}, partial=partial)
    board = score_models({"raw": Raw(TASK, GRID), "net": counted}, data, REGIONS, None, options)
    return board, sum(calls)


@pytest.fixture
def no_wait(monkeypatch):
    monkeypatch.setattr(partial_scores, "EVERY_SECONDS", 0.0)
    monkeypatch.setattr(partial_scores, "WRITING_SHARE", float("inf"))


def keep(folder, key="inputs"):
    return PartialScores(folder, key, Mesh.single())


@pytest.mark.usefixtures("no_wait")
def test_the_next_run_scores_only_the_rest(toy, tmp_path, capsys):
    data = toy(TASK, GRID, 7)
    expected, count = run_until(data)
    assert count == 7
    with pytest.raises(Ended):
        run_until(data, keep(tmp_path), end_after=3)
    board, count = run_until(data, keep(tmp_path))
    assert count == 4
    assert "3 of 7 forecasts were scored by an earlier run" in capsys.readouterr().out
    for found, whole in ((board.tallies, expected.tallies), (board.written, expected.written)):
        for name, tally in whole.items():
            for kind, sums in tally.arrays().items():
                np.testing.assert_allclose(found[name].arrays()[kind], sums, rtol=1e-12, atol=1e-12)


@pytest.mark.usefixtures("no_wait")
def test_sums_of_other_inputs_or_an_unreadable_file_are_not_used(toy, tmp_path):
    data = toy(TASK, GRID, 4)
    with pytest.raises(Ended):
        run_until(data, keep(tmp_path), end_after=2)
    assert run_until(data, keep(tmp_path, "other inputs"))[1] == 4
    (file,) = tmp_path.iterdir()
    file.write_bytes(file.read_bytes()[:1000])
    assert run_until(data, keep(tmp_path))[1] == 4
    keep(tmp_path).remove()
    assert list(tmp_path.iterdir()) == []
