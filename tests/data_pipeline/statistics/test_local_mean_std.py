"""Local mean and standard deviation against loops over windows and SciPy's filters."""

import numpy as np
import pytest
from scipy.ndimage import gaussian_filter1d

from data_pipeline.common.errors import InputError
from data_pipeline.statistics.local_mean_std import LocalMeanStd
from data_pipeline.statistics.training_forecasts import TrainingForecasts

LEADS = (24, 48)


def year_of_validity(toy, i, j):
    return (toy.starts[i] + np.timedelta64(LEADS[j], "h")).item().year


def by_loops(fields_of_years, window, sigma):
    """Return the maps by definition: statistics of each window and year, mean over years, edges repeated, smoothed."""
    means, stds = [], []
    for fields in fields_of_years:
        shape = fields.shape[1] - window + 1, fields.shape[2] - window + 1
        mean, std = np.empty(shape), np.empty(shape)
        for y in range(shape[0]):
            for x in range(shape[1]):
                values = fields[:, y : y + window, x : x + window]
                mean[y, x], std[y, x] = values.mean(), values.std()
        means.append(mean)
        stds.append(std)
    maps = [np.pad(np.mean(each, 0), window // 2, mode="edge") for each in (means, stds)]
    maps = [gaussian_filter1d(each, sigma, axis=0, mode="nearest") for each in maps]
    return [gaussian_filter1d(each, sigma, axis=1, mode="wrap") for each in maps]


@pytest.mark.parametrize("options", [{}, {"window_cells": 3, "sigma_cells": 1.5, "member": 2}], ids=str)
def test_maps_equal_the_definition(toy, computed, in_training, options):
    local = LocalMeanStd(**options)
    found = computed(local)
    for c, name in ((0, "2t"), (2, "z")):
        for j in range(len(LEADS)):
            years = {}
            for i in (i for i, lead in in_training if lead == j):
                years.setdefault(year_of_validity(toy, i, j), []).append(toy.ensemble[name][i, j, local.member - 1])
            mean, std = by_loops([np.stack(fields) for fields in years.values()], local.window_cells, local.sigma_cells)
            assert np.allclose(found["mean"][j, c], mean, rtol=1e-5)
            assert np.allclose(found["std"][j, c], std, rtol=1e-4)


def test_missing_values_are_ignored(toy, computed):
    """Cells far inland have no sea in their window and are NaN; other cells use only the sea."""
    found = computed(LocalMeanStd(window_cells=3, sigma_cells=0.5))
    unknown = np.zeros(toy.ensemble["sst"].shape[-2:], bool)
    unknown[5:11, 6:10] = True
    for name in ("mean", "std"):
        assert (np.isnan(found[name][0, 1]) == unknown).all()
    assert abs(np.nanmean(found["mean"][0, 1]) - 290) < 2
    assert abs(np.nanmean(found["std"][0, 1]) - 20) < 2


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"window_cells": 4}, "local.window_cells must be odd"),
        ({"window_cells": "7"}, "local.window_cells must be a whole number"),
        ({"sigma_cells": 0}, "local.sigma_cells must be a number greater than 0"),
        ({"member": -1}, "local.member must be a whole number"),
    ],
)
def test_wrong_options_are_refused(options, sentence):
    with pytest.raises(InputError, match=sentence):
        LocalMeanStd(**options)


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"member": 7}, "local.member=7 is not in the ensemble, which has the members 1, 2, 3"),
        ({"window_cells": 21}, "local.window_cells=21 is larger than the grid of 19 x 24 points"),
    ],
)
def test_options_that_do_not_fit_the_data_are_refused(training: TrainingForecasts, options, sentence):
    with pytest.raises(InputError, match=sentence):
        LocalMeanStd(**options).axes(training)
