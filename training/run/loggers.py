"""Loggers of a training run: TensorBoard, MLflow and Weights & Biases by name, others by `_target_`.

    trainer.loggers: [tensorboard, wandb]

A named logger is set up for the run folder, and a resumed run continues its entry: the identifiers that MLflow and
Weights & Biases gave to the entry are in `loggers.json` in the run folder.
"""

from __future__ import annotations

import json
import os
import uuid
from collections.abc import Mapping, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import yaml
from pytorch_lightning.loggers import Logger, MLFlowLogger, TensorBoardLogger, WandbLogger

from data_pipeline.common.checks import check_choice
from data_pipeline.common.errors import InputError
from data_pipeline.common.files import write_text
from training.optimization.specs import build_spec, check_spec
from training.run.run_folder import CURVES, LOGGERS, MARKER

NAMED_LOGGERS = {"tensorboard": "tensorboard", "mlflow": "mlflow", "wandb": "wandb"}
"""The package that each named logger needs."""
PROJECT = "deepweather"
"""Project of Weights & Biases, and experiment of MLflow, of all runs."""


def check_logger(option: str, logger: Any) -> None:
    """Raise an `InputError` for an unknown name, a missing package, or a wrong `_target_`."""
    if not isinstance(logger, str):
        check_spec(option, logger, Logger, given={"save_dir": None})
        return
    check_choice(option, logger, NAMED_LOGGERS)
    if find_spec(NAMED_LOGGERS[logger]) is None:
        raise InputError(
            f"{option}={logger} needs the package {NAMED_LOGGERS[logger]}, which is not installed; run: pip install "
            f"{NAMED_LOGGERS[logger]}, or leave out {logger}"
        )


def make_loggers(loggers: Sequence[Any], run_dir: Path, first: bool) -> list[Logger]:
    """Return the loggers; on other ranks than the `first`, Lightning's loggers do nothing."""
    made = []
    for index, logger in enumerate(loggers):
        option = f"trainer.loggers[{index}]"
        if isinstance(logger, str):
            made.append(_named_logger(option, logger, run_dir, first))
        else:
            made.append(build_spec(option, logger, Logger, given={"save_dir": str(run_dir)}))
    return made


def _named_logger(option: str, name: str, run_dir: Path, first: bool) -> Logger:
    if name == "tensorboard":
        return TensorBoardLogger(run_dir, name=CURVES, version="")
    ids = _read_json(run_dir / LOGGERS)
    try:
        made = _mlflow(run_dir, ids.get(name)) if name == "mlflow" else _wandb(run_dir, ids.get(name))
        if first:
            made.log_hyperparams(_options(run_dir))
        identifier = made.run_id if isinstance(made, MLFlowLogger) else made.version
    except Exception as error:  # their servers and accounts fail in many ways
        raise InputError(
            f"{option}: {name} cannot begin or continue the entry of this run: {error or type(error).__name__}"
        ) from error
    if first and identifier is not None and ids.get(name) != identifier:
        write_text(run_dir / LOGGERS, json.dumps(ids | {name: identifier}))
    return made


def _mlflow(run_dir: Path, identifier: str | None) -> MLFlowLogger:
    """Return a logger to the server of `MLFLOW_TRACKING_URI`, else to files in the run folder.

    MLflow 3.17 prefers a database, which needs a file system with locks; it writes files where the variable allows it.
    """
    if not os.environ.get("MLFLOW_TRACKING_URI"):
        os.environ.setdefault("MLFLOW_ALLOW_FILE_STORE", "true")
    return MLFlowLogger(PROJECT, run_name=run_dir.name, save_dir=str(run_dir / "mlruns"), run_id=identifier)


def _wandb(run_dir: Path, identifier: str | None) -> WandbLogger:
    """Return a logger whose identifier is made here: a run that is killed early must find its entry again."""
    identifier = identifier or uuid.uuid4().hex[:12]
    return WandbLogger(run_dir.name, run_dir, id=identifier, project=PROJECT, resume="allow")


def _options(run_dir: Path) -> dict[str, Any]:
    """Return the options of the run, for the loggers' tables of runs."""
    file = run_dir / MARKER
    found = yaml.safe_load(file.read_text()) if file.exists() else {}
    return dict(found) if isinstance(found, Mapping) else {}


def _read_json(file: Path) -> dict[str, str]:
    try:
        found = json.loads(file.read_text())
    except (OSError, ValueError):
        return {}
    return found if isinstance(found, dict) else {}
