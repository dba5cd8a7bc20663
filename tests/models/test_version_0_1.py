"""Corrector files of version 0.1 load and forecast the same, although classes and options have other names now."""

import pytest
import torch
from conftest import ROOT

from data_pipeline.common import renamed
from data_pipeline.dataset import batches
from data_pipeline.grid import Grid
from data_pipeline.task import Task
from models.corrector import Corrector

FILES = ROOT / "tests/models/version_0_1"
GRID = Grid((67.5, 22.5, -22.5, -67.5), tuple(range(0, 360, 45)))
TASK = Task(name="t2m", inputs=["2t", "msl"], targets=["2t"], lead_times=[48], static=["lsm"])


@pytest.mark.parametrize("name", ["mlp", "unet", "boosted"])
def test_an_old_file_forecasts_what_it_forecast_then(name, toy):
    """The file holds twelve quantiles that version 0.1 computed."""
    corrector = Corrector.load(FILES / f"{name}.safetensors")
    with torch.no_grad():
        forecast = corrector(next(batches(toy(TASK, GRID, 24), 2)))
    found = forecast.quantile(torch.tensor([0.1, 0.5, 0.9])).flatten()[:12].double()
    expected = torch.tensor(corrector.provenance["expected_quantiles"], dtype=torch.float64)
    torch.testing.assert_close(found, expected, rtol=1e-5, atol=0)


def test_an_old_option_works_with_a_warning(command, tmp_path, monkeypatch):
    monkeypatch.setitem(renamed.OPTIONS, "trainer.enough", "trainer.patience")
    ended = command(tmp_path, "train", "trainer.enough=7", "--cfg", "job")
    assert ended.code == 0
    assert "patience: 7" in ended.stdout
    assert ended.stderr == (
        "warning: option trainer.enough is now called trainer.patience; the old name will be removed\n"
    )


def test_an_old_option_in_a_file_is_an_error_that_says_the_new_name(command, tmp_path, monkeypatch):
    monkeypatch.setitem(renamed.OPTIONS, "trainer.patients", "trainer.patience")
    monkeypatch.setattr(renamed, "current_arguments", lambda arguments: arguments)
    monkeypatch.setattr("conf.current_arguments", lambda arguments: arguments)
    ended = command(tmp_path, "train", "trainer.patients=7")
    assert ended.code == 2
    assert ended.stderr == (
        "error: option trainer.patients is now called trainer.patience; rename it in your YAML file\n"
    )


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("+model.start.rat=2", "+model.start.rate=2"),
        ("~model.rat", "~model.rate"),
        ("task.rat=2", "task.rat=2"),
        ("los=apart", "loss=separate"),
    ],
)
def test_every_form_of_an_override_is_renamed(old, new, monkeypatch):
    monkeypatch.setitem(renamed.MODEL_OPTIONS, "rat", "rate")
    monkeypatch.setitem(renamed.CHOICES, "los=apart", "loss=separate")
    assert renamed.current_argument(old)[0] == new


def test_no_new_name_is_itself_an_old_one():
    for table in (renamed.OPTIONS, renamed.MODEL_OPTIONS, renamed.CHOICES):
        assert not set(table) & set(table.values())


def test_every_moved_module_exists():
    for name in renamed.MODULES.values():
        assert (ROOT / name.replace(".", "/")).with_suffix(".py").exists() or (ROOT / name.replace(".", "/")).is_dir()
