"""The verb `evaluate`, from an archive in memory to the files that it writes."""

import json
import re
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from memory_archive import GRID, TASK
from quick_report import no_figures

from data_pipeline.common.errors import AbsentVariableError
from data_pipeline.dataset import ForecastDataset
from data_pipeline.dates import Dates
from data_pipeline.task import Task
from evaluation.run import entrants, plan, scored_data
from evaluation.run.plan import target_folders
from evaluation.run.results import load_finished
from evaluation.tables.score_json import SCORES_FORMAT
from models.corrector import Corrector
from models.members.past import Past
from models.parallel.domain import Domain


def test_scores_and_report_are_written_once(emos, deepweather, tmp_path, capsys):
    """Results do not depend on the option `device`, so a run on another device has nothing to do."""
    run_dir = tmp_path / "run"
    deepweather(run_dir, f"correctors={{emos: {emos}}}", "device=cpu")
    scores = json.loads((run_dir / "scores.json").read_text())
    assert list(scores["models"]) == ["raw", "climatology", "emos"]
    assert (scores["split"], scores["dates"]) == ("test", [["2016-01-01", "2016-12-31"]])
    assert scores["members"] == 5
    assert scores["n_dates"] == scores["n_forecasts"] == 20
    # The biased ensemble scores about 0.77, N(signal, 1) 1/√π; EMOS corrects both up to the error of its fit.
    assert scores["oracle"]["crps"] == pytest.approx(np.pi**-0.5, rel=0.05)
    emos_scores = scores["models"]["emos"]
    assert 0.6 < emos_scores["captured"] < 1
    assert scores["pairs"]["emos"]["raw"]["ci95"][1] < 0
    assert set(emos_scores["by"]["region"]) >= {"land", "sea"}
    assert "not significant, with at most 5 % false discoveries" in (run_dir / "report.html").read_text()
    out = capsys.readouterr().out
    assert "20 forecasts of 5 members" in out
    assert f"wrote {run_dir}/scores.json" in out

    before = (run_dir / "scores.json").stat().st_mtime_ns
    deepweather(run_dir, f"correctors={{emos: {emos}}}", "device=auto")
    again = capsys.readouterr().out
    assert "nothing was done" in again
    assert "emos" in again
    assert (run_dir / "scores.json").stat().st_mtime_ns == before


def test_max_members_equals_an_archive_of_fewer_members(archive, emos, scores_of, capsys):
    correctors = f"correctors={{emos: {emos}}}"
    few = scores_of("few", correctors, "max_members=3")
    assert "20 forecasts of 3 members" in capsys.readouterr().out
    archive.raw = archive.raw[:, :, :3]
    everyone = scores_of("all", correctors)
    assert few["inputs"].pop("options") != everyone["inputs"].pop("options")
    assert few == everyone


def test_member_counts_add_scores_and_change_no_others(emos, scores_of, tmp_path, capsys):
    """The scores of all members are the same with and without `member_counts`."""
    correctors = f"correctors={{emos: {emos}}}"
    alone = scores_of("plain", correctors)
    scores = scores_of("run", correctors, "member_counts=[5,3,4]")
    out = capsys.readouterr().out
    for name, verdict in {"raw": "yes     yes", "climatology": "yes     yes", "emos": "no      "}.items():
        assert re.search(rf"^{name} .* {verdict}", out, re.MULTILINE)
    for name, model in scores["models"].items():
        by_member_count, found = model["by"].pop("members"), model.pop("gate")
        assert list(by_member_count) == ["3", "4", "5"]
        assert found["base"] == 5
        assert {key: by_member_count["5"][key] for key in model.keys() & by_member_count["5"].keys() - {"ci95"}} == {
            key: model[key] for key in model.keys() & by_member_count["5"].keys() - {"ci95"}
        }
        assert by_member_count["5"]["ci95"].items() >= model["ci95"].items()
        assert alone["models"][name] == model
    assert scores["inputs"].pop("sizes") == [3, 4, 5]
    assert scores == alone
    assert "<h2>With fewer or more members</h2>" in (tmp_path / "run/report.html").read_text()

    scores_of("run", correctors, "member_counts=[3,4,5]")
    again = capsys.readouterr().out
    assert "nothing was done" in again
    assert "by number of members" in again


