"""Random numbers that are hashes of names, such as cell and start: the same on any mesh and in any run."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

GOLDEN = np.uint64(0x9E3779B97F4A7C15)
FACTORS = np.uint64(0xBF58476D1CE4E5B9), np.uint64(0x94D049BB133111EB)


def named_draws(seed: int, names: Iterable[int | np.ndarray]) -> np.ndarray:
    """Return random uint64 numbers: a chained hash of `seed` and of whole numbers that broadcast with each other."""
    key: np.ndarray = np.array([seed], np.int64).view(np.uint64)
    for name in names:
        key = splitmix64(key) ^ np.asarray(name, np.int64).view(np.uint64)
    return splitmix64(key)


def splitmix64(x: np.ndarray) -> np.ndarray:
    """Return uint64 numbers whose bits all depend on all bits of `x`: a step of SplitMix64.

    See Steele, Lea & Flood 2014, doi:10.1145/2660193.2660195. Sums and products wrap around.
    """
    x = x + GOLDEN
    for shift, factor in zip((30, 27), FACTORS, strict=True):
        x = (x ^ (x >> np.uint64(shift))) * factor
    return x ^ (x >> np.uint64(31))


def uniform_draws(seed: int, names: Iterable[int | np.ndarray]) -> np.ndarray:
    """Return float64 numbers in (0, 1) from the upper 52 bits of `named_draws`, at the centres of 2⁵² intervals."""
    return ((named_draws(seed, names) >> np.uint64(12)).astype(np.float64) + 0.5) / 2**52


def normal_draws(seed: int, names: Iterable[int | np.ndarray]) -> np.ndarray:
    """Return standard normal float64 numbers (Box-Muller)."""
    names = tuple(names)
    level, angle = (uniform_draws(seed, (*names, part)) for part in (0, 1))
    drawn: np.ndarray = np.sqrt(-2 * np.log(level)) * np.cos(2 * np.pi * angle)
    return drawn
