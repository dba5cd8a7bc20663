"""Mean and departures of every cell over all training forecasts, to normalise inputs; without PyTorch.

Forecasts are added in blocks of `FORECASTS_OF_A_BLOCK`, and blocks are joined in order. So the results are equal bit
for bit in one process, on tiles of the globe, and on a cluster in which each task reads a block.
"""

from __future__ import annotations

import numpy as np

from data_pipeline.common.threads import in_threads

FORECASTS_OF_A_BLOCK = 32
CHANNEL_THREADS = 8
"""Channels of a forecast that are added at the same time."""
CELLS_FOR_THREADS = 1 << 16
"""Fewest cells for which several threads add a forecast; with fewer cells, starting threads would take longer."""


class CellMoments:
    """Number `count` of forecasts, their `mean`, and `squares` of the members' departures from it; all (C, h, w).

    `squares` is the sum over forecasts of the mean squared departure of the members. Forecasts are added one by one in
    double precision, without the cancellation of a difference of large sums (Welford 1962,
    doi:10.1080/00401706.1962.10490022; Chan et al. 1983, doi:10.1080/00031305.1983.10483115).
    """

    def __init__(self, shape: tuple[int, ...]) -> None:
        self.count = np.zeros(shape, np.int32)
        self.mean, self.squares = np.zeros(shape), np.zeros(shape)

    def add(self, ensemble: np.ndarray, mask: np.ndarray) -> None:
        """Add one forecast (M, C, h, w), where `mask` (C, h, w) is True."""

        def add_channel(channel: int) -> None:
            self._add(channel, ensemble[:, channel], mask[channel])

        threads = CHANNEL_THREADS if mask[0].size > CELLS_FOR_THREADS else 1
        for _ in in_threads(add_channel, range(len(mask)), threads):
            pass

    def _add(self, channel: int, members: np.ndarray, known: np.ndarray) -> None:
        mean, squares = np.zeros(known.shape), np.zeros(known.shape)
        with np.errstate(invalid="ignore", over="ignore"):
            for member in members:
                mean += member
            mean /= len(members)
            for member in members:
                departure = member - mean
                squares += np.multiply(departure, departure, out=departure)
            squares /= len(members)
        if not known.all():
            mean[~known] = self.mean[channel][~known]
            squares[~known] = 0
        self.count[channel] += known
        departure = mean - self.mean[channel]
        self.mean[channel] += departure / np.maximum(self.count[channel], 1)
        squares += np.multiply(departure, mean - self.mean[channel], out=departure)
        self.squares[channel] += squares

    def join(self, other: CellMoments) -> None:
        """Add the forecasts of `other`, which must come after the forecasts added so far."""
        total = np.maximum(self.count + other.count, 1)
        weight, departure = other.count / total, other.mean - self.mean
        self.squares += other.squares + departure**2 * (self.count * weight)
        self.mean += departure * weight
        self.count += other.count


class OrderedMoments:
    """The moments of forecasts that are added in order, block by block; `total()` joins the blocks."""

    def __init__(self, shape: tuple[int, ...]) -> None:
        self._joined, self._block, self._added = CellMoments(shape), CellMoments(shape), 0

    def add(self, ensemble: np.ndarray, mask: np.ndarray) -> None:
        """Add the next forecast."""
        if self._added == FORECASTS_OF_A_BLOCK:
            self._close()
        self._block.add(ensemble, mask)
        self._added += 1

    def total(self) -> CellMoments:
        """Return the moments of all forecasts so far; this must be called only once."""
        self._close()
        return self._joined

    def _close(self) -> None:
        self._joined.join(self._block)
        self._block, self._added = CellMoments(self._block.mean.shape), 0
