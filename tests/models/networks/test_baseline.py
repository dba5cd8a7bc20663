"""Baselines of networks: an untrained network on the baseline EMOS equals EMOS."""

import pytest
import torch
from specs import SPECS

from data_pipeline.common.errors import InputError
from data_pipeline.dataset import batches
from data_pipeline.grid import Grid
from data_pipeline.task import Task
from models.corrector import Corrector
from models.distribution import CensoredLogistic
from models.networks.head import HEADS
from models.statistical.predictors import SMALLEST_SPREAD

GRID = Grid.regular(8, 12)
TASK = Task("toy", ["sst", "2t", "tp"], ["2t", "tp"], [24, 48], ["lsm"])
BEGINNERS = [name for name, spec in SPECS.items() if "baseline" in spec and spec["head"] != "members"]


def fit_corrector(spec, toy):
    """A corrector that is fitted and not trained."""
    torch.manual_seed(0)
    data = toy(TASK, GRID, 40)
    corrector = Corrector(TASK, GRID, spec, data.static)
    corrector.fit(data)
    return corrector.double().eval()


def batch_of(toy):
    """Forecasts outside the training data, in float64."""
    sample = next(batches(toy(TASK, GRID, 4, 5, seed=3), 4))
    return sample._replace(**{name: getattr(sample, name).double() for name in ("ensemble", "static", "target")})


@pytest.mark.parametrize(
    ("name", "options"),
    [("unet", {"shared": "partly"}), *((name, {"seasonal": False, "scale": "log"}) for name in BEGINNERS)],
)
def test_an_untrained_network_equals_emos(name, options, toy):
    """Network and EMOS are fitted to the same samples."""
    emos, sample = fit_corrector(SPECS["emos"] | options, toy), batch_of(toy)
    network = fit_corrector(SPECS[name] | {"baseline": options}, toy)
    with torch.no_grad():
        normal, found = network.normalizer(sample), network(sample)
        expected = emos.model(normal)
        start, unit = network.model.head.start(normal), network.normalizer.target_scaling[1]
    torch.testing.assert_close(start[0], expected.mu)
    torch.testing.assert_close(start[1], (expected.sigma**2 + SMALLEST_SPREAD**2).sqrt())
    torch.testing.assert_close(found.mean, emos(sample).mean, rtol=1e-6, atol=1e-6)
    assert float((found.std / unit - expected.std).abs().max()) < 2 * SMALLEST_SPREAD


@pytest.mark.parametrize("kind", HEADS)
def test_every_head_starts_from_the_baseline(kind, toy):
    """For temperature only: at 280 K a lower bound has no effect."""
    corrector, sample = fit_corrector(SPECS["mlp"] | {"head": kind, "baseline": {}}, toy), batch_of(toy)
    with torch.no_grad():
        m, s = corrector.model.head.start(corrector.normalizer(sample))
        found = corrector.model(corrector.normalizer(sample))
    torch.testing.assert_close(found.mean[:, 0], m[:, 0], rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(found.std[:, 0], s[:, 0], rtol=1e-4, atol=0)


def test_a_bounded_baseline_and_head_share_the_bound(toy):
    """EMOS and network have the bound 0 mm and equal probabilities below it."""
    task, options = Task("rain", ["tp"], ["tp"], [24]), {"family": "censored_logistic", "lower": 0.0, "seasonal": False}
    data = toy(task, GRID, 40)
    spec = SPECS["mlp"] | {"head": "censored_logistic", "baseline": options}
    corrector = Corrector(task, GRID, spec, data.static)
    corrector.fit(data)
    emos = Corrector(task, GRID, SPECS["emos"] | options, data.static)
    emos.fit(data)
    sample = next(batches(data, 4))
    with torch.no_grad():
        found, expected = corrector.eval()(sample), emos.eval()(sample)
    assert isinstance(found, CensoredLogistic)
    torch.testing.assert_close(found.lower.expand_as(expected.mu), expected.lower.expand_as(expected.mu))
    torch.testing.assert_close(found.mu, expected.mu, rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(found.crps(sample.target), expected.crps(sample.target), rtol=1e-2, atol=1e-3)


def test_a_network_on_emos_can_be_saved_and_loaded(toy, tmp_path):
    corrector, sample = (
        fit_corrector(SPECS["unet"] | {"baseline": {}}, toy).float(),
        next(batches(toy(TASK, GRID, 4), 4)),
    )
    corrector.save(tmp_path / "c.safetensors")
    with torch.no_grad():
        expected, found = corrector(sample), Corrector.load(tmp_path / "c.safetensors")(sample)
    torch.testing.assert_close(found.mu, expected.mu, rtol=0, atol=0)


def test_wrong_baselines_are_refused(toy):
    with pytest.raises(InputError, match="EMOS has no option 'sharde'; it has family, seasonal"):
        fit_corrector(SPECS["mlp"] | {"baseline": {"sharde": True}}, toy)
    with pytest.raises(InputError, match=r"model\.baseline must be null or options of emos"):
        fit_corrector(SPECS["mlp"] | {"baseline": "emos"}, toy)
    with pytest.raises(InputError, match=r"model\.head=members .* model\.baseline=null"):
        fit_corrector(SPECS["transformer_independent"] | {"baseline": {}}, toy)
