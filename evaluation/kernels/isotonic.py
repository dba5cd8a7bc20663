"""Isotonic regression of many rows."""

from __future__ import annotations

import numpy as np

from data_pipeline.common.compiled import compiled


def isotonic_regression(values: np.ndarray, weights: np.ndarray) -> np.ndarray:
    """Return the rising sequence with the smallest weighted squared distance to `values`, along the last axis.

    Neighbours in the wrong order are pooled until none is left (Barlow et al. 1972, section 1.2). Values without weight
    have no influence, and the numbers in their places have no meaning.
    """
    value, weight = (
        one.astype(np.float64).reshape(-1, values.shape[-1]) for one in np.broadcast_arrays(values, weights)
    )
    found = np.empty(value.shape)
    _pool(value, weight, found)
    return found.reshape(values.shape)


@compiled
def _pool(values: np.ndarray, weights: np.ndarray, found: np.ndarray) -> None:
    rows, length = values.shape
    means, masses, starts = np.empty(length), np.empty(length), np.empty(length + 1, np.int64)
    for row in range(rows):
        found[row] = 0.0
        count = 0
        for k in range(length):
            if not weights[row, k] > 0:
                continue
            mean, mass, start = values[row, k], weights[row, k], k
            while count > 0 and means[count - 1] >= mean:
                count -= 1
                mean = (means[count] * masses[count] + mean * mass) / (masses[count] + mass)
                mass, start = masses[count] + mass, starts[count]
            means[count], masses[count], starts[count] = mean, mass, start
            count += 1
        starts[count] = length
        for block in range(count):
            found[row, starts[block] : starts[block + 1]] = means[block]
