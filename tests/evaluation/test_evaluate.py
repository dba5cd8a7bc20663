"""The verb from an archive in memory to the files it writes."""

import json
import re
import signal
import sys
from functools import cached_property
from pathlib import Path

import numpy as np
import pytest
import torch
import xarray as xr

from conf import build
from data_pipeline.dataset import ForecastDataset
from data_pipeline.grid import Grid
from data_pipeline.task import Task, Variable
from evaluation import evaluate, report
from evaluation.aggregation import region_weights
from evaluation.evaluate import finished, target_folders, typical_forecast
from evaluation.scoring import score_models
from models.corrector import Corrector
from models.distribution import Normal
from models.raw import Raw
from models.spatial.domain import Domain

GRID = Grid.regular(7, 12)


class MemoryFields:
    """Values (start, lead, member, H, W), of which every variable is a copy."""

    grid = GRID

    def __init__(self, values, init_times, variables, lead_times):
        self.values = values[:, [{24: 0, 48: 1}.get(lead, 0) for lead in lead_times]]
        self.init_times, self.variables, self.lead_times = init_times, tuple(variables), tuple(lead_times)
        self.numbers = tuple(range(values.shape[2]))

    def read(self, init, lead, out, rows=slice(None), members=None):
        chosen = list(range(len(self.numbers)) if members is None else members)
        out[:] = self.values[init, lead, chosen][:, None, rows]


class MemoryArchive:
    """An archive of 2014 to 2016; the raw ensemble is 1 K too cold and half as wide as its errors."""

    fingerprint = "0123"
    moments = None

    def __init__(self, members=5, oracle_years=(2016,)):
        self.rng = np.random.default_rng(0)
        days = np.concatenate([np.datetime64(f"{year}-01-05", "D") + 15 * np.arange(20) for year in (2014, 2015, 2016)])
        self.starts = days.astype("datetime64[s]")
        H, W = GRID.shape
        lead = np.array([24, 48])[None, :, None, None]
        shape = (len(days), 2, H, W)
        self.signal = 280 + 5 * self.rng.normal(size=shape) + 0 * lead
        self.truth = self.signal + self.rng.normal(size=shape)
        self.raw = self.signal[:, :, None] - 1 + 0.5 * self.rng.normal(size=(len(days), 2, members, H, W))
        self.oracle_years, self.members = oracle_years, members

    def refuse(self, years, moments):
        pass

    def ensemble_fields(self, variables, lead_times):
        return MemoryFields(self.raw, self.starts, variables, lead_times)

    def analysis_fields(self, variables):
        times = (self.starts[:, None] + np.array([24, 48], "timedelta64[h]")).ravel()
        return MemoryFields(self.truth.reshape(-1, 1, 1, *GRID.shape), times, variables, (0,))

    @cached_property
    def static(self):
        field = np.broadcast_to(np.arange(12) % 2, GRID.shape).astype(np.float32)
        space = {"latitude": list(GRID.latitudes), "longitude": list(GRID.longitudes)}
        return xr.Dataset(dict.fromkeys(("lsm", "z"), (("latitude", "longitude"), field)), space)

    @cached_property
    def oracle(self):
        if not self.oracle_years:
            return None
        mine = np.isin(self.starts.astype("datetime64[Y]").astype(int) + 1970, self.oracle_years)
        draws = self.rng.normal(size=(mine.sum(), 2, 8, *GRID.shape))
        members, starts = self.signal[mine][:, :, None] + draws, self.starts[mine]
        other = MemoryArchive.__new__(MemoryArchive)
        other.__dict__ |= {"starts": self.starts, "truth": self.truth}
        other.ensemble_fields = lambda *wanted: MemoryFields(members, starts, *wanted)
        other.static = self.static
        return other


def overrides(run_dir, *more):
    years = ["data.split.train=[2014,2014]", "data.split.val=[2015,2015]", "data.split.test=[2016,2016]"]
    return [f"run_dir={run_dir}", "task.inputs=[2t,msl]", *years, *more]


@pytest.fixture
def deepweather(monkeypatch):
    """Run the verb as the command line does, but in this process."""
    handler = signal.getsignal(signal.SIGTERM)
    monkeypatch.setenv("HYDRA_FULL_ERROR", "0")  # the verb sets it; to be undone

    def run(run_dir, *more):
        monkeypatch.setattr(sys, "argv", ["evaluate", *overrides(run_dir, *more)])
        evaluate.main()

    yield run
    signal.signal(signal.SIGTERM, handler)


