"""The record of pruning that a training run writes into its run folder; sweeps read it."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path

from data_pipeline.common.files import atomic_write

PRUNING_RECORD = "pruning.json"


@dataclass(frozen=True)
class Rung:
    """A run at a rung: its lowest validation loss, and its place among the `runs` that had reached the rung so far."""

    loss: float
    place: int
    runs: int
    pruned: bool


@dataclass(frozen=True)
class PruningRecord:
    """The rungs of a run by epoch, and its lowest validation loss if it ended without being pruned."""

    rungs: Mapping[int, Rung] = field(default_factory=dict)
    ended: float | None = None

    @classmethod
    def read(cls, run_dir: Path) -> PruningRecord:
        """Return the record of a run folder, an empty one if there is none."""
        try:
            found = json.loads((run_dir / PRUNING_RECORD).read_text("utf-8"))
        except FileNotFoundError:
            return cls()
        return cls({int(epoch): Rung(**rung) for epoch, rung in found["rungs"].items()}, found["ended"])

    def write(self, run_dir: Path) -> None:
        """Write the record into a run folder."""
        with atomic_write(run_dir / PRUNING_RECORD, "w") as file:
            file.write(json.dumps(asdict(self), indent=2))

    def loss(self, epoch: int) -> float | None:
        """Return the lowest validation loss at a rung, or at the end of a run that ended before the rung."""
        return self.rungs[epoch].loss if epoch in self.rungs else self.ended

    @property
    def pruned_after(self) -> int | None:
        """The epoch after which the run was pruned, None if it was not."""
        return next((epoch for epoch, rung in self.rungs.items() if rung.pruned), None)
