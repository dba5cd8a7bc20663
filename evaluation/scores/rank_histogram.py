"""The histogram of the analysis' rank among the members, or of its probability integral transform."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import torch

from evaluation.scores.case import Case
from evaluation.scores.effective_cases import flatness_of
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


RANK = CellStatistic(_ranks, size=lambda settings: settings.bins)
RANK_HISTOGRAM = Diagram(
    name="rank_histogram",
    title="Rank and PIT histogram",
    text="Fractions of cases in which the analysis had rank 0 … M among the members, ties broken at random; for "
    "distributions the histogram of F(y) in as many bins. `p_chi_square` and `p_kolmogorov` are the chances that a "
    "flat histogram deviates as much from `flat`, if it counts `independent_cases` instead of correlated cells.",
    reference="Hamill 2001, doi:10.1175/1520-0493(2001)129<0550:IORHFV>2.0.CO;2; Rao & Scott 1981, doi:10.2307/2287815",
    statistics={"rank": RANK},
    value=_histogram,
    by_start=True,
    default=True,
)
DEVIATION = Score(
    name="rank_deviation",
    title="deviation of the rank histogram",
    text="Σ |hₖ − 1/K| over the K bins of the rank or PIT histogram h: 0 if it is flat. Few cases deviate by chance.",
    reference="Delle Monache et al. 2006, doi:10.1029/2005JD006917",
    statistics={"rank": RANK},
    value=lambda rank: abs(rank - 1 / rank.shape[-1]).sum(-1),
    best="zero",
    units="",
    default=True,
)
SCORES = (DEVIATION,)
DIAGRAMS = (RANK_HISTOGRAM,)
