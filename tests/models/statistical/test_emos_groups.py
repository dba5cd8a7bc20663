"""EMOS with groups of members: the regression of ensembleMOS by scipy, other numbers of members, and equal groups."""

import numpy as np
import pytest
import scipy.optimize
import scoringrules
import xarray as xr

from data_pipeline.common.errors import InputError
from data_pipeline.dataset import ForecastDataset, batches
from data_pipeline.grid import Grid
from data_pipeline.sources.array_source import ArraySource
from data_pipeline.task import Task
from models.corrector import Corrector, needed_task
from models.distribution import Normal
from models.provenance.groups import check_groups, stated_groups
from models.statistical.emos import EMOS

SIZES = {"control": 1, "one system": 4, "another": 6}
FIRSTS = {"control": 0, "one system": 1, "another": 5}
SPEC = {"_target_": "models.statistical.emos.EMOS", "seasonal": False, "shared": False}
START, DAYS = np.datetime64("2011-01-01", "ns"), 200


def weather(sizes=SIZES, days=DAYS, seed=0, errors=(0.5, 1.0, 2.0), biases=(0.0, 1.0, -2.0)):
    """Return forecasts and truth at two points: each group has an error, a bias and a spread of its own."""
    draw = np.random.default_rng(seed)
    signal = 280 + 5 * draw.normal(size=(days, 1, 2))
    groups = [
        signal + bias + error * draw.normal(size=(days, 1, 2)) + (0.4 + error / 2) * draw.normal(size=(days, size, 2))
        for size, error, bias in zip(sizes.values(), errors, biases, strict=True)
    ]
    truth = signal[:, 0] + 0.3 * draw.normal(size=(days, 2))
    return np.concatenate(groups, 1), truth


def opened(members, truth, task, numbers=None, **options):
    """Return a data set of the members (day, member, point) 24 h ahead and the truth (day, point)."""
    starts = START + np.arange(len(truth)) * np.timedelta64(1, "D")
    space = {"latitude": [10.0], "longitude": [0.0, 10.0]}
    outer = {"init_time": starts, "lead_time": [24], "number": range(members.shape[1]) if numbers is None else numbers}
    forecasts = xr.DataArray(members[:, None, :, None].astype("f4"), outer | space, [*outer, *space])
    analyses = xr.DataArray(
        truth[:, None].astype("f4"), {"time": starts + np.timedelta64(24, "h")} | space, ["time", *space]
    )
    parts = (xr.Dataset({"2t": one.assign_attrs(units="K")}) for one in (forecasts, analyses))
    return ForecastDataset(ArraySource(*parts), task, [2011], **options)


def task_of(groups=FIRSTS):
    return needed_task(SPEC, Task("groups", ["2t"], ["2t"], [24], groups=groups))


def fitted(members, truth, groups=FIRSTS, **options):
    data = opened(members, truth, task_of(groups), moments=True)
    corrector = Corrector(data.task, data.grid, SPEC | options, data.static, meanings=data.meanings)
    corrector.fit(data)
    return corrector.eval()


def forecast(corrector, members, truth, groups=FIRSTS, numbers=None):
    """Return mean and standard deviation (day, point) of the corrected distribution."""
    (batch,) = batches(opened(members, truth, task_of(groups), numbers, moments=True), 10**6)
    found = corrector(batch)
    assert isinstance(found, Normal)
    return found.mu[:, 0, 0].numpy(), found.sigma[:, 0, 0].numpy()


def means_of(members, sizes=SIZES):
    return np.stack([part.mean(1) for part in np.split(members, np.cumsum([*sizes.values()])[:-1], 1)])


def ensemble_mos(members, truth, sizes=SIZES):
    """Return a, b of each group, c and d of ensembleMOS: N(a + Σ b mean, c + d S²) of least CRPS, S² of all members."""
    means, variance = means_of(members, sizes), members.var(1, ddof=1)

    def score(x):
        mu = x[0] + 280 + np.tensordot(x[1:-2], means - 280, 1)
        return scoringrules.crps_normal(truth, mu, np.sqrt(x[-2] ** 2 + x[-1] ** 2 * variance)).mean()

    start = [0.0, *[1 / len(sizes)] * len(sizes), 0.5, 0.5]
    found = scipy.optimize.minimize(score, start, method="BFGS", options={"gtol": 1e-9})
    return found.x, found.fun


