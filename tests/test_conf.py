"""Every file under conf/ is composed and built; a wrong command prints one error line."""

from pathlib import Path

import pytest
from hydra import compose, initialize_config_dir
from hydra.core.hydra_config import HydraConfig

from conf import build, explain, plain
from data_pipeline.archive import Archive
from data_pipeline.common.errors import InputError
from data_pipeline.grid import Grid
from data_pipeline.prefetch.budget import machine_budget
from data_pipeline.split import Split
from data_pipeline.statistics import STATISTICS
from data_pipeline.synthetic.heat import Heat
from data_pipeline.task import Task
from models.corrector import build_model, needed_task
from models.statistical.emos import EMOS
from training.trainer_options import TrainerOptions

ROOT = Path(__file__).parents[1]
CONF = ROOT / "conf"
YEARS = ["data.split.train=[2000,2001]", "data.split.val=[2002,2002]", "data.split.test=[2003,2003]"]


def choices(group):
    return sorted(path.stem for path in (CONF / group).glob("*.yaml"))


def compose_config(verb, *overrides):
    with initialize_config_dir(str(CONF), version_base="1.3"):
        return compose(verb, list(overrides))


def test_every_group_has_a_test_in_this_file():
    """A new group needs a test below."""
    assert {path.name for path in CONF.iterdir() if path.is_dir() and path.name[0] != "_"} == {
        "cache", "cluster", "data", "experiment", "loss", "task", "model", "trainer",
    }  # fmt: skip


@pytest.mark.parametrize("data", choices("data"))
def test_every_data_source_is_built(data):
    cfg = compose_config("train", f"data={data}", *YEARS)
    assert isinstance(build(cfg.data.archive), Archive | Heat)
    assert isinstance(build(cfg.data.split), Split)
    if "generator" in cfg.data:
        generator = build(cfg.data.generator)
        assert callable(generator.plan)
        assert callable(generator.prepare)


@pytest.mark.parametrize("cluster", choices("cluster"))
def test_every_cluster_is_built(cluster):
    made = build(compose_config("prepare", f"cluster={cluster}", "run_dir=.").cluster)
    assert made == type(made)()  # a default that is written twice must not differ
    assert made.at_once >= 1
    assert callable(made.executor)


@pytest.mark.parametrize("statistic", STATISTICS)
def test_every_statistic_is_built(statistic):
    made = build(compose_config("prepare")[statistic])
    assert made.name == statistic
    assert made == type(made)()


@pytest.mark.parametrize("task", choices("task"))
@pytest.mark.parametrize("data", choices("data"))
def test_every_task_is_built(task, data):
    cfg = compose_config("train", f"task={task}", f"data={data}", *YEARS)
    made = build(cfg.task)
    assert isinstance(made, Task)
    assert made.name == task
    assert list(made.static) == plain(cfg.data.static)


@pytest.mark.parametrize("model", choices("model"))
def test_every_model_is_built(model):
    cfg = compose_config("train", f"model={model}")
    spec = plain(cfg.model)
    made = build_model(spec, build(cfg.task), Grid.regular(17, 24))
    assert f"{type(made).__module__}.{type(made).__name__}" == spec["_target_"]


@pytest.mark.parametrize("trainer", choices("trainer"))
def test_every_trainer_is_built(trainer):
    assert isinstance(build(compose_config("train", f"trainer={trainer}").trainer), TrainerOptions)


@pytest.mark.parametrize("loss", choices("loss"))
def test_every_loss_is_built_and_its_defaults_are_those_of_its_class(loss):
    needed = {"threshold": {"threshold": 300.0}, "eecrps": {"climate": "efi.nc"}}.get(loss, {})
    made = build(
        compose_config("train", f"loss={loss}", *(f"loss.{name}={value}" for name, value in needed.items())).loss
    )
    assert made == type(made)(**needed)
    assert callable(made) or callable(made.on)


@pytest.mark.parametrize("experiment", choices("experiment"))
def test_every_experiment_is_built(experiment):
    cfg = compose_config("train", f"experiment={experiment}")
    task = build(cfg.task)
    net = build_model(plain(cfg.model), needed_task(plain(cfg.model), task), Grid.regular(33, 64))
    assert next(net.parameters(), None) is not None or isinstance(net, EMOS)
    assert isinstance(build(cfg.trainer), TrainerOptions)
    assert isinstance(build(cfg.data.split), Split)
    assert callable(build(cfg.loss))
    assert callable(build(cfg.data.archive).check_available)


