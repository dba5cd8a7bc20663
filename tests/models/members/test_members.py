"""Corrected members of every method, against closed forms and brute force in single cells."""

from dataclasses import replace
from statistics import NormalDist

import numpy as np
import pytest
from predictions import NormalPrediction, raw_forecast

from data_pipeline.common.errors import InputError
from data_pipeline.grid import Grid
from data_pipeline.task import Variable
from models.members.members import corrected_members, member_numbers
from models.members.methods import METHODS
from models.members.options import CorrectionOptions
from models.parallel.domain import Domain

GRID = Grid.regular(30, 30)
SHAPE = (2, *GRID.shape)
WITHOUT_PAST = [name for name, method in METHODS.items() if not method.reads and not method.fitted]
TARGETS = Variable.parse("tp"), Variable.parse("2t")


def prediction(seed=0, **options):
    rng = np.random.default_rng(seed)
    return NormalPrediction(rng.normal(280, 3, SHAPE), rng.uniform(0.5, 2, SHAPE), **options)


def forecast(M=6, seed=1, tied=False):
    raw = np.random.default_rng(seed).normal(280, 2, (M, *SHAPE))
    if tied:
        raw = np.maximum(raw, 280.0)
    return raw_forecast(raw)


def made(predicted, raw, targets=TARGETS, domain=None, mask=None, **options):
    mask = np.ones(raw.raw.shape[1:], bool) if mask is None else mask
    return corrected_members(predicted, raw, targets, mask, domain or Domain.of(GRID), CorrectionOptions(**options))


def ranks(fields):
    return fields.argsort(0).argsort(0)


def test_member_by_member_has_the_mean_and_spread_of_the_distribution():
    """Equal raw members get the mean."""
    predicted, raw = prediction(), forecast()
    members = made(predicted, raw, members="member-by-member")
    np.testing.assert_allclose(members.mean(0), predicted.mean(), rtol=1e-12)
    np.testing.assert_allclose(members.std(0, ddof=1), predicted.std(), rtol=1e-9)
    for one, other in ((0, 1), (2, 5)):  # distances are scaled by one factor in each cell
        np.testing.assert_allclose(
            (members[one] - members[other]) / (raw.raw[one] - raw.raw[other]),
            predicted.std() / raw.raw.std(0, ddof=1), rtol=1e-6,
        )  # fmt: skip
    raw = replace(forecast(), raw=np.full((6, *SHAPE), 279.1))
    members = made(prediction(), raw, members="member-by-member")
    np.testing.assert_array_equal(members, np.broadcast_to(prediction().mean(), members.shape))


def test_members_of_ecc_t_are_shifted_and_scaled_or_if_equal_spread_by_their_ranks():
    """F⁻¹(S(x)) of two normal distributions is linear: the closed form of ECC-T."""
    predicted, raw = prediction(), forecast()
    members = made(predicted, raw, members="ecc-t")
    np.testing.assert_allclose(members, made(predicted, raw, members="member-by-member"), rtol=1e-12)
    raw = replace(forecast(5), raw=np.zeros((5, *SHAPE)))
    dry = made(prediction(), raw, members="ecc-t")
    np.testing.assert_allclose(dry, made(prediction(), raw, members="ecc-q"), rtol=1e-12)
    tied = forecast(8, tied=True)
    found = made(prediction(), tied, members="ecc-t")
    assert (np.diff(np.sort(found, 0), axis=0) >= 0).all()
    higher = tied.raw[:, None] > tied.raw
    assert (found[:, None] >= found)[higher].all()


def test_random_levels_have_the_distribution_of_uniform_numbers():
    """Over many starts, the k-th of M sorted uniform numbers has mean k/(M + 1)."""
    flat = NormalPrediction(np.zeros((1, 1, 1)), np.ones((1, 1, 1)))
    grid = Domain.of(Grid((0.0,), (0.0,)))
    levels = []
    for day in range(400):
        raw = raw_forecast(np.arange(4.0).reshape(4, 1, 1, 1), start=np.datetime64("2020-01-01") + day)
        wind = made(flat, raw, (Variable.parse("10u"),), grid, members="ecc-r")
        again = made(flat, replace(raw, lead_time=48), (Variable.parse("10u"),), grid, members="ecc-r")
        np.testing.assert_array_equal(wind, again)  # one set of levels for a start
        levels.append([NormalDist().cdf(value) for value in wind[:, 0, 0, 0]])
    found = np.array(levels)
    k = np.arange(1, 5)
    deviation = np.sqrt(k * (5 - k) / (5**2 * 6) / 400)  # of the mean of 400 beta distributed numbers
    assert (np.abs(found.mean(0) - k / 5) < 4 * deviation).all()


