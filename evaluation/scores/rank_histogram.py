"""The histogram of the analysis' rank among the members, or of its probability integral transform."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import torch

from evaluation.scores.case import Case
from evaluation.scores.score import Binned, CellStatistic, Diagram, Settings


def _ranks(case: Case) -> Binned:
    return Binned(case.bin, case.bins, (torch.ones_like(case.truth),))


def _histogram(settings: Settings, target: int, rank: np.ndarray) -> Mapping[str, Mapping[str, np.ndarray]]:
    return {"": {"x": np.arange(len(rank)), "y": rank}}


RANK_HISTOGRAM = Diagram(
    name="rank_histogram",
    title="Rank and PIT histogram",
    text="Fractions of cases in which the analysis had rank 0 … M among the members, ties broken at random; for "
    "distributions the histogram of F(y) in as many bins.",
    reference="Hamill 2001, doi:10.1175/1520-0493(2001)129<0550:IORHFV>2.0.CO;2",
    statistics={"rank": CellStatistic(_ranks, size=lambda settings: settings.bins)},
    value=_histogram,
)
DIAGRAMS = (RANK_HISTOGRAM,)
