"""The extreme forecast index: limits, quadrature, published values; its climate against NumPy's quantiles."""

from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.integrate import quad
from scipy.stats import norm

from data_pipeline.common.errors import InputError
from data_pipeline.statistics.efi import (
    CLIMATE_PROBABILITIES,
    REFERENCE_PROBABILITIES,
    EfiClimate,
    extreme_forecast_index,
    quantiles,
    reference_places,
)
from data_pipeline.statistics.statistic_file import load_statistic
from data_pipeline.task import Variable

CLIMATE = np.sort(np.random.default_rng(3).normal(size=21))[:, None]


def index_of(members, form, climate=CLIMATE):
    return float(extreme_forecast_index(np.reshape(members, (-1, 1)), climate, form)[0])


@pytest.mark.parametrize(("form", "limit"), [("exact", 1.0), ("reference", 0.7914)])
def test_members_outside_the_climate_have_the_extreme_index(form, limit):
    assert index_of(np.full(10, 99.0), form) == pytest.approx(limit, abs=5e-5)
    assert index_of(np.full(10, -99.0), form) == pytest.approx(-limit, abs=5e-5)


@settings(max_examples=20)
@given(st.lists(st.floats(-3, 3), min_size=1, max_size=12))
def test_the_exact_form_equals_the_integral(members):
    below = [np.mean(np.array(members) < q) + np.mean(np.array(members) == q) / 2 for q in CLIMATE[:, 0]]

    def integrand(angle):
        # p = sin² removes the poles of the weight: dp / √(p (1 - p)) = 2 d(angle).
        p = np.sin(angle) ** 2
        return 2 * (p - np.interp(p, REFERENCE_PROBABILITIES, below))

    breaks = np.arcsin(np.sqrt(REFERENCE_PROBABILITIES))
    whole = sum(quad(integrand, a, b)[0] for a, b in pairwise(breaks))
    assert index_of(members, "exact") == pytest.approx(2 / np.pi * whole, abs=1e-6)


@settings(max_examples=40)
@given(st.lists(st.floats(-3, 3), min_size=2, max_size=12))
def test_the_reference_form_equals_the_published_algorithm(members):
    own, total = np.quantile(members, REFERENCE_PROBABILITIES), 0.0
    for k in range(1, 20):
        p = REFERENCE_PROBABILITIES[k]
        total += (p - REFERENCE_PROBABILITIES[np.searchsorted(own[:-1], CLIMATE[k, 0])]) / np.sqrt(p * (1 - p)) * 0.05
    assert index_of(members, "reference") == pytest.approx(2 / np.pi * total, abs=1e-12)


RAIN = [
    1202, 1340, 1716, 1104, 1516, 2101, 1077, 1458, 1125, 1326, 767, 1989, 582, 1933, 736, 1560, 1083, 1288, 2090, 1379,
    1004, 1976, 1366, 2284, 1976, 650, 535, 1724, 1801, 1348, 1272, 942, 606, 1276, 1876, 1636, 1246, 918, 1958, 1248,
    1166, 1022, 732, 1189, 1630, 766, 1726, 1212, 1166, 1164, 1368,
]  # fmt: skip
RAIN_CLIMATE = [
    *[0] * 29, 1, *[2] * 10, 3, *[4] * 5, 5, *[6] * 4, 7, 8, 8, 8, 9, 10, 10, 12, 12, 13, 14, 16, 16, 18, 20, 22, 24,
    25, 28, 30, 32, 34, 37, 40, 42, 46, 50, 54, 56, 60, 62, 68, 71, 74, 78, 84, 90, 96, 102, 108, 116, 120, 128, 136,
    146, 160, 193, 219, 256, 376,
]  # fmt: skip
"""In m, times 2 to the powers 18 and 14 (values of the tests of earthkit-meteo, Apache-2.0)."""


def test_rain_has_the_index_of_ecmwf():
    """ECMWF counts members that equal a quantile in full, not by half."""
    arrays = np.array(RAIN)[:, None] / 2.0**18, np.array(RAIN_CLIMATE)[:, None] / 2.0**14
    assert extreme_forecast_index(*arrays, eps=Variable("tp").trace) == pytest.approx(0.46039, abs=5e-4)


@settings(max_examples=40)
@given(st.lists(st.floats(0, 1), min_size=2, max_size=12), st.integers(0, 2**32 - 1))
def test_only_the_wet_part_of_the_climate_counts(members, seed):
    """Against numerical integrals over the intervals of the climate that end above eps, with F linear in them."""
    random = np.random.default_rng(seed)
    climate = np.sort(random.choice([0, 0.05, 0.1, 0.3, *random.random(9)], 21))[:, None]
    members[0] = climate[climate <= 0.1].max(initial=0)  # the last dry quantile
    below = [np.mean([(x < q) + (x == q) * (0.5 if q > 0.1 else 1) for x in members]) for q in climate[:, 0]]
    angle = (np.arange(400) + 0.5) / 400
    over = under = 0.0
    for k, (a, b) in enumerate(pairwise(np.arcsin(np.sqrt(REFERENCE_PROBABILITIES)))):
        if climate[k + 1, 0] > 0.1:
            p = np.sin(a + angle * (b - a)) ** 2
            over += np.sum(p - np.interp(p, REFERENCE_PROBABILITIES, below)) * (b - a)
            under += np.sum(p) * (b - a)
    found = extreme_forecast_index(np.array(members)[:, None], climate, eps=0.1)
    assert found == pytest.approx(over / under if under else 0, abs=1e-5)


