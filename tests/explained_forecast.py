"""A model that is linear in the ensemble means, its training climate, and forecasts for it: all answers are known."""

from dataclasses import dataclass

import numpy as np

from data_pipeline.grid import Grid
from models.engines.forecast import RawForecast
from models.provenance.training_climate import TrainingClimate

GRID = Grid.regular(9, 12)
CHANNELS = ("2t", "t@850", "msl")
SCALE = np.array([4.0, 3.0, 800.0])
WEIGHTS = np.array([-0.25, 0.5, 0.001])
WIDER = 1.5


@dataclass(frozen=True)
class ToyPrediction:
    means: np.ndarray
    stds: np.ndarray

    def mean(self):
        return self.means

    def std(self):
        return self.stds


def make_climate(grid=GRID):
    draw = np.random.default_rng(1)
    location = np.array([280.0, 265.0, 1e5])[:, None, None] + draw.normal(size=(3, *grid.shape))
    return TrainingClimate(location, SCALE, (0,), (1.0,), (0.0,))


def make_forecast(climate, lead_time=48, members=5, seed=2):
    """A forecast with one missing cell of each variable."""
    draw = np.random.default_rng(seed)
    shape = climate.location.shape
    departure = draw.normal(size=shape) + 0.2 * draw.normal(size=(members, *shape))
    ensemble = (climate.location + SCALE[:, None, None] * departure).astype(np.float32)
    mask = np.ones(shape, bool)
    mask[:, 0, 0] = False
    raw = np.where(mask[:1], ensemble[:, :1].astype(np.float64), np.nan)
    return RawForecast(ensemble, mask, raw, np.datetime64("2026-11-23T00", "s"), lead_time, tuple(range(members)))


def predict_linear(climate, usual):
    """Return the model: raw mean + `usual` (H, W) + Σ WEIGHTS × departure of each channel in physical units."""

    def predict(forecast):
        mean = forecast.ensemble.mean(0, dtype=np.float64)
        change = usual + np.einsum("c,chw->hw", WEIGHTS, mean - climate.location)
        spread = WIDER * forecast.ensemble[:, :1].std(0, ddof=1, dtype=np.float64)
        return ToyPrediction(np.where(forecast.mask[:1], mean[:1] + change, np.nan), spread)

    return predict
