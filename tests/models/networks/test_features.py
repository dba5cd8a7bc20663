import torch

from data_pipeline.dataset import batches
from data_pipeline.grid import Grid
from data_pipeline.task import Task
from models.networks.error_climate import ErrorClimate
from models.networks.features import Features

TASK = Task("toy", ["2t", "msl"], ["2t"], [24, 48])
GRID = Grid.regular(5, 8)


def test_a_cell_without_truth_has_no_expected_error(toy):
    data = toy(TASK, GRID, 20)
    for sample in data:
        sample.target[:, 1, 1] = torch.nan
    climate = ErrorClimate(TASK, GRID)
    climate.fit(batches(data, 7))
    assert torch.isfinite(climate.bias).all()
    assert not climate.bias[..., 1, 1].any()
    assert climate(next(batches(data, 4))).shape == (4, 2, *GRID.shape)


def test_the_lead_time_feature_goes_from_minus_one_to_one(toy):
    task = Task("toy", ["2t", "msl"], ["2t"], [24, 48, 120])
    features, sample = Features(task, GRID), next(batches(toy(task, GRID, 6), 6))
    found = features(sample)
    assert found.shape[1] == features.count
    assert sample.lead_time.tolist() == [24, 48, 120, 24, 48, 120]
    torch.testing.assert_close(found[:, -1, 2, 3], torch.tensor([-1.0, -0.5, 1.0, -1.0, -0.5, 1.0]))
    assert Features(Task("toy", ["2t", "msl"], ["2t"], [24]), GRID).count == features.count - 1


def test_every_cell_trains_its_own_embedding(toy):
    """The embedding has a gradient as soon as the last layer is not zero, only in cells with truth."""
    torch.manual_seed(0)
    features, sample = Features(TASK, GRID, cell_embedding=2), next(batches(toy(TASK, GRID, 4), 4))
    assert features.embedding.shape == (2, *GRID.shape)
    weight, mask = torch.randn(features.count), torch.rand(GRID.shape) > 0.5
    weighted_sum = torch.einsum("bfhw,f->bhw", features(sample), weight)
    (gradient,) = torch.autograd.grad(weighted_sum[:, mask].sum(), features.embedding)
    torch.testing.assert_close(gradient, 4 * weight[-2:, None, None] * mask)
    features.embedding.data = torch.randn(2, *GRID.shape)
    torch.testing.assert_close(features(sample)[3, -2:], features.embedding)


def test_the_mask_of_a_sea_only_field_is_a_feature(toy):
    """It is the only land mask of a task without static fields; other tasks have no such feature."""
    task = Task("toy", ["sst", "2t"], ["2t"], [24])
    sample = next(batches(toy(task, GRID, 2), 2))
    land = torch.rand(GRID.shape) > 0.5
    sample.mask[:, 0] = ~land
    features = Features(task, GRID)
    found = features(sample)
    assert found.shape[1] == features.count == Features(Task("toy", ["msl", "2t"], ["2t"], [24]), GRID).count + 1
    assert any(torch.equal(found[0, k], (~land).float()) for k in range(features.count))
    sample.mask[:, 0] = True
    assert any((features(sample)[:, k] == 1).all() for k in range(features.count))
