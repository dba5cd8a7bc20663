"""Number against number: expectations that the tests and manuals of other projects state for small data."""

import numpy as np
import pytest
import torch
from published_extremes import CLIMATE, MEMBERS
from score_cases import make_case, score_of

from data_pipeline.statistics.efi import extreme_forecast_index
from evaluation.scores.extremes import shift_of_tails
from models.distribution import Ensemble, Quantiles


def tensor(values):
    return torch.tensor(values, dtype=torch.float64)


def test_extreme_forecast_index_and_shift_of_tails():
    members, climate = np.array(MEMBERS)[:, None] / 1e5 + 3, np.array(CLIMATE)[:, None] / 1e5
    assert extreme_forecast_index(members, climate)[0] == pytest.approx(-0.1838425040642013, rel=1e-9)
    # The percentiles 1, 10, 90 and 99 alone: those between them are not quite in order.
    chosen = [1, 10, 90, 99]
    of_climate = Quantiles(tensor(climate[chosen]), tensor(chosen) / 100)
    for tail, expected in (((0.9, 0.99), -2.14617638), ((0.1, 0.01), -1.3086723)):
        shift = shift_of_tails(Ensemble(tensor(members)), of_climate, *tail)
        assert float(shift) == pytest.approx(expected, abs=5e-5)  # members are rounded to 1e-5 K


@pytest.mark.parametrize(
    ("outer", "inner", "forecast", "eps", "shift"),
    [
        (1.0, 1.1, 1.5, 1e-4, -5.0), (1.0, 1.0, 1.2, 1e-4, np.nan), (1.0, 1.00001, 0.9, 1e-4, np.nan),
        (1.0, 1.1, 15.0, -1e-4, -10.0), (1.0, 1.1, -15.0, -1e-4, 10.0), (0.05, 0.1, 0.2, -1e-4, -3.0),
        (0.05, 0.1, 0.2, 0.15, np.nan), (0.05, 0.1, np.nan, -1e-4, np.nan),
    ],
)  # fmt: skip
def test_shift_of_tails_from_percentiles(outer, inner, forecast, eps, shift):
    """earthkit-meteo, tests/extreme, sot_func: bounds of ±10, and no number for a climate without a tail."""
    climate = Quantiles(tensor([[outer], [inner]]), tensor([0.01, 0.1]))
    found = shift_of_tails(Ensemble(tensor([[forecast], [forecast]])), climate, 0.1, 0.01, eps)
    np.testing.assert_allclose(found, [shift], rtol=1e-9)


# WeatherBench-X, metrics_test.py, test_seeps, and the manual of scores.categorical.seeps: amounts in mm, the
# climatological probability of a dry day and the limit of heavy precipitation.
SEEPS = [
    ([0.5], [0.0], [0.4], [1.0], 1.25),
    ([0.0], [0.0], [0.4], [1.0], 0.0),
    ([0.1, 10, 0, 0.4, 7.1, 6.5], [0.4, 13.4, 0.1, 0.4, 10.2, 4.5], [0.5, 0.7, 0.9] * 2, [14.0, 18.0, 6.0] * 2, 0.25),
]


@pytest.mark.parametrize(("forecast", "truth", "dry", "heavy", "expected"), SEEPS)
def test_seeps(forecast, truth, dry, heavy, expected):
    """Climates of 1000 quantiles: 0 mm up to the probability of a dry day, and the limit at two thirds of the rest."""
    p, limit = tensor(dry), tensor(heavy) / 1000
    levels = torch.linspace(0.0005, 0.9995, 1000, dtype=torch.float64)[:, None]
    two_thirds = p + 2 / 3 * (1 - p)
    rising = 2.5e-4 + (levels - p) / (two_thirds - p) * (limit - 2.5e-4)
    climate = Quantiles(torch.where(levels < p, 0, rising).view(-1, 1, 1, 1, len(p)), levels[:, 0])
    amounts = tensor(forecast).view(1, 1, 1, -1) / 1000
    case = make_case(
        Ensemble(amounts.expand(3, -1, -1, -1, -1)), tensor(truth).view(1, 1, 1, -1) / 1000, climate=climate, eps=1e-4
    )
    assert score_of("seeps", case) == pytest.approx(expected, abs=0.01)
