"""The fractions skill score against published code, a published number and its definition."""

import numpy as np
import pytest
import torch
import xarray as xr
from score_cases import TASK, draws, make_case
from scores.spatial import fss_2d

from data_pipeline.grid import Grid
from data_pipeline.variables.thresholds import Threshold
from evaluation.scores.fractions import FSS, SIZES, window_means
from evaluation.scores.score import Settings
from models.distribution import Ensemble
from models.parallel.domain import Domain

THRESHOLDS = ((Threshold(">", 0.3), Threshold("<=", -0.5)),)


def test_windows_within_the_grid_are_those_of_the_package_scores():
    """A single member; without padding, the package scores only the windows that lie within the grid."""
    truth, forecast = draws(4, 1, 12, 15, seed=1), draws(1, 4, 1, 12, 15, seed=2)
    case = make_case(Ensemble(forecast + truth / 2), truth, THRESHOLDS)
    cells = {name: statistic.cells(case) for name, statistic in FSS.statistics.items()}
    fields = [xr.DataArray(one[:, 0].numpy(), dims=("start", "y", "x")) for one in (case.forecast.members[0], truth)]
    for k, size in enumerate(SIZES):
        edge = size // 2
        averages = {name: one[k][..., edge:-edge, edge:-edge].mean().numpy() for name, one in cells.items()}
        found = fss_2d(*fields, event_threshold=0.3, window_size=(size, size), spatial_dims=("y", "x"))
        assert float(FSS.value(**averages)) == pytest.approx(float(found), rel=1e-10)


def test_fractions_are_means_over_the_known_cells_of_the_window():
    members, truth = draws(5, 2, 1, 6, 7, seed=3), draws(2, 1, 6, 7, seed=4)
    truth[0, 0, 2, 3] = torch.nan
    case = make_case(Ensemble(members), truth, THRESHOLDS)
    p, o = (members > 0.3).double().mean(0)[:, 0].numpy(), (truth > 0.3)[:, 0].numpy()
    valid, error, worst = np.isfinite(truth[:, 0].numpy()), 0.0, 0.0
    for b, i, j in np.argwhere(valid):
        window = b, slice(max(i - 1, 0), i + 2), slice(max(j - 1, 0), j + 2)
        f, g = (one[window][valid[window]].mean() for one in (p, o))
        error, worst = error + (f - g) ** 2, worst + f**2 + g**2
    keep = case.valid
    averages = {name: one.cells(case)[0][keep].mean().numpy() for name, one in FSS.statistics.items()}
    assert float(FSS.value(**averages)) == pytest.approx(1 - error / worst, rel=1e-12)


@pytest.mark.parametrize(("shape", "size"), [((9, 14), 3), ((3, 4), 9)])
def test_windows_go_round_the_globe(shape, size):
    """Also windows that are larger than the grid."""
    fields, reach = draws(1, 1, 1, *shape, seed=6), size // 2
    found = window_means(fields, size, Domain.of(Grid.regular(*shape)))
    wrapped = torch.cat([fields[..., -reach:], fields, fields[..., :reach]], -1)
    torch.testing.assert_close(found, window_means(wrapped, size, None)[..., reach:-reach])


def test_points_are_refused_by_name():
    def missing(**further):
        return FSS.missing(Settings(TASK, 5, THRESHOLDS, **further))

    assert missing(grid=Grid.regular(6, 8)) == ""
    assert missing().startswith("stations and points")
    assert FSS.labels_of(Settings(TASK, 5, THRESHOLDS), 0)[:2] == ("> 0.3, 3 x 3 cells", "> 0.3, 9 x 9 cells")
