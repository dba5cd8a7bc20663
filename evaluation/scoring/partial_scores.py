"""Partial scores: the sums of a run that was interrupted, from which the next run with the same inputs continues."""

from __future__ import annotations

import time
import zipfile
from pathlib import Path
from typing import Any

import numpy as np

from data_pipeline.common.files import atomic_write
from evaluation.scoring.tallies import Tallies
from models.parallel.mesh import Mesh

EVERY_SECONDS = 60.0
"""Seconds between two writes of the file."""
WRITING_SHARE = 0.05
"""Largest share of the time that writing may take."""
EVERY_BLOCKS = 20
"""Blocks between two writes if ranks share a forecast, because these ranks must write after the same block."""


class PartialScores:
    """The file of this rank in `folder`; `key` describes everything that the sums depend on.

    The file is replaced as a whole, so that the end of the process at any moment leaves the last complete one.
    """

    def __init__(self, folder: Path, key: str, mesh: Mesh) -> None:
        self._path, self._mesh = folder / f"partial_scores_{mesh.rank:04d}.npz", mesh
        self._key = f"{key} mesh {mesh.data} {mesh.bands} {mesh.sectors} {mesh.channels}"
        self._last, self._wait, self._blocks = time.monotonic(), EVERY_SECONDS, 0

    def load(self, tallies: Tallies) -> None:
        """Fill the tallies from the file of an earlier run with the same key, if all ranks have one."""
        arrays = self._read()
        # Ranks that share a forecast must have scored the same ones.
        found = self._mesh.gather(None if arrays is None else arrays["done"])
        usable = self._mesh.broadcast(found is not None and self._agree(found))
        if usable and arrays is not None:
            tallies.restore(arrays)

    def _agree(self, found: list[np.ndarray | None]) -> bool:
        tiles = self._mesh.tiles
        groups = [found[data * tiles : (data + 1) * tiles] for data in range(self._mesh.data)]
        return all(
            one is not None and first is not None and np.array_equal(one, first)
            for first, *others in groups
            for one in (first, *others)
        )

    def _read(self) -> dict[str, np.ndarray] | None:
        try:
            with np.load(self._path) as file:
                return dict(file) if str(file["key"]) == self._key else None
        except (OSError, ValueError, KeyError, zipfile.BadZipFile):
            return None

    def save(self, tallies: Tallies) -> None:
        """Write the file if the last one is old enough."""
        self._blocks += 1
        due = self._blocks % EVERY_BLOCKS == 0 if self._mesh.tiles > 1 else time.monotonic() - self._last >= self._wait
        if not due:
            return
        began = time.monotonic()
        self._path.parent.mkdir(parents=True, exist_ok=True)
        with atomic_write(self._path) as file:
            arrays: dict[str, Any] = tallies.arrays()
            np.savez(file, key=np.array(self._key), **arrays)
        self._last = time.monotonic()
        self._wait = max(EVERY_SECONDS, (self._last - began) / WRITING_SHARE)

    def remove(self) -> None:
        """Delete the file: the scores are complete."""
        self._path.unlink(missing_ok=True)