def test_coefficients_of_groups_are_those_of_ensemble_mos():
    members, truth = weather()
    emos = fitted(members, truth)
    for point in range(2):
        x, least = ensemble_mos(members[..., point], truth[:, point])
        assert x[1] > x[2] > x[3] > 0, "better groups have more weight"
        mu, sigma = (values[:, point] for values in forecast(emos, members, truth))
        means = means_of(members)[..., point]
        np.testing.assert_allclose(mu, x[0] + 280 + np.tensordot(x[1:4], means - 280, 1), atol=3e-3)
        variance = x[4] ** 2 + x[5] ** 2 * members[..., point].var(1, ddof=1)
        np.testing.assert_allclose(sigma, np.sqrt(variance), atol=3e-3)
        assert scoringrules.crps_normal(truth[:, point], mu, sigma).mean() <= least + 1e-6

        # The weights of the groups from the coefficients, as docs/data/groups.md states them.
        _, b, *e = emos.model.coefficients[0, :4, 0, 0, point].tolist()
        size = np.array([*SIZES.values()])
        weights = np.array([*e, 0]) + (b - sum(e)) * size / size.sum()
        np.testing.assert_allclose(weights, x[1:4], atol=2e-3)


def test_members_may_change_places_within_their_groups():
    members, truth = weather()
    emos = fitted(members, truth)
    order = [0, 3, 1, 4, 2, 10, 7, 9, 6, 8, 5]
    one, other = fitted(members[:, order], truth), [6, *range(1, 6), 0, *range(7, 11)]
    expected = forecast(emos, members, truth)
    for found in (forecast(one, members, truth), forecast(emos, members[:, order], truth)):
        np.testing.assert_allclose(found, expected, atol=1e-3)
    assert np.abs(forecast(emos, members[:, other], truth)[0] - expected[0]).max() > 0.1


def test_the_gain_of_groups_in_other_years_and_with_more_members():
    """Groups may have other numbers of members than in training, as the forecasts of S2S have."""
    members, truth = weather(seed=1)
    more = {"control": 1, "one system": 4, "another": 12}
    emos, plain = fitted(members, truth), fitted(members, truth, None)
    for sizes in (SIZES, more):
        members, truth = weather(sizes, seed=2)
        scores = [
            scoringrules.crps_normal(truth, *forecast(model, members, truth, groups)).mean()
            for model, groups in ((emos, FIRSTS), (plain, None))
        ]
        assert scores[0] < 0.75 * scores[1]


@pytest.mark.parametrize("shared", ["auto", True, False])
def test_copies_of_a_group_change_nothing(shared):
    """The departures are zero; the raw ensemble is the same."""
    members, truth = weather({"all": 5}, days=60, errors=(1.0,), biases=(0.5,))
    groups = {"one": 0, "other": 5}
    twice = np.concatenate([members, members], 1)
    one, two = fitted(twice, truth, None, shared=shared), fitted(twice, truth, groups, shared=shared)
    np.testing.assert_allclose(forecast(two, twice, truth, groups), forecast(one, twice, truth, None), atol=2e-3)


def test_before_a_fit_the_forecast_is_the_raw_ensemble():
    members, truth = weather()
    (batch,) = batches(data := opened(members, truth, task_of()), 10**6)
    found = EMOS(data.task, data.grid)(batch)
    np.testing.assert_allclose(found.mu[:, 0, 0], members.mean(1), rtol=1e-6)
    np.testing.assert_allclose(found.sigma[:, 0, 0], members.std(1, ddof=1), rtol=1e-4)


def test_a_group_with_another_share_of_the_members_is_refused():
    data = opened(*weather(), Task("groups", ["2t"], ["2t"], [24], groups=FIRSTS))
    provenance = stated_groups(data)
    shares = {"0, 0": 1 / 11, "1, 4": 4 / 11, "5": 6 / 11}
    assert provenance == {"groups": {f"group_mean(2t, {members})": share for members, share in shares.items()}}
    check_groups(provenance, data.task, range(16))
    with pytest.raises(InputError, match=r"group_mean\(2t, 1, 4\) has 6% of the 65 members, in training it had 36%"):
        check_groups(provenance, data.task, range(65))


