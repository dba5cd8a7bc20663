"""EMOS as a model: known coefficients, units, missing values, shared coefficients, blocks of rows, calendar windows."""

import math

import numpy as np
import pytest
import torch

from data_pipeline.common.errors import InputError
from data_pipeline.grid import Grid
from data_pipeline.sample import Sample
from data_pipeline.task import Task, Variable
from models.corrector import Corrector
from models.distribution import Ensemble
from models.statistical.cases import TooFewCasesError
from models.statistical.emos import EMOS
from models.statistical.emos_regression import EMOSCases, coefficient_names, raw_coefficients
from models.statistical.emos_sharing import estimate_sharing, fit_shared, thin
from models.statistical.predictors import annual_harmonics
from models.statistical.regression import Regression

T2M, Z500 = Variable("2t"), Variable("z", 500)
GRID = Grid.regular(3, 4)
FAMILIES = ("normal", "logistic", "censored_normal", "censored_logistic", "truncated_normal")


def task_of(targets=(T2M,), leads=(48,)):
    return Task("test", inputs=(Z500, T2M), targets=targets, lead_times=leads)


def forecasts(count, task, M=8, seed=0, kelvin=0.0):
    """Return a batch whose truth follows the members' mean and spread and the season in a known way."""
    generator = torch.Generator().manual_seed(seed)
    C, T = len(task.inputs), len(task.targets)
    spread = torch.exp(0.4 * torch.randn(count, C, *GRID.shape, generator=generator))
    centre = 3 * torch.randn(count, C, *GRID.shape, generator=generator)
    ensemble = centre[:, None] + spread[:, None] * torch.randn(count, M, C, *GRID.shape, generator=generator)
    lead = torch.tensor(task.lead_times).repeat(count)[:count]
    init = torch.randint(0, 10 * 365, (count,), generator=generator) * 86400
    members = ensemble[:, :, list(task.target_channels)]
    cos, sin = annual_harmonics(init, lead).T[:, :, None, None, None]
    a, b = 0.01 * lead[:, None, None, None], 0.8
    mu = a + b * members.mean(1) + 0.5 * cos - 0.3 * sin
    variance = members.var(1) if M > 1 else 0
    sigma = torch.sqrt(torch.as_tensor(0.6**2 + 1.2**2 * variance))
    truth = mu + sigma * torch.randn(count, T, *GRID.shape, generator=generator)
    mask = torch.ones(count, C, *GRID.shape, dtype=torch.bool)
    static = torch.zeros(count, len(task.static_names), *GRID.shape)
    return Sample(ensemble + kelvin, mask, static, truth + kelvin, init, lead)


def crps(model, batch):
    return float(model(batch).crps(batch.target).nanmean())


def test_a_large_sample_gives_the_true_coefficients():
    task = task_of()
    batch = forecasts(6000, task)
    model = EMOS(task, GRID, shared=False)
    model.fit([batch])
    names = coefficient_names(model.regressions[0], seasonal=True)
    found = dict(zip(names, model.coefficients[0, :, 0].flatten(1), strict=True))
    for name, expected in {"a": 0.48, "b": 0.8, "c": 0.5, "d": -0.3, "gamma": 0.6, "delta": 1.2}.items():
        torch.testing.assert_close(found[name], torch.full((12,), expected), rtol=0, atol=0.15)
        assert float(found[name].mean()) == pytest.approx(expected, abs=0.03)


@pytest.mark.parametrize("scale", ["quadratic", "log"])
@pytest.mark.parametrize("family", FAMILIES)
def test_unfitted_is_the_raw_ensemble(family, scale):
    task = task_of(targets=(T2M, Z500), leads=(24, 48))
    batch = forecasts(4, task)
    model = EMOS(task, GRID, family=family, scale=scale, lower=-1e4 if Regression(family).bounded else None)
    raw = Ensemble(batch.ensemble[:, :, [1, 0]].movedim(1, 0))
    torch.testing.assert_close(model(batch).mean, raw.mean)
    torch.testing.assert_close(model(batch).std, raw.std)


