"""The function `fit` trains a corrector on xarray datasets, as `deepweather train` does on files."""

from __future__ import annotations

import logging
import random
import shutil
import tempfile
import time
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
import torch
import xarray as xr

from data_pipeline.common.checks import construct
from data_pipeline.common.cost_meter import CostMeter
from data_pipeline.common.errors import InputError, InterruptedRunError
from data_pipeline.common.files import CACHE_ERRORS, cache_folder, lock_folder
from data_pipeline.common.identity import fingerprint_of
from data_pipeline.common.messages import Level, subscribed
from data_pipeline.common.named_options import described
from data_pipeline.grids.station_cells import StationMethod
from data_pipeline.prefetch.budget import machine_budget
from data_pipeline.protocols import MissingPolicy
from data_pipeline.sources.array_source import ArraySource
from data_pipeline.split import Split
from data_pipeline.task import Task
from data_pipeline.truth_checks import TruthChecks
from models.corrector import Corrector, needed_task
from models.laws import with_laws
from models.parallel.mesh import Mesh
from training.auto import is_auto, train_auto
from training.noise_fit import add_noise, check_noise
from training.optimization.loss import Loss
from training.optimization.specs import build_spec
from training.run.run_folder import RUN_FORMAT
from training.run.trainer_options import TrainerOptions
from training.training_run import Run, TrainingPlan, train_corrector

SECONDS_BETWEEN_CALLS = 0.5
"""Least time between two calls of `progress` for one `Progress`. Its last step is always passed on."""
COMMAND_ONLY = {
    "mesh", "sharded", "shard_ranks", "compression", "timeout_minutes", "local_steps", "synchronous_fraction",
    "pruning", "checkpoint_minutes",
}  # fmt: skip
"""Options of `trainer` that need several processes or a folder of the run."""
OPTION_GROUPS = ("data.split", "data.archive", "data.cache", "trainer")
"""Groups of options of the command that are arguments of `fit`, whose names errors give without the group."""


def fit(
    model: str | Mapping[str, Any],
    ensemble: xr.Dataset,
    truth: xr.Dataset,
    *,
    task: Task,
    train: Sequence[int | str],
    val: Sequence[int | str] | None = None,
    test: Sequence[int | str] | None = None,
    gap_days: int | None = None,
    static: xr.Dataset | None = None,
    names: Mapping[str, str] | None = None,
    members: int | None = None,
    missing: MissingPolicy = "error",
    truth_checks: TruthChecks = "report",
    station_cells: StationMethod | None = None,
    loss: str | Mapping[str, Any] | Loss = "crps",
    epochs: int = 15,
    batch_size: int = 8,
    learning_rate: float = 2e-3,
    seed: int = 0,
    noise: bool = False,
    progress: Callable[[object], None] | None = None,
    **trainer: Any,
) -> Corrector:
    """Return a corrector of the raw `ensemble`, fitted to the `truth`.

    `model` is a name of `conf/model`, such as `emos` or `unet`, or such a name with options:
    `{"model": "unet", "width": 8}`. `ensemble` has the dimensions init_time, lead_time, number, latitude, longitude,
    and level (hPa) for variables aloft; `truth` has time, latitude, longitude. `open_ensemble` and `open_analysis`
    return files in this form. Variables have GRIB names, unless `names` maps the names in the datasets to them:
    `{"t2m": "2t"}`; each has the attribute `units`. Dask datasets are read forecast by forecast. `static` has the
    static fields of the task; by default they are variables of `ensemble` without a time dimension.

    `train` and `val` are the first and last year, or date, of training and validation; a forecast belongs to the period
    of its valid time. Networks need `val`: the weights with the lowest validation loss are kept. `test` is left out of
    both. `missing` says what happens to a forecast that has a field without any value: it raises an `error`, keeps its
    missing values (`mask`), or is left out (`drop`). `truth_checks` says what happens to implausible values of the
    truth: they are only reported (`report`), are missing (`mask`), or raise an `error`. `members` limits each forecast
    to its first members. With an `ensemble` on a grid and a `truth` at stations, the corrector is one of these
    stations; `station_cells` (`nearest`, `land`, `height`, `bilinear`) says which cells of the grid give their
    forecasts. `loss` is a name of `conf/loss`, or a `training.optimization.loss.Loss`. With `noise`,
    the corrector gets the noise that `correct(members="noise")` draws from. `trainer` holds further options
    of `conf/trainer`, such as `patience` or `accelerator`.

    `progress`, such as `print`, is called with each line about the run, and with each step of a `Progress`, whose text
    is one line. An exception that `progress` raises ends the fit. Forecasts that are left out, regressions that cannot
    be fitted and a model that is worse than the raw ensemble give a `UserWarning`; `notes` of the corrector has all
    lines.

    The corrector equals the result of `deepweather train` with the same data and options, bit for bit. An interrupted
    fit (Ctrl-C, the end of the process) keeps its checkpoints, and the next call with the same arguments continues from
    them. Raises `InputError`.
    """
    if not isinstance(task, Task):
        raise InputError(f"task must be a Task, got {type(task).__name__}; make it with Task(name=..., inputs=[...])")
    if unknown := sorted(COMMAND_ONLY & {*trainer}):
        raise InputError(f"fit has no option {unknown[0]}: it trains in this process; use deepweather train")
    messages = _Messages(progress)
    try:
        spec = with_laws(described("model", model), task)
        own = needed_task(spec, task)
        _check_periods(own)
        own_options = {"epochs": epochs, "batch_size": batch_size, "learning_rate": learning_rate, "seed": seed}
        options = construct("fit", TrainerOptions, {"loggers": []} | trainer | own_options)
        with subscribed(messages):
            source = ArraySource(ensemble, truth, static, names, missing, truth_checks, station_cells)
        split = Split(train, val, test, gap_days=gap_days)
        check_noise(noise, split)
        budget = machine_budget()
        if _in_memory(ensemble) and _in_memory(truth):
            budget = replace(budget, memory_bytes=0)
        plan = TrainingPlan(
            spec, own, {name: source for name in ("train", "val") if name == "train" or split.validates}, split,
            _loss_of(loss), options, budget, members,
        )  # fmt: skip
        with (
            _unchanged_state(),
            subscribed(messages),
            _kept_if_interrupted(identity := _identity(plan, source.fingerprint)) as folder,
            CostMeter() as meter,
        ):
            grid = source.ensemble_fields(own.inputs, own.lead_times).grid
            run = Run(folder, identity, source.fingerprint, grid)
            corrector = (train_auto if is_auto(plan) else train_corrector)(
                plan, run, Mesh.single(), meter, lambda found: None
            )
            assert corrector is not None, "only TrainerOptions.pruning ends a run without a corrector"
            if noise:
                add_noise(corrector, plan)
    except (InterruptedRunError, KeyboardInterrupt):
        raise KeyboardInterrupt("the fit was interrupted; call it with the same arguments to continue it") from None
    except InputError as error:
        text = str(error)
        for group in OPTION_GROUPS:
            text = text.replace(f"{group}.", "")
        raise type(error)(text.replace("data.split", "train and val")) from error.__cause__
    corrector.provenance["made"] = datetime.now(UTC).isoformat(timespec="seconds")
    for warning in dict.fromkeys(messages.warnings):
        text = warning.removeprefix("warning: ").replace("data.archive.truth", "truth")
        warnings.warn(text, UserWarning, stacklevel=2)
    corrector.notes = messages.lines
    return corrector


