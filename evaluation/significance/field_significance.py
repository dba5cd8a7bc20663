"""Find where on a map two models differ beyond chance, from sums that batches, ranks and tiles can add.

The dates are cut into at most `BLOCKS` blocks of equal length. For each cell, the sum of a score over each block is
kept. Means of blocks that are weeks long hardly depend on each other, so a t test on them needs no series of single
dates. The test costs `BLOCKS` maps for each model instead of one for each date: at half a degree 12 maps of sums take
25 MB and their weights 12.5 MB.
"""

from __future__ import annotations

import numpy as np
from scipy.special import stdtr

from evaluation.scoring.aggregation import WeightedMean
from evaluation.significance.effective_starts import NEIGHBOURS, EffectiveStarts
from evaluation.significance.multiple_tests import discoveries

BLOCKS = 12
"""Most blocks of dates. More blocks find more, but take more memory and depend more on each other."""
FEWEST_BLOCKS = 5
"""Cells with data in fewer blocks are not tested."""


def date_blocks(times: np.ndarray) -> np.ndarray | None:
    """Return the number of the block of each start, at `times` in seconds, or None if there are too few blocks.

    Blocks are parts of equal length of the time from the first to the last start, and are at least 10 days long.
    """
    first, length = times.min(), np.ptp(times) + 1
    count = min(BLOCKS, int(length // NEIGHBOURS))
    blocks: np.ndarray = ((times - first) * count // length).astype(int)
    return blocks if len(np.unique(blocks)) >= FEWEST_BLOCKS else None


def longest_lead_blocks(init_times: np.ndarray, lead_times: np.ndarray) -> np.ndarray | None:
    """Return the block of dates of each forecast at the longest lead time, which maps show, and -1 for the others."""
    longest = lead_times == lead_times.max()
    found = date_blocks(init_times[longest])
    if found is None:
        return None
    blocks = np.full(len(lead_times), -1)
    blocks[longest] = found
    return blocks


def field_p_values(model: WeightedMean, reference: WeightedMean) -> np.ndarray:
    """Return the p-values (..., H, W) of no difference between two models, from their sums (block, ..., H, W).

    A weighted t test on the differences of block means. The correlation r of neighbouring blocks is estimated from all
    cells of the map together, so its own error is small. It raises the variance as in `EffectiveStarts` and lowers the
    degrees of freedom. Cells with data in fewer than `FEWEST_BLOCKS` blocks get NaN.
    """
    weight = np.where(model.weight > 0, reference.weight, 0.0).astype(float)
    total = np.where(weight > 0, weight * (model.value - reference.value), 0.0)
    tested = (weight > 0).sum(0) >= FEWEST_BLOCKS
    with np.errstate(invalid="ignore", divide="ignore"):
        share = weight / weight.sum(0)
        mean = total.sum(0) / weight.sum(0)
        deviation = np.where(weight > 0, total / weight - mean, 0.0)
        square = (share * deviation**2).sum(0)
        independent = (share**2).sum(0) * _inflation(deviation / np.sqrt(square), tested & (square > 0))
        error = np.sqrt(square * independent / (1 - independent))
        p_values = 2 * stdtr(np.maximum(1 / independent - 1, 1), -np.abs(mean / error))
    p_values = np.where(square > 0, p_values, np.where(mean == 0, 1.0, 0.0))
    return np.where(tested, p_values, np.nan)


def significant_cells(model: WeightedMean, reference: WeightedMean) -> np.ndarray:
    """Return where two models differ (..., H, W), with at most 5 % false discoveries expected on the map."""
    return discoveries(field_p_values(model, reference))


def _inflation(deviation: np.ndarray, used: np.ndarray) -> float:
    """Return the factor by which correlated blocks raise the variance of a mean, at least 1.

    `deviation` (block, ..., H, W) is standardised in each cell; only cells `used` count.
    """
    if not used.any():
        return 1.0
    values = deviation[:, used]
    count = len(values)
    starts = EffectiveStarts.at(np.arange(count, dtype=float), np.ones(count))
    observed = float((values[1:] * values[:-1]).sum() / (count - 1) / ((values**2).sum() / count))
    share = float(np.interp(observed, starts.observed, starts.share))
    return max(1.0, share * count)
