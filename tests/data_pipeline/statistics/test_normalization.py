"""Normalisation statistics against `models.normalizer.Normalizer`, which computes the same from samples."""

import numpy as np
import pytest

from data_pipeline.dataset import ForecastDataset, batches
from data_pipeline.statistics.normalization import Normalization
from data_pipeline.task import Task
from models.normalizer import Normalizer

TASK = Task("toy", ["2t", "sst", "z@500"], ["2t"], (24, 48))


@pytest.fixture(scope="module")
def found(computed):
    return computed(Normalization())


def test_statistics_equal_those_of_the_normalizer(toy, training, found):
    dataset = ForecastDataset(toy.archive, TASK, range(2010, 2014))
    normalizer = Normalizer(TASK, training.grid)
    normalizer.fit(lambda: batches(dataset, 5))
    location = normalizer.location.numpy()
    known = np.isfinite(found["location"])
    assert 0 < known.mean() < 1
    # In cells without a value, the normaliser has the mean of the row.
    assert np.allclose(location[known], found["location"][known], rtol=1e-6)
    assert np.allclose(found["scale"], normalizer.scale.numpy(), rtol=1e-6)


def test_statistics_equal_those_of_all_values_at_once(toy, training, found, in_training):
    for c, name in enumerate(("2t", "sst", "z")):
        members = np.stack([toy.ensemble[name][key] for key in in_training])
        members[np.isnan(members).any(1, keepdims=True).repeat(3, 1)] = np.nan
        with np.errstate(invalid="ignore"):
            location = np.nansum(members, (0, 1)) / np.isfinite(members).sum((0, 1))
        known = np.isfinite(members)
        weights = np.broadcast_to(training.grid.weights[:, None], members.shape)
        scale = np.sqrt(np.average(np.square(members - location)[known], weights=weights[known]))
        assert np.allclose(found["location"][c], location, rtol=1e-5, equal_nan=True)
        assert np.isclose(found["scale"][c], scale, rtol=1e-4)


def test_land_has_no_sea_temperature(found):
    assert np.isnan(found["location"][1]).sum() == 8 * 6
    assert not np.isnan(found["location"][0]).any()
