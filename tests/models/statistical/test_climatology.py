"""Climatology against the classical one, a window of 45 days; the calendar against that of numpy."""

import numpy as np
import pytest
import torch

from data_pipeline.grid import Grid
from data_pipeline.sample import Sample
from data_pipeline.task import Task, Variable
from models.corrector import REFERENCES, Corrector
from models.distribution import Empirical, Ensemble, Normal, empirical_quantiles
from models.statistical.climatology import Climatology
from models.statistical.few_cases import FewCases
from models.statistical.predictors import annual_harmonics, day_of_year

GRID = Grid.regular(3, 4)
TASK = Task("test", inputs=(Variable("2t"),), targets=(Variable("2t"),), lead_times=(48,))
DAYS = [7, 10, 52, 55, 98, 101, 143, 146, 189, 192, 234, 237, 280, 283, 325, 329]


def truth_of(years, days, seed=0):
    """Return a batch without ensemble (NaN), and the distribution of its truth."""
    dates = np.array([np.datetime64(f"{year}-01-01") + day for year in years for day in days])
    phase = 2 * np.pi * (dates - dates.astype("M8[Y]").astype("M8[D]")).astype(int) / 365.25
    place = np.arange(12).reshape(GRID.shape)
    wave = np.cos(phase[:, None, None] - place / 4)
    mean = 280 + place + (2 + place) * wave + 0.5 * np.cos(2 * phase)[:, None, None]
    law = Normal(torch.tensor(mean)[:, None], torch.tensor(2 * np.exp(0.4 * wave))[:, None])
    noise = torch.randn(law.mu.shape, generator=torch.Generator().manual_seed(seed), dtype=law.mu.dtype)
    target = (law.mu + law.sigma * noise).float()
    B = len(dates)
    init = torch.tensor((dates - np.timedelta64(2, "D")).astype("M8[s]").astype(np.int64))
    ensemble = torch.full((B, 3, 1, *GRID.shape), torch.nan)
    mask, static = torch.ones(B, 1, *GRID.shape, dtype=torch.bool), torch.zeros(B, 3, *GRID.shape)
    return Sample(ensemble, mask, static, target, init, torch.full((B,), 48)), law


def window_climatology(train, test, width=45):
    """Return mean and standard deviation of the training truths in a window around each day of the year."""
    valid = [(b.init_time.numpy() + 48 * 3600).astype("M8[s]").astype("M8[D]") for b in (train, test)]
    day = [(v - v.astype("M8[Y]").astype("M8[D]")).astype(int) for v in valid]
    gap = np.abs(day[1][:, None] - day[0][None])
    near = np.minimum(gap, 365 - gap) <= width // 2
    values = [train.target[torch.tensor(row)] for row in near]
    return Normal(torch.stack([v.mean(0) for v in values]), torch.stack([v.std(0) for v in values]))


@pytest.mark.parametrize("days", [DAYS, range(0, 365, 7)], ids=["16 dates a year", "52 dates a year"])
def test_the_score_is_better_than_that_of_a_window_and_close_to_that_of_the_true_law(days):
    train, _ = truth_of(range(1998, 2014), days)
    test, law = truth_of(range(2014, 2044), DAYS, seed=1)
    model = Climatology(TASK, GRID)
    model.fit([train])
    score = model(test).crps(test.target).mean()
    assert score < window_climatology(train, test).crps(test.target).mean()
    assert score < (1.025 if days is DAYS else 1.01) * law.crps(test.target).mean()


def test_without_harmonics_the_forecast_is_the_gaussian_of_smallest_crps():
    train, _ = truth_of(range(1998, 2014), DAYS)
    model = Climatology(TASK, GRID, harmonics=0)
    model.fit([train])
    forecast, score = model(train), model(train).crps(train.target).mean(0)
    assert float(forecast.std.std(0).max()) == 0
    for mu, sigma in ((0.05, 1.0), (-0.05, 1.0), (0.0, 1.02), (0.0, 0.98)):
        other = Normal(forecast.mu + mu * forecast.sigma, forecast.sigma * sigma)
        assert (other.crps(train.target).mean(0) > score).all()


def test_a_cell_without_truth_and_a_model_without_a_fit_have_no_forecast():
    train, _ = truth_of(range(1998, 2014), DAYS)
    target = train.target.clone()
    target[:, :, 0, 0] = torch.nan
    model = Climatology(TASK, GRID)
    assert model(train).mean.isnan().all()
    model.fit([train._replace(target=target)])
    assert model(train).mean.isnan().all(0)[0].nonzero().tolist() == [[0, 0]]


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