def test_no_two_experiments_share_a_run_folder():
    folders = []
    for experiment in choices("experiment"):
        with initialize_config_dir(str(CONF), version_base="1.3"):
            cfg = compose("train", [f"experiment={experiment}"], return_hydra_config=True)
        HydraConfig.instance().set_config(cfg)
        folders.append(cfg.run_dir)
    assert "runs/ens10_t2m_unet" in folders
    assert len(set(folders)) == len(folders)


def test_the_shipped_defaults_are_those_of_the_constructors():
    """A default that is written twice must not differ."""
    cfg = compose_config("train")
    assert build(cfg.trainer) == TrainerOptions()
    assert build(cfg.data.cache) == machine_budget()


@pytest.mark.parametrize("verb", ["prepare", "train", "evaluate", "correct"])
def test_a_verb_writes_only_into_its_run_folder(verb):
    with initialize_config_dir(str(CONF), version_base="1.3"):
        cfg = compose(verb, ["+run_dir=x"] if verb == "correct" else ["run_dir=x"], return_hydra_config=True)
    HydraConfig.instance().set_config(cfg)
    assert cfg.hydra.run.dir == "."
    assert cfg.hydra.output_subdir is None


def test_only_user_errors_are_explained():
    assert explain(ZeroDivisionError("our bug")) is None
    wrapped = RuntimeError("wrapped by a library")
    wrapped.__cause__ = InputError("the file is truncated")
    assert str(explain(wrapped)) == "the file is truncated"


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["prepare", "pathh=here"], "error: there is no option pathh; did you mean path?"),
        (["train", "trianer.epochs=3"], "error: there is no option trianer; did you mean trainer?"),
        (["train", "trainer.epoch=3"], "error: there is no option trainer.epoch; did you mean trainer.epochs?"),
        (
            ["train", "model=unett"],
            f"error: there is no model unett; choose one of {choices('model')[0]}, ",
        ),
        (
            ["train", "experiment=null"],
            "error: a group of options (data, task, model, ",
        ),
        (["train", "experiment=ens10"], "error: there is no experiment ens10; choose one of deep_weather_t850, "),
        (["train", "trainer/rate=cosine"], "error: there is no option trainer/rate; did you mean trainer?"),
        (["train", "trainer.rate.rising=0.1"], "error: there is no option trainer.rate"),
        (
            ["train", "trainer.optimizer={_target_: torch.optim.Adamw}"],
            "error: trainer.optimizer: there is no torch.optim.Adamw; did you mean torch.optim.AdamW?",
        ),
        (
            ["train", "trainer.lightning={gpus: 2}"],
            "error: trainer.lightning: Lightning's Trainer has no flag 'gpus'; ",
        ),
        (["train", "trainer.epochs=three"], "error: trainer.epochs must be a whole number of at least 1, got 'three'"),
        (["train", "task.targets=[2tt]"], "error: task t2m: add the target 2tt to the inputs"),
        (["train", "data.split.val=[2010,2015]"], "error: data.split.val shares 2010 with another split"),
        (["train", "data=grib"], "error: option data.split.train has no value; give it as data.split.train="),
        (["train", "model=[}"], "error: "),
        (["correct", "input=a", "output=b"], "error: option corrector has no value; give it as corrector="),
        (
            ["correct", "corrector=none.safetensors", "input=a", "output=b"],
            "error: there is no corrector none.safetensors",
        ),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_a_wrong_command_is_one_error_line(arguments, sentence, tmp_path, command):
    ended = command(tmp_path, *arguments)
    assert ended.code == 2, ended.stderr
    (line,) = ended.stderr.splitlines()
    assert line.startswith(sentence)


def test_path_and_store_need_no_prefix(tmp_path, command):
    ended = command(tmp_path, "train", "data=ens10", "path=over/there", "store=near/here", "--cfg", "job")
    assert ended.code == 0
    assert "  path: over/there\n" in ended.stdout
    assert "  store: near/here\n" in ended.stdout
