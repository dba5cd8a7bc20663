"""NetworkModel: predicts the time of a training step from its messages; ranks may outnumber cores.

A step of a rank takes the time of its tile without waiting, plus latency and time per byte of its messages. If there
are more ranks than cores, the ranks of a core run in turn: their mean tile time counts, times the ranks per core.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from scipy.optimize import nnls


@dataclass(frozen=True)
class MeasuredStep:
    """The time of a step on several ranks, the times of its tiles, and its messages."""

    seconds: float
    tiles: tuple[float, ...]
    """Seconds of each rank's tile alone, measured on as many ranks at a time as there are cores."""
    messages: int
    """Number of messages of the rank that sends most."""
    sent: int
    """Bytes that the same rank sends."""


@dataclass(frozen=True)
class NetworkModel:
    """Seconds per message (`latency`) and seconds per byte."""

    latency: float
    per_byte: float
    cores: int

    @classmethod
    def fit(cls, steps: Sequence[MeasuredStep], cores: int) -> NetworkModel:
        """Return the model with the smallest sum of squared relative errors for `steps`."""
        free = cls(0, 0, cores)
        turns = np.array([free.turns(step) for step in steps])
        seconds = np.array([step.seconds for step in steps])
        terms = np.array([[step.messages, step.sent] for step in steps]) * (turns / seconds)[:, None]
        rest = 1 - np.array([free.predict(step) for step in steps]) / seconds
        scale = terms.max(axis=0)
        (latency, per_byte), _ = nnls(terms / scale, rest)
        return cls(latency / scale[0], per_byte / scale[1], cores)

    def turns(self, step: MeasuredStep) -> float:
        """Return the number of ranks per core, at least 1."""
        return max(1.0, len(step.tiles) / self.cores)

    def predict(self, step: MeasuredStep) -> float:
        """Return the predicted seconds of a step."""
        turns = self.turns(step)
        tile = max(step.tiles) if turns == 1 else sum(step.tiles) / len(step.tiles)
        return turns * (tile + step.messages * self.latency + step.sent * self.per_byte)