def test_few_cases_borrow_their_spread_from_all_cells():
    """Eight cases of one year come within 30 % of the true law, and each further year comes closer."""
    test, law = truth_of(range(2001, 2021), DAYS, seed=1)
    best = float(law.crps(test.target).mean())
    scores = []
    for years in ([2000], [1999, 2000], [1997, 1998, 1999, 2000]):
        train, _ = truth_of(years, DAYS[::2])
        model = Climatology(TASK, GRID)
        model.fit([train])
        few = any(note.startswith("climatology has few cases in 12 of 12 regr") for note in model.report.notes)
        assert few == (len(years) < 3)
        assert model.report.unfitted.total() == 0
        scores.append(float(model(test).crps(test.target).mean()))
    assert best < scores[2] < scores[1] < scores[0] < 1.3 * best


@pytest.mark.parametrize("cases", [2, 3, 8])
def test_few_variances_are_drawn_to_that_of_all_cells(cases):
    """Cells whose variances have a scaled inverse χ² law: the prior is recovered, and new cases score better."""
    generator = torch.Generator().manual_seed(2)
    weight, typical, cells = 8.0, 4.0, 20_000
    chi = torch.distributions.Chi2(torch.tensor(weight, dtype=torch.float64))
    torch.manual_seed(3)
    sigma = (typical * weight / chi.sample((cells,))).sqrt()
    truth = 5 + sigma * torch.randn(cases, 1, cells, generator=generator, dtype=torch.float64)
    new = 5 + sigma * torch.randn(50, 1, cells, generator=generator, dtype=torch.float64)
    terms = torch.ones(cases, 1)
    few = FewCases.of(terms, truth, torch.empty(cases, 0, cells), torch.empty(0))
    assert float(few.variance) == pytest.approx(typical, rel=0.1)
    assert float(few.weight) == pytest.approx(weight, rel=0.4)
    mean, log_sigma = few.normal(terms, truth[..., None])[..., 0]
    own = Normal(truth.mean(0), truth.std(0))
    drawn = Normal(mean, log_sigma.exp())
    same = Normal(truth.mean(0), torch.full_like(truth[0], typical**0.5))
    ours, plain, pooled = (float(law.log_prob(new).mean()) for law in (drawn, own, same))
    assert ours > max(plain, pooled)


def test_few_amounts_of_rain_borrow_their_shape_from_all_cells():
    """A third of the cases is dry, and cells have different means."""
    generator = torch.Generator().manual_seed(4)

    def rain(count):
        amount = -torch.rand(count, 1, *mean.shape, generator=generator).log() * mean
        return amount * (torch.rand(amount.shape, generator=generator) > 1 / 3)

    mean = 1 + 9 * torch.rand(3, 400, generator=generator)
    new, law = rain(200), torch.zeros(1, 3, 400)
    scores = {}
    for cases in (2, 5, 19, 20):
        truth = rain(cases)
        few = FewCases.of(torch.ones(cases, 1), truth[:, :0].flatten(2), truth.flatten(2), law.flatten(1))
        found = few.quantiles(truth, law, 25)
        if cases == 20:
            assert found.isnan().all()
            found = empirical_quantiles(truth, 25)
        assert (found >= 0).all()
        drawn, own = (Empirical(v[:, None]).crps(new).mean() for v in (found, empirical_quantiles(truth, 25)))
        scores[cases] = float(drawn)
        assert drawn <= own
    assert scores[2] > scores[5] > scores[19]
    assert scores[19] == pytest.approx(scores[20], rel=0.02)


RAIN = Task("rain", ["tp"], ["tp"], [24])
SPEC = {"_target_": "models.statistical.climatology.Climatology", "distribution": "auto"}


class Days(list):
    static = torch.zeros(3, *GRID.shape)

    def times(self):
        return torch.stack([s.init_time for s in self]), torch.stack([s.lead_time for s in self])


def rain(years, step=3, seed=0, task=RAIN):
    """Return batches of truth in m; dry in summer, half of the days wet in winter; 2t is 280 K plus rain in mm."""
    dates = np.concatenate([np.arange(f"{y}-01-01", f"{y + 1}-01-01", step, "datetime64[D]") for y in years])
    day = (dates - dates.astype("M8[Y]").astype("M8[D]")).astype(int)
    generator = torch.Generator().manual_seed(seed)
    wet = torch.tensor(np.cos(2 * np.pi * day / 365.25))[:, None, None]
    values = (wet + torch.randn(len(dates), *GRID.shape, generator=generator)).clamp(min=0).square().float() / 1000
    fields = {"tp": values, "2t": 280 + 1000 * values}
    target = torch.stack([fields[str(variable)] for variable in task.targets], dim=1)
    B, C = target.shape[:2]
    init = torch.tensor((dates - np.timedelta64(1, "D")).astype("M8[s]").astype(np.int64))
    ensemble, mask = target[:, None].expand(-1, 2, -1, -1, -1), torch.ones(B, C, *GRID.shape, dtype=torch.bool)
    return Sample(ensemble, mask, torch.zeros(B, 3, *GRID.shape), target, init, torch.full((B,), 24)), day