@pytest.mark.parametrize("scale", ["quadratic", "log"])
@pytest.mark.parametrize("family", FAMILIES)
def test_units_do_not_matter(family, scale):
    """A fit in other units, different in each cell, gives the same forecast after conversion."""
    task = task_of()
    train, test = forecasts(200, task, seed=3), forecasts(50, task, seed=4)
    lower = -1.0 if Regression(family).bounded else None
    if lower is not None:
        train, test = (b._replace(target=b.target.clamp(min=lower)) for b in (train, test))
    location = 200 + 50 * torch.rand(1, *GRID.shape, generator=torch.Generator().manual_seed(5))
    stretch = torch.tensor(4.0)

    def normalised(batch):
        return batch._replace(ensemble=batch.ensemble / stretch - location, target=batch.target / stretch - location)

    ours, theirs = (EMOS(task, GRID, family, scale=scale, shared=False, lower=lower) for _ in range(2))
    ours.fit([train])
    theirs.normalise(location * stretch, stretch)
    theirs.fit([normalised(train)])
    back = theirs(normalised(test)).affine(location * stretch, stretch)
    torch.testing.assert_close(back.mean, ours(test).mean, rtol=0, atol=5e-3)
    torch.testing.assert_close(back.std, ours(test).std, rtol=2e-3, atol=1e-6)
    torch.testing.assert_close(back.crps(test.target), ours(test).crps(test.target), rtol=0, atol=5e-3)


@pytest.mark.parametrize("scale", ["quadratic", "log"])
def test_cells_without_truth_or_errors_keep_the_raw_ensemble(scale):
    task = task_of()
    batch = forecasts(100, task, seed=7)
    target = batch.target.clone()
    target[:, 0, 0, 0] = torch.nan  # no truth
    target[11:, 0, 0, 1] = torch.nan  # fewer than two cases per coefficient
    target[:, 0, 0, 2] = 273.15  # constant truth
    target[:, 0, 0, 3] = 5 + 2 * batch.ensemble[:, :, 1, 0, 3].mean(1)  # a function of the mean
    model = EMOS(task, GRID, scale=scale, shared=False)
    model.fit([batch._replace(target=target)])
    raw = raw_coefficients(model.regressions[0], seasonal=True)
    for column in range(3):
        assert torch.equal(model.coefficients[0, :, 0, 0, column], raw)
    assert not (model.coefficients[0, 0, 0, 1:] == 0).any()
    assert model.coefficients.isfinite().all()
    assert model(batch).crps(target)[:, :, 1:].isfinite().all()


@pytest.mark.parametrize("scale", ["quadratic", "log"])
def test_one_member_is_sufficient(scale):
    """Without spread, σ is fitted to the truth alone."""
    task = task_of()
    batch = forecasts(300, task, M=1, seed=8)
    model = EMOS(task, GRID, scale=scale)
    model.fit([batch])
    std = model(batch).std
    residual = (batch.target - model(batch).mean).std(0)
    torch.testing.assert_close(std.mean(0), residual, rtol=0.1, atol=0)
    torch.testing.assert_close(std.amin(0), std.amax(0))


def test_log_scale_survives_ensembles_without_spread():
    task = task_of()
    batch = forecasts(300, task, seed=9)
    ensemble = batch.ensemble.clone()
    ensemble[::10] = ensemble[::10, :1]
    batch = batch._replace(ensemble=ensemble)
    model = EMOS(task, GRID, scale="log")
    model.fit([batch])
    least = ensemble[:, :, 1].std(1)
    torch.testing.assert_close(model.coefficients[0, -2, 0], torch.where(least > 0, least, torch.inf).amin(0))
    torch.testing.assert_close(model.coefficients[0, -1, 0], 4 * least.amax(0))
    assert float(model(batch).std.min()) > 0.1
    assert crps(model, batch) < crps(EMOS(task, GRID), batch)


def drawn(leads, lead):
    """Return the coefficients of a lead time from the steps of the fit on arrays."""
    regression = Regression()
    sharing = estimate_sharing(regression, leads)
    assert math.isfinite(sharing.cells)
    return leads[lead].fit(regression, prior=fit_shared(regression, thin(leads), sharing)[lead]).coefficients


