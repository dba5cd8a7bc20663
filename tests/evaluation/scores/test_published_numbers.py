"""Number against number: expectations that the tests and manuals of other projects state for small data."""

import numpy as np
import pytest
import torch
from scipy.stats import norm
from score_cases import make_case, score_of

from data_pipeline.statistics.efi import extreme_forecast_index
from data_pipeline.variables.thresholds import Threshold
from evaluation.scores.extremes import crossing_point, shift_of_tails
from models.distribution import Ensemble, Normal, Quantiles


def tensor(values):
    return torch.tensor(values, dtype=torch.float64)


def of_members(members, truth, **further):
    """One start and one cell."""
    further.setdefault("bins", len(members) + 1)
    return make_case(Ensemble(tensor(members).view(-1, 1, 1, 1, 1)), tensor(truth).view(1, 1, 1, 1), **further)


# scores, tests/probability/crps_test_data.py: sums over members and over pairs, written as fractions there.
CRPS = [
    ([0, 4, 3, 7], 2, 8 / 4, 2 / 4, 44 / 32, 44 / 24),
    ([1, -1, 2, 4], 3, 1 / 4, 7 / 4, 32 / 32, 32 / 24),
    ([0, 1, 4], 1, 3 / 3, 1 / 3, 16 / 18, 16 / 12),
    # WeatherBench-X, metrics_test.py, test_energy_score_numerical_values.
    ([3, 5], 0, 4.0, 0.0, 1 / 2, 1.0),
]


@pytest.mark.parametrize(("members", "truth", "over", "under", "spread", "fair_spread"), CRPS)
def test_crps_and_its_parts(members, truth, over, under, spread, fair_spread):
    case = of_members(members, truth)
    np.testing.assert_allclose(score_of("crps_parts", case), [over, spread, under], rtol=1e-12, atol=1e-15)
    assert score_of("crps", case) == pytest.approx(over + under - spread)
    assert score_of("crps_fair", case) == pytest.approx(over + under - fair_spread)


@pytest.mark.parametrize(
    ("truth", "plain", "fair"), [(0.1, 0.76, 0.60), (0.2, 0.76, 0.60), (0.7, 1.36, 1.20), (0.9, 1.96, 1.80)]
)
def test_ranked_probability_score_of_quintiles(truth, plain, fair):
    """WeatherBench-X, metrics_test.py, test_ensemble_rps_on_handwritten_small_data: limits 0.2, 0.4, 0.6 and 0.8."""
    levels = tensor([0.1, 0.2, 0.4, 0.6, 0.8, 0.9])
    case = of_members([0.1, 0.3, 0.3, 0.4, 0.9], truth, climate=Quantiles(levels.view(-1, 1, 1, 1, 1), levels))
    assert score_of("rps", case)[1] == pytest.approx(plain)
    assert score_of("rps_fair", case)[1] == pytest.approx(fair)


# Mason & Graham 2002, doi:10.1256/003590002320603584, as in roc.area of R's package verification.
EVENTS = [0, 0, 0, 1, 1, 1, 0, 1, 1, 0, 0, 0, 0, 1, 1]
TIES = [0.8, 0.8, 0, 1, 1, 0.6, 0.4, 0.8, 0, 0, 0.2, 0, 0, 1, 1]
NO_TIES = [0.928, 0.576, 0.008, 0.944, 0.832, 0.816, 0.136, 0.584, 0.032, 0.016, 0.28, 0.024, 0, 0.984, 0.952]


@pytest.mark.parametrize(("probabilities", "area"), [(TIES, 0.8392857), (NO_TIES, 0.875)])
def test_area_below_the_roc_curve(probabilities, area):
    """P(X > 0) of a normal distribution with the standard deviation 1 and the mean Φ⁻¹(p).

    Probabilities in one bin count as equal: half of one of the 7 x 8 pairs for 0.576 and 0.584, at most as much for
    0.024 and 0.032.
    """
    mean = tensor(norm.ppf(probabilities).clip(-9, 9)).view(-1, 1, 1, 1)
    truth = tensor(EVENTS).view(-1, 1, 1, 1) - 0.5
    case = make_case(Normal(mean, torch.ones_like(mean)), truth, ((Threshold(">", 0.0),),))
    assert score_of("roc_area", case)[0] == pytest.approx(area, abs=5e-8 if probabilities is TIES else 1 / 56 + 1e-9)


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


# earthkit-meteo, tests/extreme/_cpf.py: members and percentiles in 1e-3 K above 298 K, then above 297 K.
CROSSINGS = {
    0.53921568: (
        [
            839, 626, 633, 764, 280, 755, 727, 722, 706, 953, 734, 894, 120, 594, 465, 801, 689, 531, 178, 801, 758,
            507, 971, 655, 696, 1034, 732, 679, 851, 606, 812, 727, 858, 648, 892, 725, 1042, 956, 491, 732, 363,
            714, 318, 600, 706, 621, 835, 813, 537, 816, 651,
        ],
        [
            -1300, -590, -426, -361, -274, -204, -161, -122, -90, -34, 13, 25, 50, 71, 115, 144, 148, 184, 195, 211,
            232, 278, 275, 289, 314, 312, 353, 365, 390, 374, 391, 424, 446, 459, 475, 506, 495, 514, 530, 553, 570,
            586, 602, 605, 622, 628, 643, 672, 678, 691, 714, 719, 730, 756, 759, 775, 788, 789, 811, 830, 833, 849,
            853, 857, 891, 901, 910, 923, 913, 938, 944, 945, 954, 967, 989, 999, 1008, 1028, 1050, 1073, 1083,
            1088, 1102, 1092, 1109, 1128, 1168, 1179, 1179, 1223, 1241, 1280, 1312, 1326, 1374, 1420, 1488, 1551,
            1629, 1754, 2376,
        ],
    ),
    0.1274510026: (
        [
            775, 1640, 838, 586, 708, 481, 1130, 1019, 417, 808, 410, 1076, 1036, 377, 1227, 40, 906, 441, 739, 645,
            1080, 921, 789, 1483, 836, 942, 525, 1105, 820, 786, 841, 1131, 718, 1411, 464, 143, 977, 1111, 1087,
            392, 1777, 1517, 802, 803, 784, 945, 1112, 600, 642, 1156, 498,
        ],
        [  # up to the median
            -2519, -1402, -1019, -736, -523, -422, -317, -215, -152, -3, 138, 275, 363, 415, 521, 582, 679, 746,
            789, 836, 919, 997, 1056, 1101, 1126, 1218, 1228, 1271, 1296, 1343, 1391, 1424, 1446, 1490, 1538, 1568,
            1589, 1608, 1655, 1709, 1758, 1773, 1790, 1823, 1872, 1909, 1956, 1954, 1990, 2034, 2058,
        ],
    ),
}  # fmt: skip


@pytest.mark.parametrize("expected", CROSSINGS)
def test_crossing_point(expected):
    """Within the steps of one member and one percentile: the published numbers are levels (k - ½)/51 of a member."""
    members, climate = (tensor(values)[:, None] for values in CROSSINGS[expected])
    levels = torch.arange(len(climate)) / 100
    found = crossing_point(Ensemble(members), Quantiles(climate, levels))
    assert float(found) == pytest.approx(expected, abs=1 / 51 + 0.01)


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
