import pytest
import torch

from data_pipeline.dataset import batches
from data_pipeline.grid import Grid
from data_pipeline.task import Task
from models.features import ErrorClimate, spread
from models.season import season

TASK = Task("toy", ["2t", "msl"], ["2t"], [24, 48])
GRID = Grid.regular(5, 8)


@pytest.mark.parametrize("members", [2, 7])
def test_spread_is_the_unbiased_standard_deviation(members):
    x = torch.randn(3, members, 2, 4, 5)
    torch.testing.assert_close(spread(x), x.std(1))


def test_one_member_has_no_spread():
    assert not spread(torch.randn(3, 1, 2, 4, 5)).any()


def test_the_error_climate_is_a_regression_cell_by_cell(toy):
    """One cell of one lead time against numpy's least squares."""
    data = toy(TASK, GRID, 60)
    data.samples[4].target[0, 2, 3] = torch.nan
    climate = ErrorClimate(TASK, GRID)
    climate.fit(batches(data, 7))
    own = [s for s in data if s.lead_time == 48]
    known = [s for s in own if torch.isfinite(s.target[0, 2, 3])]
    terms = torch.stack([torch.cat([torch.ones(1), season(s.init_time[None], s.lead_time[None])[0]]) for s in known])
    error = torch.stack([s.target[0, 2, 3] - s.ensemble[:, 0, 2, 3].mean() for s in known])[:, None]
    found = torch.linalg.lstsq(terms, error)
    torch.testing.assert_close(climate.bias[1, :, 0, 2, 3], found.solution[:, 0], rtol=1e-3, atol=1e-3)
    size = (error - terms @ found.solution).square().mean().sqrt()
    torch.testing.assert_close(climate.residual[1, 0, 2, 3], torch.log(size + 0.01) + 2, rtol=1e-3, atol=1e-3)


def test_a_cell_without_truth_has_no_expected_error(toy):
    data = toy(TASK, GRID, 20)
    for sample in data:
        sample.target[:, 1, 1] = torch.nan
    climate = ErrorClimate(TASK, GRID)
    climate.fit(batches(data, 7))
    assert torch.isfinite(climate.bias).all()
    assert not climate.bias[..., 1, 1].any()
    assert climate(next(batches(data, 4))).shape == (4, 2, *GRID.shape)
