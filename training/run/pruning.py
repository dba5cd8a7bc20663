"""Pruning: a run that is worse than the runs beside it stops early (asynchronous successive halving).

The runs of a sweep have their folders in one folder. At the epochs `first_epoch`, `first_epoch * factor`, and so on
(rungs), a run compares its lowest validation loss with the losses of the runs that reached the rung earlier. It goes on
if fewer than `factor` runs have reached the rung, or if it is among the best 1/`factor` of them. No run waits for
another.

Reference: Li et al., A System for Massively Parallel Hyperparameter Tuning, MLSys 2020, arXiv:1810.05934. There, a run
pauses until it is promoted; here it stops, as in the ASHA scheduler of Ray Tune.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import yaml

from data_pipeline.common.checks import check_integer, construct
from data_pipeline.common.errors import InputError
from data_pipeline.common.pruning_record import PRUNING_RECORD, PruningRecord, Rung
from training.run.run_folder import MARKER, decisive_options

COMPARED = ("data", "task", "loss", "max_members", "fingerprint")
"""Options in `config.yaml` that must be equal in two runs: otherwise their validation losses are not comparable."""


@dataclass(frozen=True)
class PruningOptions:
    """The option `trainer.pruning`: runs are compared after `first_epoch` x `factor`^k epochs, k = 0, 1, 2, ..."""

    first_epoch: int = 1
    factor: int = 3

    def __post_init__(self) -> None:
        check_integer("trainer.pruning.first_epoch", self.first_epoch, 1)
        check_integer("trainer.pruning.factor", self.factor, 2)

    @classmethod
    def of(cls, spec: object) -> PruningOptions:
        """Return the options that a mapping describes."""
        if not isinstance(spec, Mapping):
            raise InputError(f"trainer.pruning must be {{first_epoch: E, factor: F}} or null, got {spec!r}")
        return construct("trainer.pruning", cls, spec)

    def is_rung(self, epoch: int) -> bool:
        """Whether runs are compared after `epoch` epochs.

        >>> [epoch for epoch in range(1, 60) if PruningOptions(first_epoch=2, factor=3).is_rung(epoch)]
        [2, 6, 18, 54]
        """
        while epoch > self.first_epoch and epoch % self.factor == 0:
            epoch //= self.factor
        return epoch == self.first_epoch


def reach_rung(run_dir: Path, factor: int, epoch: int, loss: float) -> Rung:
    """Return the decision about a run that reaches the rung after `epoch` epochs, and write it to the run folder."""
    record = PruningRecord.read(run_dir)
    if epoch in record.rungs:
        return record.rungs[epoch]
    losses = [loss, *_losses_beside(run_dir, epoch)]
    place = 1 + sum(other < loss for other in losses)
    pruned = len(losses) >= factor and place > math.ceil(len(losses) / factor)
    rung = Rung(loss, place, len(losses), pruned)
    replace(record, rungs={**record.rungs, epoch: rung}).write(run_dir)
    return rung


def pruned_message(run_dir: Path) -> str:
    """Return why the run of a folder was pruned, "" if it was not."""
    record = PruningRecord.read(run_dir)
    if (epoch := record.pruned_after) is None:
        return ""
    rung = record.rungs[epoch]
    return (
        f"pruned after epoch {epoch}: val_loss {rung.loss:.4g} has place {rung.place} of the {rung.runs} runs that "
        f"came this far in {run_dir.parent}; the run keeps its checkpoints, and continues with trainer.pruning=null"
    )


def _losses_beside(run_dir: Path, epoch: int) -> Iterator[float]:
    """Yield the losses at a rung of the other runs in the parent folder, if their losses are comparable."""
    own = _comparable(run_dir)
    for file in sorted(run_dir.parent.glob(f"*/{PRUNING_RECORD}")):
        other = file.parent
        if other.name == run_dir.name or _comparable(other) != own:
            continue
        if (loss := PruningRecord.read(other).loss(epoch)) is not None:
            yield loss


def _comparable(run_dir: Path) -> dict[str, Any]:
    options = yaml.safe_load((run_dir / MARKER).read_text("utf-8"))
    return {name: value for name, value in decisive_options(options).items() if name in COMPARED}