@pytest.mark.parametrize("form", ["exact", "reference"])
def test_missing_values_give_nan(form):
    members, climate = np.zeros((5, 3)), np.linspace(-1, 1, 21)[:, None].repeat(3, 1)
    members[2, 0] = climate[4, 1] = np.nan
    assert np.isnan(extreme_forecast_index(members, climate, form)).tolist() == [True, True, False]


def test_the_reference_form_reads_its_own_quantiles():
    members, climate = np.random.default_rng(4).normal(size=(8, 1)), np.sort(np.random.default_rng(5).normal(size=33))
    places = reference_places(CLIMATE_PROBABILITIES)
    np.testing.assert_array_equal(CLIMATE_PROBABILITIES[places], REFERENCE_PROBABILITIES)
    found = extreme_forecast_index(members, climate[:, None], "reference", probabilities=CLIMATE_PROBABILITIES)
    assert found == extreme_forecast_index(members, climate[places, None], "reference")
    with pytest.raises(InputError, match="needs the quantiles 0, 0"):
        extreme_forecast_index(members, climate[:22, None], "reference")


def test_the_quantiles_of_the_file_give_the_integral():
    """For a normal forecast and the climate of 2000 standard normal values."""
    mean, spread = -2.5, 0.3
    angle = (np.arange(20_000) + 0.5) / 20_000 * np.pi / 2
    p = np.sin(angle) ** 2
    expected = 2 * np.mean(p - norm.cdf(norm.ppf(p), mean, spread))
    climate = quantiles(norm.ppf((np.arange(2000) + 0.5) / 2000)[:, None].astype(np.float32), CLIMATE_PROBABILITIES)
    members = norm.ppf((np.arange(1000) + 0.5) / 1000, mean, spread)[:, None]
    found = extreme_forecast_index(members, climate, probabilities=CLIMATE_PROBABILITIES)
    assert found == pytest.approx(expected, abs=0.01)


@settings(max_examples=30)
@given(st.integers(1, 30), st.integers(0, 2**32 - 1))
def test_quantiles_equal_those_of_numpy(count, seed):
    random = np.random.default_rng(seed)
    values = random.normal(size=(count, 4, 2)).astype(np.float32)
    values[random.random(values.shape) < 0.2] = np.nan
    values[:, 0, 0] = np.nan
    found = quantiles(values, CLIMATE_PROBABILITIES)
    for y in range(4):
        for x in range(2):
            known = values[:, y, x][np.isfinite(values[:, y, x])].astype(np.float64)
            expected = np.quantile(known, CLIMATE_PROBABILITIES) if len(known) else np.nan
            assert np.allclose(found[:, y, x], expected, rtol=1e-6, atol=1e-7, equal_nan=True)


@pytest.mark.parametrize(("window", "memory"), [(9, 2_000_000_000), (3, 1)])
def test_the_climate_equals_a_loop_over_starts(toy, written, in_training, tmp_path, window, memory):
    made = EfiClimate(window_starts=window, memory_bytes=memory)
    found = load_statistic(written(tmp_path / "efi.nc", made), "efi")
    assert found.lead_time.values.tolist() == [24, 48]
    for j in range(2):
        mine = [i for i, lead in in_training if lead == j]
        # Starts by month and day; 31 December 2009 is not in the archive.
        names = sorted({str(toy.starts[i])[5:10] for i in mine})
        assert len(names) == 8
        for d in range(8):
            near = names[max(0, d - window // 2) : d + window // 2 + 1]
            members = np.concatenate([toy.ensemble["2t"][i, j] for i in mine if str(toy.starts[i])[5:10] in near])
            expected = np.nanquantile(members, CLIMATE_PROBABILITIES, axis=0)
            assert np.allclose(found["climate"][0, j, d], expected, rtol=1e-6)


def test_wrong_options_are_refused():
    for options, sentence in (
        ({"window_starts": 8}, "efi.window_starts must be odd"),
        ({"window_starts": 0}, "efi.window_starts must be a whole number from 1 to 365"),
        ({"memory_bytes": "much"}, "efi.memory_bytes must be a number greater than 0"),
    ):
        with pytest.raises(InputError, match=sentence):
            EfiClimate(**options)
    with pytest.raises(InputError, match="the form of the EFI must be reference or exact, got 'best'"):
        index_of([0.0], "best")