class _Messages:
    """Keeps the lines of a run, and passes lines and steps on to `progress`.

    Of the steps of one work, it passes one on in `SECONDS_BETWEEN_CALLS`, and the last.
    """

    def __init__(self, progress: Callable[[object], None] | None) -> None:
        self._progress, self._last = progress, 0.0
        self.lines: list[str] = []
        self.warnings: list[str] = []

    def __call__(self, level: Level, message: Any) -> None:
        if level != "progress":
            self.lines += message.splitlines()
            self.warnings += [message] if level == "warning" else []
        elif message.done != message.total and time.monotonic() - self._last < SECONDS_BETWEEN_CALLS:
            return
        else:
            self._last = time.monotonic()
        if self._progress:
            self._progress(message)


def _check_periods(task: Task) -> None:
    for target in task.targets:
        if target.processing != "instant" and not target.period:
            raise InputError(
                f"the length of the intervals of {target} is not part of a dataset; write it in the task, such as "
                f"{replace(target, period=24)}, and open the files with this variable"
            )


def _loss_of(loss: str | Mapping[str, Any] | Loss) -> Loss:
    if isinstance(loss, Loss):
        return loss
    found: Loss = build_spec("loss", described("loss", loss), Loss)
    return found


def _identity(plan: TrainingPlan, fingerprint: str) -> str:
    """Return a hash of everything on which the corrector depends, as `run_folder.claim` does for a command."""
    decisive = [plan.spec, plan.task.to_json(), repr(plan.split), repr(plan.loss), repr(plan.options), plan.members]
    return fingerprint_of(*decisive, fingerprint, RUN_FORMAT, version("deepweather"))


@contextmanager
def _kept_if_interrupted(identity: str) -> Iterator[Path]:
    """Yield the folder of a fit. An interrupted fit leaves it behind, and the next fit of this identity gets it again.

    A fit that runs beside another one of its identity, or cannot write there, gets a temporary folder.
    """
    with ExitStack() as stack:
        try:
            folder = cache_folder("fits") / identity
            folder.mkdir(parents=True, exist_ok=True)
            stack.enter_context(lock_folder(folder, folder / "checkpoints"))
        except (InputError, *CACHE_ERRORS):
            folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="deepweather-")))
        try:
            yield folder
        except (InterruptedRunError, KeyboardInterrupt):
            raise
        except BaseException:
            shutil.rmtree(folder, ignore_errors=True)
            raise
        shutil.rmtree(folder, ignore_errors=True)


def _in_memory(dataset: xr.Dataset) -> bool:
    return all(isinstance(variable._data, np.ndarray) for variable in dataset.variables.values() if variable.ndim > 1)


@contextmanager
def _unchanged_state() -> Iterator[None]:
    """Restore the random generators, warning filters and log levels, which training changes."""
    loggers = [logging.getLogger(f"pytorch_lightning.{name}") for name in ("utilities.rank_zero", "accelerators.cuda")]
    levels = [logger.level for logger in loggers]
    generators = random.getstate(), np.random.get_state()  # noqa: NPY002
    with torch.random.fork_rng(), warnings.catch_warnings():
        try:
            yield
        finally:
            random.setstate(generators[0])
            np.random.set_state(generators[1])  # noqa: NPY002
            for logger, level in zip(loggers, levels, strict=True):
                logger.setLevel(level)
