"""Sweeps (`deepweather VERB -m`) as plugins of Hydra: which runs there are, and where they run.

A sweeper turns the words of the command line into runs, a launcher runs them. Sweepers of other packages, such as
Optuna's, work with these launchers.
"""

from __future__ import annotations

import itertools
import math
import random
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any, cast

from hydra._internal.utils import get_args_parser
from hydra.core.config_store import ConfigStore
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import IntervalSweep, Override
from hydra.core.plugins import Plugins
from hydra.core.utils import JobReturn, JobStatus
from hydra.plugins.launcher import Launcher
from hydra.plugins.sweeper import Sweeper
from hydra.types import HydraContext, TaskFunction
from omegaconf import DictConfig, OmegaConf

from conf.command_line import default_options, format_value
from conf.jobs.job_options import MESHES, JobOptions, read_job_options
from conf.sweep_jobs import run_as_jobs
from conf.sweep_runs import DEFAULT_FOLDER, SweepRun, check_alone, run_here, run_name
from data_pipeline.common.checks import check_boolean, check_integer
from data_pipeline.common.errors import InputError
from models.parallel.mesh_shape import mesh_shape

PLUGINS = "hydra_plugins.deepweather"
"""Module name of these plugins: Hydra instantiates plugins of `hydra_plugins` only."""
DRAWS_PER_TRIAL = 100
"""Draws per run that is asked for. Options with few values may have fewer different runs; drawing then stops."""


class OptionSweeper(Sweeper):
    """Runs all combinations of the values on the command line, or `trials` random combinations."""

    __module__ = PLUGINS

    def __init__(self, trials: int | None, seed: int) -> None:
        if trials is not None:
            check_integer("hydra.sweeper.trials", trials, 1)
        check_integer("hydra.sweeper.seed", seed, 0)
        self.trials, self.seed = trials, seed

    def setup(self, *, hydra_context: HydraContext, task_function: TaskFunction, config: DictConfig) -> None:
        """Make the launcher that the options choose."""
        self.hydra_context, self.config = hydra_context, config
        self.launcher = Plugins.instance().instantiate_launcher(
            config=config, hydra_context=hydra_context, task_function=task_function
        )

    def sweep(self, arguments: list[str]) -> Sequence[JobReturn]:
        """Run the sweep that `arguments`, the options of the command line, describe."""
        assert self.hydra_context is not None
        assert self.launcher is not None
        overrides = OverridesParser.create(config_loader=self.hydra_context.config_loader).parse_overrides(arguments)
        if not any(override.is_sweep_override() for override in overrides):
            raise InputError("-m runs a sweep, and no option has several values; write trainer.seed=1,2, or no -m")
        runs = list(combinations(overrides)) if self.trials is None else draw_runs(overrides, self.trials, self.seed)
        self.validate_batch_is_legal(runs)
        return self.launcher.launch(runs, 0)


def combinations(overrides: Sequence[Override]) -> Iterator[list[str]]:
    """Yield the words of each combination of values; the last option varies fastest."""
    for override in overrides:
        if override.is_interval_sweep():
            raise InputError(
                f"{override.key_or_group} has an interval, of which there are endless values; set how many are drawn "
                "with hydra.sweeper.trials=N"
            )
    yield from map(list, itertools.product(*map(_words, overrides)))


def draw_runs(overrides: Sequence[Override], trials: int, seed: int) -> list[list[str]]:
    """Return the words of `trials` different random runs, fewer if there are fewer.

    Run k depends on k and the seed only, so that more trials extend a sweep. Values of `interval(a, b)` are uniform,
    those of `tag(log, interval(a, b))` uniform in their logarithm, both with four digits; `int(interval(a, b))` has
    whole numbers.
    """
    found: dict[tuple[str, ...], None] = {}
    for k in range(trials * DRAWS_PER_TRIAL):
        generator = random.Random(f"{seed} {k}")
        found[tuple(_draw(override, generator) for override in overrides)] = None
        if len(found) == trials:
            break
    return list(map(list, found))


def _words(override: Override) -> list[str]:
    if not override.is_sweep_override():
        return [str(override.input_line)]
    return [f"{override.get_key_element()}={value}" for value in override.sweep_string_iterator()]


def _draw(override: Override, generator: random.Random) -> str:
    if not override.is_interval_sweep():
        return generator.choice(_words(override))
    interval = override.value()
    assert isinstance(interval, IntervalSweep)
    low, high, logarithmic = interval.start, interval.end, "log" in interval.tags
    assert low is not None
    assert high is not None
    if not low < high or (logarithmic and low <= 0):
        raise InputError(
            f"{override.key_or_group}: the interval from {low:g} to {high:g} must have its lower end first"
            + (", greater than 0 for a logarithmic scale" if logarithmic else "")
        )
    whole = isinstance(low, int) and isinstance(high, int)
    if logarithmic:
        value = math.exp(generator.uniform(math.log(low), math.log(high)))
    else:
        value = generator.randint(int(low), int(high)) if whole else generator.uniform(low, high)
    return f"{override.get_key_element()}={round(value) if whole else f'{value:.4g}'}"


