"""Day of the year and harmonics against numpy's calendar; spread against `torch.std`."""

import numpy as np
import pytest
import torch

from models.statistical.predictors import annual_harmonics, day_of_year, spread


def test_day_of_year_equals_numpy():
    hours = np.arange(np.datetime64("1901-01-01", "h"), np.datetime64("2099-12-01", "h"), 7)
    leads = np.arange(len(hours)) % 701
    valid = hours + leads
    expected = (valid.astype("M8[D]") - valid.astype("M8[Y]").astype("M8[D]")).astype(int) + 1
    seconds = torch.from_numpy(hours.astype("M8[s]").astype(np.int64))
    assert np.array_equal(day_of_year(seconds, torch.from_numpy(leads)), expected)
    assert expected.max() == 366


def test_harmonics_have_periods_of_a_year_and_half_a_year():
    days = torch.arange(0, 1461)  # four years
    terms = annual_harmonics(days * 86400, torch.zeros(1461, dtype=torch.int64), harmonics=2).double()
    assert terms.shape == (1461, 4)
    phase = np.angle(terms[:, 0::2].numpy() + 1j * terms[:, 1::2].numpy())
    turns = (np.diff(np.unwrap(phase, axis=0), axis=0).sum(0)) / (2 * np.pi)
    np.testing.assert_allclose(turns, [4, 8], atol=0.02)
    np.testing.assert_allclose((terms**2).sum(1), 2, atol=1e-6)
    torch.testing.assert_close(terms[0], torch.tensor([1.0, 0, 1, 0], dtype=torch.float64))


@pytest.mark.parametrize("members", [2, 7])
def test_spread_is_the_unbiased_standard_deviation(members):
    x = torch.randn(3, members, 2, 4, 5)
    torch.testing.assert_close(spread(x), x.std(1))


def test_one_member_has_no_spread():
    assert not spread(torch.randn(3, 1, 2, 4, 5)).any()
