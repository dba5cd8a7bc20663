"""CostCallback: reports a training by Lightning to a `RunSummary`, and the summary's figures to the loggers."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytorch_lightning as pl

from data_pipeline.common.messages import say
from data_pipeline.sample import Sample
from training.run.run_summary import RunSummary

LOGGED = (
    "seconds", "samples_per_second", "waiting_share", "peak_memory_bytes", "peak_gpu_memory_bytes", "gpu_utilisation",
)  # fmt: skip


class CostCallback(pl.Callback):
    """Counts samples and phases, and keeps the CRPS of each validation.

    `count` samples of an epoch and `batch_size` are numbers for all ranks together. `waited()` returns the seconds that
    the training loop of this rank has waited for batches.
    """

    def __init__(self, summary: RunSummary, count: int, batch_size: int, waited: Callable[[], float]) -> None:
        self._summary, self._count, self._batch_size, self._waited = summary, count, batch_size, waited

    def on_sanity_check_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Forget validations that a resumed run repeats."""
        self._summary.continue_from(-1 if trainer.ckpt_path is None else trainer.global_step)

    def on_train_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Begin the phase of training."""
        self._summary.enter("train")

    def on_train_batch_end(
        self, trainer: pl.Trainer, pl_module: pl.LightningModule, outputs: Any, batch: Sample, batch_idx: int
    ) -> None:
        """Count the samples of all ranks in this batch."""
        self._summary.samples += min(self._batch_size, self._count - batch_idx * self._batch_size)
        self._summary.waiting = self._waited()

    def on_validation_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Begin the phase of validation."""
        self._before = self._summary.enter("validate")

    def on_validation_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Keep the CRPS of the model, and in the sanity check also that of the raw ensemble."""
        summary, metrics = self._summary, trainer.callback_metrics
        if trainer.sanity_checking and "val_crps_raw" in metrics:
            summary.references["raw"] = float(metrics["val_crps_raw"])
        # A resumed run first validates the weights of its checkpoint, whose validation the summary has already.
        if not trainer.sanity_checking or trainer.ckpt_path is None:
            epoch = 0 if trainer.sanity_checking else trainer.current_epoch + 1
            summary.validated(epoch, trainer.global_step, float(metrics["val_loss"]), float(metrics["val_crps"]))
        summary.enter(self._before)

    def on_train_epoch_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Pass the figures of the run to the loggers, and print a message if the training waits for data."""
        if trainer.is_global_zero and (message := self._summary.waiting_message()):
            say(message)
        if trainer.is_global_zero and trainer.loggers:
            found = self._summary.describe()
            values = {f"cost/{name}": float(found[name]) for name in LOGGED if found[name] is not None}
            if found["energy"]["kwh"] is not None:
                values["cost/kwh"] = found["energy"]["kwh"]
            for logger in trainer.loggers:
                logger.log_metrics(values, step=trainer.global_step)
