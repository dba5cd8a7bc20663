"""Checkpoints: `last.ckpt`, from which a run resumes, and `best.ckpt`, the epoch with the lowest validation loss.

`best.ckpt` is written once an epoch has a lower validation loss than the initial weights. `previous.ckpt` is the
checkpoint before `last.ckpt`, in case that file is damaged; it is removed at the end of the training.
"""

from __future__ import annotations

import math
import time
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytorch_lightning as pl
import torch
from pytorch_lightning.callbacks import Checkpoint

from data_pipeline.common import interruption
from data_pipeline.common.files import atomic_path
from data_pipeline.common.messages import say
from data_pipeline.sample import Sample
from models.parallel.mesh import Mesh
from training.run.checkpoint_file import is_whole, keep_as, seal
from training.run.run_summary import RunSummary

SECONDS_BETWEEN_QUERIES = 2.0
"""Seconds between two agreements of the ranks whether to save or stop. They agree after every step if steps are
longer."""
BEFORE_VALIDATION = 60.0
"""Seconds since the last checkpoint. If more have passed, the last but one step of an epoch is saved, so that a signal
during the validation costs one step only."""


class Checkpoints(Checkpoint):
    """Saves after every epoch, every `minutes` within an epoch, and when a signal arrives.

    Within an epoch it saves only between two steps, so that all parts of the state are of the same step. Files are
    written atomically, with a hash by which a damaged one is recognised. All ranks of a mesh save and stop after the
    same step, even if only one of them got a signal. They agree through a message between CPUs about every
    `SECONDS_BETWEEN_QUERIES`, which does not wait for the GPU; the number of steps until the next message is agreed on
    too. A single rank decides after each step.
    """

    def __init__(self, folder: Path, minutes: float, mesh: Mesh, summary: RunSummary | None = None) -> None:
        self.last, self.previous, self.best = (folder / f"{name}.ckpt" for name in ("last", "previous", "best"))
        self._mesh, self._summary = mesh, summary
        self._seconds, self._saved = 60 * minutes, time.monotonic()
        self.start = self.lowest = self.latest = math.inf
        """Validation losses of the initial weights, of the best weights, and of the latest epoch."""
        self.deferral = interruption.Deferral()
        """How long a signal is deferred, so that the current step can be saved."""
        self._step_began = time.monotonic()
        self._next_query, self._last_query = 0, (0, time.monotonic())

    def to_resume(self) -> Path | None:
        """Return the newest checkpoint that is whole, None to train from the first step; the first rank calls this.

        Without whole checkpoints, files of the earlier training are removed: the run writes the same files again.
        """
        for path in (self.last, self.previous):
            if not path.exists():
                continue
            if not is_whole(path):
                say(f"{path} is damaged and is not used")
                continue
            losses = torch.load(path, weights_only=True, mmap=True)["callbacks"][self.state_key]
            if losses["lowest"] == losses["start"] or (self.best.exists() and is_whole(self.best)):
                say(f"resuming from {path}")
                return path
            say(f"{self.best} is missing or damaged; training starts again from the first step")
            break
        for path in (self.last, self.previous, self.best):
            path.unlink(missing_ok=True)
        return None

    def on_train_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Query all ranks after the first step."""
        self._next_query, self._last_query = trainer.global_step, (trainer.global_step, time.monotonic())

    def on_train_batch_start(
        self, trainer: pl.Trainer, pl_module: pl.LightningModule, batch: Sample, batch_idx: int
    ) -> None:
        """Start timing the step."""
        self._step_began = time.monotonic()

    def on_train_batch_end(
        self, trainer: pl.Trainer, pl_module: pl.LightningModule, outputs: Any, batch: Sample, batch_idx: int
    ) -> None:
        """Save if it is due. After the last step of an epoch, `on_train_epoch_end` saves."""
        # Until the end of the first step, which may compile for minutes, a signal has nothing to save.
        self.deferral.worth_waiting = True
        self.deferral.seconds = min(self.deferral.seconds, time.monotonic() - self._step_began)
        if batch_idx + 1 == trainer.num_training_batches or not took_optimizer_step(trainer, batch_idx):
            return
        due, stop = self._agree(trainer.global_step, batch_idx + 2 == trainer.num_training_batches)
        if due or stop:
            self._save(trainer, self.last)
        if stop:
            raise KeyboardInterrupt

    def _agree(self, step: int, before_validation: bool = False) -> tuple[bool, bool]:
        """Return whether all ranks save after this step, and whether they stop."""
        seconds = min(self._seconds, BEFORE_VALIDATION) if before_validation else self._seconds
        due = time.monotonic() - self._saved >= seconds
        if self._mesh.ranks == 1:
            return due, interruption.requested()
        if step < self._next_query and not before_validation:
            return False, False
        before, then = self._last_query
        self._last_query = (step, time.monotonic())
        own = [due, interruption.requested(), self._last_query[1] - then]
        due, stop, seconds = self._mesh.sum(torch.tensor(own, dtype=torch.float64)).tolist()
        # All ranks get the same sum, so all choose the same step for the next query.
        each = seconds / self._mesh.ranks / max(step - before, 1)
        wait = min(SECONDS_BETWEEN_QUERIES, self._seconds)
        self._next_query = step + max(1, int(wait / each) if each else 1)
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
        """Stop if a signal arrived: the run resumes from the last checkpoint and validates again."""
        self._stop_if_signalled()

    def on_validation_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Keep the validation loss of the initial weights: `best.ckpt` must be better."""
        # A resumed run validates the weights of the checkpoint here, not the initial ones.
        if trainer.sanity_checking and trainer.ckpt_path is None:
            start = float(trainer.callback_metrics["val_loss"])
            self.start = self.lowest = start if math.isfinite(start) else math.inf

    def on_train_epoch_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Save. This runs after all other callbacks, so that the checkpoint holds their state of this epoch."""
        # A NaN loss is never lower.
        self.latest = float(trainer.callback_metrics["val_loss"])
        if self.latest < self.lowest:
            self.lowest = self.latest
            self._save(trainer, self.best)
        self._save(trainer, self.last)
        self._stop_if_signalled()

    def _save(self, trainer: pl.Trainer, path: Path) -> None:
        with nullcontext() if self._summary is None else self._summary.during("save"):
            # The barrier raises if a rank is lost: weights after a broken exchange must not be saved.
            trainer.strategy.barrier()
            with atomic_path(path) if trainer.is_global_zero else nullcontext(path) as partial:
                trainer.save_checkpoint(partial, weights_only=False)
                if trainer.is_global_zero:
                    seal(partial)
                    if path == self.last:
                        keep_as(path, self.previous)
            # All ranks wait until the file has its final name.
            trainer.strategy.barrier()
        self._saved = time.monotonic()

    def _stop_if_signalled(self) -> None:
        if self._mesh.sum(torch.tensor(int(interruption.requested()))):
            raise KeyboardInterrupt

    def state_dict(self) -> dict[str, Any]:
        """Return the validation losses, for the checkpoint."""
        return {"start": self.start, "lowest": self.lowest, "latest": self.latest}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Restore the validation losses from a checkpoint."""
        self.start, self.lowest, self.latest = (state_dict[name] for name in ("start", "lowest", "latest"))


def took_optimizer_step(trainer: pl.Trainer, batch_idx: int) -> bool:
    """Return whether this batch completed an optimizer step, and not only added to the gradients."""
    batches = batch_idx + 1
    return batches % trainer.accumulate_grad_batches == 0 or batches == trainer.num_training_batches
