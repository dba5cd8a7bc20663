"""The climate of the truth, with which the products `efi`, `sot` and `cpf` compare a corrected distribution."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import tee

import numpy as np

from data_pipeline.common.errors import InputError
from data_pipeline.statistics.efi import (
    CROSSING_LEVELS,
    LARGEST_SHIFT,
    crossing_of_shares,
    index_of_shares,
    quantiles,
    traces,
)
from data_pipeline.task import Variable
from data_pipeline.writing.product import CLIMATE_DAYS, OUTER_LEVELS, ClimateSample
from models.engines.engine import Prediction
from models.members.past import Past
from models.parallel.domain import Domain

FEWEST_ANALYSES = 100
"""Analyses of a climate at least: fewer have no 1st and 99th percentile."""
BAND_BYTES = 1_000_000_000
"""Memory for past analyses; rows of the grid are read in bands that need no more."""


@dataclass(frozen=True, eq=False)
class TruthClimate:
    """Quantiles of past analyses (L, T, h, w) at `CROSSING_LEVELS`; NaN in cells with few analyses.

    The methods return fields (T, h, w), NaN where the climate has no value. In the part of the climate up to
    `Variable.trace`, such as days without rain, all levels have the same value, so nothing can be compared there.
    """

    values: np.ndarray
    sample: ClimateSample
    targets: tuple[Variable, ...]

    @classmethod
    def of(cls, past: Past, valid: np.datetime64, targets: tuple[Variable, ...], domain: Domain) -> TruthClimate:
        """Return the climate of a valid time on this rank's tile."""
        fields, times = past.analyses, past.season(valid, CLIMATE_DAYS)
        if len(times) < FEWEST_ANALYSES:
            raise InputError(
                f"{past.path} has {len(times)} analyses within {CLIMATE_DAYS} days of the year of {valid}, at its "
                f"hour and not of the same weather, but a climate needs {FEWEST_ANALYSES}; add more years, or leave "
                "efi, sot and cpf out of products"
            )
        places = np.searchsorted(fields.init_times, times)
        (rows, columns), (h, w) = domain.tile, domain.own_shape
        values = np.empty((len(CROSSING_LEVELS), len(targets), h, w), np.float32)
        band = max(1, BAND_BYTES // (8 * len(places) * len(targets) * w))
        for first in range(0, h, band):
            part = slice(first, min(first + band, h))
            own = np.empty((len(places), len(targets), part.stop - first, w), np.float32)
            for place, out in zip(places, own, strict=True):
                window = slice((rows.start or 0) + first, (rows.start or 0) + part.stop), columns
                fields.read(fields.cells[place, 0], out[None], window)
            values[:, :, part] = quantiles(own, CROSSING_LEVELS)
            values[:, :, part][:, np.isfinite(own).sum(0) < FEWEST_ANALYSES] = np.nan
        years = times.astype("datetime64[Y]").astype(int)
        sample = ClimateSample(times.min(), int(np.ptp(years)) + 1, 2 * CLIMATE_DAYS + 1, len(times))
        return cls(values, sample, targets)

    def index(self, prediction: Prediction) -> np.ndarray:
        """Return the extreme forecast index; 0 where the whole climate is dry. See `data_pipeline.statistics.efi`."""
        lowest = np.float32(-np.inf)
        # Networks compute in single precision, so the value below a quantile must differ in single precision.
        below, again = tee(prediction.cdf(np.nextafter(one, lowest)[None])[0] for one in self.values)
        equal = (prediction.cdf(one[None])[0] - low for one, low in zip(self.values, again, strict=True))
        wet = ((one > traces(self.targets)).astype(float) for one in self.values)
        return self._where_known(index_of_shares(below, equal, wet, CROSSING_LEVELS))

    def shift(self, forecast: np.ndarray, level: float) -> np.ndarray:
        """Return (Q - C(outer))/(C(outer) - C(level)) for the forecast's quantile Q at `level`; see `OUTER_LEVELS`."""
        near, far = self.quantile(level), self.quantile(OUTER_LEVELS[level])
        tail = far - near
        there = np.abs(tail) > np.maximum(traces(self.targets), 0)
        return ((forecast - far) / np.where(there, tail, np.nan)).clip(-LARGEST_SHIFT, LARGEST_SHIFT)

    def crossing(self, prediction: Prediction) -> np.ndarray:
        """Return the crossing point; NaN where the medians of forecast and climate are both dry."""
        found = self._where_known(crossing_of_shares(lambda k: prediction.cdf(self.values[k][None])[0]))
        return np.where((found < 0.5) & (self.quantile(0.5) <= traces(self.targets)), np.nan, found)

    def quantile(self, level: float) -> np.ndarray:
        """Return a quantile of the climate, float64."""
        return self.values[np.abs(CROSSING_LEVELS - level).argmin()].astype(np.float64)

    def _where_known(self, values: np.ndarray) -> np.ndarray:
        return np.where(np.isfinite(self.values[0]), values, np.nan)
