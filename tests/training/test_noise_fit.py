"""The fit of noise: its scores against the scores of an evaluation, what it learns, and the way to members."""

import numpy as np
import pytest
import torch
import xarray as xr

from data_pipeline.common.errors import InputError
from data_pipeline.grid import Grid
from data_pipeline.task import Task
from evaluation.kernels.vector_scores import vector_scores
from models.corrector import Corrector
from models.distribution import energy_score, variogram_score
from training.fit import fit

GRID, DAYS, M = Grid.regular(7, 12), 40, 6
SPACE = {"latitude": list(GRID.latitudes), "longitude": list(GRID.longitudes)}
STARTS = np.concatenate(
    [np.datetime64(f"{year}-01-01", "ns") + 3 * np.arange(DAYS) * np.timedelta64(1, "D") for year in range(2014, 2017)]
)
TASK = Task("toy", ["10u", "10v"], ["10u", "10v"], [24, 48])


def test_scores_and_their_gradients_are_those_of_the_evaluation():
    """Against numba's loops over pairs, and their differences for small changes of the members."""
    rng = np.random.default_rng(0)
    x, y, weights = rng.normal(size=(3, 5)), rng.normal(size=5), rng.uniform(size=(5, 5))
    weights = weights + weights.T

    def evaluated(members):
        return vector_scores(members[..., None], y[:, None], weights)[:, 0]

    for fair in (False, True):
        members, truth = torch.tensor(x, requires_grad=True), torch.tensor(y)
        for number, found in (
            (0, energy_score(members, truth, 0, fair)),
            (2, variogram_score(members, truth, torch.tensor(weights), fair)),
        ):
            assert found.item() == pytest.approx(evaluated(x)[number + fair], rel=1e-12)
            (gradient,) = torch.autograd.grad(found, members)
            for m, k in np.ndindex(x.shape):
                step = np.zeros_like(x)
                step[m, k] = 1e-6
                slope = (evaluated(x + step) - evaluated(x - step))[number + fair] / 2e-6
                assert gradient[m, k].item() == pytest.approx(slope, rel=1e-4, abs=1e-6)


def weather(right):
    """Return forecasts and analyses that differ by one number for all cells and lead times of a start.

    The members have the same number each, if they are `right`, else one for each cell and lead time.
    """
    rng = np.random.default_rng(1)
    shape = len(STARTS), 2, M, 2, *GRID.shape
    mean = 5 * rng.normal(size=(len(STARTS), 2, 1, 2, *GRID.shape))
    common = rng.normal(size=(len(STARTS), 1, M + 1, 2, 1, 1))
    raw = mean + (common[:, :, 1:] if right else rng.normal(size=shape)) + 0.1 * rng.normal(size=shape)
    truth = (mean + common[:, :, :1])[:, :, 0] + 0.1 * rng.normal(size=mean[:, :, 0].shape)
    dims = "init_time", "lead_time", "number", "latitude", "longitude"
    ensemble = xr.Dataset(
        {name: (dims, raw[:, :, :, k].astype("f4"), {"units": "m s-1"}) for k, name in enumerate(("10u", "10v"))},
        {"init_time": STARTS, "lead_time": [24, 48], "number": range(M), **SPACE},
    )
    valid = (STARTS[:, None] + np.array([24, 48], "timedelta64[h]")).ravel()
    times, first = np.unique(valid, return_index=True)
    fields = truth.reshape(-1, 2, *GRID.shape)[first]
    analyses = xr.Dataset(
        {
            name: (("time", *dims[3:]), fields[:, k].astype("f4"), {"units": "m s-1"})
            for k, name in enumerate(("10u", "10v"))
        },
        {"time": times, **SPACE},
    )
    return ensemble, analyses


@pytest.mark.parametrize("right", [False, True])
def test_members_hang_together_like_the_truth(right, tmp_path):
    """The mean over all cells spreads nearly as much as a cell, in both lead times alike, and each target alone."""
    ensemble, truth = weather(right)
    options = {"task": TASK, "train": [2014, 2015], "val": [2016, 2016], "noise": True}
    fit({"model": "emos", "shared": True, "seasonal": False}, ensemble, truth, **options).save(tmp_path / "a")
    corrector, some = Corrector.load(tmp_path / "a"), ensemble.isel(init_time=slice(-8, None))
    assert corrector.noise.as_many == float(right)  # without clear evidence, the order of the raw members
    found = {}
    for method in ("noise", "ecc-q"):
        for count in (M, 4 * M):
            made = corrector.correct(some, members=method, member_count=count).to_array()
            around = made - made.mean("number")
            mean = around.mean(("latitude", "longitude"))
            u, v = (mean.sel(variable=name) for name in ("10u", "10v"))
            early, late = (mean.sel(lead_time=lead).values.ravel() for lead in (24, 48))
            found[method, count] = (
                float(mean.std() / around.std()),
                np.corrcoef(early, late)[0, 1],
                np.corrcoef(u.values.ravel(), v.values.ravel())[0, 1],
            )
            sorted_members = corrector.correct(some, members="quantiles", member_count=count).to_array()
            np.testing.assert_allclose(np.sort(made, 3), sorted_members, atol=1e-4)
    for count in (M, 4 * M):
        together, leads, targets = found["noise", count]
        assert together > 0.8
        assert leads > 0.9
        assert abs(targets) < 0.3
        assert found["ecc-q", count][0] < 0.3 or right


def test_members_of_a_network_and_years_without_validation_are_refused():
    ensemble, truth = weather(right=True)
    options = {"task": TASK, "train": [2014, 2015], "noise": True}
    with pytest.raises(InputError, match="noise=true needs validation dates"):
        fit("emos", ensemble, truth, **options)
    with pytest.raises(InputError, match="noise=true is for models with a distribution in each cell"):
        fit("raw", ensemble, truth, val=[2016, 2016], **options)
