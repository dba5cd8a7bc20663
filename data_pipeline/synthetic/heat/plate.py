"""A plate that conducts heat, here well, there badly: the data of Dryden & Hoefler (2022, arXiv:2211.13491)."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

HEREDITY = 1 / 5
"""How much of what is left of certainty each neighbour of a kind adds to the chance that a cell is of it, too."""


def regions(shape: tuple[int, int], kinds: int, generator: np.random.Generator) -> np.ndarray:
    """Return the kind of each cell (H, W), drawn row by row in coherent patches.

    A cell is of each of K kinds with probability 1/K at first; each of its neighbours that are drawn already (west,
    north-west, north, north-east) adds (1 - 1/K)/5 to its own kind and takes the same from the others, in equal parts.
    """
    rows, columns = shape
    gain = HEREDITY * (1 - 1 / kinds)
    found = np.full((rows + 1, columns + 2), -1)  # with a rim that is never drawn
    for i in range(1, rows + 1):
        for j in range(1, columns + 1):
            around = found[[i, i - 1, i - 1, i - 1], [j - 1, j - 1, j, j + 1]]
            votes = np.bincount(around[around >= 0], minlength=kinds)
            chance = 1 / kinds + gain * votes - gain * (votes.sum() - votes) / (kinds - 1)
            found[i, j] = np.searchsorted(chance.cumsum(), generator.random() * chance.sum(), side="right")
    return found[1:, 1:-1]


def diffuse(field: np.ndarray, diffusivity: np.ndarray) -> np.ndarray:
    """Return `field` (..., H, W) a step later: x + α (sum of the four neighbours - 4 x), with nothing beyond the edges.

    α is that of the cell, so where two kinds meet heat is not conserved. For α up to 1/4 no step makes a new maximum.
    """
    around = np.zeros_like(field)
    around[..., 1:, :] += field[..., :-1, :]
    around[..., :-1, :] += field[..., 1:, :]
    around[..., 1:] += field[..., :-1]
    around[..., :-1] += field[..., 1:]
    return (1 - 4 * diffusivity) * field + diffusivity * around


def run(kind: np.ndarray, diffusivities: Sequence[float], steps: int, generator: np.random.Generator) -> np.ndarray:
    """Return `steps` + 1 frames (steps + 1, H, W), float32, of a plate with regions `kind` (H, W) that is left alone.

    It starts with noise from 0 to 0.1; in each region as many points, one to three, are as hot as 1.
    """
    frames = np.empty((steps + 1, *kind.shape), np.float32)
    frames[0] = generator.uniform(0, 0.1, kind.shape)
    points = generator.integers(1, 4)
    for region in range(len(diffusivities)):
        frames[0].flat[generator.choice(np.flatnonzero(kind == region), points)] = 1
    diffusivity = np.array(diffusivities, np.float32)[kind]
    for step in range(steps):
        frames[step + 1] = diffuse(frames[step], diffusivity)
    return frames