def days_of(batch):
    return Days(Sample(*tensors) for tensors in zip(*batch, strict=True))


def test_without_a_window_the_score_is_that_of_the_training_cases():
    train, _ = rain([2001])
    test, _ = rain([2002], seed=1)
    model = Climatology(RAIN, GRID, distribution="quantiles", quantiles=len(train.target), window_days=None)
    model.fit([train])
    forecast = model(test)
    assert isinstance(forecast, Empirical)
    expected = Ensemble(train.target[:, None]).crps(test.target)
    torch.testing.assert_close(forecast.crps(test.target), expected, rtol=1e-4, atol=1e-9)
    torch.testing.assert_close(forecast.mean, train.target.mean(0).expand_as(test.target), rtol=1e-5, atol=1e-9)
    assert torch.equal(forecast.crps(test.target, fair=True), forecast.crps(test.target))


@pytest.mark.parametrize("quantiles", [25, 40])
def test_few_quantiles_represent_a_window_of_days(quantiles):
    """Compared with all training cases within 30 days of each day."""
    train, train_day = rain(range(1991, 2011))
    test, test_day = rain([2011], step=11, seed=1)
    model = Climatology(RAIN, GRID, distribution="auto", quantiles=quantiles)
    model.fit([train])
    gap = np.abs(test_day[:, None] - train_day[None])
    near = np.minimum(gap, 365 - gap) <= 30
    expected = torch.stack(
        [Ensemble(train.target[torch.tensor(row)]).crps(test.target[k]) for k, row in enumerate(near)]
    ).mean()
    found = model(test).crps(test.target).mean()
    assert float(found) == pytest.approx(float(expected), rel=0.01)
    whole_year = Ensemble(train.target[:, None]).crps(test.target).mean()
    assert float(found) < 0.93 * float(whole_year)


def test_it_is_better_than_a_normal_distribution_and_calibrated():
    train, _ = rain(range(1991, 2011))
    test, _ = rain(range(2011, 2016), seed=1)
    auto, normal = (
        Corrector(RAIN, GRID, SPEC, Days.static),
        Corrector(RAIN, GRID, SPEC | {"distribution": "normal"}, Days.static),
    )
    for corrector in (auto, normal):
        corrector.fit(days_of(train))
    assert auto(test).crps(test.target).mean() < 0.97 * normal(test).crps(test.target).mean()
    dry = test.target == 0
    # A dry day lies exactly on the bound, and its forecast probability is its frequency.
    assert float(auto(test).cdf(test.target)[dry].mean()) > 0.5
    assert float(auto(test).cdf(torch.zeros_like(test.target)).mean()) == pytest.approx(
        float(dry.float().mean()), abs=0.02
    )
    assert float(auto(test).quantile(torch.tensor([0.0])).min()) == 0
    exceeded = (auto(test).quantile(torch.tensor([0.9]))[0] < test.target).float().mean()
    assert float(exceeded) == pytest.approx(0.1, abs=0.02)


def test_each_target_of_a_task_gets_the_distribution_that_suits_it():
    both = Task("both", ["2t", "tp"], ["2t", "tp"], [24])
    train, _ = rain(range(1991, 2001), task=both)
    corrector = Corrector(both, GRID, REFERENCES["climatology"], Days.static)
    corrector.fit(days_of(train))
    forecast = corrector(train)
    assert isinstance(forecast.of_target(0), Normal)
    assert isinstance(forecast.of_target(1), Empirical)
    # No target is the raw ensemble, which `correct` would leave as it is.
    assert forecast.mask is None
    alone = Corrector(RAIN, GRID, REFERENCES["climatology"], Days.static)
    alone.fit(days_of(rain(range(1991, 2001))[0]))
    torch.testing.assert_close(
        forecast.crps(train.target)[:, 1:],
        alone(
            train._replace(target=train.target[:, 1:], ensemble=train.ensemble[:, :, 1:], mask=train.mask[:, 1:])
        ).crps(train.target[:, 1:]),
    )
    assert forecast.crps(train.target).isfinite().all()


def test_variables_near_a_physical_bound():
    near = [name for name in ("tp", "tcc", "10si", "2t", "msl", "z", "unknown") if Variable(name).near_bound]
    assert near == ["tp", "tcc", "10si"]
