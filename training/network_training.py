"""Descent: a corrector is trained step by step, by Lightning, and keeps the weights that the validation years like."""

from __future__ import annotations

import copy
import logging
import math
import pickle
import warnings
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import pytorch_lightning as pl
import torch
from lightning_fabric.utilities import move_data_to_device
from pytorch_lightning.callbacks import EarlyStopping
from pytorch_lightning.loggers import Logger, TensorBoardLogger
from pytorch_lightning.profilers import Profiler
from pytorch_lightning.utilities.exceptions import MisconfigurationException
from torch import nn

from data_pipeline.common.errors import InputError, InterruptedRunError
from data_pipeline.sample import Sample
from models.parallel.mesh import Mesh
from training.activation_checkpointing import checkpoint_activations
from training.checkpoints import Checkpoints
from training.correction_module import CorrectionModule
from training.datamodule import TrainingData
from training.history import History
from training.loss import CRPS
from training.mesh_strategy import mesh_trainer_flags
from training.run_folder import CURVES
from training.specs import make
from training.trainer_options import TrainerOptions
from training.weight_average import Average, validated

WARNINGS = (
    "does not have many workers",
    "Checkpoint directory",
    "log_every_n",
    "LeafSpec",
    "sync_dist",
    "The `srun`",
    "in eval mode at the start",
)
"""Of Lightning and PyTorch, on what is meant to be as it is."""


def train_network(module: CorrectionModule, data: TrainingData, run_dir: Path) -> torch.device:
    """Train by gradient descent and leave the best weights in `module`; goes on from the last checkpoint.

    The module is left on the device of the training, which is returned.
    """
    schedule, mesh = module.schedule, module.mesh
    for noisy in ("pytorch_lightning.utilities.rank_zero", "pytorch_lightning.accelerators.cuda"):
        logging.getLogger(noisy).setLevel(logging.WARNING)
    for expected in WARNINGS:
        warnings.filterwarnings("ignore", message=f".*{expected}")
    set_matmul_precision(schedule.matmul_precision)
    checkpoints = Checkpoints(run_dir / "checkpoints", schedule.checkpoint_minutes, mesh)
    trainer = make_trainer(schedule, mesh, checkpoints, run_dir)
    device = trainer.strategy.root_device
    resumed = mesh.run_on_first(checkpoints.last.exists)
    if resumed:
        mesh.print(f"going on from {checkpoints.last}")
    # What is trained may be in parts; what is kept is whole.
    trained = copy.deepcopy(module)
    if schedule.activation_checkpointing:
        checkpoint_activations(trained.corrector.model)
    if schedule.compile:
        compile_(trained.corrector.model, device, mesh, schedule.sharded)
    for batches in (data.train_batches, data.val_batches):
        batches.pin = device.type == "cuda"
    try:
        with checkpoints.stopping_gently():
            trainer.fit(
                trained,
                data.train_batches,
                data.val_batches,
                ckpt_path=str(checkpoints.last) if resumed else None,
                weights_only=True,
            )
    except SystemExit:
        # So Lightning ends after it has caught an interrupt.
        if not trainer.interrupted:
            raise
        raise InterruptedRunError(
            f"interrupted in epoch {trainer.current_epoch + 1}; run the same command again to go on from there"
        ) from None
    except MisconfigurationException as error:
        raise InputError(f"Lightning's Trainer cannot run with these options of trainer: {error}") from error
    except pickle.UnpicklingError as error:
        raise InputError(
            f"{checkpoints.last} holds more than tensors and numbers, which a callback or scheduler of trainer has put "
            "there, and is not read; leave that one out and start with another run_dir"
        ) from error
    # Left on the CPU, the validation of what was trained on a GPU would take longer than the training.
    module.to(device)
    if mesh.run_on_first(checkpoints.best.exists):
        module.load_state_dict(validated(torch.load(checkpoints.best, weights_only=True, map_location=device)))
    if warning := check_validation_losses(checkpoints.start, checkpoints.lowest, checkpoints.latest):
        mesh.print(f"warning: {warning}")
    return device


def check_validation_losses(start: float, lowest: float, latest: float) -> str:
    """Return a sentence about a training that went badly, or nothing; refuse one that diverged at once.

    The arguments are the validation losses of the start, of the best weights (the start among them) and of the last
    epoch.
    """
    remedy = "a lower trainer.learning_rate or trainer.gradient_clip may help"
    if lowest < start:
        return "" if math.isfinite(latest) else f"the validation loss became {latest}, and an earlier epoch is kept"
    if not latest <= 2 * start:
        raise InputError(
            f"training diverged: the validation loss went from {start:.4g} to {latest:.4g}, and no epoch was better "
            f"than the start, so no corrector is saved; {remedy} (in another run_dir)"
        )
    return (
        f"no epoch has a lower validation loss than the start ({start:.4g}, last epoch {latest:.4g}), so the corrector "
        f"is saved as it was before training; {remedy}"
    )


