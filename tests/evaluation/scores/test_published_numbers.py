"""Number against number: expectations that the tests and manuals of other projects state for small data."""

import numpy as np
import pytest
import torch
from score_cases import make_case, score_of

from data_pipeline.statistics.efi import extreme_forecast_index
from evaluation.scores.extremes import shift_of_tails
from models.distribution import Ensemble, Quantiles


def tensor(values):
    return torch.tensor(values, dtype=torch.float64)


# earthkit-meteo, tests/extreme: 51 members and the climate's 101 percentiles, in 1e-5 K above 273 K and 270 K.
MEMBERS = [
    56038, 61122, 63013, 59335, 57877, 65366, 61139, 56483, 51663, 58751, 65254, 60098, 58737, 60316, 59607, 60876,
    50160, 57924, 56584, 49942, 62070, 58499, 58781, 59477, 68614, 60530, 53809, 54582, 65735, 65567, 57178, 55507,
    55067, 56302, 54680, 58064, 56998, 61926, 57880, 60385, 63429, 61221, 40080, 52342, 63037, 54181, 56487, 60005,
    49524, 56845, 62152,
]  # fmt: skip
CLIMATE = [
    31404, 104376, 188911, 217996, 229630, 245882, 255467, 267177, 276578, 289603, 293855, 301395, 308498, 313676,
    319113, 322420, 325591, 326646, 330347, 331696, 331859, 333643, 337065, 339844, 340195, 344014, 344855, 347971,
    349265, 350417, 352960, 354268, 356050, 355299, 356401, 358006, 358612, 362064, 360931, 360651, 361801, 362141,
    365431, 363867, 365671, 367223, 365425, 368619, 368138, 367578, 369138, 368822, 369772, 369319, 370792, 373648,
    371696, 372935, 374089, 373987, 376909, 375911, 378601, 378836, 380046, 379504, 381297, 380553, 381306, 383452,
    383099, 384126, 384232, 385222, 388309, 387723, 389911, 390881, 388889, 390224, 392580, 393246, 393845, 395280,
    396545, 398947, 398996, 402646, 405247, 406059, 405807, 410277, 412309, 415106, 416434, 419328, 420668, 427968,
    433124, 442781, 455859,
]  # fmt: skip


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
