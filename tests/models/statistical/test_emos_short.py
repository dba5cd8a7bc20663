"""EMOS and `auto` trained on a short part of a year at one station: the raw ensemble is what they must not lose to."""

import math

import pytest
import torch

import models.statistical.regression as regression_module
from data_pipeline.grid import Grid
from data_pipeline.grids.points import Points
from data_pipeline.sample import Sample
from data_pipeline.task import Task
from models.corrector import Corrector
from models.distribution import Normal
from models.statistical.emos import EMOS
from models.statistical.emos_sharing import expected_evaluations

STATION = Points((48.6,), (10.5,))
TASK = Task("station", ["2t"], ["2t"], [24], [])
DAY = 86400
AHEAD = 180


def station(grid=STATION, days=1100, seed=0):
    """Daily forecasts of a temperature with an annual cycle; the bias depends on the weather.

    In winter the forecast follows a departure from the season too little, in summer too much: a slope that is right
    in the training season is wrong in another one.
    """
    generator = torch.Generator().manual_seed(seed)
    phase = 2 * math.pi * torch.arange(days) / 365.25
    noise = torch.randn(days, *grid.shape, generator=generator)
    weather = torch.zeros(days, *grid.shape)
    for k in range(1, days):
        weather[k] = 0.8 * weather[k - 1] + 2.0 * noise[k]
    winter = phase.cos()[:, None, None]
    mean, std = 283 - 10 * winter + weather, 1.2 * torch.exp(0.3 * torch.randn(days, *grid.shape, generator=generator))
    truth = mean + 0.5 + 0.15 * winter * weather + std * torch.randn(days, *grid.shape, generator=generator)
    members = torch.randn(days, 8, *grid.shape, generator=generator)
    members = (members - members.mean(1, keepdim=True)) / members.std(1, keepdim=True)
    return Sample(
        (mean[:, None] + std[:, None] * members)[:, :, None], torch.ones(days, 1, *grid.shape, dtype=torch.bool),
        torch.zeros(days, len(TASK.static_names), *grid.shape), truth[:, None],
        946684800 + DAY * torch.arange(days), torch.full((days,), 24),
    )  # fmt: skip


def part(samples, first, count):
    return Sample(*(values[first : first + count] for values in samples))


def crps_beside_raw(model, samples):
    """Return the CRPS less that of the normal distribution of the raw ensemble."""
    raw = Normal(samples.ensemble.mean(1), samples.ensemble.std(1))
    with torch.no_grad():
        return float((model(samples).crps(samples.target, fair=True) - raw.crps(samples.target)).mean())


@pytest.mark.parametrize("days", [20, 60])
def test_emos_of_a_short_training_does_not_lose_in_the_next_seasons(days):
    samples, losses = station(), []
    for first in range(0, 800, 160):
        model = EMOS(TASK, STATION)
        model.fit([part(samples, first, days)])
        losses.append(crps_beside_raw(model, part(samples, first + days, AHEAD)))
    assert max(losses) < 0.1
    assert sum(losses) / len(losses) < 0.02


def test_auto_of_a_short_training_does_not_lose_in_the_next_seasons(capsys):
    samples = station()
    corrector = Corrector(TASK, STATION, {"_target_": "models.averages.auto.Auto"}, samples.static[0])
    for first in (20, 200):
        training = part(samples, first, 40)
        corrector.fit([Sample(*(values[k] for values in training)) for k in range(40)])
        assert crps_beside_raw(corrector, part(samples, first + 40, AHEAD)) < 0.1
    assert "season is left out: all training cases are of one season" in capsys.readouterr().out


@pytest.mark.parametrize(("grid", "days"), [(STATION, 1000), (Grid.regular(3, 4), 300), (Grid.regular(12, 16), 60)])
def test_the_estimate_of_a_fit_is_its_work(grid, days, monkeypatch):
    """Counted in scores of one case."""
    done, blocks = 0, regression_module._Cases.blocks

    def counted(*arguments):
        nonlocal done
        for block in blocks(*arguments):
            done += block.y.numel()
            yield block

    monkeypatch.setattr(regression_module._Cases, "blocks", counted)
    EMOS(TASK, grid).fit([station(grid, days)])
    assert done / expected_evaluations(days, math.prod(grid.shape), 1) == pytest.approx(1, abs=0.5)