def make_trainer(schedule: TrainerOptions, mesh: Mesh, checkpoints: Checkpoints, run_dir: Path) -> pl.Trainer:
    """Return Lightning's Trainer with the project's callbacks and what the schedule names besides."""
    stopping = EarlyStopping("val_loss", patience=schedule.patience, stopping_threshold=schedule.early_stop_below)
    averages = [Average(schedule.ema_decay)] if schedule.ema_decay else []
    callbacks = [
        make(f"trainer.callbacks[{index}]", spec, pl.Callback) for index, spec in enumerate(schedule.callbacks)
    ]
    flags = {name: _made(f"trainer.lightning.{name}", value) for name, value in (schedule.lightning or {}).items()}
    silent = {"enable_progress_bar": False, "enable_model_summary": False, "log_every_n_steps": 1}
    try:
        trainer = pl.Trainer(
            max_epochs=schedule.epochs, accelerator=schedule.accelerator, **mesh_trainer_flags(mesh, schedule),
            precision=schedule.precision, gradient_clip_val=schedule.gradient_clip,
            accumulate_grad_batches=schedule.accumulate_grad_batches, benchmark=schedule.cudnn_benchmark,
            callbacks=[checkpoints, stopping, *averages, *callbacks, History(run_dir / "metrics.csv")],
            logger=_loggers(schedule, run_dir), profiler=_profiler(schedule, run_dir),
            default_root_dir=run_dir, num_sanity_val_steps=-1, **(silent | flags),
        )  # fmt: skip
    except (MisconfigurationException, RuntimeError, TypeError, ValueError) as error:
        asked = f"trainer.accelerator={schedule.accelerator} with precision={schedule.precision}"
        asked += f" and lightning={dict(schedule.lightning)}" if schedule.lightning else ""
        raise InputError(f"{asked} cannot be had here: {error}") from None
    disable_sigterm_broadcast(trainer)
    return trainer


def disable_sigterm_broadcast(trainer: pl.Trainer) -> None:
    """Keep Lightning from asking all ranks before every step whether one has got SIGTERM.

    It would wait for the GPU each time; `Checkpoints` asks in memory of the CPU. The name is private: a test holds it
    to the versions of Lightning that have it.
    """
    trainer.fit_loop.epoch_loop._broadcast_sigterm_tensor = lambda: None  # type: ignore[method-assign]


def set_matmul_precision(precision: str) -> None:
    """Set how many digits of float32 GPUs multiply: all, or with `high` and `medium` those of TF32 and bfloat16.

    cuDNN's convolutions follow: by PyTorch's default they would be in TF32, and float32 would not be what it says.
    """
    torch.set_float32_matmul_precision(precision)
    torch.backends.cudnn.allow_tf32 = precision != "highest"


def _loggers(schedule: TrainerOptions, run_dir: Path) -> list[Logger]:
    if schedule.loggers is None:
        return [TensorBoardLogger(run_dir, name=CURVES, version="")]
    return [
        make(f"trainer.loggers[{index}]", spec, Logger, given={"save_dir": str(run_dir)})
        for index, spec in enumerate(schedule.loggers)
    ]


def _profiler(schedule: TrainerOptions, run_dir: Path) -> Profiler | str | None:
    if not isinstance(schedule.profiler, Mapping):
        return schedule.profiler
    profiler: Profiler = make("trainer.profiler", schedule.profiler, Profiler, given={"dirpath": str(run_dir)})
    return profiler


def _made(option: str, value: Any) -> Any:
    """Return the value of a flag, with objects in place of specs."""
    if isinstance(value, list):
        return [_made(option, inner) for inner in value]
    return make(option, value, object) if isinstance(value, Mapping) and "_target_" in value else value


def compile_(model: nn.Module, device: torch.device, mesh: Mesh, sharded: bool) -> None:
    """Let PyTorch compile a model when it is first used, if it can."""
    if mesh.tiles > 1 or sharded:
        raise InputError(
            "trainer.compile=true may change the order in which ranks talk to each other; share batches only "
            "(trainer.mesh=[N,1], trainer.sharded=false), or set it to false"
        )
    # What it does not compile it says at length.
    logging.getLogger("torch._dynamo").setLevel(logging.ERROR)
    try:
        torch.compile(lambda x: x + 1)(torch.zeros(2, device=device))
    except Exception as error:  # one for each backend and each thing that it may lack
        why = str(error).strip().splitlines()[0]
        raise InputError(
            f"trainer.compile=true needs a compiler that works, g++ for CPUs and Triton for GPUs ({why}); "
            "install it, or set trainer.compile=false"
        ) from None
    model.compile()


@torch.no_grad()
def score(module: CorrectionModule, batches: Iterable[Sample], device: torch.device | str = "cpu") -> float:
    """Return the area-weighted CRPS in normalised units over a whole data set, computed on `device`.

    A data set is refused that says nothing about it.
    """
    module.to(device)
    sums = torch.zeros(2, dtype=torch.float64, device=device)
    for batch in batches:
        sums += torch.stack(module.weighted(CRPS(), move_data_to_device(batch, module.device))).double()
    total, weight = module.mesh.sum(sums).tolist()
    if weight == 0:
        raise InputError(
            "no cell of the validation years has both an analysis and all members of the ensemble; "
            "check data.archive.analysis and data.split.val"
        )
    if not math.isfinite(total):
        raise InputError(f"the validation CRPS is {total / weight}: the model's forecasts are not finite numbers")
    return total / weight