class RunLauncher(Launcher):
    """A launcher that starts each run as a command of its own; a subclass says where."""

    def setup(self, *, hydra_context: HydraContext, task_function: TaskFunction, config: DictConfig) -> None:
        """Keep the options of the command line and the name of the verb, from which the folders of the runs follow."""
        self.context, self.config, self.verb = hydra_context, config, str(config.hydra.job.config_name)

    def launch(self, job_overrides: Sequence[Sequence[str]], initial_job_idx: int) -> Sequence[JobReturn]:
        """Start all runs of the sweep; an error at the end names the failed runs."""
        check_alone()
        folder, runs = self.sweep_runs(job_overrides)
        if repeated := {run.name for run in runs if sum(run.name == other.name for other in runs) > 1}:
            raise InputError(f"the run {min(repeated)} is in the sweep twice; give each value once")
        self.run(runs, folder)
        return [JobReturn(overrides=list(run.varied), status=JobStatus.COMPLETED) for run in runs]

    def run(self, runs: Sequence[SweepRun], folder: Path) -> None:
        """Run all runs; raise a `FailedRunsError` at the end if some failed."""
        raise NotImplementedError

    def sweep_runs(self, job_overrides: Sequence[Sequence[str]]) -> tuple[Path, list[SweepRun]]:
        """Return the folder of the sweep, which `run_dir` names, and its runs, each with a folder in it."""
        parser = OverridesParser.create(config_loader=self.context.config_loader)
        words = cast(list[str], OmegaConf.to_container(self.config.hydra.overrides.task, resolve=False))
        given = parser.parse_overrides(words)
        fixed = {override.get_key_element() for override in given if not override.is_sweep_override()}
        folder = DEFAULT_FOLDER
        for override in given:
            if override.key_or_group == "run_dir":
                folder = str(override.value())
                if override.is_sweep_override() or "${" in folder:
                    raise InputError(
                        f"run_dir is the folder of the sweep, in which each run has its own folder; give one path, "
                        f"without values that vary, got {override.input_line}"
                    )
        runs = []
        for job in job_overrides:
            varied = tuple(word for word in job if word.partition("=")[0] not in fixed)
            place = Path(folder) / run_name(varied)
            own = [word for word in job if word.partition("=")[0] != "run_dir"]
            own += [f"run_dir={format_value(str(place))}"] if "run_dir" in self.config else []
            runs.append(SweepRun(varied, (self.verb, *_flags(), *own), place))
        return Path(folder), runs


class LocalLauncher(RunLauncher):
    """Starts the runs on this machine, `parallel` at a time."""

    __module__ = PLUGINS

    def __init__(self, parallel: int) -> None:
        check_integer("hydra.launcher.parallel", parallel, 1)
        self.parallel = parallel

    def run(self, runs: Sequence[SweepRun], folder: Path) -> None:
        """Run all runs; raise a `FailedRunsError` at the end if some failed."""
        run_here(runs, folder, self.parallel)


class SlurmLauncher(RunLauncher):
    """Submits the runs as tasks of job arrays, with the job file and the options of `deepweather submit`."""

    __module__ = PLUGINS

    def __init__(self, wait: bool, **options: Any) -> None:
        check_boolean("hydra.launcher.wait", wait)
        self.wait = wait

    def run(self, runs: Sequence[SweepRun], folder: Path) -> None:
        """Submit all runs; with `wait`, raise a `FailedRunsError` at the end if some failed."""
        run_as_jobs(runs, folder, self.job_options(), self.ranks, self.wait)

    def job_options(self) -> JobOptions:
        """Return the options of the jobs, from the command line, else the site file, else the defaults."""
        values = cast(dict[str, Any], OmegaConf.to_container(self.config.hydra.launcher, resolve=True))
        words = cast(list[str], OmegaConf.to_container(self.config.hydra.overrides.hydra, resolve=False))
        given = {word.lstrip("+").partition("=")[0].removeprefix("hydra.launcher.") for word in words}
        return read_job_options(default_options("submit"), values, given, self.verb)

    def ranks(self, run: SweepRun) -> int:
        """Return the number of ranks that a run asks for."""
        if (option := MESHES.get(self.verb)) is None:
            return 1
        words = list(run.words[1 + len(_flags()) :])
        shape = OmegaConf.select(self.context.config_loader.load_sweep_config(self.config, words), option)
        return math.prod(mesh_shape(list(shape) if isinstance(shape, Sequence) else shape, option))


def _flags() -> list[str]:
    """Return Hydra's flags of the command line, such as `--config-dir`, without those that make it a sweep."""
    words = get_args_parser().parse_args(sys.argv[1:]).overrides
    return [word for word in sys.argv[1:] if word not in words and word not in ("-m", "--multirun")]


def register() -> None:
    """Make these plugins known to Hydra; conf/shared/hydra.yaml chooses them.

    Hydra's own launcher runs all jobs in one process, and ends with the first job that fails.
    """
    # Hydra finds the classes by the name of their module.
    sys.modules.setdefault(PLUGINS.partition(".")[0], ModuleType(PLUGINS.partition(".")[0]))
    sys.modules[PLUGINS] = sys.modules[__name__]
    for plugin in (OptionSweeper, LocalLauncher, SlurmLauncher):
        Plugins.instance().register(plugin)
    store = ConfigStore.instance().store
    submit = default_options("submit")
    for group, name, kind, options in (
        ("sweeper", "deepweather", OptionSweeper, {"trials": None, "seed": 0}),
        ("launcher", "local", LocalLauncher, {"parallel": 1}),
        ("launcher", "slurm", SlurmLauncher, {"wait": True, **submit}),
    ):
        node = {"_target_": f"{PLUGINS}.{kind.__name__}", **options}
        store(group=f"hydra/{group}", name=name, node=node, provider="deepweather")