@pytest.mark.parametrize("method", WITHOUT_PAST)
def test_bounds_missing_members_and_unchanged_cells(method):
    unchanged = np.zeros(SHAPE, bool)
    unchanged[:, 0] = True
    rain = NormalPrediction(np.full(SHAPE, 0.1), np.ones(SHAPE), unchanged=unchanged)
    raw = forecast(tied=True)
    raw.raw[2, :, 1, :2] = np.nan
    mask = np.isfinite(raw.raw).all(0)
    members = made(rain, raw, mask=mask, members=method)
    np.testing.assert_array_equal(members[:, ~mask], raw.raw[:, ~mask])
    expected = np.sort(raw.raw[:, :, 0], 0) if method == "quantiles" else raw.raw[:, :, 0]
    np.testing.assert_array_equal(members[:, :, 0], expected)
    assert np.nanmin(members[:, 0]) >= 0
    assert np.isfinite(members[:, mask]).all()
    if method == "ecc-q":
        assert members[:, 0].min(where=mask[0], initial=1) == 0


@pytest.mark.parametrize("method", WITHOUT_PAST)
def test_tiles_have_the_members_of_the_globe(method):
    predicted, raw = prediction(), forecast(tied=True)
    count = None if method == "member-by-member" else 9
    whole = made(predicted, raw, members=method, member_count=count)
    for rank in range(6):
        domain = Domain.split(GRID, 3, 2, rank)
        rows, columns = domain.tile
        part = NormalPrediction(predicted.mean()[:, rows, columns], predicted.std()[:, rows, columns])
        own = replace(raw, raw=raw.raw[:, :, rows, columns])
        found = made(part, own, domain=domain, members=method, member_count=count)
        np.testing.assert_array_equal(found, whole[:, :, rows, columns])


@pytest.mark.parametrize("count", [1, 4, 6, 7, 12, 20])
def test_other_numbers_of_members(count):
    """Values are the quantiles of so many members; each raw member's copies lie between its raw neighbours."""
    raw, M = forecast(), 6
    members = made(prediction(), raw, member_count=count)
    levels = (np.arange(1, count + 1) - 0.5) / count
    np.testing.assert_array_equal(np.sort(members, 0), prediction().quantiles(levels))
    source = np.arange(count) % M
    higher = raw.raw[source][:, None] > raw.raw[source]
    assert (members[:, None] > members)[higher].all()
    for m in range(min(M, count)):  # the copies of a member have one order in all cells
        own = ranks(members[source == m]).reshape((source == m).sum(), -1)
        np.testing.assert_array_equal(own, np.broadcast_to(own[:, :1], own.shape))


def test_copies_of_a_member_are_not_always_in_the_order_of_their_numbers():
    raw = forecast(20)
    members = made(prediction(), raw, member_count=40)
    first = (members[:20] < members[20:])[:, 0, 0, 0]
    assert 2 <= first.sum() <= 18


def test_numbers_of_members_continue():
    assert member_numbers((0, 5, 2), None) == (0, 5, 2)
    assert member_numbers((0, 5, 2), 2) == (0, 5)
    assert member_numbers((0, 5, 2), 5) == (0, 5, 2, 6, 7)


def test_members_of_a_model_take_the_rank_order_of_the_raw_members():
    own = np.random.default_rng(5).normal(280, 1, (6, *SHAPE))
    raw = forecast()
    members = made(prediction(members=own), raw)
    np.testing.assert_array_equal(np.sort(members, 0), np.sort(own, 0))
    np.testing.assert_array_equal(ranks(members), ranks(raw.raw))


def test_refused_options():
    for options, sentence in (
        ({"members": "ecc"}, "members must be one of ecc-q, ecc-r"),
        ({"member_count": 0}, "member_count must be a whole number from 1 to 10000, got 0"),
        ({"members": "ecc-t", "quantile_levels": "weibull"}, "weibull has no effect with members=ecc-t"),
        ({"members": "member-by-member", "member_count": 7}, "shifts and scales the 6 raw members"),
    ):
        with pytest.raises(InputError, match=sentence):
            made(prediction(), forecast(), **options)
