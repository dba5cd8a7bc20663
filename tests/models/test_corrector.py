import json

import pytest
import torch
from safetensors import safe_open

from data_pipeline.dataset import batches
from data_pipeline.grid import Grid
from data_pipeline.sample import Sample
from data_pipeline.task import Task
from data_pipeline.variables.meaning import Meaning
from models import protocol
from models.corrector import Corrector
from models.normalizer import Normalizer

TASK = Task("rain", ["tp", "2t"], ["tp"], [48])
GRID = Grid.regular(7, 8)
RAW = {"_target_": "models.statistical.raw.Raw"}


def test_normalised_samples_have_mean_0_and_mean_square_1(toy):
    """Means and mean squares by brute force; the normalisation can be undone."""
    data = toy(TASK, GRID, 12)
    normalizer = Normalizer(TASK, GRID)
    normalizer.fit(batches(data, 5))
    whole = normalizer(next(batches(data, 12)))
    torch.testing.assert_close(whole.ensemble.mean((0, 1)), torch.zeros(2, *GRID.shape), atol=1e-4, rtol=0)
    area = torch.tensor(GRID.weights, dtype=torch.float32)[:, None]
    torch.testing.assert_close((whole.ensemble.square() * area).mean((0, 1, 3, 4)), torch.ones(2), rtol=1e-4, atol=0)
    location, scale = normalizer.target_scaling
    torch.testing.assert_close(whole.target * scale + location, next(batches(data, 12)).target)


def test_units_and_intervals_are_in_the_file(tmp_path, toy):
    meanings = (Meaning(TASK.inputs[0], "m", (1440,)), Meaning(TASK.inputs[1], "K", (0,)))
    path, static = tmp_path / "corrector.safetensors", toy(TASK, GRID, 1).static
    Corrector(TASK, GRID, RAW, static, meanings=meanings).save(path)
    assert Corrector.load(path).meanings == meanings
    with safe_open(path, "pt") as file:
        description = json.loads(file.metadata()["deepweather"])
    assert description["meanings"][0] == {"variable": "tp", "units": "m", "intervals": [1440]}


def dry_and_wet(spec):
    """Return a corrector of rain in m with units of a wet and a dry world, and its forecasts of 10 samples."""
    generator = torch.Generator().manual_seed(5)
    made = Corrector(RAIN, GLOBE, spec, torch.zeros(3, *GLOBE.shape))
    climate = 10 ** (-5 + 4 * torch.rand(1, *GLOBE.shape, generator=generator))
    for part in made.modules():
        if isinstance(part, Corrector) and not protocol.claims(part.model).physical:
            part.normalizer.location.copy_(climate)
            part.normalizer.scale.fill_(0.00077)
            protocol.normalise(part.model, *part.normalizer.target_scaling)
    ensemble = (climate * torch.randn(10, 5, 1, *GLOBE.shape, generator=generator)).clamp(min=0)
    sample = Sample(
        ensemble, torch.ones(10, 1, *GLOBE.shape, dtype=torch.bool), made.static.expand(10, -1, -1, -1),
        torch.zeros(10, 1, *GLOBE.shape), torch.zeros(10, dtype=torch.int64), torch.full((10,), 48),
    )  # fmt: skip
    with torch.no_grad():
        return made.eval()(sample)


RAIN, GLOBE = Task("rain", ["tp"], ["tp"], [48]), Grid.regular(19, 36)
BOUNDED = {
    "emos": {"_target_": "models.statistical.emos.EMOS", "family": "censored_normal", "lower": 0, "seasonal": False},
    "boosted": {"_target_": "models.statistical.boosted_emos.BoostedEMOS", "family": "censored_logistic", "lower": 0},
    "truncated": {"_target_": "models.networks.mlp.MLP", "head": "truncated_normal"},
    "gamma": {"_target_": "models.networks.mlp.MLP", "head": "censored_shifted_gamma"},
    "committee": {
        "_target_": "models.averages.committee.Committee",
        "specs": [{"_target_": "models.networks.mlp.MLP", "head": "censored_normal"}] * 2,
    },
}


@pytest.mark.parametrize("name", BOUNDED)
def test_the_lower_bound_in_physical_units_is_exact(name):
    forecast = dry_and_wet(BOUNDED[name])
    assert torch.equal(forecast.lower, torch.zeros_like(forecast.lower))
    assert not forecast.cdf(torch.nextafter(forecast.lower, -torch.ones(()))).any()


def test_a_bound_other_than_the_physical_bound_is_unchanged():
    forecast = dry_and_wet(BOUNDED["emos"] | {"lower": 0.01, "power": 1.0})
    torch.testing.assert_close(forecast.lower, torch.full_like(forecast.lower, 0.01), rtol=1e-5, atol=0)
