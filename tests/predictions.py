"""Normal distributions as the prediction of an engine, and raw members as a forecast, for tests of members."""

import numpy as np
from scipy import stats

from models.engines.forecast import RawForecast


class NormalPrediction:
    """Normal distributions with means and spreads (T, h, w), by scipy; a `Prediction`."""

    def __init__(self, mean, spread, members=None, unchanged=None):
        self._mean, self._spread, self.members, self.unchanged = mean, spread, members, unchanged

    @classmethod
    def of_members(cls, members):
        """Return the prediction of a model with members (M, T, h, w)."""
        return cls(members.mean(0), members.std(0), members)

    def mean(self):
        return self._mean

    def std(self):
        return self._spread

    def quantiles(self, levels):
        return stats.norm.ppf(levels)[:, None, None, None] * self._spread + self._mean

    def cdf(self, values):
        return stats.norm.cdf((values - self._mean) / self._spread)


def raw_forecast(raw, lead=24, start="2020-01-01"):
    """Return a forecast whose members (M, T, H, W) have a value everywhere."""
    nothing, numbers = np.zeros(raw.shape, np.float32), tuple(range(len(raw)))
    return RawForecast(nothing, np.ones(raw.shape[1:], bool), raw, np.datetime64(start, "s"), lead, numbers)
