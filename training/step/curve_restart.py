"""Curves of a resumed run in the loggers: each point appears once."""

from __future__ import annotations

from typing import Any

import pytorch_lightning as pl
from pytorch_lightning.loggers import TensorBoardLogger


class CurveRestart(pl.Callback):
    """Flushes all loggers before a checkpoint is saved, and tells TensorBoard at which step a resumed run begins.

    Without the flush, a killed process could lose points before the checkpoint. Without the step, TensorBoard would
    show the points between the checkpoint and the stop twice.
    """

    def on_train_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Let TensorBoard drop all points that an earlier process wrote after the checkpoint, or without one."""
        if not trainer.is_global_zero:
            return
        from tensorboard.compat.proto.event_pb2 import Event, SessionLog  # type: ignore[import-untyped]

        for logger in trainer.loggers:
            if isinstance(logger, TensorBoardLogger):
                # The step of a point is the number of steps before it.
                start = Event(step=trainer.global_step, session_log=SessionLog(status=SessionLog.START))
                logger.experiment.file_writer.add_event(start)

    def on_save_checkpoint(
        self, trainer: pl.Trainer, pl_module: pl.LightningModule, checkpoint: dict[str, Any]
    ) -> None:
        """Flush all loggers."""
        for logger in trainer.loggers:
            logger.save()
