"""Random numbers that are named, not drawn in turn.

Whoever asks for the noise of (seed, stream, year, date, member) gets the same numbers, whatever else was
computed before, beside it, or by how many processes.
"""

from __future__ import annotations

from enum import IntEnum

import numpy as np
import torch
from torch import Tensor


class Stream(IntEnum):
    """What the noise is for; each purpose has numbers of its own."""

    EARTH = 0
    START = 1
    SEA = 2
    TRUTH = 3
    MEMBER = 4


def normal(
    shape: tuple[int, ...], seed: int, stream: Stream, *, year: int = 0, date: int = 0, member: int = 0
) -> Tensor:
    """Return independent standard normal numbers, float32; every name is below 2¹⁶.

    Philox is a counter-based generator (Salmon et al. 2011, doi:10.1145/2063384.2063405): two keys that
    differ anywhere give independent streams.
    """
    name = year << 48 | date << 32 | stream << 16 | member
    generator = np.random.Generator(np.random.Philox(key=np.array([seed, name], dtype=np.uint64)))
    return torch.from_numpy(generator.standard_normal(shape, dtype=np.float32))