def test_other_groups_of_another_target_are_refused():
    task = Task("two", ["2t", "msl"], ["2t", "msl"], [24], formulas=["group_mean(msl, 0, 0)"])
    with pytest.raises(InputError, match="2t and msl have means of different groups of members"):
        EMOS(task, Grid.regular(3, 4))


def normal_emos(means, variance, truth):
    """Return a function of means (group, day) and variance (day) that gives μ and σ of least CRPS in these days."""

    def forecast(x, means, variance):
        return x[0] + 280 + x[1:-2] @ (means - 280), np.sqrt(x[-2] ** 2 + x[-1] ** 2 * variance)

    start = [0.0, *[1 / len(means)] * len(means), 0.5, 0.5]
    found = scipy.optimize.minimize(
        lambda x: scoringrules.crps_normal(truth, *forecast(x, means, variance)).mean(), start, options={"gtol": 1e-9}
    )
    return lambda means, variance: forecast(found.x, means, variance)


@pytest.mark.parametrize("shared", ["auto", False])
def test_without_a_group_the_forecast_is_that_of_the_other_groups(shared):
    """Another system is missing every third day, in training and in the forecast. Without it, the forecast is the EMOS
    of the remaining members, fitted to all days that have them; on other days it does not change. Scores are by scipy.
    """
    sizes, firsts = {"one": 6, "other": 9}, {"one": 0, "other": 6}
    options = {"sizes": sizes, "days": 300, "errors": (1.0, 0.6), "biases": (1.0, -2.0)}
    members, truth = weather(**options)
    late, gone = np.arange(300) % 3 == 0, np.arange(300) % 7 == 1
    some = members.copy()
    some[late, 6:], some[gone & ~late, :6] = np.nan, np.nan
    emos = fitted(some, truth, firsts, shared=shared)
    whole = fitted(members, np.where((late | gone)[:, None], np.nan, truth), firsts, shared=shared)

    members, truth = weather(**options, seed=1)
    late = np.arange(300) % 3 == 0
    some = members.copy()
    some[late, 6:] = np.nan
    found = forecast(emos, some, truth, firsts)
    expected = forecast(whole, members, truth, firsts)
    np.testing.assert_allclose(np.array(found)[:, ~late], np.array(expected)[:, ~late], atol=2e-2 if shared else 2e-3)

    learnt, own = weather(**options)
    for point in range(2):
        one = learnt[:, :6, point]
        days = ~(gone & (np.arange(300) % 3 != 0))
        best = normal_emos(one[days].mean(1)[None], one[days].var(1, ddof=1), own[days, point])
        mu, sigma = best(members[late, :6, point].mean(1)[None], members[late, :6, point].var(1, ddof=1))
        if shared is False:
            np.testing.assert_allclose(found[0][late, point], mu, atol=3e-3)
            np.testing.assert_allclose(found[1][late, point], sigma, atol=3e-3)
        least = scoringrules.crps_normal(truth[late, point], mu, sigma).mean()
        assert scoringrules.crps_normal(truth[late, point], found[0][late, point], found[1][late, point]).mean() < (
            1.02 * least
        )


def test_three_groups_of_which_two_are_there():
    """Each of them counts the same in the spread, whatever the number of its members."""
    members, truth = weather(days=300)
    emos = fitted(members, truth, shared=False)
    fresh, _ = weather(days=300, seed=1)
    some = fresh.copy()
    some[:, 1:5] = np.nan

    def predictors(members):
        parts = members[:, :1], members[:, 5:]
        means = np.stack([part.mean(1) for part in parts])
        return means, means.var(0) + parts[1].var(1, ddof=1) / 2

    found = forecast(emos, some, truth)
    for point in range(2):
        best = normal_emos(*predictors(members[..., point]), truth[:, point])
        expected = best(*predictors(fresh[..., point]))
        np.testing.assert_allclose([one[:, point] for one in found], expected, atol=5e-3)
