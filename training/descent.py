"""Descent: a corrector is trained step by step, by Lightning, and keeps the weights that the validation years like."""

from __future__ import annotations

import copy
import logging
import math
import warnings
from collections.abc import Iterable
from pathlib import Path

import pytorch_lightning as pl
import torch
from pytorch_lightning.callbacks import EarlyStopping
from pytorch_lightning.loggers import TensorBoardLogger
from pytorch_lightning.utilities.exceptions import MisconfigurationException
from torch import nn

from data_pipeline.errors import InputError, InterruptedRunError
from data_pipeline.sample import Sample
from models.spatial.mesh import Mesh
from training.average import Average, validated
from training.checkpoints import Checkpoints
from training.data import Data
from training.history import History
from training.loss import CRPS
from training.module import CorrectionModule
from training.recompute import compute_twice
from training.resume import CURVES
from training.strategy import trainer_options

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


def descend(module: CorrectionModule, data: Data, run_dir: Path) -> None:
    """Train by gradient descent and leave the best weights in `module`; goes on from the last checkpoint."""
    schedule, mesh = module.schedule, module.mesh
    for noisy in ("pytorch_lightning.utilities.rank_zero", "pytorch_lightning.accelerators.cuda"):
        logging.getLogger(noisy).setLevel(logging.WARNING)
    for expected in WARNINGS:
        warnings.filterwarnings("ignore", message=f".*{expected}")
    checkpoints = Checkpoints(run_dir / "checkpoints", schedule.checkpoint_minutes, mesh)
    stopping = EarlyStopping("val_loss", patience=schedule.patience, stopping_threshold=schedule.enough)
    averages = [Average(schedule.ema)] if schedule.ema else []
    try:
        trainer = pl.Trainer(
            max_epochs=schedule.epochs, accelerator=schedule.accelerator, **trainer_options(mesh, schedule),
            precision=schedule.precision, gradient_clip_val=schedule.gradient_clip,
            callbacks=[checkpoints, stopping, *averages, History(run_dir / "metrics.csv")],
            logger=TensorBoardLogger(run_dir, name=CURVES, version=""),
            enable_progress_bar=False, enable_model_summary=False, num_sanity_val_steps=-1, log_every_n_steps=1,
        )  # fmt: skip
    except MisconfigurationException as error:
        asked = f"trainer.accelerator={schedule.accelerator} with precision={schedule.precision}"
        raise InputError(f"{asked} cannot be had here: {error}") from None
    resumed = mesh.once(checkpoints.last.exists)
    if resumed:
        mesh.say(f"going on from {checkpoints.last}")
    # What is trained may be in parts; what is kept is whole.
    trained = copy.deepcopy(module)
    if schedule.recompute:
        compute_twice(trained.corrector.model)
    if schedule.compile:
        compile_(trained.corrector.model, trainer.strategy.root_device, mesh, schedule.sharded)
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
    if mesh.once(checkpoints.best.exists):
        module.load_state_dict(validated(torch.load(checkpoints.best, weights_only=True, map_location="cpu")))
    if warning := judge(checkpoints.start, checkpoints.lowest, checkpoints.latest):
        mesh.say(f"warning: {warning}")


def judge(start: float, lowest: float, latest: float) -> str:
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
def score(module: CorrectionModule, batches: Iterable[Sample]) -> float:
    """Return the area-weighted CRPS in normalised units over a whole data set; refuse one that says nothing."""
    module.cpu()
    own = torch.stack([torch.stack(module.weighted(CRPS(), batch)).double() for batch in batches])
    total, weight = module.mesh.sum(own.sum(0)).tolist()
    if weight == 0:
        raise InputError(
            "no cell of the validation years has both an analysis and all members of the ensemble; "
            "check data.archive.analysis and data.split.val"
        )
    if not math.isfinite(total):
        raise InputError(f"the validation CRPS is {total / weight}: the model's forecasts are not finite numbers")
    return total / weight
