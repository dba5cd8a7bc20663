"""Descent: a corrector is trained step by step, by Lightning, and keeps the weights that the validation years like."""

from __future__ import annotations

import copy
import logging
import warnings
from collections.abc import Iterable
from pathlib import Path

import pytorch_lightning as pl
import torch
from pytorch_lightning.callbacks import EarlyStopping
from pytorch_lightning.loggers import TensorBoardLogger
from pytorch_lightning.utilities.exceptions import MisconfigurationException

from data_pipeline.errors import InputError, InterruptedRunError
from data_pipeline.sample import Sample
from training.checkpoints import Checkpoints
from training.data import Data
from training.history import History
from training.module import CorrectionModule, at_least_tiny
from training.strategy import trainer_options

WARNINGS = ("does not have many workers", "Checkpoint directory", "log_every_n", "LeafSpec", "sync_dist", "The `srun`")
"""Of Lightning and PyTorch, on what is meant to be as it is."""


def descend(module: CorrectionModule, data: Data, run_dir: Path) -> None:
    """Train by gradient descent and leave the best weights in `module`; goes on from the last checkpoint."""
    schedule, mesh = module.schedule, module.mesh
    for noisy in ("pytorch_lightning.utilities.rank_zero", "pytorch_lightning.accelerators.cuda"):
        logging.getLogger(noisy).setLevel(logging.WARNING)
    for expected in WARNINGS:
        warnings.filterwarnings("ignore", message=f".*{expected}")
    checkpoints = Checkpoints(run_dir / "checkpoints", schedule.checkpoint_minutes, mesh)
    stopping = EarlyStopping("val_crps", patience=schedule.patience)
    try:
        trainer = pl.Trainer(
            max_epochs=schedule.epochs, accelerator=schedule.accelerator, **trainer_options(mesh, schedule),
            precision=schedule.precision, gradient_clip_val=schedule.gradient_clip,
            callbacks=[checkpoints, stopping, History(run_dir / "metrics.csv")],
            logger=TensorBoardLogger(run_dir, name="tensorboard", version=""),
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
    best = torch.load(checkpoints.best, weights_only=True, map_location="cpu")
    module.load_state_dict(best["state_dict"])


@torch.no_grad()
def score(module: CorrectionModule, batches: Iterable[Sample]) -> float:
    """Return the area-weighted CRPS in normalised units over a whole data set."""
    module.cpu()
    own = torch.stack([torch.stack(module.crps(batch)).double() for batch in batches])
    sums = module.mesh.sum(own.sum(0))
    return float(sums[0] / at_least_tiny(sums[1]))
