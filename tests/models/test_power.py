"""The option `model.power`: every model works on roots of the target, and scores are in its own units."""

import pytest
import torch

from data_pipeline.common.errors import InputError
from data_pipeline.grid import Grid
from data_pipeline.sample import Sample
from data_pipeline.task import Task
from models.corrector import REFERENCES, Corrector, reads_moments
from models.distribution import Ensemble, PowerTransformed
from models.normalizer import Normalizer
from training.optimization.loss import CRPS, ThresholdWeightedCRPS

GRID = Grid.regular(5, 6)
RAIN = Task("rain", ["tp", "2t"], ["tp"], [24])
EMOS = {"_target_": "models.statistical.emos.EMOS", "seasonal": False, "shared": False, "scale": "log"}
SPECS = {
    "emos": EMOS,
    "boosted_emos": {
        "_target_": "models.statistical.boosted_emos.BoostedEMOS", "family": "censored_normal", "lower": 0.0,
        "max_steps": 5, "folds": 2,
    },
    "mlp": {"_target_": "models.networks.mlp.MLP", "width": 8, "head": "censored_normal"},
    "bqn": {"_target_": "models.networks.mlp.MLP", "width": 8, "head": "bernstein"},
    "members": {"_target_": "models.networks.transformer.Transformer", "width": 8, "head": "members"},
}  # fmt: skip


class Days(list):
    """Samples with the static fields of a data set."""

    static = torch.zeros(3, *GRID.shape)

    def times(self):
        return torch.stack([s.init_time for s in self]), torch.stack([s.lead_time for s in self])


def rain(count=60, seed=0):
    """Return forecasts of rain in m, dry on one day in three; the last cell is always dry."""
    generator = torch.Generator().manual_seed(seed)

    def draw(*shape):
        return torch.randn(*shape, *GRID.shape, generator=generator)

    days = Days()
    for day in range(count):
        weather = draw()
        roots = (weather + 0.4 * draw(8)).clamp(min=0)
        truth = (0.8 * weather + 0.3 * draw()).clamp(min=0)
        roots[..., -1, -1] = truth[..., -1, -1] = 0
        members = torch.stack([roots.square() / 1000, 280 + draw(8)], dim=1)
        mask, static = torch.ones(2, *GRID.shape, dtype=torch.bool), Days.static
        lead = torch.tensor(24)
        days.append(Sample(members, mask, static, truth.square()[None] / 1000, torch.tensor(day * 86400), lead))
    return days


def rooted(days):
    """Return the same forecasts with roots of the rain."""
    found = Days()
    for sample in days:
        members = sample.ensemble.clone()
        members[:, 0] = members[:, 0].sqrt()
        found.append(sample._replace(ensemble=members, target=sample.target.sqrt()))
    return found


def stacked(days):
    return Sample(*(torch.stack(tensors) for tensors in zip(*days, strict=True)))


def fitted(spec, days, task=RAIN):
    torch.manual_seed(0)
    targets_only = spec["_target_"] == EMOS["_target_"]
    if targets_only:
        task = task.only_targets()
        days = Days(s._replace(ensemble=s.ensemble[:, :1], mask=s.mask[:1]) for s in days)
    corrector = Corrector(task, GRID, spec, Days.static)
    corrector.fit(days)
    return corrector.eval(), stacked(days)


@pytest.mark.parametrize("name", SPECS)
@torch.no_grad()
def test_the_quantiles_are_powers_of_those_of_a_model_of_the_roots(name):
    corrector, batch = fitted(SPECS[name] | {"power": 0.5}, rain())
    roots, root_batch = fitted(SPECS[name] | {"power": 1.0}, rooted(rain()))
    forecast, of_roots = corrector(batch), roots(root_batch)
    # Between members, quantiles are interpolated, which does not commute with powers.
    levels = torch.tensor([0.0, 1.0] if name == "members" else [0.1, 0.5, 0.9])
    expected = of_roots.quantile(levels).clamp(min=0).square()
    torch.testing.assert_close(forecast.quantile(levels), expected, rtol=2e-3, atol=1e-8)
    assert isinstance(forecast, Ensemble if name == "members" else PowerTransformed)
    assert float(forecast.crps(batch.target).mean()) < float(batch.target.mean())
    # A truth of zero lies exactly on the bound, where there is probability.
    if name != "members":
        dry = batch.target == 0
        assert 0.1 < float(dry.float().mean()) < 0.7
        assert (forecast.cdf(batch.target)[dry] > 0).float().mean() > 0.5


def test_a_network_learns_in_the_units_of_the_roots():
    corrector, batch = fitted(SPECS["mlp"] | {"power": 0.5}, rain())
    normal = corrector.normalizer(batch)
    location, scale = corrector.normalizer.target_scaling
    torch.testing.assert_close(normal.target, (batch.target.sqrt() - location) / scale)
    torch.testing.assert_close(corrector.normalizer.normalise_targets(batch.target), normal.target)
    torch.testing.assert_close(normal.ensemble[:, :, 0], (batch.ensemble[:, :, 0].sqrt() - location[0]) / scale)
    # Rain above 1 m never falls, so that only the score of all values is left.
    loss, forecast = ThresholdWeightedCRPS(threshold=1.0, weight=0.5), corrector.model(normal)
    torch.testing.assert_close(
        2 * loss(forecast, normal, corrector.normalizer), CRPS()(forecast, normal, corrector.normalizer)
    )
    extreme = ThresholdWeightedCRPS(threshold=0.0, weight=1.0)(forecast, normal, corrector.normalizer)
    torch.testing.assert_close(extreme, CRPS()(forecast, normal, corrector.normalizer))


def test_moments_of_members_do_not_suffice_for_moments_of_their_roots():
    assert not reads_moments(EMOS, RAIN)
    assert not reads_moments(EMOS, Task("both", ["2t", "tp"], ["2t", "tp"], [24]))
    assert reads_moments(EMOS | {"power": 1.0}, RAIN)
    assert reads_moments(EMOS, Task("wind", ["2t", "10si"], ["2t", "10si"], [24]))


def test_the_raw_ensemble_is_left_as_it_is():
    days = rain()
    raw = Corrector(RAIN.only_targets(), GRID, REFERENCES["raw"], Days.static)
    batch = stacked(days)
    narrow = batch._replace(ensemble=batch.ensemble[:, :, :1], mask=batch.mask[:, :1])
    torch.testing.assert_close(raw(narrow).members, batch.ensemble[:, :, :1].movedim(1, 0), rtol=1e-5, atol=1e-9)


def test_invalid_powers_are_errors():
    for power in (0, 0.2, 2, True, "half", None):
        with pytest.raises(InputError, match=r"model\.power must be a number from 0\.25 to 1, got"):
            Normalizer.of_model(EMOS | {"power": power}, RAIN, GRID)
    with pytest.raises(InputError, match=r"msl has no known one; set model\.power=1, or model\.lower"):
        Normalizer.of_model({"power": 0.5}, Task("p", ["msl"], ["msl"], [24]), GRID)
    with pytest.raises(InputError, match=r"model\.lower=1 differs from 0, the lower bound of tp"):
        Normalizer.of_model({"power": 0.5, "lower": 1.0}, RAIN, GRID)
    committee = {"_target_": "models.averages.committee.Committee", "specs": [EMOS], "power": 0.5}
    with pytest.raises(InputError, match=r"Committee gets physical values; remove model\.power"):
        Corrector(RAIN.only_targets(), GRID, committee, Days.static)
