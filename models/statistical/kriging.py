"""Kriging: values at new stations from the values at known stations, with a trend in altitude and other fields.

Universal kriging with an exponential covariance and a nugget (Cressie 1993, Statistics for Spatial Data, chapter 3).
All predictions are linear in the known values, with weights of sum 1.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np

from data_pipeline.grids.points import Points
from data_pipeline.grids.station_cells import RADIUS_KM

LENGTHS, NUGGETS = (30.0, 100.0, 300.0, 1000.0), (0.1, 0.5, 2.0)
"""Candidates for the length of the covariance (km), and for the ratio of nugget to variance."""
FEWEST_PER_TERM = 8
"""Number of known stations for each term of the trend; with fewer the trend is a constant."""


class Smoothness(NamedTuple):
    """Length of the covariance (km), ratio of nugget to variance, and number of terms of the trend beside the constant.

    With the length 0, all known stations have the same weight in the departure from the trend.
    """

    length: float
    nugget: float
    trend: int


@dataclass(frozen=True, eq=False)
class Kriging:
    """Predicts values at `new` stations from values at `known` stations.

    `terms` (n, p) and `new_terms` (m, p) are the trend's terms beside the constant, the most important first.
    """

    known: Points
    new: Points
    terms: np.ndarray
    new_terms: np.ndarray

    def select(self, at: np.ndarray) -> Kriging:
        """Return the prediction from some of the known stations."""
        latitudes, longitudes = (tuple(np.array(each)[at]) for each in (self.known.latitudes, self.known.longitudes))
        return replace(self, known=Points(latitudes, longitudes), terms=self.terms[at])

    def candidates(self) -> Iterator[Smoothness]:
        """Yield all choices that the number of known stations allows, the simplest first."""
        count, terms = self.terms.shape
        for trend in sorted({0, min(1, terms), terms}):
            if trend and count < FEWEST_PER_TERM * (trend + 1):
                break
            yield Smoothness(0.0, 0.0, trend)
            yield from (Smoothness(length, nugget, trend) for length in LENGTHS for nugget in NUGGETS)

    def leave_one_out(self, smoothness: Smoothness) -> np.ndarray:
        """Return the weights (n, n) that predict each known station from all others; the diagonal is zero.

        With B as in `_solve`, the residual of a left-out station is (B v)_i / B_ii (Dubrule 1983).
        """
        residual = self._solve(smoothness)[0]
        return np.eye(len(residual)) - residual / residual.diagonal()[:, None]

    def weights(self, smoothness: Smoothness) -> np.ndarray:
        """Return the weights (m, n) that predict the new stations from the known ones."""
        residual, trend = self._solve(smoothness)
        found = self._trend_terms(self.new_terms, smoothness) @ trend
        if smoothness.length:
            found += np.exp(-distances(self.new, self.known) / smoothness.length) @ residual
        return np.asarray(found)

    def choose(self, values: np.ndarray) -> Smoothness:
        """Return the candidate with the smallest error at left-out stations of maps (R, n), each over its variance."""
        scale = values.std(1)
        varying = values[scale > 1e-6 * np.maximum(abs(values).max(1), 1e-30)]
        varying = (varying - varying.mean(1, keepdims=True)) / varying.std(1, keepdims=True)

        def error(one: Smoothness) -> float:
            return float(np.square(varying - varying @ self.leave_one_out(one).T).sum())

        return min(self.candidates(), key=error)

    def _solve(self, smoothness: Smoothness) -> tuple[np.ndarray, np.ndarray]:
        """Return B = K⁻¹ - K⁻¹ Z S (n, n) and S = (Zᵀ K⁻¹ Z)⁻¹ Zᵀ K⁻¹ (p, n), which gives the trend's coefficients."""
        count = len(self.terms)
        covariance = np.eye(count)
        if smoothness.length:
            covariance *= smoothness.nugget
            covariance += np.exp(-distances(self.known, self.known) / smoothness.length)
        inverse = np.linalg.inv(covariance)
        terms = self._trend_terms(self.terms, smoothness)
        trend = np.linalg.pinv(terms.T @ inverse @ terms, hermitian=True) @ (terms.T @ inverse)
        return inverse - inverse @ terms @ trend, trend

    def _trend_terms(self, terms: np.ndarray, smoothness: Smoothness) -> np.ndarray:
        """Return the constant and the terms, which are not extrapolated, in units of their standard deviation."""
        known, terms = self.terms[:, : smoothness.trend], terms[:, : smoothness.trend]
        low, high = known.min(0), known.max(0)
        scale = np.where(high > low, known.std(0), 1)
        return np.column_stack([np.ones(len(terms)), (np.clip(terms, low, high) - known.mean(0)) / scale])


def distances(one: Points, other: Points) -> np.ndarray:
    """Return the distances (km) between the points of two sets, (n, m), along chords of the sphere."""
    a, b = one.places, other.places
    square = np.maximum(2 - 2 * (a @ b.T), 0)
    return np.asarray(RADIUS_KM * np.sqrt(square))
