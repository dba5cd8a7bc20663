"""Random numbers that depend only on a key (seed, purpose, year, date, member).

The numbers of one key do not depend on the order of the calls or on the number of processes.
"""

from __future__ import annotations

from enum import IntEnum

import numpy as np
import torch
from torch import Tensor


class NoisePurpose(IntEnum):
    """Purposes of noise; the numbers of different purposes are independent."""

    EARTH = 0
    START = 1
    SEA = 2
    TRUTH = 3
    MEMBER = 4
    ORDER = 5


def normal_noise(
    shape: tuple[int, ...], seed: int, purpose: NoisePurpose, *, year: int = 0, date: int = 0, member: int = 0
) -> Tensor:
    """Return independent standard normal numbers, float32; `year`, `date` and `member` must be below 2¹⁶.

    Philox is a counter-based generator (Salmon et al. 2011, doi:10.1145/2063384.2063405): different keys give
    independent streams.
    """
    name = year << 48 | date << 32 | purpose << 16 | member
    generator = np.random.Generator(np.random.Philox(key=np.array([seed, name], dtype=np.uint64)))
    return torch.from_numpy(generator.standard_normal(shape, dtype=np.float32))