@pytest.mark.parametrize("shared", [True, "auto"])
def test_a_shared_model_fits_each_target_and_lead_by_area(shared):
    task = task_of(targets=(T2M, Z500), leads=(24, 48))
    batch = forecasts(120, task, seed=23)
    batch.target[:, 1] += 2 * torch.randn(*GRID.shape, generator=torch.Generator().manual_seed(1))
    order = torch.randperm(len(batch.target), generator=torch.Generator().manual_seed(0))
    model, shuffled = (EMOS(task, GRID, seasonal=False, shared=shared) for _ in range(2))
    model.fit([batch])
    shuffled.fit([Sample(*(tensor[order] for tensor in batch))])
    torch.testing.assert_close(shuffled.coefficients, model.coefficients, rtol=0, atol=1e-5)
    area = torch.tensor(GRID.weights)[:, None].expand(GRID.shape).flatten()
    assert area.max() > 2 * area.min()
    leads, ensemble = [], batch.ensemble[:, :, task.target_channels[1]]
    for hours in task.lead_times:
        chosen = (batch.lead_time == hours).nonzero()[:, 0]
        chosen = chosen[batch.init_time[chosen].argsort(stable=True)]
        cases = (v[chosen].flatten(1).double() for v in (ensemble.mean(1), ensemble.std(1), batch.target[:, 1]))
        leads.append(EMOSCases(*cases, weight=area))
    expected = leads[1].fit(Regression(), shared=True).coefficients if shared is True else drawn(leads, 1)
    found = model.coefficients[1, :, 1].flatten(1).double()
    torch.testing.assert_close(found, expected.view(len(expected), -1), rtol=0, atol=1e-5)