def test_methods_that_make_members_are_compared_with_the_past_of_the_training_year(
    archive, scores_of, refusal, tmp_path
):
    leads, methods = "task.lead_times=[24,48]", ["ecc-q", "decc", "schaake", "simschaake"]
    scores = scores_of("run", leads, f"members=[{','.join(methods)}]")
    found = scores["models"]["emos"]["methods"]
    assert list(found) == methods
    assert found["ecc-q"] == scores["models"]["emos"]["members"]
    assert len({one["crps"] for one in found.values()}) == 1
    # There are five past starts for five members, which simschaake takes in another order.
    assert len({one["energy_score_cells"] for one in found.values()}) == 3
    assert "Methods that make members</h2>" in (tmp_path / "run/report.html").read_text()
    past = Past.of(archive, Task("two", ["2t"], ["2t"], [24, 48]), Dates.of_years([2014]))
    for fields in (past.analyses, past.forecasts):
        assert set(fields.init_times.astype("datetime64[Y]").astype(int)) == {44}
    assert "the training period has analyses after 5 past starts" in refusal(leads, "members=gca", "scores=all")
    assert "members=decc correlates lead times, and t2m has a single one" in refusal("members=decc")
    assert "name another method first" in refusal(leads, "members=decc", "write_forecasts=folder")


def test_without_training_years_there_is_no_climatology(emos, scores_of, refusal, tmp_path):
    scores = scores_of("a", f"correctors={{emos: {emos}}}", "data.split.train=[1990,1991]")
    (warning,) = scores["warnings"]
    assert warning.startswith("climatology is left out: no forecast is valid in the training dates 1990-1991; so ")
    assert list(scores["models"]) == ["raw", "emos"]
    assert scores["models"]["emos"]["skill_vs_climatology"] is None
    text = (tmp_path / "a/report.html").read_text()
    assert "vs climatology" not in text
    assert warning in text
    message = refusal("data.split.train=[1990,1991]")
    assert message.startswith("there is nothing to compare the raw ensemble with (climatology")


def test_climatology_of_few_cases_stays_a_reference_with_a_count(archive, emos, scores_of, tmp_path, capsys):
    """Nineteen cases for ten coefficients in one row."""
    archive.truth = archive.truth.copy()
    archive.truth[3, 1, 2] = np.nan
    scores = scores_of("run", f"correctors={{emos: {emos}}}")
    assert sorted(scores["models"]) == ["climatology", "emos", "raw"]
    (warning,) = scores["warnings"]
    assert warning.startswith("climatology: climatology has few cases in 12 of 84 regressions")
    assert f"warning: {warning}" in capsys.readouterr().out
    assert warning in (tmp_path / "run/report.html").read_text()


def test_one_member_is_scored_by_its_absolute_error(archive, scores_of):
    """A deterministic forecast is an ensemble of one; the mean over the sphere is taken here from the rows' areas."""
    archive.raw = archive.raw[:, :, :1]
    scores = scores_of("one", "correctors={}", "references=[raw,climatology,emos]")
    errors = abs(archive.raw[40:, 1, 0] - archive.truth[40:, 1]).mean((0, 2))
    raw, emos = scores["models"]["raw"], scores["models"]["emos"]
    assert raw["crps"] == raw["crps_fair"] == pytest.approx(errors @ GRID.weights / GRID.weights.sum(), rel=1e-5)
    assert emos["crps"] < 0.7 * raw["crps"]
    assert any(
        "have one member: their CRPS, plain and fair, is the absolute error" in one for one in scores["warnings"]
    )


def test_trainings_on_other_dates_than_those_of_the_references_or_of_the_forecasts_are_warnings(
    emos, scores_of, tmp_path
):
    """Of the 20 valid times of 2016 (from 7 January, every 18 days), those of January and February are counted."""
    corrector = Corrector.load(emos)
    corrector.envelope = replace(corrector.envelope, months=tuple(range(3, 13)))
    corrector.provenance |= {"train_dates": [["1998-01-01", "2013-12-31"]]}
    corrector.save(tmp_path / "spring")
    scores = scores_of("run", f"correctors={{emos: {emos}, spring: {tmp_path}/spring}}")
    valid = np.datetime64("2016-01-07") + 18 * np.arange(20)
    count = int(np.isin(valid.astype("datetime64[M]").astype(int) % 12, (0, 1)).sum())
    years, times = scores["warnings"]
    assert "climatology was fitted on 1 year (2014), spring on 16 years (1998–2013)" in years
    assert times.startswith(f"{count} of 20 forecasts of spring are at times without training: it is valid in January")
    assert times.endswith("correct refuses them unless untrained_times=correct")


