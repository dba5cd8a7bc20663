"""Scores of one verified forecast in each region, as the state of `monitor` keeps them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from statistics import NormalDist
from typing import Any

import numpy as np

from models.members.conformal import move_back, normal_levels, normal_scores, score_at, value_at
from models.members.options import QUANTILE_LEVELS

PIT_BINS = 10
"""Bins of the PIT histogram."""
INSIDE = slice(1, 9)
"""The bins of the central 80 %."""


@dataclass(frozen=True)
class RegionScores:
    """Area averages over the scored cells of a region, in units of the target.

    `expected` is the CRPS that the forecast expects of itself, half the mean difference of two members: the average of
    `crps` if analyses are drawn from the members. `error` is the mean of the members minus the analysis. `variance` has
    the divisor M. `pit` are the shares of the bins of the PIT histogram, which sum to 1. `area` is the share of the
    region that was scored.
    """

    area: float
    crps: float
    expected: float
    error: float
    squared_error: float
    variance: float
    pit: np.ndarray

    def to_json(self) -> list[float]:
        """Return plain numbers with seven digits."""
        numbers = [self.area, self.crps, self.expected, self.error, self.squared_error, self.variance, *self.pit]
        return [float(f"{number:.7g}") for number in numbers]

    @classmethod
    def from_json(cls, numbers: list[float]) -> RegionScores:
        """Return the scores from the numbers of `to_json`."""
        if len(numbers) != 6 + PIT_BINS:
            raise ValueError(f"{len(numbers)} numbers of a region")
        area, crps, expected, error, squared, variance, *pit = map(float, numbers)
        return cls(area, crps, expected, error, squared, variance, np.array(pit))


def score_regions(
    members: np.ndarray, analysis: np.ndarray, weights: Mapping[str, np.ndarray], levels: np.ndarray
) -> dict[str, RegionScores]:
    """Return the scores of sorted `members` (M, h, w) against the `analysis` (h, w) in each region with a scored cell.

    `weights` (h, w) are the areas of the cells of each region, `levels` (M,) the result of `member_levels`. Cells with
    a missing value are left out.
    """
    M = len(members)
    scored = np.isfinite(members).all(0) & np.isfinite(analysis)
    values, truth = members[:, scored], analysis[scored]
    k = np.arange(1, M + 1)[:, None]
    expected = ((2 * k - M - 1) * values).sum(0) / M**2
    mean = values.mean(0)
    below = pit_shares(values, truth, levels)
    cells = np.stack(
        [abs(values - truth).mean(0) - expected, expected, mean - truth, (mean - truth) ** 2, values.var(0), *below]
    )
    found = {}
    for name, area in weights.items():
        own = area[scored]
        if (total := float(own.sum())) > 0:
            crps, own_crps, error, squared, variance, *pit = (cells @ own / total).tolist()
            share = total / float(area.sum())
            found[name] = RegionScores(share, crps, own_crps, error, squared, variance, np.array(pit))
    return found


def member_levels(M: int, name: str) -> np.ndarray:
    """Return the levels of M members from the lowest to the highest, which are quantiles; see `QUANTILE_LEVELS`."""
    return np.asarray(QUANTILE_LEVELS[name](np.arange(1, M + 1), M), float)


def pit_shares(members: np.ndarray, truth: np.ndarray, levels: np.ndarray) -> np.ndarray:
    """Return the share (PIT_BINS, n) of each bin of the PIT histogram in every cell.

    The sorted members (M, n) are the quantiles at `levels` (M,). Between two members, and beyond the outermost,
    the PIT is known up to an interval, over which it is spread evenly (Czado, Gneiting & Held 2009,
    doi:10.1111/j.1541-0420.2009.01191.x). An analysis equal to several members is spread over all their intervals.
    """
    ends = np.concatenate([[0.0], levels, [1.0]])
    low = ends[(members < truth).sum(0)]
    high = ends[(members <= truth).sum(0) + 1]
    edges = np.linspace(0, 1, PIT_BINS + 1)[:, None]
    return np.asarray(np.diff(np.clip((edges - low) / (high - low), 0, 1), axis=0))


def shares_below(
    members: np.ndarray,
    analysis: np.ndarray,
    scores: tuple[np.ndarray, np.ndarray],
    area: np.ndarray,
    levels: np.ndarray,
    limits: tuple[float, float] = (-np.inf, np.inf),
) -> np.ndarray | None:
    """Return the area shares (3,) of analyses at or below the issued quantiles at three nominal levels.

    `scores` are the normal scores (3,) of these levels, and the scores to which the conformal layer had moved them when
    the forecast was issued. `members` (M, h, w) are sorted quantiles at `levels`. An analysis that equals members
    counts by the part of their probability below the level. Values beyond the `limits` of the target equal these.
    `area` (h, w) is 0 outside a core. None without a scored cell.
    """
    scored = np.isfinite(members).all(0) & np.isfinite(analysis) & (area > 0)
    if not scored.any():
        return None
    values, truth, own = members[:, scored].clip(*limits), analysis[scored].clip(*limits), area[scored]
    spread, known, (nominal, issued) = values.std(0), normal_scores(levels), scores
    # The probability between two members is divided equally between them.
    between = np.concatenate([[-np.inf], normal_scores((levels[1:] + levels[:-1]) / 2), [np.inf]])
    first, last = (values < truth).sum(0), (values <= truth).sum(0)
    alone = score_at(truth, known, values, spread)
    low, high = truth == limits[0], truth == limits[1]
    ends = (
        np.where(low, -np.inf, np.where(last > first, between[first], alone)),
        np.where(high, np.inf, np.where(last > first, between[last], alone)),
    )
    start, end = (normal_levels(move_back(one, nominal, issued)) for one in ends)
    found = []
    for level, z in zip(map(NormalDist().cdf, nominal.tolist()), issued.tolist(), strict=True):
        part = ((level - start) / np.where(end > start, end - start, 1)).clip(0, 1)
        below = np.where(end > start, part, truth <= value_at(z, known, values, spread))
        found.append(float((own * below).sum() / own.sum()))
    return np.array(found)


def daily_statistics(scores: Mapping[str, Any]) -> dict[str, float]:
    """Return the charted statistics from averages `crps`, `expected`, `error`, `squared_error`, `variance`, `pit`."""
    with np.errstate(divide="ignore", invalid="ignore"):
        spread, error = np.sqrt(scores["variance"]), np.sqrt(scores["squared_error"])
        return {
            "crps": float(np.log(scores["crps"] / scores["expected"])),
            "bias": float(scores["error"] / spread),
            "spread": float(np.log(spread / error)),
            "pit": float(scores["pit"][INSIDE].sum()),
        }
