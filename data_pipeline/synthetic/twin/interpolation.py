"""From the Gaussian grid of the twin atmosphere to the regular grid of the files, poles included."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from data_pipeline.grid import Grid
from data_pipeline.synthetic.twin.sphere import Sphere


class Interpolation:
    """Periodic in longitude, and in latitude straight on across the poles; cubic or linear.

    A meridian that crosses a pole comes down on the other side, half a turn away; there, east and west have
    changed places, and so have north and south.
    """

    def __init__(self, sphere: Sphere, grid: Grid, points: int = 4) -> None:
        around = periodic_lagrange(sphere.longitudes, np.array(grid.longitudes), 360.0, points)
        # The great circle through both poles, counted from the north pole.
        down = 90 - sphere.latitudes
        circle = np.concatenate([down, 360 - down[::-1]])
        across = periodic_lagrange(circle, 90 - np.array(grid.latitudes), 360.0, points)
        # Columns of the matrix that lie on the far side, north first again.
        across = np.concatenate([across[:, : sphere.rows], across[:, sphere.rows :][:, ::-1]], axis=1)
        self._around, self._across = (torch.tensor(matrix, dtype=sphere.mu.dtype) for matrix in (around.T, across))
        self._poles = [row for row, latitude in enumerate(grid.latitudes) if abs(latitude) == 90]

    def __call__(self, fields: Tensor, vector: bool = False) -> Tensor:
        """Return fields (B, rows, columns) of the Gaussian grid as (B, H, W); `vector` for wind components.

        At a pole a scalar has one value, whatever the longitude; a wind is told along each point's meridian.
        """
        beyond = fields.roll(fields.shape[-1] // 2, dims=-1)
        result = self._across @ torch.cat([fields, -beyond if vector else beyond], 1) @ self._around
        if not vector:
            result[:, self._poles] = result[:, self._poles].mean(-1, keepdim=True)
        return result


def periodic_lagrange(knots: np.ndarray, targets: np.ndarray, period: float, points: int) -> np.ndarray:
    """Return the matrix (targets, knots) of Lagrange interpolation from the nearest knots, half on each side.

    `knots` increase within one period; 4 `points` make it cubic, 2 linear.
    """
    count = len(knots)
    left = np.searchsorted(knots, targets, side="right") - 1
    turns, index = np.divmod(left[:, None] + np.arange(points) - (points // 2 - 1), count)
    positions = knots[index] + period * turns
    matrix = np.zeros((len(targets), count))
    for k in range(points):
        others = np.delete(positions, k, axis=1)
        weight = np.prod((targets[:, None] - others) / (positions[:, k, None] - others), axis=1)
        np.add.at(matrix, (np.arange(len(targets)), index[:, k]), weight)
    return matrix
