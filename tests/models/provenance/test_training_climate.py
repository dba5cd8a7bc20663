"""The training climate, compared with the normaliser that it is made from."""

import base64
import json
import zlib

import numpy as np
import pytest
import torch

from data_pipeline.grid import Grid
from data_pipeline.sample import Sample
from data_pipeline.task import Task
from models.normalizer import Normalizer
from models.provenance.training_climate import TrainingClimate

GRID = Grid.regular(5, 6)
TASK = Task("rain", ["tp", "t@850"], ["tp"], [24])


@pytest.fixture(params=[1.0, 0.5])
def normalizer(request):
    one = Normalizer(TASK, GRID, request.param)
    draw = torch.Generator().manual_seed(0)
    one.location.copy_(torch.rand(one.location.shape, generator=draw) * torch.tensor([0.1, 20])[:, None, None] + 0.05)
    one.scale.copy_(torch.tensor([0.03, 4.0]))
    return one


@pytest.fixture
def ensemble():
    return np.random.default_rng(4).gamma(1.0, 0.02, (6, 2, *GRID.shape)).astype(np.float32)


def normalised(normalizer, ensemble):
    members = torch.from_numpy(ensemble)[None]
    static = torch.zeros(1, len(TASK.static_names), *GRID.shape)
    mask = torch.ones(1, 2, *GRID.shape, dtype=torch.bool)
    target = torch.zeros(1, 1, *GRID.shape)
    sample = Sample(members, mask, static, target, torch.zeros(1).long(), torch.full((1,), 24))
    return normalizer(sample).ensemble[0].numpy()


def test_departures_are_the_mean_of_normalised_members(normalizer, ensemble):
    mask = np.ones((2, *GRID.shape), bool)
    mask[0, 2, 3] = False
    found = np.stack(list(TrainingClimate.of([normalizer], (0,)).departures(ensemble, mask)))
    expected = normalised(normalizer, ensemble).mean(0)
    np.testing.assert_allclose(found[mask], expected[mask], atol=1e-4)
    assert np.isnan(found[0, 2, 3])
    assert np.isnan(found).sum() == 1


def test_centred_members_have_the_normalised_mean_zero(normalizer, ensemble):
    """Rain cannot be negative; the members of this test are near enough to each other."""
    ensemble = 1 + ensemble
    normalizer.location.add_(0.5)
    climate = TrainingClimate.of([normalizer], (0,))
    before = normalised(normalizer, ensemble)
    for channel in (0, 1):
        ensemble[:, channel] = climate.centred(ensemble, channel)
    after = normalised(normalizer, ensemble)
    np.testing.assert_allclose(after.mean(0), 0, atol=1e-4)
    np.testing.assert_allclose(after - after.mean(0), before - before.mean(0), atol=1e-4)


def test_packed_means_are_precise_to_a_thousandth_of_a_typical_departure(normalizer):
    climate = TrainingClimate.of([normalizer], (0,))
    packed = json.loads(json.dumps(climate.pack()))
    found = TrainingClimate.unpack(packed, (2, *GRID.shape))
    error = abs(found.location - climate.location) / climate.scale[:, None, None]
    assert 0 < error.max() <= 0.5e-3 * (1 + 1e-6)
    np.testing.assert_array_equal(found.scale, climate.scale)
    assert (found.targets, found.powers, found.lower) == ((0,), (*normalizer.powers,), (0.0,))


def test_packed_values_of_something_else_are_refused(normalizer):
    packed, shape = TrainingClimate.of([normalizer], (0,)).pack(), (2, *GRID.shape)
    wrong = [
        ("steps", base64.b64encode(zlib.compress(bytes(8))).decode()), ("steps", "no base64"), ("steps", None),
        ("steps", base64.b64encode(b"no zlib").decode()), ("scale", [1.0]), ("scale", [1.0, 0.0]),
        ("powers", [0]), ("powers", []), ("origin", [0.0, float("nan")]), ("lower", []), ("targets", "x"),
    ]  # fmt: skip
    for name, value in wrong:
        with pytest.raises(ValueError, match=r"its training climate|invalid literal"):
            TrainingClimate.unpack(packed | {name: value}, shape)
    with pytest.raises(ValueError, match="its training climate cannot be unpacked"):
        TrainingClimate.unpack({}, shape)


def test_a_committee_has_the_mean_climate(normalizer):
    other = Normalizer(TASK, GRID, normalizer.powers)
    other.location.copy_(3 * normalizer.location)
    other.scale.copy_(2 * normalizer.scale)
    found = TrainingClimate.of([normalizer, other], (0,))
    np.testing.assert_allclose(found.location, 2 * normalizer.location.numpy().astype(float))
    np.testing.assert_allclose(found.scale, [0.045, 6.0], rtol=1e-6)
