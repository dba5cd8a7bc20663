"""Corrector files of version 0.1 load and forecast the same, although classes and options have other names now."""

import inspect

import pytest
import torch
from conftest import ROOT
from omegaconf import OmegaConf

from conf.hydra_command import rename_model_options
from data_pipeline.common import renamed
from data_pipeline.dataset import batches
from data_pipeline.grid import Grid
from data_pipeline.task import Task
from models.construct import model_class
from models.corrector import Corrector

FILES = ROOT / "tests/models/version_0_1"
GRID = Grid((67.5, 22.5, -22.5, -67.5), tuple(range(0, 360, 45)))
TASK = Task(name="t2m", inputs=["2t", "msl"], targets=["2t"], lead_times=[48], static=["lsm"])


@pytest.mark.parametrize("name", ["boosted", "deep_weather", "mlp", "poet", "transformer", "unet"])
def test_an_old_file_gives_its_old_forecast(name, toy):
    """The file holds twelve quantiles that version 0.1 computed."""
    corrector = Corrector.load(FILES / f"{name}.safetensors")
    with torch.no_grad():
        forecast = corrector(next(batches(toy(TASK, GRID, 24), 2)))
    found = forecast.quantile(torch.tensor([0.1, 0.5, 0.9])).flatten()[:12].double()
    expected = torch.tensor(corrector.provenance["expected_quantiles"], dtype=torch.float64)
    torch.testing.assert_close(found, expected, rtol=1e-5, atol=0)


def test_an_old_option_works_with_a_warning(command, tmp_path, monkeypatch):
    ended = command(tmp_path, "train", "trainer.enough=7", "members=3", "--cfg", "job")
    assert ended.code == 0
    assert "early_stop_below: 7" in ended.stdout
    assert "max_members: 3" in ended.stdout
    assert ended.stderr == (
        "warning: option trainer.enough is now called trainer.early_stop_below; the old name will be removed\n"
        "warning: option members is now called max_members; the old name will be removed\n"
    )


@pytest.mark.parametrize(
    ("text", "old", "new"),
    [
        ("members: 5", "members", "max_members"),
        ("trainer: {ema: 0.9}", "trainer.ema", "trainer.ema_decay"),
        ("data: {source: {members: 3}}", "data.source", "data.generator"),
    ],
)
def test_an_old_option_in_a_users_own_experiment_is_an_error(text, old, new, command, tmp_path):
    """Hydra adds an unknown option of a YAML file without a word, and the option would have no effect."""
    (tmp_path / "conf/experiment").mkdir(parents=True)
    (tmp_path / "conf/experiment/mine.yaml").write_text(f"# @package _global_\n{text}\n")
    ended = command(tmp_path, "train", "--config-dir", str(tmp_path / "conf"), "experiment=mine")
    assert ended.code == 2
    assert ended.stderr == f"error: option {old} is now called {new}; rename it in your YAML file\n"


def test_an_option_outside_any_group_is_renamed_only_for_its_verb():
    assert renamed.current_argument("levels=weibull", verb="evaluate")[0] == "quantile_levels=weibull"
    assert renamed.current_argument("levels=weibull", verb="prepare")[0] == "levels=weibull"
    assert renamed.current_argument("~exam.tolerance", verb="train")[0] == "~test_check.tolerance"
    assert renamed.current_argument("examination=1", verb="train")[0] == "examination=1"


def test_an_old_option_in_a_file_is_an_error_that_says_the_new_name(command, tmp_path, monkeypatch):
    monkeypatch.setitem(renamed.OPTIONS, "trainer.patients", "trainer.patience")
    monkeypatch.setattr("conf.current_arguments", lambda arguments, model, verb: arguments)
    ended = command(tmp_path, "train", "trainer.patients=7")
    assert ended.code == 2
    assert ended.stderr == (
        "error: option trainer.patients is now called trainer.patience; rename it in your YAML file\n"
    )


