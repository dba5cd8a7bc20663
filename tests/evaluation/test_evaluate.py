"""The verb `evaluate`, from an archive in memory to the files that it writes."""

import json
import re
from pathlib import Path

import numpy as np
import pytest
import torch
from memory_archive import GRID

from data_pipeline.common.errors import AbsentVariableError
from data_pipeline.dataset import ForecastDataset
from data_pipeline.dates import Dates
from data_pipeline.task import Task, Variable
from evaluation import evaluate
from evaluation.evaluate import load_finished, target_folders
from evaluation.regions import region_weights
from evaluation.report import page as report
from evaluation.scoring import score_models
from evaluation.shown_cases import chosen_forecasts, gain_of
from models.corrector import Corrector
from models.distribution import Normal
from models.parallel.domain import Domain
from models.statistical.raw import Raw


def test_scores_and_report_are_written_once(archive, emos, deepweather, tmp_path, capsys):
    run_dir = tmp_path / "run"
    deepweather(run_dir, f"correctors={{emos: {emos}}}")
    scores = json.loads((run_dir / "scores.json").read_text())
    assert list(scores["models"]) == ["raw", "climatology", "emos"]
    assert (scores["split"], scores["dates"]) == ("test", [["2016-01-01", "2016-12-31"]])
    assert scores["members"] == 5
    assert scores["n_dates"] == scores["n_forecasts"] == 20
    # The biased ensemble scores about 0.77, N(signal, 1) 1/√π; EMOS corrects both up to the error of its fit.
    assert scores["oracle"]["crps"] == pytest.approx(np.pi**-0.5, rel=0.05)
    emos_scores = scores["models"]["emos"]
    assert 0.6 < emos_scores["captured"] < 1
    assert emos_scores["ci95"]["crps_minus_raw"][1] < 0
    assert set(emos_scores["by"]["region"]) >= {"land", "sea"}
    assert "not significant, with at most 5 % false discoveries" in (run_dir / "report.html").read_text()
    out = capsys.readouterr().out
    assert "20 forecasts of 5 members" in out
    assert f"wrote {run_dir}/scores.json" in out

    before = (run_dir / "scores.json").stat().st_mtime_ns
    deepweather(run_dir, f"correctors={{emos: {emos}}}")
    again = capsys.readouterr().out
    assert "nothing was done" in again
    assert "emos" in again
    assert (run_dir / "scores.json").stat().st_mtime_ns == before


def test_max_members_equals_an_archive_of_fewer_members(archive, emos, deepweather, tmp_path, capsys, monkeypatch):
    """The scores equal those of files with fewer members."""
    monkeypatch.setattr(report, "draw_figures", lambda *_: {})
    correctors = f"correctors={{emos: {emos}}}"
    deepweather(tmp_path / "few", correctors, "max_members=3")
    assert "20 forecasts of 3 members" in capsys.readouterr().out
    archive.raw = archive.raw[:, :, :3]
    deepweather(tmp_path / "all", correctors)
    few, everyone = (json.loads((tmp_path / run / "scores.json").read_text()) for run in ("few", "all"))
    assert few["inputs"].pop("options") != everyone["inputs"].pop("options")
    assert few == everyone


def test_member_counts_add_scores_and_change_no_others(archive, emos, deepweather, tmp_path, capsys, monkeypatch):
    """The scores of all members are the same with and without `member_counts`."""
    monkeypatch.setattr(report, "draw_figures", lambda *_: {})
    correctors, plain = f"correctors={{emos: {emos}}}", tmp_path / "plain"
    deepweather(plain, correctors)
    run_dir = tmp_path / "run"
    deepweather(run_dir, correctors, "member_counts=[5,3,4]")
    out = capsys.readouterr().out
    for name, verdict in {"raw": "yes     yes", "climatology": "yes     yes", "emos": "no      "}.items():
        assert re.search(rf"^{name} .* {verdict}", out, re.MULTILINE)
    alone, scores = (json.loads((folder / "scores.json").read_text()) for folder in (plain, run_dir))
    for name, model in scores["models"].items():
        by_member_count, found = model["by"].pop("members"), model.pop("gate")
        assert list(by_member_count) == ["3", "4", "5"]
        assert found["base"] == 5
        assert {key: value for key, value in by_member_count["5"].items() if key != "fewer"}.items() <= model.items()
        assert alone["models"][name] == model
    assert scores["inputs"].pop("sizes") == [3, 4, 5]
    assert scores == alone
    page, before = ((folder / "report.html").read_text() for folder in (run_dir, plain))
    assert "<h2>With fewer or more members</h2>" in page
    assert page[: page.index("<nav")] == before[: before.index("<nav")]
    assert page[page.index('id="samples"') : page.index('id="provenance"')] in before

    deepweather(run_dir, correctors, "member_counts=[3,4,5]")
    again = capsys.readouterr().out
    assert "nothing was done" in again
    assert "by number of members" in again
    deepweather(run_dir, correctors)
    assert (run_dir / "scores.json").read_text() == (plain / "scores.json").read_text()


