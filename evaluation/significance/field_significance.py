"""Find where on a map two models differ beyond chance, from sums that batches, ranks and tiles can add.

For each cell, the sum of a score over each start is kept. If the sums of all starts would take more than `MOST_BYTES`,
the dates are cut into blocks of equal length, and the sums of the blocks are kept.
"""

from __future__ import annotations

import numpy as np
from scipy.ndimage import maximum_filter, uniform_filter
from scipy.special import stdtr

from evaluation.scoring.aggregation import WeightedMean
from evaluation.significance.effective_starts import EffectiveStarts

MOST_BYTES, BYTES = 1 << 27, 20
"""Memory for the sums of one model, and the memory of one cell and block: two kinds of CRPS and the weight."""
BLOCKS = 24
"""Blocks that are kept on the largest grids."""
LENGTH, FEWEST_BLOCKS = 10 * 86_400, 5
"""Maps with starts in fewer than five parts of ten days are not tested, nor are cells with data in fewer blocks."""
BLOCKS_PER_PART, PARTS = 12, 8
"""The memory of the scores is estimated in windows of 1/n of the rows and columns, where n is 1 for each 12 blocks and
at most 8: few blocks need many cells. Cells are near each other within 1/8 of the rows and columns."""


def date_blocks(times: np.ndarray, fields: int) -> np.ndarray | None:
    """Return the number of the block of each start, at `times` in seconds; None if the times are too close.

    A block is a start, or a part of the time from the first to the last start if the sums of all starts in `fields`
    cells take too much memory. Numbers of blocks without a start are left out.
    """
    since, length = times - times.min(), np.ptp(times) + 1
    if len(np.unique(since // LENGTH)) < FEWEST_BLOCKS:
        return None
    starts, blocks = np.unique(times, return_inverse=True)
    most = max(BLOCKS, MOST_BYTES // (BYTES * fields))
    if len(starts) > most:
        blocks = np.unique(since * most // length, return_inverse=True)[1]
    return blocks


def longest_lead_blocks(init_times: np.ndarray, lead_times: np.ndarray, fields: int) -> np.ndarray | None:
    """Return the block of dates of each forecast at the longest lead time, which maps show, and -1 for the others."""
    longest = lead_times == lead_times.max()
    found = date_blocks(init_times[longest], fields)
    if found is None:
        return None
    blocks = np.full(len(lead_times), -1)
    blocks[longest] = found
    return blocks


def block_times(blocks: np.ndarray, init_times: np.ndarray) -> np.ndarray:
    """Return the mean time of the starts of each block."""
    chosen = blocks >= 0
    times: np.ndarray = np.bincount(blocks[chosen], init_times[chosen]) / np.bincount(blocks[chosen])
    return times


def field_p_values(model: WeightedMean, reference: WeightedMean, times: np.ndarray) -> np.ndarray:
    """Return the p-values (H, W) of no difference between two models, from sums (block, H, W) at `times` in seconds.

    A weighted t test on the differences of block means. With the number n' of independent blocks, the variance of the
    mean is s²/(n' - 1), as in `EffectiveStarts`, and Student's t has n' - 1 degrees of freedom. The correlation of
    neighbouring blocks is estimated from all cells of a window together, so its own error is small. A cell gets the
    largest estimate, at least 0, of the windows around cells near it, because memory differs between places. Cells with
    data in fewer than `FEWEST_BLOCKS` blocks get NaN.
    """
    weight = np.where(model.weight > 0, reference.weight, 0.0).astype(float)
    total = np.where(weight > 0, weight * (model.value - reference.value), 0.0)
    tested = (weight > 0).sum(0) >= FEWEST_BLOCKS
    with np.errstate(invalid="ignore", divide="ignore"):
        share = weight / weight.sum(0)
        mean = total.sum(0) / weight.sum(0)
        deviation = np.where(weight > 0, total / weight - mean, 0.0)
        square = (share * deviation**2).sum(0)
        standard = np.where(tested & (square > 0), deviation / np.sqrt(square), 0.0)
        independent = (share**2).sum(0) * _inflation(standard, times)
        error = np.sqrt(square * independent / (1 - independent))
        p_values = 2 * stdtr(np.maximum(1 / independent - 1, 1), -np.abs(mean / error))
    p_values = np.where(square > 0, p_values, np.where(mean == 0, 1.0, 0.0))
    return np.where(tested, p_values, np.nan)


def _inflation(deviation: np.ndarray, times: np.ndarray) -> np.ndarray:
    """Return the factor (H, W) by which correlated blocks raise the variance of a mean, at least 1.

    `deviation` (block, H, W) is standardised in each cell, and 0 in cells that are not tested.
    """
    starts = EffectiveStarts.at(times, np.ones(len(times)))
    square, product = np.tensordot(starts.weights, deviation**2, 1), np.zeros(deviation.shape[1:])
    for pair, earlier, later in zip(starts.pairs, deviation, deviation[1:], strict=False):
        product += pair * earlier * later
    parts = min(max(len(times) // BLOCKS_PER_PART, 1), PARTS)
    window, near = ([-(-length // count) for length in square.shape] for count in (parts, PARTS))
    square, product = (uniform_filter(one, window, mode="nearest") for one in (square, product))
    with np.errstate(invalid="ignore", divide="ignore"):
        observed = np.where(square > 0, product / square, 0.0)
    share = np.exp(np.interp(observed, starts.observed, np.log(starts.share)))
    return np.maximum(1.0, maximum_filter(share, near, mode="nearest") / (starts.weights**2).sum())