OLD = {"start": "baseline", "baseline.window": "window_days", "attention": "member_attention"}


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("+model.start.window=2", "+model.baseline.window_days=2"),
        ("model.baseline.window=2", "model.baseline.window_days=2"),
        ("model.window=2", "model.window=2"),
        ("~model.attention", "~model.member_attention"),
        ("task.attention=2", "task.attention=2"),
        ("model=null", "model=null"),
        ("los=apart", "loss=separate"),
        ("data.source.members=3", "data.generator.members=3"),
        ("+data.source.workers=1", "+data.generator.workers=1"),
    ],
)
def test_every_form_of_an_override_is_renamed(old, new, monkeypatch):
    monkeypatch.setitem(renamed.MODEL_OPTIONS, "models.networks.unet.UNet", OLD)
    monkeypatch.setitem(renamed.CHOICES, "los=apart", "loss=separate")
    assert renamed.current_argument(old, "models.networks.unet.UNet")[0] == new
    assert renamed.current_argument(old, "models.unet.UNet")[0] == new


def test_an_option_is_renamed_only_for_the_class_that_had_it(monkeypatch):
    """One old name may have different new names, and a class of another package may use it for its own option."""
    monkeypatch.setitem(renamed.MODEL_OPTIONS, "models.networks.unet.UNet", {"attention": "a"})
    monkeypatch.setitem(renamed.MODEL_OPTIONS, "models.networks.poet.PoET", {"attention": "b"})
    unet = {"_target_": "models.unet.UNet", "attention": 1}
    assert renamed.current_spec(unet) == {"_target_": "models.networks.unet.UNet", "a": 1}
    parts = {"_target_": "models.poet.PoET", "attention": [unet], "other": {"_target_": "mine.Net", "attention": 3}}
    assert renamed.current_spec(parts) == {
        "_target_": "models.networks.poet.PoET",
        "b": [{"_target_": "models.networks.unet.UNet", "a": 1}],
        "other": {"_target_": "mine.Net", "attention": 3},
    }
    assert renamed.current_argument("model.attention=1", "mine.Net") == ("model.attention=1", None)
    assert renamed.current_argument("model.attention=1") == ("model.attention=1", None)


@pytest.mark.parametrize(
    ("arguments", "new"),
    [(["model=mlp"], "hidden"), (["experiment=twin_t2m_unet"], "channels"), (["model=raw"], None)],
)
def test_the_command_finds_the_class_whose_option_has_an_old_name(arguments, new, command, tmp_path, monkeypatch):
    monkeypatch.setitem(renamed.MODEL_OPTIONS, "models.networks.mlp.MLP", {"size": "hidden"})
    monkeypatch.setitem(renamed.MODEL_OPTIONS, "models.networks.unet.UNet", {"size": "channels"})
    ended = command(tmp_path, "train", *arguments, "+model.size=7", "--cfg", "job")
    assert ended.code == 0
    assert f"\n  {new or 'size'}: 7\n" in ended.stdout
    warning = f"warning: option model.size is now called model.{new}; the old name will be removed\n"
    assert ended.stderr == (warning if new else "")


def test_an_old_name_inside_a_value_works_with_a_warning(monkeypatch, capsys):
    monkeypatch.setitem(renamed.MODEL_OPTIONS, "models.networks.unet.UNet", OLD)
    cfg = OmegaConf.create(
        {"model": {"_target_": "models.networks.unet.UNet", "baseline": {"window": "${n}"}}, "n": 30}
    )
    OmegaConf.set_struct(cfg, True)
    rename_model_options(cfg)
    assert cfg.model.baseline == {"window_days": 30}
    assert capsys.readouterr().err == (
        "warning: option model.baseline.window is now called model.baseline.window_days; the old name will be removed\n"
    )


def test_no_new_name_is_itself_an_old_one():
    for table in (renamed.OPTIONS, renamed.CHOICES):
        assert not set(table) & set(table.values())
    for table in renamed.MODEL_OPTIONS.values():
        assert not {old.rpartition(".")[2] for old in table} & set(table.values())


def test_every_class_with_a_renamed_option_exists_and_has_the_new_one():
    for target, table in renamed.MODEL_OPTIONS.items():
        options = inspect.signature(model_class(target)).parameters
        assert {new for old, new in table.items() if "." not in old} <= set(options)


def test_every_moved_module_exists():
    for name in renamed.MODULES.values():
        assert (ROOT / name.replace(".", "/")).with_suffix(".py").exists() or (ROOT / name.replace(".", "/")).is_dir()