def test_the_name_emos_is_reserved_for_a_fitted_emos(emos, scores_of, refusal, tmp_path):
    corrector = Corrector.load(emos)
    provenance = corrector.provenance
    other = Corrector(corrector.task, GRID, {"_target_": "models.statistical.raw.Raw"}, corrector.static, provenance)
    other.save(tmp_path / "raw.safetensors")
    for cells in (84, 3):
        corrector.provenance = provenance | {"unfitted": {"cells": cells, "of": 84}}
        corrector.save(tmp_path / f"{cells}.safetensors")
    for file, reason in (("raw", "holds the model Raw; the name emos is reserved"), ("84", "was fitted in no cell")):
        path = f"{tmp_path}/{file}.safetensors"
        assert refusal(f"correctors={{emos: {path}}}").startswith(f"correctors.emos: {path} {reason}")
    scores = scores_of("some", f"correctors={{emos: {tmp_path}/3.safetensors, mine: {tmp_path}/raw.safetensors}}")
    (warning,) = scores["warnings"]
    assert warning.startswith("emos: 3 of 84 regressions (one for each cell, lead time and target) could not be fitted")
    assert warning in (tmp_path / "some/report.html").read_text()


def test_cells_and_forecasts_that_are_not_scored_are_counted(archive, emos, scores_of, tmp_path, capsys):
    """Two cells without analysis, one of them in another year; one without a member; one start without analysis."""
    archive.truth = archive.truth.copy()
    test = np.flatnonzero(archive.starts.astype("datetime64[Y]").astype(int) == 46)
    archive.truth[test[3], 1, 2, 5] = archive.truth[0, 1, 1, 1] = np.nan
    archive.raw[test[4], 1, 2, 6, 7] = np.nan
    archive.unverified = [(test[9], 1)]
    scores = scores_of("run", f"correctors={{emos: {emos}}}")
    assert scores["left_out"] == {"cells": 2, "of": 19 * 7 * 12}
    when = f"{archive.starts[test[9]].astype('datetime64[m]')} + 48 h"
    assert scores["ledger"] == {"forecasts": 20, "used": 19, "no_analysis": {"count": 1, "first": when}}
    assert scores["oracle"]["n_forecasts"] == 19
    cells = "2 of 1,596 cells have no analysis or lack a member"
    forecasts = f"1 left out with no analysis at their valid time, first {when}"
    assert f"left out: {cells}. forecasts: {forecasts}" in capsys.readouterr().out
    text = (tmp_path / "run/report.html").read_text()
    assert f"<li>{cells}</li>" in text
    assert f"<li>{forecasts}</li>" in text


def test_a_target_without_truth_at_the_longest_lead_time_is_refused(archive, deepweather, tmp_path, capsys):
    archive.truth = archive.truth.copy()
    archive.truth[archive.starts.astype("datetime64[Y]").astype(int) == 46, 1] = np.nan
    with pytest.raises(SystemExit, match="2"):
        deepweather(tmp_path, "task.targets=[2t,msl]", "task.lead_times=[24,48]", "references=[raw,climatology]")
    assert capsys.readouterr().err.startswith("error: 2t has no truth at 48 h on the scored dates")


def test_models_and_batches_are_moved_to_the_device(emos, deepweather, tmp_path, monkeypatch):
    """The device `meta` computes nothing, but tensors on it show that they were moved."""

    def call(corrector, sample):
        assert {tensor.device.type for tensor in (*corrector.buffers(), *sample)} == {"meta"}
        raise InterruptedError

    monkeypatch.setattr(plan, "choose_device", lambda option, mesh: torch.device({"gpu": "meta"}[option]))
    monkeypatch.setattr(Corrector, "forward", call)
    with pytest.raises(InterruptedError):
        deepweather(tmp_path, f"correctors={{emos: {emos}}}", "references=[raw]", "device=gpu")


