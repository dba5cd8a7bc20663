"""The conformal layer: moves quantiles of a forecast so that its central interval keeps its coverage under drift.

`deepweather monitor` counts how often analyses fall below the forecast quantiles at three levels: both ends of a
central interval, and the median. It moves each level against the error of its frequency, and `correct` applies the
moved levels.

Levels are moved as normal scores, z = Φ⁻¹(level). A forecast value at the score z is the quantile at the level Φ(z).
Beyond the outermost known quantiles, values continue with one standard deviation of the forecast for a unit of z. So
every analysis has a finite score, and a level can move beyond 0 and 1.

**Update** (quantile tracking; Gibbs & Candès 2021, doi:10.48550/arXiv.2106.00170; Angelopoulos, Candès & Tibshirani
2023, doi:10.48550/arXiv.2307.16895). For the level τ in a region, e is the area share of its core where the analysis is
at most the issued quantile. After each verified forecast, the score θ of the level becomes θ + η (τ - e).

**Ties.** A dry analysis equals many quantiles of a forecast that gives a high probability to 0 mm. Where the issued
forecast has a point mass at the analysis, between the probabilities a and b, the cell counts in e by the part
(τ - a)/(b - a) of the mass that lies below τ, at least 0 and at most 1. This is the expectation of a randomised PIT
(Czado, Gneiting & Held 2009, doi:10.1111/j.1541-0420.2009.01191.x): the expectation of e is τ if the forecast is
calibrated, however dry it is, and e = τ where forecast and analysis are certainly dry.

**Guarantee.** After T verified forecasts of one target, lead time and region, the mean of e differs from τ by exactly
|θ_T - θ_0| / (η T), whatever the analyses are, because the updates add up. `coverage_bound` bounds it without ties: let
B be the largest absolute value of the distance between τ's score and the score of the τ-quantile of the analyses in the
core, over the T forecasts; let a forecast be issued with the updates of all but the D forecasts before it (D grows with
the lead time). B is infinite where a forecast without spread misses the analysis, because no move of its levels changes
it. docs/monitor.md says what the guarantee means to users, and what bounds, latitude bands and ranks are.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import NormalDist
from typing import Any

import numpy as np

from data_pipeline.common.errors import InputError
from data_pipeline.task import Variable
from data_pipeline.variables.parameters import Bounds
from models.engines.engine import Prediction

CONFORMAL_FORMAT = 1
CORE, BELT = (15.0, 25.0), 10.0
"""Degrees of latitude: the core of the tropics ends at `CORE[0]`, the others begin at `CORE[1]`, after a belt."""
LAST_SCORE = 3.0
"""Quantiles of a distribution are read up to this score, levels 0.00135 to 0.99865."""
_ROUNDING = 1e-9
"""Tolerance of scores: rounding must not choose between probabilities 0 and 1/2 where many quantiles are equal."""
_SCORES = np.linspace(-LAST_SCORE, LAST_SCORE, 25)
_TABLE = np.linspace(-8, 8, 8001)
_LEVELS = np.array([NormalDist().cdf(z) for z in _TABLE.tolist()])
_QUADRATURE = np.polynomial.hermite_e.hermegauss(15)


def normal_scores(levels: Sequence[float] | np.ndarray) -> np.ndarray:
    """Return Φ⁻¹ of levels between 0 and 1.

    >>> normal_scores([0.1, 0.5, 0.9]).round(3).tolist()
    [-1.282, 0.0, 1.282]
    """
    return np.array([NormalDist().inv_cdf(float(level)) for level in levels])


def interval_levels(interval: float) -> np.ndarray:
    """Return the lower end, the median and the upper end of a central interval.

    >>> interval_levels(0.8).round(3).tolist()
    [0.1, 0.5, 0.9]
    """
    return np.array([(1 - interval) / 2, 0.5, (1 + interval) / 2])


def band_weights(latitudes: np.ndarray) -> dict[str, np.ndarray]:
    """Return the share of each band in every cell; the shares of a cell sum to 1, and a band is 1 in its core.

    Only bands with a core among the cells exist. Without any, the only region is `all`.

    >>> weights = band_weights(np.array([30.0, 20.0, 0.0]))
    >>> {name: share.tolist() for name, share in weights.items()}
    {'tropics': [0.0, 0.5, 1.0], 'north': [1.0, 0.5, 0.0]}
    """
    latitudes = np.asarray(latitudes, float)
    north, south = (np.clip((sign * latitudes - CORE[0]) / BELT, 0, 1) for sign in (1, -1))
    shares = {"south": south, "tropics": 1 - north - south, "north": north}
    found = {name: share for name, share in shares.items() if (share == 1).any()}
    if not found:
        return {"all": np.ones(latitudes.shape)}
    total = sum(found.values())
    # A belt beside a band without core belongs to its other neighbour; a cell far from any core to the first band.
    lost = total == 0
    first = next(iter(found))
    return {
        name: np.where(lost, float(name == first), share / np.where(lost, 1, total)) for name, share in found.items()
    }


def ordered(scores: np.ndarray) -> np.ndarray:
    """Return tracked scores (3, ...) as they are issued: the ends are moved to the median where they have crossed it.

    Tracked scores may cross for a while, because each follows its own errors. The scores that are not ordered are kept
    for the next update, so that the sum of the guarantee remains exact.
    """
    low, median, high = np.asarray(scores, float)
    return np.stack([np.minimum(low, median), median, np.maximum(high, median)])


def tracked_scores(interval: float, step: float, shares: np.ndarray) -> np.ndarray:
    """Return the scores (3,) after the updates by all `shares` (n, 3) of analyses at or below the issued quantiles."""
    levels = interval_levels(interval)
    shares = np.asarray(shares, float).reshape(-1, 3)
    return normal_scores(levels) + step * (levels - shares).sum(0)


def coverage_bound(largest: float, step: float, delay: int, count: int, end: bool = True) -> float:
    """Return the bound of |mean of e - τ| after `count` forecasts; `largest` is B, `delay` is D of the module.

    It is (B + 2 η (D + 1)) / (η T) for the ends of the interval, and (B + η (D + 1)) / (η T) for the median.

    Proof. θ_n - θ_0 = η Σ (τ - e), so the mean of e differs from τ by |θ_n - θ_0| / (η n).

    Median: let d be its score minus its score at the start. Where d >= B at issue, e ≥ τ, and the update does not raise
    the score. The first update after which d exceeds B raises d to at most B + η. The next D updates belong to
    forecasts that were issued before, and raise d by at most η each. So d is at most B + η (D + 1), and the same holds
    below the start.

    Upper end: its issued score is at least its tracked score, so B + η (D + 1) holds above the start. Below the start,
    an update lowers the score only if it was issued at most B below the start. If the issued score was the tracked one,
    the score falls by at most η (D + 1) from there. If the issued score was the median's, which the end had crossed,
    the end lay below the median by at most η (D + 1): with the same e for both, an update brings the end closer to the
    median, so that at most D + 1 updates widen the gap. So the score stays within B + 2 η (D + 1) of the start. The
    lower end mirrors this.
    """
    return (largest + (2 if end else 1) * step * (delay + 1)) / (step * count)


def move(z: np.ndarray | float, nominal: np.ndarray, moved: np.ndarray) -> np.ndarray:
    """Return issued scores for nominal scores: piecewise linear through the pairs of `nominal` (3,) and `moved`.

    `moved` (3, ...) are ordered. The outer pieces continue beyond the ends.
    """
    low, median, high = moved
    below = (np.asarray(z) - nominal[1]) / (nominal[1] - nominal[0])
    above = (np.asarray(z) - nominal[1]) / (nominal[2] - nominal[1])
    return np.asarray(median + np.minimum(below, 0) * (median - low) + np.maximum(above, 0) * (high - median))


def move_back(z: np.ndarray, nominal: np.ndarray, moved: np.ndarray) -> np.ndarray:
    """Return nominal scores for issued scores, the inverse of `move`; of several, the highest."""
    low, median, high = moved
    upper = z >= median - _ROUNDING
    with np.errstate(divide="ignore", invalid="ignore"):
        below = nominal[1] + (z - median) / (median - low) * (nominal[1] - nominal[0])
        above = nominal[1] + (z - median) / (high - median) * (nominal[2] - nominal[1])
    return np.where(upper, np.where(high > median, above, np.inf), np.where(median > low, below, -np.inf))


def normal_levels(scores: np.ndarray) -> np.ndarray:
    """Return Φ of scores, to six digits; Φ(±∞) is 0 or 1.

    >>> normal_levels(np.array([-np.inf, 0.0, np.inf])).tolist()
    [0.0, 0.5, 1.0]
    """
    return np.interp(scores, _TABLE, _LEVELS, left=0, right=1)


def value_at(z: np.ndarray, scores: np.ndarray, values: np.ndarray, spread: np.ndarray) -> np.ndarray:
    """Return the forecast values at scores z (...), linear between `values` (N, ...) at increasing `scores` (N,)."""
    z = np.broadcast_to(z, values.shape[1:])
    inside = np.clip(z, scores[0], scores[-1])
    left = np.clip(np.searchsorted(scores, inside, "right") - 1, 0, max(len(scores) - 2, 0))
    right = np.minimum(left + 1, len(scores) - 1)
    width = np.where(right > left, scores[right] - scores[left], 1.0)
    low, high = (np.take_along_axis(values, place[None], 0)[0] for place in (left, right))
    return np.asarray(low + (inside - scores[left]) / width * (high - low) + (z - inside) * spread)


def continued_to(low: np.ndarray, scores: np.ndarray, values: np.ndarray) -> np.ndarray:
    """Return `values` (N, ...); the last one at the bound `low` is moved down to the line through the next two.

    >>> continued_to(np.array(0.0), np.arange(4.0), np.array([0.0, 0.0, 1.0, 3.0])).tolist()
    [0.0, -1.0, 1.0, 3.0]
    """
    count = (values <= low).sum(0)
    if len(scores) < 3 or not count.any():
        return values
    place = np.clip(count - 1, 0, len(scores) - 3)
    last, first, second = (np.take_along_axis(values, place[None] + k, 0)[0] for k in range(3))
    line = first - (second - first) * (scores[place + 1] - scores[place]) / (scores[place + 2] - scores[place + 1])
    found = values.copy()
    np.put_along_axis(found, place[None], np.where(count == place + 1, np.minimum(line, last), last)[None], 0)
    return found


def score_at(value: np.ndarray, scores: np.ndarray, values: np.ndarray, spread: np.ndarray) -> np.ndarray:
    """Return the scores of forecast values (...), the inverse of `value_at`; the highest one among equal values."""
    count = (values <= value).sum(0)
    left = np.clip(count - 1, 0, max(len(scores) - 2, 0))
    right = np.minimum(left + 1, len(scores) - 1)
    low, high = (np.take_along_axis(values, place[None], 0)[0] for place in (left, right))
    with np.errstate(divide="ignore", invalid="ignore"):
        share = np.where(high > low, (value - low) / (high - low), np.where(value >= high, 1.0, 0.0))
        beyond = np.where(value > values[-1], value - values[-1], np.minimum(value - values[0], 0))
        outside = np.where(beyond == 0, 0.0, np.where(spread > 0, beyond / spread, np.sign(beyond) * np.inf))
    return np.asarray(scores[left] + np.clip(share, 0, 1) * (scores[right] - scores[left]) + outside)


@dataclass(frozen=True)
class ConformalLayer:
    """The content of `conformal.json`: moved scores of each target, lead time and region, for one corrector.

    `corrector` is the SHA-256 of the corrector's file. `scores` are tracked, not ordered.
    """

    corrector: str
    interval: float
    step: float
    scores: Mapping[tuple[str, int], Mapping[str, np.ndarray]]
    counts: Mapping[tuple[str, int], int]

    @property
    def nominal(self) -> np.ndarray:
        """The scores (3,) that the tracked levels have without the layer."""
        return normal_scores(interval_levels(self.interval))

    def to_json(self) -> dict[str, Any]:
        """Return plain values from which `load` makes an equal layer."""
        entries = [
            {
                "target": target, "lead_time": lead, "verified": self.counts[target, lead],
                "scores": {region: np.asarray(found).tolist() for region, found in regions.items()},
            }
            for (target, lead), regions in self.scores.items()
        ]  # fmt: skip
        about = {"corrector": self.corrector, "interval": self.interval, "step": self.step}
        return {"format": CONFORMAL_FORMAT, "kind": "conformal layer", **about, "entries": entries}

    @classmethod
    def load(cls, path: str | Path, corrector: str | None = None) -> ConformalLayer:
        """Read a file of `monitor`. Raises `InputError` if it is damaged or for another `corrector` (SHA-256)."""
        try:
            found = json.loads(Path(path).read_text("utf-8"))
            if found["kind"] != "conformal layer" or found["format"] != CONFORMAL_FORMAT:
                raise ValueError(f"format {found['format']}")
            scores = {
                (str(one["target"]), int(one["lead_time"])): {
                    str(region): np.array(values, float).reshape(3) for region, values in one["scores"].items()
                }
                for one in found["entries"]
            }
            if not all(np.isfinite(values).all() for regions in scores.values() for values in regions.values()):
                raise ValueError("a score is not finite")
            counts = {(str(one["target"]), int(one["lead_time"])): int(one["verified"]) for one in found["entries"]}
            layer = cls(str(found["corrector"]), float(found["interval"]), float(found["step"]), scores, counts)
            if not 0 < layer.interval < 1:
                raise ValueError(f"interval {layer.interval}")
        except FileNotFoundError:
            raise InputError(
                f"there is no file {path}; conformal is conformal.json in the folder of deepweather monitor"
            ) from None
        except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
            raise InputError(
                f"{path} is no conformal layer of this version ({error}); give conformal.json of deepweather monitor"
            ) from None
        if corrector is not None and layer.corrector != corrector:
            raise InputError(
                f"conformal={path} was made for another corrector (SHA-256 {layer.corrector[:12]}…, not "
                f"{corrector[:12]}…); run deepweather monitor with this corrector in a new run_dir"
            )
        return layer

    def fields(self, targets: Sequence[str], lead_time: int, shares: Mapping[str, np.ndarray]) -> np.ndarray:
        """Return the issued scores (3, T, h, w); nominal where nothing is known. `shares` (h, w) are `band_weights`.

        In a belt between two regions, the scores of both are blended in proportion to the distance to their cores.
        """
        nominal = self.nominal[:, None, None]
        fields = np.empty((3, len(targets), *next(iter(shares.values())).shape))
        for k, target in enumerate(targets):
            regions = self.scores.get((target, lead_time), {})
            own = {name: ordered(regions[name])[:, None, None] for name in shares if name in regions}
            fields[:, k] = sum((share * own.get(name, nominal) for name, share in shares.items()), 0 * nominal)
        return fields

    def apply(
        self, inner: Prediction, targets: Sequence[Variable], lead_time: int, shares: Mapping[str, np.ndarray]
    ) -> Prediction:
        """Return the prediction with moved quantiles; `inner` itself if nothing is known about the lead time."""
        names = [str(target) for target in targets]
        if not any((name, lead_time) in self.scores for name in names):
            return inner
        moved = self.fields(names, lead_time, shares)
        if inner.unchanged is not None:
            moved = np.where(inner.unchanged, self.nominal[:, None, None, None], moved)
        return ConformalPrediction(inner, self.nominal, moved, [target.bounds for target in targets])


class ConformalPrediction:
    """A prediction with the quantiles of `inner` at moved levels.

    `nominal` (3,) are scores, `moved` (3, T, h, w) the ordered scores that are issued for them, and `bounds` the
    physical bounds of the T targets. Values are linear in the score between 25 quantiles of `inner` with equidistant
    scores. This is exact for normal distributions, also if they are censored at a bound.
    """

    def __init__(self, inner: Prediction, nominal: np.ndarray, moved: np.ndarray, bounds: Sequence[Bounds]) -> None:
        self._nominal, self._moved = nominal, moved
        self.unchanged = inner.unchanged
        self.members: np.ndarray | None = None
        """None: members are quantiles, also where the model itself forecasts members."""
        self._spread = np.asarray(inner.std(), float)
        if inner.members is not None and len(inner.members) > 1:
            M = len(inner.members)
            self._scores = normal_scores((np.arange(M) + 0.5) / M)  # of quantiles at the levels (k - 1/2)/M
            self._values = np.sort(np.asarray(inner.members, float), axis=0)
            if inner.unchanged is not None:  # there `inner` is the raw ensemble, not the model's members
                kept = inner.quantiles(normal_levels(self._scores))
                self._values = np.where(inner.unchanged, kept, self._values)
        else:
            self._scores = _SCORES
            levels = normal_levels(_SCORES)
            self._values = np.maximum.accumulate(np.asarray(inner.quantiles(levels), float), axis=0)
        limits = [(-np.inf if low is None else low, np.inf if high is None else high) for low, high in bounds]
        self._low, self._high = np.array(limits).T[:, :, None, None]
        values = continued_to(self._low, self._scores, self._values.clip(self._low, self._high))
        self._values = -continued_to(-self._high, -self._scores[::-1], -values[::-1])[::-1]

    def quantiles(self, levels: np.ndarray) -> np.ndarray:
        """Return the quantiles (K, T, h, w) at `levels` (K,)."""
        return self._at(normal_scores(levels))

    def cdf(self, values: np.ndarray) -> np.ndarray:
        """Return the probability (K, T, h, w) of at most `values` (K, T, h, w) or (K, T, 1, 1)."""
        return np.stack([self._probability(value) for value in values])

    def _probability(self, value: np.ndarray) -> np.ndarray:
        score = score_at(value, self._scores, self._values, self._spread)
        found = normal_levels(move_back(score, self._nominal, self._moved))
        return np.where(value < self._low, 0, np.where(value >= self._high, 1, found))

    def mean(self) -> np.ndarray:
        """Return the mean, by Gauss-Hermite quadrature over the score."""
        return self._moment(self._at(_QUADRATURE[0]))

    def std(self) -> np.ndarray:
        """Return the standard deviation, by Gauss-Hermite quadrature over the score."""
        values = self._at(_QUADRATURE[0])
        return np.sqrt(self._moment((values - self._moment(values)) ** 2))

    def _at(self, scores: np.ndarray) -> np.ndarray:
        """Return the values at nominal scores (K,)."""
        return np.stack(
            [
                value_at(move(z, self._nominal, self._moved), self._scores, self._values, self._spread)
                for z in scores.tolist()
            ]
        ).clip(self._low, self._high)

    @staticmethod
    def _moment(values: np.ndarray) -> np.ndarray:
        return np.tensordot(_QUADRATURE[1] / _QUADRATURE[1].sum(), values, 1)
