"""Error in bins of the spread: whether the error is large where a forecast's spread is large."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import torch

from evaluation.scores.case import Case
from evaluation.scores.score import Binned, CellStatistic, Diagram, Settings

OCTAVES, FIRST = 36, -24
"""Bins have fixed edges, half an octave apart from 2^-24 units on, because the spread of later batches is unknown."""


def _by_spread(case: Case) -> Binned:
    expected = case.expected_squared_error.double()
    # log2 of the spread is half the log2 of its square; bins of half an octave double it again.
    position = torch.log2(expected.clamp(min=2.0 ** (2 * FIRST))) - 2 * FIRST
    index = position.nan_to_num(0).floor().long().clamp(0, 2 * OCTAVES - 1)
    return Binned(index, 2 * OCTAVES, (torch.ones_like(expected), expected, case.error.double().square()))


def _curve(settings: Settings, target: int, spread_bins: np.ndarray) -> Mapping[str, Mapping[str, np.ndarray]]:
    share, expected, actual = spread_bins.reshape(3, -1)
    used = share > 0
    return {
        "": {"x": np.sqrt(expected[used] / share[used]), "y": np.sqrt(actual[used] / share[used]), "share": share[used]}
    }


SPREAD_BINS = Diagram(
    name="spread_error",
    title="Spread and error",
    text="Root of the mean squared error (y) of the cases whose spread lies in a bin with the root mean square x, and "
    "their `share`. A calibrated forecast lies on the diagonal; bins are half an octave wide.",
    reference="Leutbecher & Palmer 2008, doi:10.1016/j.jcp.2007.02.014",
    statistics={"spread_bins": CellStatistic(_by_spread, size=6 * OCTAVES)},
    value=_curve,
)
DIAGRAMS = (SPREAD_BINS,)
