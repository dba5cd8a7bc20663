"""The losses of each epoch: in `metrics.csv`, as printed lines, and in the checkpoint."""

from __future__ import annotations

import csv
import math
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytorch_lightning as pl
import torch
from torch import Tensor

from data_pipeline.common.files import atomic_write
from data_pipeline.common.messages import say, warn
from data_pipeline.sample import Sample

JUMP = 30.0
"""If the loss of a batch is more than this many times that of the epoch's other batches, a line names its forecasts."""


class LossHistory(pl.Callback):
    """Writes `metrics.csv` and prints a line for each epoch.

    The rows are also kept in the checkpoint, so that a resumed run writes the same file as an uninterrupted one.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._rows: list[dict[str, float]] = []
        self._sums: list[float] | Tensor = [0.0, 0.0]
        self._largest: Tensor | None = None
        self._lowest = math.inf
        self._began = time.monotonic()
        self._rate = 0.0

    def on_validation_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Print the validation loss of the run's initial weights, or of the checkpoint's weights."""
        if trainer.sanity_checking:
            start = float(trainer.callback_metrics["val_loss"])
            if trainer.ckpt_path is None:
                self._lowest = start if math.isfinite(start) else math.inf
            if trainer.is_global_zero:
                say(f"initial weights: val_loss {start:.4g}")

    def on_train_epoch_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Reset the sums of the epoch; not called for an epoch that is resumed."""
        self._sums, self._largest = [0.0, 0.0], None

    def on_train_batch_start(
        self, trainer: pl.Trainer, pl_module: pl.LightningModule, batch: Sample, batch_idx: int
    ) -> None:
        """Keep the learning rate of this step; after the step the scheduler has set the next one."""
        self._rate = trainer.optimizers[0].param_groups[0]["lr"]

    def on_train_batch_end(
        self, trainer: pl.Trainer, pl_module: pl.LightningModule, outputs: Any, batch: Sample, batch_idx: int
    ) -> None:
        """Add the batch to the sums. They stay on the device, so that the step does not wait for a transfer."""
        sums = outputs["sums"]
        self._sums = torch.as_tensor(self._sums, dtype=sums.dtype, device=sums.device) + sums
        starts = batch.init_time.to(sums)
        own = torch.cat([(sums[:1] / sums[1:]).nan_to_num(0.0), sums, starts.amin()[None], starts.amax()[None]])
        self._largest = own if self._largest is None else torch.where(own[0] > self._largest[0], own, self._largest)

    def on_train_epoch_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Write and print the epoch's row."""
        score, weight = torch.as_tensor(self._sums).tolist()
        row = {"train_loss": score / weight if weight else 0.0, "val_loss": float(trainer.callback_metrics["val_loss"])}
        pl_module.log("train_loss", row["train_loss"], logger=False)
        # Lightning would log this after the checkpoint of the epoch is saved. The step of an epoch's points is its last
        # step, as for the validation.
        for logger in trainer.loggers:
            logger.log_metrics(
                {"train_loss": row["train_loss"], "epoch": trainer.current_epoch}, trainer.global_step - 1
            )
        self._rows.append(
            {"epoch": trainer.current_epoch + 1, "step": trainer.global_step, **row, "learning_rate": self._rate}
        )
        if better := row["val_loss"] < self._lowest:
            self._lowest = row["val_loss"]
        if not trainer.is_global_zero:
            return
        with atomic_write(self._path, "w") as file:
            writer = csv.DictWriter(file, fieldnames=list(self._rows[0]))
            writer.writeheader()
            writer.writerows(self._rows)
        if jump := self._jump(score, weight):
            warn(f"warning: {jump}")
        mark = " *" if better else ""
        say(
            f"epoch {len(self._rows):3d} of {trainer.max_epochs}: train_loss {row['train_loss']:.4g}  "
            f"val_loss {row['val_loss']:.4g}{mark}  ({time.monotonic() - self._began:.0f} s)"
        )

    def _jump(self, score: float, weight: float) -> str | None:
        """Return a sentence about the batch with the largest loss, if it is `JUMP` times that of the other batches."""
        if self._largest is None:
            return None
        largest, own, own_weight, *starts = self._largest.tolist()
        if weight <= own_weight or not largest > JUMP * (others := (score - own) / (weight - own_weight)) > 0:
            return None
        first, last = (np.datetime64(int(start), "s") for start in starts)
        return (
            f"the loss of one batch is {largest:.3g}, {largest / others:.0f} times that of the others; its forecasts "
            f"start between {first} and {last}: look at their fields, or leave them out with data.split"
        )

    def state_dict(self) -> dict[str, Any]:
        """Return the rows, the lowest validation loss and the sums of the unfinished epoch, for the checkpoint."""
        return {"rows": self._rows, "lowest": self._lowest, "sums": torch.as_tensor(self._sums).tolist()}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Restore the rows, the lowest validation loss and the sums from a checkpoint."""
        self._rows = list(state_dict["rows"])
        self._lowest, self._sums = state_dict["lowest"], state_dict["sums"]
