"""EMOS with calendar windows, against single fits to the same cases."""

import numpy as np
import torch

from data_pipeline.grid import Grid
from data_pipeline.sample import Sample
from data_pipeline.task import Task
from models.statistical.emos import EMOS
from models.statistical.emos_regression import EMOSCases, raw_coefficients
from models.statistical.regression import Regression

GRID = Grid.regular(3, 4)
TASK = Task("test", inputs=["2t"], targets=["2t"], lead_times=[0, 24])
DAY = 86400


def forecasts(years, step=5, days=range(365), seed=0):
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


def score(model, batch):
    return float(model(batch).crps(batch.target).mean())


def test_coefficients_at_the_centre_of_a_window_fit_its_cases():
    train = forecasts(range(2001, 2004), step=1)
    model = EMOS(TASK, GRID, seasonal=False, window_days=30, shared=False)
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
            expected = EMOSCases(mean[chosen], std[chosen], train.target[chosen, 0].flatten(1)).fit_cells(Regression())
            torch.testing.assert_close(
                model.coefficients[24 * lead + k].flatten(1).double(), expected, rtol=0, atol=1e-4
            )


def test_coefficients_are_interpolated_between_centres():
    model = EMOS(TASK, GRID, seasonal=False, window_days=30)
    a = torch.arange(24.0)
    model.coefficients[24:, 0] = a[:, None, None, None]
    init = torch.tensor(np.array([f"2003-{d}" for d in ("01-01", "01-16", "12-24", "12-31")], "M8[s]").astype(np.int64))
    zero = torch.zeros(4, 2, 1, *GRID.shape)
    batch = Sample(zero, zero[:, 0] == 0, zero[:, 0], zero[:, 0], init - DAY, torch.full((4,), 24))
    place = 24 / 365.25 * torch.tensor([0, 15, 357, 364])
    expected = torch.where(place < 23, place, 23 * (24 - place))  # from the last back to the first
    torch.testing.assert_close(model(batch).mean[:, 0, 0, 0], expected, rtol=0, atol=1e-4)


def test_a_window_without_cases_gets_the_coefficients_of_the_whole_year():
    train = forecasts(range(2000, 2006), step=2, days=range(150, 240))
    year, window = (EMOS(TASK, GRID, seasonal=False, shared=False, **days) for days in ({}, {"window_days": 20}))
    year.fit([train])
    window.fit([train])
    torch.testing.assert_close(window.coefficients[0], year.coefficients[0])
    assert not torch.equal(window.coefficients[18], year.coefficients[0])  # centred on day 183
    raw = raw_coefficients(window.regressions[0], False).view(-1, 1, 1, 1)
    assert not (window.coefficients == raw).all((1, 2, 3, 4)).any()