@pytest.fixture
def archive(monkeypatch):
    memory = MemoryArchive()
    monkeypatch.setattr(evaluate, "build", lambda node: memory if "ensemble" in node else build(node))
    return memory


@pytest.fixture
def emos(archive, tmp_path):
    task = Task("t2m", ["2t"], ["2t"], [48])
    data = ForecastDataset(archive, task, [2014])
    provenance = {"train_years": [2014, 2014], "val_years": [2015, 2015], "members": 5}
    spec = {"_target_": "models.emos.EMOS", "seasonal": False}
    corrector = Corrector(task, data.grid, spec, data.static, provenance)
    corrector.fit(data)
    corrector.save(tmp_path / "emos.safetensors")
    return tmp_path / "emos.safetensors"


def test_the_whole_path(archive, emos, deepweather, tmp_path, capsys):
    run_dir = tmp_path / "run"
    deepweather(run_dir, f"correctors={{emos: {emos}}}")
    scores = json.loads((run_dir / "scores.json").read_text())
    assert list(scores["models"]) == ["raw", "climatology", "emos"]
    assert (scores["split"], scores["years"], scores["members"]) == ("test", [2016, 2016], 5)
    assert scores["n_dates"] == scores["n_forecasts"] == 20
    # The biased ensemble scores about 0.77, N(signal, 1) 1/√π; EMOS knows both but for the fit to 20 dates.
    assert scores["oracle"]["crps"] == pytest.approx(np.pi**-0.5, rel=0.05)
    emos_scores = scores["models"]["emos"]
    assert 0.6 < emos_scores["captured"] < 1
    assert emos_scores["ci95"]["crps_minus_raw"][1] < 0
    assert set(emos_scores["by"]["region"]) >= {"land", "sea"}
    assert (run_dir / "report.html").exists()
    out = capsys.readouterr().out
    assert "20 forecasts of 5 members" in out
    assert f"wrote {run_dir}/scores.json" in out

    before = (run_dir / "scores.json").stat().st_mtime_ns
    deepweather(run_dir, f"correctors={{emos: {emos}}}")
    again = capsys.readouterr().out
    assert "nothing was done" in again
    assert "emos" in again
    assert (run_dir / "scores.json").stat().st_mtime_ns == before


def test_the_first_members_alone(archive, emos, deepweather, tmp_path, capsys, monkeypatch):
    """As if there were no more in the files."""
    monkeypatch.setattr(report, "draw_pictures", lambda *_: {})
    correctors = f"correctors={{emos: {emos}}}"
    deepweather(tmp_path / "few", correctors, "members=3")
    assert "20 forecasts of 3 members" in capsys.readouterr().out
    archive.raw = archive.raw[:, :, :3]
    deepweather(tmp_path / "all", correctors)
    few, everyone = (json.loads((tmp_path / run / "scores.json").read_text()) for run in ("few", "all"))
    assert few["inputs"].pop("options") != everyone["inputs"].pop("options")
    assert few == everyone


def test_by_number_of_members(archive, emos, deepweather, tmp_path, capsys, monkeypatch):
    """All members alone, then some of them too, then all alone again: what is added changes nothing of the rest."""
    monkeypatch.setattr(report, "draw_pictures", lambda *_: {})
    correctors, plain = f"correctors={{emos: {emos}}}", tmp_path / "plain"
    deepweather(plain, correctors)
    run_dir = tmp_path / "run"
    deepweather(run_dir, correctors, "sizes=[5,3,4]")
    out = capsys.readouterr().out
    for name, verdict in {"raw": "yes     yes", "climatology": "yes     yes", "emos": "no      "}.items():
        assert re.search(rf"^{name} .* {verdict}", out, re.MULTILINE)
    alone, scores = (json.loads((folder / "scores.json").read_text()) for folder in (plain, run_dir))
    for name, model in scores["models"].items():
        by_size, found = model["by"].pop("members"), model.pop("gate")
        assert list(by_size) == ["3", "4", "5"]
        assert found["base"] == 5
        assert {key: value for key, value in by_size["5"].items() if key != "fewer"}.items() <= model.items()
        assert alone["models"][name] == model
    assert scores["inputs"].pop("sizes") == [3, 4, 5]
    assert scores == alone
    page, before = ((folder / "report.html").read_text() for folder in (run_dir, plain))
    assert "<h2>With fewer or more members</h2>" in page
    assert page.startswith(before[: before.index("<h2>One forecast</h2>") - 30])

    deepweather(run_dir, correctors, "sizes=[3,4,5]")
    again = capsys.readouterr().out
    assert "nothing was done" in again
    assert "by number of members" in again
    deepweather(run_dir, correctors)
    assert (run_dir / "scores.json").read_text() == (plain / "scores.json").read_text()


