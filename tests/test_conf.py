"""Every file under conf/ is composed and built; a wrong command prints one error line."""

import shlex
from pathlib import Path
from unittest.mock import patch

import pytest
from hydra import compose
from hydra.core.hydra_config import HydraConfig

from conf import build, explain, plain
from conf.hydra_command import composed
from data_pipeline.archive import Archive
from data_pipeline.common.errors import InputError
from data_pipeline.grid import Grid
from data_pipeline.prefetch.budget import machine_budget
from data_pipeline.split import Split
from data_pipeline.statistics import STATISTICS
from data_pipeline.synthetic.heat import Heat
from models.corrector import build_model, needed_task
from models.statistical.emos import EMOS
from training.run.trainer_options import TrainerOptions

ROOT = Path(__file__).parents[1]
CONF = ROOT / "conf"
YEARS = ["data.split.train=[2000,2001]", "data.split.val=[2002,2002]", "data.split.test=[2003,2003]"]


def choices(group):
    return sorted(path.stem for path in (CONF / group).glob("*.yaml"))


def compose_config(verb, *overrides):
    return composed(verb, overrides)


GROUPS = {group: choices(group) for group in ("data", "task", "model", "loss", "trainer")}
NEEDED = {"threshold": {"threshold": 300.0}, "eecrps": {"climate": "efi.nc"}}
"""Options without a default of losses."""


def test_every_group_has_a_test_in_this_file():
    """A new group needs a test below."""
    groups = {path.parent.relative_to(CONF).parts[0] for path in CONF.glob("*/**/*.yaml")}
    assert groups == {*GROUPS, "cache", "cluster", "experiment", "shared"}


@pytest.mark.parametrize("number", range(max(map(len, GROUPS.values()))))
def test_every_choice_of_a_group_is_built(number):
    """One choice of each group at a time."""
    chosen = {group: names[number % len(names)] for group, names in GROUPS.items()}
    needed = NEEDED.get(chosen["loss"], {})
    words = [f"{group}={name}" for group, name in chosen.items()]
    cfg = compose_config("train", *words, *YEARS, *(f"loss.{name}={value}" for name, value in needed.items()))
    assert isinstance(build(cfg.data.archive), Archive | Heat)
    assert isinstance(build(cfg.data.split), Split)
    if "generator" in cfg.data:
        generator = build(cfg.data.generator)
        assert callable(generator.plan)
        assert callable(generator.prepare)
    task = build(cfg.task)
    assert (task.name, list(task.static)) == (chosen["task"], plain(cfg.data.static))
    spec = plain(cfg.model)
    model = build_model(spec, needed_task(spec, task), Grid.regular(17, 24))
    assert f"{type(model).__module__}.{type(model).__name__}" == spec["_target_"]
    loss = build(cfg.loss)
    assert loss == type(loss)(**needed), "a default that is written twice must not differ"
    assert callable(loss) or callable(loss.on)
    assert build(cfg.trainer) == TrainerOptions()
    assert build(cfg.data.cache) == machine_budget()


@pytest.mark.parametrize("cluster", choices("cluster"))
def test_every_cluster_and_statistic_is_built(cluster):
    """A default that is written twice must not differ."""
    cfg = compose_config("prepare", f"cluster={cluster}", "run_dir=.")
    made = build(cfg.cluster)
    assert made == type(made)()
    assert made.at_once >= 1
    assert callable(made.executor)
    statistics = [build(cfg[statistic]) for statistic in STATISTICS]
    assert [made.name for made in statistics] == [*STATISTICS]
    assert [made == type(made)() for made in statistics] == [True] * len(statistics)


def test_every_experiment_is_built_and_has_its_own_run_folder():
    folders = []
    for experiment in choices("experiment"):
        cfg = composed("train", [f"experiment={experiment}"], return_hydra_config=True)
        HydraConfig.instance().set_config(cfg)
        folders.append(cfg.run_dir)
        spec = plain(cfg.model)
        net = build_model(spec, needed_task(spec, build(cfg.task)), Grid.regular(17, 24))
        assert next(net.parameters(), None) is not None or isinstance(net, EMOS)
        assert isinstance(build(cfg.trainer), TrainerOptions)
        assert isinstance(build(cfg.data.split), Split)
        assert callable(build(cfg.loss))
        assert callable(build(cfg.data.archive).check_available)
    assert "runs/ens10_unet_t2m" in folders
    assert len(set(folders)) == len(folders)


@pytest.mark.parametrize("verb", ["prepare", "train", "evaluate", "correct"])
def test_a_verb_writes_only_into_its_run_folder(verb):
    cfg = composed(verb, ["+run_dir=x"] if verb == "correct" else ["run_dir=x"], return_hydra_config=True)
    assert (cfg.hydra.run.dir, cfg.hydra.output_subdir) == (".", None)


def test_a_command_composes_its_options_once(command, tmp_path):
    """It takes half a second, and is needed before the verb is imported and when it runs."""
    before = HydraConfig.instance().cfg
    with patch("conf.hydra_command.compose", wraps=compose) as composing:
        assert command(tmp_path, "evaluate", "correctors={unet: none}", *YEARS).code == 2
    assert composing.call_count == 1
    assert HydraConfig.instance().cfg is before


def test_only_user_errors_are_explained():
    assert explain(ZeroDivisionError("our bug")) is None
    wrapped = RuntimeError("wrapped by a library")
    wrapped.__cause__ = InputError("the file is truncated")
    assert str(explain(wrapped)) == "the file is truncated"


@pytest.mark.parametrize(
    ("line", "sentence"),
    [
        ("prepare pathh=here", "there is no option pathh; did you mean path?"),
        ("train model=unett", f"there is no model unett; choose one of {GROUPS['model'][0]}, "),
        ("train experiment=null", "a group of options (data, task, model, "),
        ("train experiment=ens10", "there is no experiment ens10; choose one of deep_weather, "),
        ("train trainer.rate.rising=0.1", "there is no option trainer.rate"),
        (
            "train 'trainer.optimizer={_target_: torch.optim.Adamw}'",
            "trainer.optimizer: torch.optim.Adamw does not exist; did you mean torch.optim.AdamW?",
        ),
        ("train 'trainer.lightning={gpus: 2}'", "trainer.lightning: Lightning's Trainer has no flag 'gpus'; "),
        ("train trainer.epochs=three", "trainer.epochs must be a whole number of at least 1, got 'three'"),
        ("train data=grib", "option data.split.train has no value; give it as data.split.train="),
        ("correct corrector=none.safetensors input=a output=b", "there is no corrector none.safetensors"),
    ],
)
def test_a_wrong_command_is_one_error_line(line, sentence, tmp_path, command):
    ended = command(tmp_path, *shlex.split(line))
    assert ended.code == 2, ended.stderr
    (error,) = ended.stderr.splitlines()
    assert error.startswith(f"error: {sentence}")
