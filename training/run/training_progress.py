"""The progress of a training as one line: batches of all epochs, and of each validation."""

from __future__ import annotations

from typing import Any

import pytorch_lightning as pl

from data_pipeline.common.progress import Progress
from data_pipeline.sample import Sample


class TrainingProgress(pl.Callback):
    """Shows how many batches are done, of all epochs, and how many of a validation.

    The remaining time is computed for all epochs; early stopping may end the training sooner.
    """

    def __init__(self) -> None:
        self._entered: list[Progress] = []
        self._training: Progress | None = None
        """The training's `Progress` until the first batch shows where a resumed run continues; None from then on."""

    def on_validation_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Show the validation."""
        name = "validation of the initial weights" if trainer.sanity_checking else "validation"
        batches = trainer.num_sanity_val_batches if trainer.sanity_checking else trainer.num_val_batches
        self._enter(Progress(f"{name}: batch", int(sum(batches))))

    def on_validation_batch_end(
        self,
        trainer: pl.Trainer,
        pl_module: pl.LightningModule,
        outputs: Any,
        batch: Sample,
        batch_idx: int,
        dataloader_idx: int = 0,
    ) -> None:
        """Count a batch of the validation."""
        self._entered[-1].step()

    def on_validation_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Show the training again."""
        self._leave()

    def on_train_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Show the training."""
        self._training = Progress("training: batch", int(trainer.num_training_batches) * (trainer.max_epochs or 0))
        self._enter(self._training)

    def on_train_batch_start(
        self, trainer: pl.Trainer, pl_module: pl.LightningModule, batch: Sample, batch_idx: int
    ) -> None:
        """Set the progress to the position at which a resumed run continues."""
        if self._training:
            self._training.resume(_position(trainer, batch_idx))
            self._training = None

    def on_train_batch_end(
        self, trainer: pl.Trainer, pl_module: pl.LightningModule, outputs: Any, batch: Sample, batch_idx: int
    ) -> None:
        """Count a batch of the training."""
        label = f"epoch {trainer.current_epoch + 1} of {trainer.max_epochs}"
        self._entered[-1].reach(_position(trainer, batch_idx + 1), label)

    def on_train_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Close the progress of the training."""
        self._leave()

    def on_exception(self, trainer: pl.Trainer, pl_module: pl.LightningModule, exception: BaseException) -> None:
        """Close every open progress: the run ends."""
        while self._entered:
            self._leave(exception)

    def _enter(self, progress: Progress) -> None:
        self._entered.append(progress)
        progress.__enter__()

    def _leave(self, error: BaseException | None = None) -> None:
        self._entered.pop().__exit__(type(error) if error else None, error, None)


def _position(trainer: pl.Trainer, batches: int) -> int:
    """Return the number of batches in all epochs before the current one, plus `batches` of the current one."""
    return trainer.current_epoch * int(trainer.num_training_batches) + batches