def test_without_training_years_there_is_no_climatology(archive, emos, deepweather, tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(report, "draw_pictures", lambda *_: {})
    deepweather(tmp_path / "a", f"correctors={{emos: {emos}}}", "data.split.train=[1990,1991]")
    out = capsys.readouterr().out
    assert "no climatology: no forecast is valid in 1990-1991" in out
    assert "warning: climatology is not scored" in out
    scores = json.loads((tmp_path / "a/scores.json").read_text())
    assert list(scores["models"]) == ["raw", "emos"]
    assert scores["models"]["emos"]["skill_vs_climatology"] is None
    assert "vs climatology</th>" not in (tmp_path / "a/report.html").read_text()
    with pytest.raises(SystemExit):
        deepweather(tmp_path / "b", "data.split.train=[1990,1991]")
    assert capsys.readouterr().err.startswith("error: there is nothing to compare the raw ensemble with")


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


def test_an_oracle_of_other_years_is_no_oracle(archive):
    task, domain = Task("t", ["2t"], ["2t"], [48]), Domain.of(GRID)
    assert evaluate.open_oracle(archive, task, [2015], domain) is None
    assert len(evaluate.open_oracle(archive, task, [2016], domain)) == 20


def test_land_of_another_grid_is_not_used(archive):
    data = ForecastDataset(archive, Task("t", ["2t"], ["2t"], [48]), [2016])
    assert evaluate.land_share(archive, data).shape == GRID.shape
    archive.static = archive.static.isel(latitude=slice(0, 3))
    assert evaluate.land_share(archive, data) is None


@pytest.mark.parametrize("text", ["", "{", '{"format": 0, "inputs": {}}', '{"format": 1, "inputs": {"data": "other"}}'])
def test_what_is_not_finished_is_made_again(tmp_path, text):
    (tmp_path / "scores.json").write_text(text)
    (tmp_path / "report.html").write_text("")
    assert finished([tmp_path], {}) is None
    (tmp_path / "scores.json").write_text('{"format": 1, "inputs": {}}')
    assert finished([tmp_path], {}) == [{"format": 1, "inputs": {}}]
    (tmp_path / "report.html").unlink()
    assert finished([tmp_path], {}) is None


def test_folders_are_named_by_target():
    two = Task("x", ["2t", "t@850"], ["2t", "t@850"], [48])
    assert [str(path) for path in target_folders(Path("r"), two)] == ["r/2t", "r/t850"]
    assert Variable.parse("t@850") in two.targets


@pytest.mark.parametrize(
    ("override", "sentence"),
    [
        ("batch_size=0", "batch_size must be a whole number of at least 1, got 0"),
        ("seed=one", "seed must be a whole number of at least 0, got 'one'"),
        ("correctors=[a]", "correctors must be {NAME: path, ...}, got ['a']"),
        ("correctors={raw: a}", "correctors.raw: raw is always scored under that name"),
        ("correctors={emos: nowhere}", "there is no corrector nowhere"),
        ("split=tets", "there is no split 'tets'"),
        ("sizes=5", "sizes must be two or more different numbers of members, each at least 2"),
        ("sizes=[2,50]", "sizes has 50, the forecasts have 5 members"),
    ],
)
def test_wrong_options_are_one_sentence(archive, deepweather, tmp_path, capsys, override, sentence):
    with pytest.raises(SystemExit) as left:
        deepweather(tmp_path, override)
    assert left.value.code == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith(f"error: {sentence}")


def test_the_example_is_the_median_case(toy):
    def known(batch):
        return Normal(batch.ensemble.mean(1) - 1, torch.ones_like(batch.target))

    task = Task("toy", ["2t"], ["2t"], [48])
    board = score_models({"raw": Raw(task, GRID), "net": known}, toy(task, GRID, 9), region_weights(GRID))
    raw, net = (board.tallies[name].per_forecast["crps"].value[:, 0, 0] for name in ("raw", "net"))
    row = typical_forecast(board, 0, "net", 48)
    assert (raw - net)[row] == np.median(raw - net)
