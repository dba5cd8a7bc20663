"""The extreme forecast index: limits, quadrature, published values; its climate against NumPy's quantiles."""

from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.integrate import quad

from data_pipeline.common.errors import InputError
from data_pipeline.statistics.efi import CLIMATE_PROBABILITIES, EfiClimate, extreme_forecast_index, quantiles

CLIMATE = np.sort(np.random.default_rng(3).normal(size=21))[:, None]


def index_of(members, form, climate=CLIMATE):
    return float(extreme_forecast_index(np.reshape(members, (-1, 1)), climate, form)[0])


@pytest.mark.parametrize(("form", "limit"), [("exact", 1.0), ("reference", 0.7914)])
def test_members_outside_the_climate_have_the_extreme_index(form, limit):
    assert index_of(np.full(10, 99.0), form) == pytest.approx(limit, abs=5e-5)
    assert index_of(np.full(10, -99.0), form) == pytest.approx(-limit, abs=5e-5)


@pytest.mark.parametrize("form", ["exact", "reference"])
def test_an_ensemble_equal_to_the_climate_has_index_zero(form):
    assert index_of(CLIMATE, form) == pytest.approx(0, abs=0.03 if form == "exact" else 1e-12)


def test_no_rain_in_a_climate_without_rain_has_index_zero():
    assert index_of(np.zeros(10), "exact", np.zeros((21, 1))) == pytest.approx(0, abs=1e-12)


@given(st.lists(st.floats(-3, 3), min_size=1, max_size=12))
def test_the_exact_form_equals_the_integral(members):
    below = [np.mean(np.array(members) < q) + np.mean(np.array(members) == q) / 2 for q in CLIMATE[:, 0]]

    def integrand(angle):
        # p = sin² removes the poles of the weight: dp / √(p (1 - p)) = 2 d(angle).
        p = np.sin(angle) ** 2
        return 2 * (p - np.interp(p, CLIMATE_PROBABILITIES, below))

    breaks = np.arcsin(np.sqrt(CLIMATE_PROBABILITIES))
    whole = sum(quad(integrand, a, b)[0] for a, b in pairwise(breaks))
    assert index_of(members, "exact") == pytest.approx(2 / np.pi * whole, abs=1e-6)


@given(st.lists(st.floats(-3, 3), min_size=2, max_size=12))
def test_the_reference_form_equals_the_published_algorithm(members):
    own, total = np.quantile(members, CLIMATE_PROBABILITIES), 0.0
    for k in range(1, 20):
        p = CLIMATE_PROBABILITIES[k]
        total += (p - CLIMATE_PROBABILITIES[np.searchsorted(own[:-1], CLIMATE[k, 0])]) / np.sqrt(p * (1 - p)) * 0.05
    assert index_of(members, "reference") == pytest.approx(2 / np.pi * total, abs=1e-12)


@given(st.lists(st.floats(-3, 3), min_size=1, max_size=12), st.floats(0, 2))
def test_the_index_increases_with_the_members_and_changes_sign_with_the_data(members, shift):
    here = index_of(members, "exact")
    assert index_of(np.array(members) + shift, "exact") >= here - 1e-12
    assert index_of(-np.array(members), "exact", -CLIMATE[::-1]) == pytest.approx(-here, abs=1e-12)


@pytest.mark.parametrize("form", ["exact", "reference"])
def test_missing_values_give_nan(form):
    members, climate = np.zeros((5, 3)), np.linspace(-1, 1, 21)[:, None].repeat(3, 1)
    members[2, 0] = climate[4, 1] = np.nan
    assert np.isnan(extreme_forecast_index(members, climate, form)).tolist() == [True, True, False]


def test_another_form_is_refused():
    with pytest.raises(InputError, match="the form of the EFI must be reference or exact, got 'best'"):
        index_of([0.0], "best")


def test_members_of_another_shape_are_refused():
    with pytest.raises(ValueError, match="differ in shape after the first axis"):
        extreme_forecast_index(np.zeros((5, 3)), np.zeros((21, 2)))


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
            expected = np.quantile(known, CLIMATE_PROBABILITIES) if len(known) else np.full(21, np.nan)
            assert np.allclose(found[:, y, x], expected, rtol=1e-6, atol=1e-7, equal_nan=True)


@pytest.mark.parametrize(("window", "memory"), [(9, 2_000_000_000), (3, 1)])
def test_the_climate_equals_a_loop_over_starts(toy, computed, in_training, window, memory):
    found = computed(EfiClimate(window_starts=window, memory_bytes=memory))
    assert found["lead_time"] == [24, 48]
    for j in range(2):
        mine = [i for i, lead in in_training if lead == j]
        # Starts by month and day; 31 December 2009 is not in the archive.
        names = sorted({str(toy.starts[i])[5:10] for i in mine})
        for d, name in enumerate(names):
            near = names[max(0, d - window // 2) : d + window // 2 + 1]
            members = np.concatenate([toy.ensemble["2t"][i, j] for i in mine if str(toy.starts[i])[5:10] in near])
            at = [k for k, day in enumerate(found["day"])][d]
            assert name in {"01-04", "01-08", "01-11", "02-27", "03-01", "12-24", "12-27", "12-31"}
            assert np.allclose(
                found["climate"][0, j, at], np.nanquantile(members, CLIMATE_PROBABILITIES, axis=0), rtol=1e-6
            )


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"window_starts": 8}, "efi.window_starts must be odd"),
        ({"window_starts": 0}, "efi.window_starts must be a whole number from 1 to 365"),
        ({"memory_bytes": "much"}, "efi.memory_bytes must be a number greater than 0"),
    ],
)
def test_wrong_options_are_refused(options, sentence):
    with pytest.raises(InputError, match=sentence):
        EfiClimate(**options)
