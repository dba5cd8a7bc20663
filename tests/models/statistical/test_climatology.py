"""Climatology against the classical one, a window of 45 days; the calendar against that of numpy."""

import numpy as np
import pytest
import torch

from data_pipeline.grid import Grid
from data_pipeline.sample import Sample
from data_pipeline.task import Task, Variable
from models.distribution import Empirical, Normal, empirical_quantiles
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
    target = law.sample(1, torch.Generator().manual_seed(seed))[0].float()
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
        assert model.report.unfitted == 0
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
