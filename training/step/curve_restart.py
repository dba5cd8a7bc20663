"""Curves of a run that was stopped: each point once, whatever was written after the last checkpoint."""

from __future__ import annotations

from typing import Any

import pytorch_lightning as pl
from pytorch_lightning.loggers import TensorBoardLogger


class CurveRestart(pl.Callback):
    """Writes out what all loggers hold before a checkpoint is saved, and tells TensorBoard where a resumed run begins.

    Without the first, points before the checkpoint could be lost with the process. Without the second, TensorBoard
    would show the points between the checkpoint and the stop twice.
    """

    def on_train_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Let TensorBoard drop all points that an earlier process wrote after the checkpoint, or without one."""
        if not trainer.is_global_zero:
            return
        from tensorboard.compat.proto.event_pb2 import Event, SessionLog  # type: ignore[import-untyped]

        for logger in trainer.loggers:
            if isinstance(logger, TensorBoardLogger):
                # Points of a step have the number of steps before it.
                start = Event(step=trainer.global_step, session_log=SessionLog(status=SessionLog.START))
                logger.experiment.file_writer.add_event(start)

    def on_save_checkpoint(
        self, trainer: pl.Trainer, pl_module: pl.LightningModule, checkpoint: dict[str, Any]
    ) -> None:
        """Write out the points until now."""
        for logger in trainer.loggers:
            logger.save()
