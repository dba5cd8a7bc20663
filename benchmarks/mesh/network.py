"""Network: a message costs a latency and a time per byte, on machines where ranks may be more than cores.

A step of a rank takes what its tile takes with nobody to wait for, plus what its messages take. Where there are more
ranks than cores, they take turns: the mean of their tiles, and everything times ranks per core.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from scipy.optimize import nnls


@dataclass(frozen=True)
class Run:
    """A step that was measured on several ranks, and what is known of it without the network."""

    seconds: float
    tiles: tuple[float, ...]
    """Seconds of each rank's tile alone, as many at once as there are cores."""
    messages: int
    """Of the rank that sends most."""
    sent: int
    """Bytes, of the same rank."""


@dataclass(frozen=True)
class Network:
    """Seconds per message, and seconds per byte."""

    latency: float
    per_byte: float
    cores: int

    @classmethod
    def fitted(cls, runs: Sequence[Run], cores: int) -> Network:
        """Return the network with which `runs` are explained best, in the sum of squares of relative errors."""
        nothing = cls(0, 0, cores)
        turns = np.array([nothing.turns(run) for run in runs])
        seconds = np.array([run.seconds for run in runs])
        terms = np.array([[run.messages, run.sent] for run in runs]) * (turns / seconds)[:, None]
        rest = 1 - np.array([nothing.predict(run) for run in runs]) / seconds
        scale = terms.max(axis=0)
        (latency, per_byte), _ = nnls(terms / scale, rest)
        return cls(latency / scale[0], per_byte / scale[1], cores)

    def turns(self, run: Run) -> float:
        """Return how many ranks share a core."""
        return max(1.0, len(run.tiles) / self.cores)

    def predict(self, run: Run) -> float:
        """Return the seconds that a step should take."""
        turns = self.turns(run)
        tile = max(run.tiles) if turns == 1 else sum(run.tiles) / len(run.tiles)
        return turns * (tile + run.messages * self.latency + run.sent * self.per_byte)