def test_without_training_years_there_is_no_climatology(archive, emos, deepweather, tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(report, "draw_figures", lambda *_: {})
    deepweather(tmp_path / "a", f"correctors={{emos: {emos}}}", "data.split.train=[1990,1991]")
    out = capsys.readouterr().out
    assert (warning := "climatology is left out: no forecast is valid in the training dates 1990-1991") in out
    scores = json.loads((tmp_path / "a/scores.json").read_text())
    assert list(scores["models"]) == ["raw", "emos"]
    assert scores["warnings"] == [warning]
    assert scores["models"]["emos"]["skill_vs_climatology"] is None
    page = (tmp_path / "a/report.html").read_text()
    assert "vs climatology" not in page
    assert warning in page
    with pytest.raises(SystemExit):
        deepweather(tmp_path / "b", "data.split.train=[1990,1991]")
    assert capsys.readouterr().err.startswith("error: there is nothing to compare the raw ensemble with (climatology")


@pytest.fixture
def no_pictures(monkeypatch):
    monkeypatch.setattr(report, "draw_figures", lambda *_: {})


def read_scores(run_dir):
    return json.loads((run_dir / "scores.json").read_text())


def test_climatology_is_not_scored_on_years_that_it_was_fitted_on(archive, deepweather, tmp_path, capsys):
    """Climatology fitted on the scored years would be too good, and skill against it silently too low."""
    with pytest.raises(SystemExit) as left:
        deepweather(tmp_path, "split=train")
    assert left.value.code == 2
    assert "2014-01-01, a scored date, is among its training dates 2014" in capsys.readouterr().err


def test_climatology_can_be_left_out(archive, emos, deepweather, no_pictures, tmp_path, capsys):
    deepweather(tmp_path, f"correctors={{emos: {emos}}}", "references=[raw]")
    scores = read_scores(tmp_path)
    assert list(scores["models"]) == ["raw", "emos"]
    assert scores["warnings"] == []
    assert "fitting climatology" not in (out := capsys.readouterr().out)
    assert not re.search("^climatology", out, re.MULTILINE)


@pytest.mark.parametrize("everywhere", [True, False])
def test_climatology_of_too_few_cases_is_left_out(
    archive, emos, deepweather, no_pictures, tmp_path, capsys, everywhere
):
    """Nineteen cases for ten coefficients in all cells, or in one; without climatology there is nothing to score."""
    archive.truth = archive.truth.copy()
    archive.truth[3, 1, ... if everywhere else 2] = np.nan
    deepweather(tmp_path, f"correctors={{emos: {emos}}}")
    scores = read_scores(tmp_path)
    assert list(scores["models"]) == ["raw", "emos"]
    (warning,) = scores["warnings"]
    assert warning.startswith(
        "climatology is left out: climatology cannot be fitted in any cell at lead time 48 h: a cell needs 20"
        if everywhere
        else f"climatology is left out: it has no value at {20 * 12} points that have an analysis"
    )
    assert f"warning: {warning}" in capsys.readouterr().out
    assert warning in (tmp_path / "report.html").read_text()
    with pytest.raises(SystemExit) as left:
        deepweather(tmp_path / "alone", "references=[raw,climatology]")
    assert left.value.code == 2
    assert f"with ({warning}); give correctors" in capsys.readouterr().err


def test_climatology_of_other_years_than_the_correctors_is_a_warning(archive, emos, deepweather, no_pictures, tmp_path):
    other = Corrector.load(emos)
    other.provenance |= {"train_years": [1998, 2013]}
    other.save(tmp_path / "other.safetensors")
    deepweather(tmp_path, f"correctors={{emos: {emos}, old: {tmp_path}/other.safetensors}}")
    assert read_scores(tmp_path)["warnings"] == [
        "climatology was fitted on 1 year (2014), old on 16 years (1998–2013): their skill against climatology is "
        "partly due to other training years"
    ]


def test_the_name_emos_is_reserved_for_a_fitted_emos(archive, emos, deepweather, no_pictures, tmp_path, capsys):
    corrector = Corrector.load(emos)
    provenance = corrector.provenance
    other = Corrector(corrector.task, GRID, {"_target_": "models.statistical.raw.Raw"}, corrector.static, provenance)
    other.save(tmp_path / "raw.safetensors")
    for cells, of in ((84, 84), (3, 84)):
        corrector.provenance = provenance | {"unfitted": {"cells": cells, "of": of}}
        corrector.save(tmp_path / f"{cells}.safetensors")
    for file, sentence in (
        ("raw", "holds the model Raw; the name emos is reserved"),
        ("84", "was fitted in no cell (0 of 84"),
    ):
        with pytest.raises(SystemExit) as left:
            deepweather(tmp_path / "refused", f"correctors={{emos: {tmp_path}/{file}.safetensors}}")
        assert left.value.code == 2
        assert capsys.readouterr().err.startswith(f"error: correctors.emos: {tmp_path}/{file}.safetensors {sentence}")
    deepweather(tmp_path / "some", f"correctors={{emos: {tmp_path}/3.safetensors, mine: {tmp_path}/raw.safetensors}}")
    (warning,) = read_scores(tmp_path / "some")["warnings"]
    assert warning.startswith("emos: 3 of 84 regressions (one for each cell, lead time and target) could not be fitted")
    assert warning in (tmp_path / "some/report.html").read_text()


def test_cells_and_forecasts_that_are_not_scored_are_counted(archive, emos, deepweather, no_pictures, tmp_path, capsys):
    """Two cells without analysis, one of them in another year; one without a member; one start without analysis."""
    archive.truth = archive.truth.copy()
    test = np.flatnonzero(archive.starts.astype("datetime64[Y]").astype(int) == 46)
    archive.truth[test[3], 1, 2, 5] = archive.truth[0, 1, 1, 1] = np.nan
    archive.raw[test[4], 1, 2, 6, 7] = np.nan
    archive.unverified = [(test[9], 1)]
    deepweather(tmp_path, f"correctors={{emos: {emos}}}")
    scores = read_scores(tmp_path)
    assert scores["left_out"] == {"cells": 2, "of": 19 * 7 * 12}
    when = f"{archive.starts[test[9]].astype('datetime64[m]')} + 48 h"
    assert scores["ledger"] == {"forecasts": 20, "used": 19, "no_analysis": {"count": 1, "first": when}}
    assert scores["oracle"]["n_forecasts"] == 19
    sentence = (
        "left out: 2 of 1,596 cells have no analysis or lack a member. "
        f"forecasts: 1 left out with no analysis at their valid time, first {when}"
    )
    assert sentence in capsys.readouterr().out
    assert sentence in (tmp_path / "report.html").read_text()


class StopEvaluationError(Exception):
    """Stops the verb as soon as the test has its data."""


def test_models_and_batches_are_moved_to_the_device(archive, emos, deepweather, tmp_path, monkeypatch):
    """The device `meta` computes nothing, but tensors on it show that they were moved."""
    asked, models = [], []

    def choose_device(option, mesh):
        asked.append((option, mesh.ranks))
        return torch.device("meta")

    def call(corrector, sample):
        models.append({tensor.device.type for tensor in (*corrector.buffers(), *sample)})
        raise StopEvaluationError

    monkeypatch.setattr(evaluate, "choose_device", choose_device)
    monkeypatch.setattr(Corrector, "forward", call)
    with pytest.raises(StopEvaluationError):
        deepweather(tmp_path, f"correctors={{emos: {emos}}}", "references=[raw]", "device=gpu")
    assert asked == [("gpu", 1)]
    assert models == [{"meta"}]


def test_results_do_not_depend_on_the_device_option(archive, emos, deepweather, no_pictures, tmp_path, capsys):
    correctors = f"correctors={{emos: {emos}}}"
    deepweather(tmp_path, correctors, "device=cpu")
    deepweather(tmp_path, correctors, "device=auto")
    assert "nothing was done" in capsys.readouterr().out


def test_several_targets_get_a_folder_each(archive, deepweather, tmp_path, monkeypatch):
    monkeypatch.setattr(evaluate, "write_report", lambda *_: None)
    archive.oracle_years = ()
    deepweather(tmp_path, "task.targets=[2t,msl]", "task.lead_times=[24,48]")
    for folder, units in (("2t", "K"), ("msl", "Pa")):
        scores = json.loads((tmp_path / folder / "scores.json").read_text())
        assert (scores["target"], scores["units"], scores["oracle"]) == (folder, units, None)
        assert set(scores["models"]["raw"]["by"]["lead"]) == {"24", "48"}
    assert not (tmp_path / "scores.json").exists()


def test_a_leak_is_an_error_and_nothing_is_written(archive, emos, deepweather, tmp_path, capsys):
    with pytest.raises(SystemExit) as left:
        deepweather(tmp_path / "run", f"correctors={{emos: {emos}}}", "split=val")
    assert left.value.code == 2
    assert capsys.readouterr().err.startswith(f"error: {emos} was validated on 2015")
    assert not (tmp_path / "run").exists()


def test_an_oracle_of_other_years_is_not_used(archive):
    task, domain = Task("t", ["2t"], ["2t"], [48]), Domain.of(GRID)
    notes = []
    assert evaluate.open_oracle(archive, task, Dates.of_years([2015]), domain, notes) is None
    assert len(evaluate.open_oracle(archive, task, Dates.of_years([2016]), domain, notes)) == 20
    assert notes == []

    def absent(*wanted):
        raise AbsentVariableError("oracle.grib has no 2t; it has t@850")

    archive.oracle.ensemble_fields = absent
    assert evaluate.open_oracle(archive, task, Dates.of_years([2016]), domain, notes) is None
    assert notes == ["the oracle is left out, because oracle.grib has no 2t; it has t@850"]


def test_land_of_another_grid_is_not_used(archive):
    data = ForecastDataset(archive, Task("t", ["2t"], ["2t"], [48]), [2016])
    assert evaluate.land_share(archive, data).shape == GRID.shape
    archive.static = archive.static.isel(latitude=slice(0, 3))
    assert evaluate.land_share(archive, data) is None


@pytest.mark.parametrize("text", ["", "{", '{"format": 3, "inputs": {}}', '{"format": 4, "inputs": {"data": "other"}}'])
def test_unfinished_results_are_computed_again(tmp_path, text):
    (tmp_path / "scores.json").write_text(text)
    (tmp_path / "report.html").write_text("")
    (tmp_path / "scores.csv").write_text("")
    assert load_finished([tmp_path], {}) is None
    (tmp_path / "scores.json").write_text('{"format": 4, "inputs": {}}')
    assert load_finished([tmp_path], {}) == [{"format": 4, "inputs": {}}]
    for name in ("report.html", "scores.csv"):
        (tmp_path / name).rename(tmp_path / "other")
        assert load_finished([tmp_path], {}) is None
        (tmp_path / "other").rename(tmp_path / name)


def test_folders_are_named_by_target():
    two = Task("x", ["2t", "t@850", "2t:24h-mean"], ["2t", "t@850", "2t:24h-mean"], [48])
    assert [str(path) for path in target_folders(Path("r"), two)] == ["r/2t", "r/t850", "r/2t_24h_mean"]
    assert Variable.parse("t@850") in two.targets


@pytest.mark.parametrize(
    ("override", "sentence"),
    [
        ("batch_size=0", "batch_size must be a whole number of at least 1, got 0"),
        ("seed=one", "seed must be a whole number of at least 0, got 'one'"),
        ("correctors=[a]", "correctors must be {NAME: path, ...}, got ['a']"),
        ("correctors={raw: a}", "correctors.raw: the name raw is reserved"),
        ("correctors={emos: nowhere}", "there is no corrector nowhere"),
        ("split=tets", "there is no split 'tets'"),
        ("member_counts=5", "member_counts must be two or more different numbers of members, each at least 2"),
        (
            "references=[unet]",
            "references must be a list of raw, climatology, emos, persistence, such as [raw, climatology], got",
        ),
        ("emos_minutes=soon", "emos_minutes must be a number of at least 0"),
        ("emos_minutes=-1", "emos_minutes must be a number of at least 0"),
        ("references=raw", "references must be a list of raw, climatology, emos, persistence"),
        (
            "shown_corrector=unet",
            "shown_corrector must be the name of a corrector of this command (there are none), or null",
        ),
        ("quantile_levels=median", "quantile_levels must be one of hazen, weibull, got 'median'"),
        ("device=tpu", "device must be one of auto, cpu, gpu, got 'tpu'"),
        ("member_counts=[2,50]", "member_counts has 50, the forecasts have 5 members"),
    ],
)
def test_a_wrong_option_is_one_error_line(archive, deepweather, tmp_path, capsys, override, sentence):
    with pytest.raises(SystemExit) as left:
        deepweather(tmp_path, override)
    assert left.value.code == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith(f"error: {sentence}")


def test_the_cases_are_the_best_the_median_and_the_worst_forecast(toy):
    def known(batch):
        return Normal(batch.ensemble.mean(1) - 1, torch.ones_like(batch.target))

    task = Task("toy", ["2t"], ["2t"], [48])
    board = score_models({"raw": Raw(task, GRID), "net": known}, toy(task, GRID, 9), region_weights(GRID))
    raw, net = (board.tallies[name].per_forecast["crps_fair"].value[:, 0, 0] for name in ("raw", "net"))
    rows = chosen_forecasts(board, 0, "net", 48)
    gains = {name: (raw - net)[row] for name, row in rows.items()}
    assert gains == {"best": (raw - net).max(), "median": np.median(raw - net), "worst": (raw - net).min()}
    assert gain_of(board, 0, "net", 48, rows["best"]) == pytest.approx(100 * gains["best"] / raw[rows["best"]])
    few = score_models({"raw": Raw(task, GRID), "net": known}, toy(task, GRID, 1), region_weights(GRID))
    assert list(chosen_forecasts(few, 0, "net", 48)) == ["median"]
