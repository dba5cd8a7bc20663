"""Checkpoints: `last.ckpt`, from where the run goes on, and `best.ckpt`, the epoch with the lowest validation loss.

There is no `best.ckpt` until an epoch has a lower validation loss than the start.
"""

from __future__ import annotations

import math
import signal
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path
from types import FrameType
from typing import Any

import pytorch_lightning as pl
import torch
from pytorch_lightning.callbacks import Checkpoint

from data_pipeline.files import atomic_path
from data_pipeline.sample import Sample
from models.spatial.mesh import Mesh


class Checkpoints(Checkpoint):
    """Saves at the end of every epoch, every so many minutes in between, and when the run is told to stop.

    In the midst of an epoch it saves only between two steps, so that every part of the state is of the same step.
    Each file appears whole or not at all. Saving and stopping are common acts of all ranks of a mesh: what one of them
    is told, all do after the same step.
    """

    def __init__(self, folder: Path, minutes: float, mesh: Mesh) -> None:
        self.last, self.best, self._mesh = folder / "last.ckpt", folder / "best.ckpt", mesh
        self._seconds, self._saved = 60 * minutes, time.monotonic()
        self.start = self.lowest = self.latest = math.inf
        """Validation losses before training, of the best weights, and of the last epoch."""
        self._stop = False

    def setup(self, trainer: pl.Trainer, pl_module: pl.LightningModule, stage: str) -> None:
        """Keep Lightning from answering SIGTERM: it would send a tensor to ranks that are about to exchange others."""
        trainer._signal_connector.register_signal_handlers = lambda: None  # type: ignore[method-assign]

    @contextmanager
    def stopping_gently(self) -> Iterator[None]:
        """Let SIGINT and SIGTERM end the step that is under way; the second one interrupts at once."""
        if threading.current_thread() is not threading.main_thread():
            yield
            return

        def handle(number: int, frame: FrameType | None) -> None:
            if self._stop:
                raise KeyboardInterrupt
            self._stop = True

        before = {number: signal.signal(number, handle) for number in (signal.SIGINT, signal.SIGTERM)}
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)

    def on_train_batch_end(
        self, trainer: pl.Trainer, pl_module: pl.LightningModule, outputs: Any, batch: Sample, batch_idx: int
    ) -> None:
        """Save if it is time; the last step of an epoch leaves that to the epoch's end."""
        if batch_idx + 1 == trainer.num_training_batches:
            return
        due = time.monotonic() - self._saved >= self._seconds
        due, stop = self._mesh.sum(torch.tensor([due, self._stop], dtype=torch.int32)).tolist()
        if due or stop:
            self._save(trainer, self.last)
        if stop:
            raise KeyboardInterrupt

    def on_validation_batch_end(
        self,
        trainer: pl.Trainer,
        pl_module: pl.LightningModule,
        outputs: Any,
        batch: Sample,
        batch_idx: int,
        dataloader_idx: int = 0,
    ) -> None:
        """Stop if asked to: the run will go on from the last checkpoint and validate again."""
        self._stop_if_asked()

    def on_validation_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Note the validation loss of the start: an epoch is kept only if it is better."""
        # A resumed run validates the weights that it goes on with, which are not the start.
        if trainer.sanity_checking and trainer.ckpt_path is None:
            start = float(trainer.callback_metrics["val_loss"])
            self.start = self.lowest = start if math.isfinite(start) else math.inf

    def on_train_epoch_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Save; last of all callbacks, so that the checkpoint holds what the others have noted."""
        # A loss that is not a number is never lower.
        self.latest = float(trainer.callback_metrics["val_loss"])
        if self.latest < self.lowest:
            self.lowest = self.latest
            self._save(trainer, self.best)
        self._save(trainer, self.last)
        self._stop_if_asked()

    def _save(self, trainer: pl.Trainer, path: Path) -> None:
        with atomic_path(path) if trainer.is_global_zero else nullcontext(path) as partial:
            trainer.save_checkpoint(partial, weights_only=False)
        # No rank goes on before the file is there under its name.
        trainer.strategy.barrier()
        self._saved = time.monotonic()

    def _stop_if_asked(self) -> None:
        if self._mesh.sum(torch.tensor(int(self._stop))):
            raise KeyboardInterrupt

    def state_dict(self) -> dict[str, Any]:
        """Return the validation losses, for the checkpoint."""
        return {"start": self.start, "lowest": self.lowest, "latest": self.latest}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Take them back from a checkpoint."""
        self.start, self.lowest, self.latest = (state_dict[name] for name in ("start", "lowest", "latest"))
