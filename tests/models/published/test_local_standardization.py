"""Local area-wise standardisation against loops over windows and scipy's filters; its moments against all values."""

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from scipy.ndimage import gaussian_filter1d

from data_pipeline.dataset import batches
from data_pipeline.grid import Grid
from data_pipeline.task import Task
from models.published.local_maps import PartialMoments
from models.published.local_standardization import LocalStandardization, window_and_smoothing

TASK = Task("toy", ["sst", "2t"], ["2t"], [24, 48])
BAND = Grid(tuple(10 - 1.25 * k for k in range(15)), tuple(1.25 * k for k in range(288)))
"""Periodic, without poles; the window has 3 points, the Gaussian a standard deviation of 4."""
AREA = Grid(tuple(50 - 0.5 * k for k in range(12)), tuple(0.5 * k for k in range(14)))
"""Window of 7 points, Gaussian of 10."""


def by_loops(fields, window, sigma, periodic):
    """Mean and standard deviation of all values in each window, edges repeated, smoothed."""
    H, W = fields.shape[1] - window + 1, fields.shape[2] - window + 1
    maps = np.empty((2, H, W))
    for y in range(H):
        for x in range(W):
            values = fields[:, y : y + window, x : x + window]
            maps[:, y, x] = values.mean(), values.std()
    for each in maps:
        padded = np.pad(each, window // 2, mode="edge")
        smooth = gaussian_filter1d(padded, sigma, axis=0, mode="nearest")
        yield gaussian_filter1d(smooth, sigma, axis=1, mode="wrap" if periodic else "nearest")


@pytest.mark.parametrize(("grid", "window", "sigma"), [(BAND, 3, 4), (AREA, 7, 10)], ids=["band", "area"])
def test_maps_follow_the_definition(toy, grid, window, sigma):
    data, layer = toy(TASK, grid, 12), LocalStandardization(TASK, grid)
    layer.fit(batches(data, 5))
    for lead, hours in enumerate(TASK.lead_times):
        of_lead = [sample.ensemble[0].numpy() for sample in data.samples if sample.lead_time == hours]
        for channel in range(2):
            mean, std = by_loops(np.stack(of_lead)[:, channel].astype(float), window, sigma, grid.periodic)
            np.testing.assert_allclose(layer.mean[lead, channel], mean, rtol=1e-5)
            np.testing.assert_allclose(layer.std[lead, channel], std, rtol=1e-4)


def test_forecasts_are_standardised_by_lead_time(toy):
    data, layer = toy(TASK, AREA, 12), LocalStandardization(TASK, AREA)
    layer.fit(batches(data, 12))
    sample = next(batches(data, 12))
    found = layer(sample)
    for k, x in enumerate(sample.ensemble[:, 0]):
        lead = TASK.lead_times.index(int(sample.lead_time[k]))
        torch.testing.assert_close(found[k], (x - layer.mean[lead]) / layer.std[lead])
    # Statistics come from a window around each cell, so the results are only near 0 and 1.
    assert abs(found.mean()) < 0.1
    assert abs(found.std() - 1) < 0.1


def test_missing_values_are_ignored_and_stay_missing(toy):
    """Missing values are 0 where the mask is False, as in normalised samples. Only the west is sea."""
    data = toy(TASK, AREA, 12)
    land = torch.zeros(2, *AREA.shape, dtype=torch.bool)
    land[0, :, 4:] = True
    samples = data.samples
    data.samples = [s._replace(mask=~land, ensemble=s.ensemble.masked_fill(land, 0)) for s in samples]
    layer = LocalStandardization(TASK, AREA)
    layer.fit(batches(data, 4))
    # A window extends 3 cells inland; edges are repeated.
    unknown = torch.arange(AREA.shape[1]) >= 7
    assert (layer.mean[:, 0, :, unknown] == 0).all()
    assert (layer.std[:, 0, :, unknown] == 1).all()
    assert (layer.mean[:, 0, :, ~unknown] > 250).all(), "no zero of a missing value is in the mean"
    assert (layer(next(batches(data, 4)))[:, land] == 0).all()
    whole = LocalStandardization(TASK, AREA)
    data.samples = samples
    whole.fit(batches(data, 4))
    torch.testing.assert_close(layer.mean[:, 1], whole.mean[:, 1])


def test_a_constant_field_is_not_scaled_up(toy):
    data = toy(TASK, AREA, 6)
    data.samples = [s._replace(ensemble=torch.zeros_like(s.ensemble)) for s in data.samples]
    layer = LocalStandardization(TASK, AREA)
    layer.fit(batches(data, 6))
    sample = next(batches(data, 6))
    rounding = sample._replace(ensemble=sample.ensemble + 1e-7)
    assert layer(rounding).abs().max() < 1e-3


def test_degrees_are_converted_to_points():
    for grid, window, sigma in (
        (Grid.regular(361, 720), 7, 10),
        (Grid.regular(721, 1440), 13, 20),
        (Grid.regular(37, 72), 1, 1),
        (Grid.regular(33, 64), 1, 8 / 9),
        (Grid((50, 49.75, 49.5, 49.25), tuple(0.25 * k for k in range(9))), 3, 20),
    ):
        found = window_and_smoothing(grid)
        assert (found.window_cells, found.sigma_cells) == (window, pytest.approx(sigma))


NUMBERS = st.floats(-1e4, 1e4, width=32) | st.just(np.nan)
VALUES = arrays(np.float32, st.tuples(st.integers(1, 40), st.integers(1, 3)), elements=NUMBERS)


def spread(values):
    return PartialMoments.of(values, np.isfinite(values))


@given(VALUES, st.lists(st.integers(0, 40), max_size=5))
def test_merged_parts_equal_all_values(values, cuts):
    parts = [spread(part) for part in np.split(values, sorted(min(cut, len(values)) for cut in cuts))]
    merged = PartialMoments.merge(parts)
    for cell in range(values.shape[1]):
        known = values[:, cell][np.isfinite(values[:, cell])].astype(np.float64)
        assert merged.number[cell] == len(known)
        if len(known):
            assert np.isclose(merged.mean_or_nan[cell], known.mean(), rtol=1e-12, atol=1e-9)
            assert np.isclose(merged.std[cell], known.std(), rtol=1e-9, atol=1e-6)
        else:
            assert np.isnan(merged.mean_or_nan[cell])
            assert np.isnan(merged.std[cell])


def test_a_small_spread_around_a_large_mean_keeps_its_precision():
    values = (54_000 + np.random.default_rng(0).normal(scale=0.1, size=(4000, 1))).astype(np.float32)
    naive = np.square(values).mean() - np.square(values.mean())  # may even be negative
    merged = PartialMoments.merge([spread(part) for part in np.split(values, 40)])
    assert np.isclose(merged.std[0], values.astype(np.float64).std(), rtol=1e-12)
    assert not np.isclose(naive, merged.std[0] ** 2, rtol=0.1)
