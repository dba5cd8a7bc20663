"""The histogram of the analysis' rank among the members, or of its probability integral transform."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import torch

from evaluation.scores.case import Case
from evaluation.scores.effective_cases import flatness_of
from evaluation.scores.ratios import divide
from evaluation.scores.score import Binned, CellStatistic, Diagram, Score, Settings


def _ranks(case: Case) -> Binned:
    return Binned(case.bin, case.bins, (torch.ones_like(case.truth),))


def _histogram(settings: Settings, target: int, rank: np.ndarray) -> Mapping[str, Mapping[str, np.ndarray]]:
    flatness = flatness_of(rank)
    return {
        "": {
            "x": np.arange(rank.shape[1]), "y": rank.sum(0), "flat": np.full(rank.shape[1], 1 / rank.shape[1]),
            "p_chi_square": np.array(flatness.chi_square), "p_kolmogorov": np.array(flatness.kolmogorov),
            "independent_cases": np.array(flatness.cases),
        }
    }  # fmt: skip


def start_numbers(histograms: np.ndarray) -> np.ndarray:
    """Return numbers of each start (starts, S, K + 3) whose sums give `deviation_of_pairs`.

    `histograms` (starts, S, K) has the sum of weights in each bin of S strata.
    """
    weight = histograms.sum(-1, keepdims=True)
    departure = histograms - weight / histograms.shape[-1]
    return np.concatenate([departure, (departure**2).sum(-1, keepdims=True), weight**2, weight], -1)


def deviation_of_pairs(averages: np.ndarray, whole: float) -> np.ndarray:
    """Return the deviation from a flat histogram within strata, averaged by their weights, (...).

    `averages` (..., S, K + 3) are sums of `start_numbers` divided by `whole`, the sum of all weights. A square of the
    departure of a stratum contains products of a start with itself, which are positive by chance alone. They are left
    out, so that the expectation is 0 for a flat histogram and independent starts. Strata with one start do not count.
    """
    departure, own, own_weight, weight = (
        averages[..., :-3], averages[..., -3] / whole, averages[..., -2] / whole, averages[..., -1],
    )  # fmt: skip
    pairs = weight**2 - own_weight
    known = pairs > 1e-9 * weight**2
    deviation = departure.shape[-1] * ((departure**2).sum(-1) - own) / np.where(known, pairs, 1)
    return divide((known * weight * deviation).sum(-1), (known * weight).sum(-1))


RANK = CellStatistic(_ranks, size=lambda settings: settings.bins)
RANK_HISTOGRAM = Diagram(
    name="rank_histogram",
    title="Rank and PIT histogram",
    text="Fractions of cases in which the analysis had rank 0 … M among the members, ties broken at random; for "
    "distributions the histogram of F(y) in as many bins. `p_chi_square` and `p_kolmogorov` are the chances that a "
    "flat histogram deviates as much from `flat`, if it counts `independent_cases` instead of correlated cells. All "
    "places and seasons are pooled, so that opposite errors can cancel.",
    reference="Hamill 2001, doi:10.1175/1520-0493(2001)129<0550:IORHFV>2.0.CO;2; Rao & Scott 1981, doi:10.2307/2287815",
    statistics={"rank": RANK},
    value=_histogram,
    by_start=True,
    default=True,
)
DEVIATION = Score(
    name="rank_deviation",
    title="deviation of the rank histogram",
    text="Mean of (K hₖ − 1)² over the K bins of the rank or PIT histogram h: 0.04 if its bars are 20 % too high or "
    "too low. It is computed in each season and, for the globe, north of 20° N, in the tropics and south of 20° S, and "
    "then averaged, so that opposite errors do not cancel. Squares are products of two different starts: a calibrated "
    "forecast has 0 on average and may be below it.",
    reference="Candille & Talagrand 2005, doi:10.1256/qj.04.71",
    statistics={"rank": RANK},
    value=lambda rank: rank.shape[-1] * ((rank - 1 / rank.shape[-1]) ** 2).sum(-1),
    in_strata=True,
    best="zero",
    units="",
    default=True,
)
SCORES = (DEVIATION,)
DIAGRAMS = (RANK_HISTOGRAM,)