def test_several_targets_get_a_folder_each_and_one_page(archive, deepweather, tmp_path, capsys):
    """References alone have no model card."""
    archive.oracle_years = ()
    with no_figures():
        deepweather(tmp_path, "task.targets=[2t,msl]", "task.lead_times=[24,48]", "references=[raw,climatology]")
    for folder, units in (("2t", "K"), ("msl", "Pa")):
        scores = json.loads((tmp_path / folder / "scores.json").read_text())
        assert (scores["target"], scores["units"], scores["oracle"]) == (folder, units, None)
        assert set(scores["models"]["raw"]["by"]["lead"]) == {"24", "48"}
    assert not [*tmp_path.glob("scores.json"), *tmp_path.rglob("model_card.md")]
    text = (tmp_path / "report.html").read_text()
    for row in ("2 m temperature, +48 h", "Mean sea-level pressure, all"):
        assert f'<th scope="row">{row}</th>' in text
    capsys.readouterr()
    deepweather(tmp_path, "task.targets=[2t,msl]", "task.lead_times=[24,48]", "references=[raw,climatology]")
    assert "nothing was done" in capsys.readouterr().out
    names = ["2t", "t@850", "2t:24h-mean"]
    assert [str(path) for path in target_folders(Path("r"), Task("x", names, names, [48]))] == [
        "r/2t", "r/t850", "r/2t_24h_mean",
    ]  # fmt: skip


def test_an_oracle_of_other_years_is_not_used(archive):
    domain, notes = Domain.of(GRID), []
    assert entrants.open_oracle(archive, TASK, Dates.of_years([2015]), domain, notes) is None
    assert len(entrants.open_oracle(archive, TASK, Dates.of_years([2016]), domain, notes)) == 20
    assert notes == []

    def absent(*wanted):
        raise AbsentVariableError("oracle.grib has no 2t; it has t@850")

    archive.oracle.ensemble_fields = absent
    assert entrants.open_oracle(archive, TASK, Dates.of_years([2016]), domain, notes) is None
    assert notes == ["the oracle is left out, because oracle.grib has no 2t; it has t@850"]


def test_land_of_another_grid_is_not_used(archive):
    data = ForecastDataset(archive, TASK, [2016])
    assert scored_data.land_share(archive, data).shape == GRID.shape
    archive.static = archive.static.isel(latitude=slice(0, 3))
    assert scored_data.land_share(archive, data) is None


@pytest.mark.parametrize("text", ["", "{", '{"format": 5, "inputs": {}}', '{"format": 7, "inputs": {"data": "other"}}'])
def test_unfinished_results_are_computed_again(tmp_path, text):
    (tmp_path / "scores.json").write_text(text)
    (tmp_path / "report.html").write_text("")
    (tmp_path / "scores.csv").write_text("")
    assert load_finished(tmp_path, [tmp_path], {}) is None
    (tmp_path / "scores.json").write_text(f'{{"format": {SCORES_FORMAT}, "inputs": {{}}}}')
    assert load_finished(tmp_path, [tmp_path], {}) == [{"format": SCORES_FORMAT, "inputs": {}}]
    for name in ("report.html", "scores.csv"):
        (tmp_path / name).rename(tmp_path / "other")
        assert load_finished(tmp_path, [tmp_path], {}) is None
        (tmp_path / "other").rename(tmp_path / name)


@pytest.mark.parametrize(
    ("override", "way_out"),
    [
        ("batch_size=0", "at least 1, got 0"),
        ("seed=one", "at least 0, got 'one'"),
        ("correctors=[a]", "{NAME: path, ...}, got ['a']"),
        ("correctors={raw: a}", "the name raw is reserved"),
        ("correctors={emos: nowhere}", "there is no corrector nowhere"),
        ("split=tets", "there is no split 'tets'"),
        ("member_counts=5", "two or more different numbers"),
        ("member_counts=[2,50]", "the forecasts have 5 members"),
        ("references=[unet]", "a list of raw, climatology, emos, persistence, lapse_rate, such as"),
        ("emos_minutes=-1", "a number of at least 0"),
        ("shown_corrector=unet", "the name of a corrector of this command (there are none), or null"),
        ("quantile_levels=median", "one of hazen, weibull, got 'median'"),
        ("device=tpu", "one of auto, cpu, gpu, got 'tpu'"),
        ("forecasts={raw: X}", "the name raw is reserved"),
        ("forecasts={a@b: X}", "'a@b' is not a valid name"),
        ("forecasts={ngr: X}", "there is no file X"),
        ("forecasts={ngr: {path: X, drwn: false}}", "ngr has no option drwn; there is: path, kind, drawn"),
    ],
)
def test_a_wrong_option_is_one_line_that_names_it(refusal, override, way_out):
    message = refusal(override)
    assert way_out in message
    assert override.split("=")[0] in message or "there is no" in message
