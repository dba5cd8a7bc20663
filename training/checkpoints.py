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

from data_pipeline.common.files import atomic_path
from data_pipeline.sample import Sample
from models.parallel.mesh import Mesh

SIGNALS = (signal.SIGINT, signal.SIGTERM)
ASKED = 2.0
"""Seconds between two questions to all ranks whether to save or to stop; a step that takes longer asks each time."""


class Checkpoints(Checkpoint):
    """Saves at the end of every epoch, every so many minutes in between, and when the run is told to stop.

    In the midst of an epoch it saves only between two steps, so that every part of the state is of the same step.
    Each file appears whole or not at all. All ranks of a mesh save and stop after the same step, even if a signal has
    reached only one of them. They agree on it in memory of the CPU, every `ASKED` seconds or so: the GPU is not waited
    for, and the number of steps between two questions is itself agreed on. One rank alone decides after each step.
    """

    def __init__(self, folder: Path, minutes: float, mesh: Mesh) -> None:
        self.last, self.best, self._mesh = folder / "last.ckpt", folder / "best.ckpt", mesh
        self._seconds, self._saved = 60 * minutes, time.monotonic()
        self.start = self.lowest = self.latest = math.inf
        """Validation losses before training, of the best weights, and of the last epoch."""
        self._stop = False
        self._next_question, self._asked = 0, (0, time.monotonic())

    @contextmanager
    def stopping_gently(self) -> Iterator[None]:
        """Let SIGINT and SIGTERM end the step that is under way; the second one interrupts at once."""
        before = {number: signal.getsignal(number) for number in SIGNALS}
        self._listen()
        try:
            yield
        finally:
            if threading.current_thread() is threading.main_thread():
                for number, handler in before.items():
                    signal.signal(number, handler)

    def _listen(self) -> None:
        if threading.current_thread() is threading.main_thread():
            for number in SIGNALS:
                signal.signal(number, self._handle)

    def _handle(self, number: int, frame: FrameType | None) -> None:
        if self._stop:
            raise KeyboardInterrupt
        self._stop = True

    def on_sanity_check_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Take SIGTERM back from Lightning, which would answer it by a message to ranks that exchange others."""
        self._listen()

    def on_train_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Ask all ranks after the first step that is taken."""
        self._listen()
        self._next_question, self._asked = trainer.global_step, (trainer.global_step, time.monotonic())

    def on_train_batch_end(
        self, trainer: pl.Trainer, pl_module: pl.LightningModule, outputs: Any, batch: Sample, batch_idx: int
    ) -> None:
        """Save if it is time; the last step of an epoch leaves that to the epoch's end."""
        if batch_idx + 1 == trainer.num_training_batches or not took_optimizer_step(trainer, batch_idx):
            return
        due, stop = self._agreed(trainer.global_step)
        if due or stop:
            self._save(trainer, self.last)
        if stop:
            raise KeyboardInterrupt

    def _agreed(self, step: int) -> tuple[bool, bool]:
        """Return whether all ranks shall save after this step, and whether they shall stop."""
        due = time.monotonic() - self._saved >= self._seconds
        if self._mesh.ranks == 1:
            return due, self._stop
        if step < self._next_question:
            return False, False
        before, then = self._asked
        self._asked = (step, time.monotonic())
        own = [due, self._stop, self._asked[1] - then]
        due, stop, seconds = self._mesh.sum(torch.tensor(own, dtype=torch.float64)).tolist()
        # The sum is the same number on all ranks, and so is the step of the next question.
        each = seconds / self._mesh.ranks / max(step - before, 1)
        wait = min(ASKED, self._seconds)
        self._next_question = step + max(1, int(wait / each) if each else 1)
        return due > 0, stop > 0

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
        # Raises where a rank is lost: the weights after an exchange that broke off are not saved.
        trainer.strategy.barrier()
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


def took_optimizer_step(trainer: pl.Trainer, batch_idx: int) -> bool:
    """Return whether the optimizer has taken a step with this batch, or only summed its gradients."""
    batches = batch_idx + 1
    return batches % trainer.accumulate_grad_batches == 0 or batches == trainer.num_training_batches