def test_shared_coefficients_are_fitted_to_some_cells_of_a_large_grid(monkeypatch):
    """Compared with a fit to every n-th cell."""
    task = task_of(targets=(T2M,), leads=(48,))
    batch = forecasts(120, task, seed=23)
    H, W = GRID.shape
    monkeypatch.setattr("models.statistical.cases.SHARED_CASES", 120 * H * W // 2)
    step = next(n for n in range(2, 99) if math.gcd(n, W) == 1)
    model = EMOS(task, GRID, seasonal=False, shared=True)
    model.fit([batch])
    assert f"fitted to {-(-H * W // step)} of {H * W} cells" in model.report.notes[0]
    ensemble = batch.ensemble[:, :, task.target_channels[0]]
    cases = [v.flatten(1).double() for v in (ensemble.mean(1), ensemble.std(1), batch.target[:, 0])]
    area = torch.tensor(GRID.weights)[:, None].expand(GRID.shape).flatten()
    expected = (
        EMOSCases(*(v[:, ::step] for v in cases), weight=area[::step]).fit(Regression(), shared=True).coefficients
    )
    torch.testing.assert_close(model.coefficients[0, :, 0].flatten(1).double(), expected, rtol=0, atol=1e-5)


@pytest.mark.parametrize(("count", "season"), [(6, False), (30, True)])
def test_few_cases_in_a_cell_are_fitted_with_a_count(count, season):
    """With the cases of all cells and lead times, six forecasts are better than the raw ensemble already."""
    task = task_of(leads=(24, 48))
    train, test = forecasts(2 * count, task, seed=31), forecasts(400, task, seed=32)
    model = EMOS(task, GRID, seasonal=season)
    model.fit([train])
    assert model.report.unfitted.total() == 0
    assert any(f"24 of 24 regressions of EMOS, with {count} cases each" in note for note in model.report.notes)
    assert crps(model, test) < crps(EMOS(task, GRID), test)
    with pytest.raises(TooFewCasesError, match="a cell needs"):
        EMOS(task, GRID, shared=False).fit([forecasts(10, task, seed=31)])
    alone = forecasts(4, task, seed=31)
    alone.target[:, :, 0, 1:] = alone.target[:, :, 1:] = torch.nan
    with pytest.raises(TooFewCasesError, match="a cell needs"):
        EMOS(task, GRID).fit([alone])


def test_lead_times_without_training_samples_and_unknown_ones_are_refused():
    task = task_of()
    corrector = Corrector(task, GRID, {"_target_": "models.statistical.emos.EMOS"}, torch.zeros(3, *GRID.shape))
    with pytest.raises(InputError, match="lead time 24 h is not one of task test"):
        corrector(forecasts(2, task_of(leads=(24,))))
    with pytest.raises(InputError, match="no training sample has the lead time 72 h"):
        EMOS(task_of(leads=(48, 72)), GRID).fit([forecasts(20, task)])


WINDOWED = Task("test", inputs=["2t"], targets=["2t"], lead_times=[0, 24])
DAY = 86400


def yearly_forecasts(years, step=5, days=range(365), seed=0):
    """Return forecasts of every `step`-th day, whose bias and slope have an annual cycle."""
    g = torch.Generator().manual_seed(seed)
    dates = [np.datetime64(f"{year}-01-01") + day for year in years for day in list(days)[::step]]
    valid = torch.tensor(np.array(dates).astype("M8[s]").astype(np.int64))
    phase = torch.tensor([(d - d.astype("M8[Y]").astype("M8[D]")).astype(int) for d in dates]) * 2 * np.pi / 365.25
    lead = torch.tensor([0, 24]).repeat(len(dates))[: len(dates)]
    B, cos = len(dates), phase.cos().float()[:, None, None]
    ensemble = 2 * torch.randn(B, 1, 1, *GRID.shape, generator=g) + torch.randn(B, 5, 1, *GRID.shape, generator=g)
    mean, std = ensemble.mean(1)[:, 0], ensemble.std(1)[:, 0]
    truth = 3 * cos + (1 + 0.5 * cos) * mean + (0.5 + 0.3 * cos) * std * torch.randn(B, *GRID.shape, generator=g)
    mask, static = torch.ones(B, 1, *GRID.shape, dtype=torch.bool), torch.zeros(B, 3, *GRID.shape)
    return Sample(ensemble, mask, static, truth[:, None], valid - 3600 * lead, lead)


def test_coefficients_at_the_centre_of_a_window_fit_its_cases():
    train = yearly_forecasts(range(2001, 2004), step=1)
    model = EMOS(WINDOWED, GRID, seasonal=False, window_days=30, shared=False)
    model.fit([train])
    assert model.windows == 24
    assert model.coefficients.shape == (48, 4, 1, 3, 4)
    first = train.init_time + 3600 * train.lead_time
    day = torch.tensor([(d - d.astype("M8[Y]")).astype(int) for d in first.numpy().astype("M8[s]").astype("M8[D]")])
    mean, std = train.ensemble.mean(1)[:, 0].flatten(1), train.ensemble.std(1)[:, 0].flatten(1)
    for lead in (0, 1):
        # Window 0 is centred on 1 January and starts on 2 December; window 12 is centred on day 183.
        for k, near in ((0, (day <= 30) | (day >= 335.25)), (12, (day >= 152.625) & (day <= 212.625))):
            chosen = near & (train.lead_time == 24 * lead)
            expected = (
                EMOSCases(mean[chosen], std[chosen], train.target[chosen, 0].flatten(1)).fit(Regression()).coefficients
            )
            torch.testing.assert_close(
                model.coefficients[24 * lead + k].flatten(1).double(), expected, rtol=0, atol=1e-4
            )


def test_coefficients_are_interpolated_between_centres():
    model = EMOS(WINDOWED, GRID, seasonal=False, window_days=30)
    a = torch.arange(24.0)
    model.coefficients[24:, 0] = a[:, None, None, None]
    init = torch.tensor(np.array([f"2003-{d}" for d in ("01-01", "01-16", "12-24", "12-31")], "M8[s]").astype(np.int64))
    zero = torch.zeros(4, 2, 1, *GRID.shape)
    batch = Sample(zero, zero[:, 0] == 0, zero[:, 0], zero[:, 0], init - DAY, torch.full((4,), 24))
    place = 24 / 365.25 * torch.tensor([0, 15, 357, 364])
    expected = torch.where(place < 23, place, 23 * (24 - place))  # from the last back to the first
    torch.testing.assert_close(model(batch).mean[:, 0, 0, 0], expected, rtol=0, atol=1e-4)


def test_a_window_without_cases_gets_the_coefficients_of_the_whole_year():
    train = yearly_forecasts(range(2000, 2006), step=2, days=range(150, 240))
    year, window = (EMOS(WINDOWED, GRID, seasonal=False, shared=False, **days) for days in ({}, {"window_days": 20}))
    year.fit([train])
    window.fit([train])
    torch.testing.assert_close(window.coefficients[0], year.coefficients[0])
    assert not torch.equal(window.coefficients[18], year.coefficients[0])  # centred on day 183
    raw = raw_coefficients(window.regressions[0], False).view(-1, 1, 1, 1)
    assert not (window.coefficients == raw).all((1, 2, 3, 4)).any()
