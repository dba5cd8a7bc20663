"""The callback that prunes a run of a sweep; see `training.run.pruning`."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path

import pytorch_lightning as pl

from data_pipeline.common.messages import say
from data_pipeline.common.pruning_record import PruningRecord
from models.parallel.mesh import Mesh
from training.run.checkpoints import Checkpoints
from training.run.pruning import PruningOptions, reach_rung


class Pruning(pl.Callback):
    """Stops a run that is worse than the runs beside it. `pruning.json` in the run folder keeps each decision.

    A resumed run that reaches a rung again keeps the decision that it made there.
    """

    def __init__(self, options: PruningOptions, run_dir: Path, checkpoints: Checkpoints, mesh: Mesh) -> None:
        self._options, self._run_dir, self._checkpoints, self._mesh = options, run_dir, checkpoints, mesh

    def on_train_epoch_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """At a rung, stop the run if others are better; `Checkpoints` saves it afterwards, so it can be continued."""
        epoch = trainer.current_epoch + 1
        if not self._options.is_rung(epoch) or epoch >= (trainer.max_epochs or 0):
            return
        lowest = min(self._checkpoints.lowest, _finite(float(trainer.callback_metrics["val_loss"])))
        rung = self._mesh.run_on_first(lambda: reach_rung(self._run_dir, self._options.factor, epoch, lowest))
        if rung.pruned:
            trainer.should_stop = True
        elif rung.runs > 1:
            say(
                f"pruning: after epoch {epoch} this run has place {rung.place} of the {rung.runs} runs that came this "
                f"far in {self._run_dir.parent}, and goes on"
            )

    def on_train_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Let later rungs count a run that ended, for example by early stopping, with its lowest loss."""
        record = PruningRecord.read(self._run_dir)
        if self._mesh.first and record.pruned_after is None:
            replace(record, ended=self._checkpoints.lowest).write(self._run_dir)


def _finite(loss: float) -> float:
    return loss if math.isfinite(loss) else math.inf
