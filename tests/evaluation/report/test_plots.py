"""Plots of forecasts in memory: the numbers in the figures, against scoringrules, counts and closed forms."""

import deepweather as dw
import numpy as np
import pytest
import scoringrules
import xarray as xr

RNG = np.random.default_rng(0)
STARTS = np.datetime64("2020-01-01", "ns") + np.arange(60) * np.timedelta64(5, "D")
PLACES = {
    "latitude": ("point", [50.0, 51.0, 48.0]), "longitude": ("point", [10.0, 359.0, 2.0]),
    "station": ("point", ["a", "b", "c"]),
}  # fmt: skip
SHAPE = (60, 2, 3)
SIGNAL = RNG.normal(280, 5, SHAPE)
VALUES = SIGNAL + RNG.normal(size=SHAPE)
HAZEN = np.array([-1.2815516, -0.5244005, 0, 0.5244005, 1.2815516])
"""Quantiles of the standard normal distribution at 10, 30, 50, 70 and 90 %."""


def array(values, *inner):
    dims = ("init_time", "lead_time", *inner, "point")
    return xr.DataArray(values, dims=dims, coords={"init_time": STARTS, "lead_time": [24, 48], **PLACES}, name="2t",
                        attrs={"units": "K"})  # fmt: skip


TRUTH = array(VALUES)
RAW = array(SIGNAL[:, :, None] + 1 + 0.3 * RNG.normal(size=(60, 2, 5, 3)), "number")
CORRECTED = array(SIGNAL[:, :, None] + HAZEN[:, None], "number").isel(number=[3, 0, 4, 1, 2])
ALL = RAW, CORRECTED, TRUTH


def test_the_map_of_gain_has_the_crps_of_each_point_at_the_longest_lead_time():
    figure = dw.plot_gain(*ALL)
    crps = [
        scoringrules.crps_ensemble(VALUES[:, 1], one.values[:, 1], m_axis=1, estimator="nrg").mean(0)
        for one in (RAW, CORRECTED)
    ]
    (dots,) = (one for one in figure.axes[0].collections if one.get_array() is not None)
    np.testing.assert_allclose(dots.get_array(), 100 * (1 - crps[1] / crps[0]), rtol=1e-5)
    np.testing.assert_allclose(dots.get_offsets()[:, 0] % 360, [10, 359, 2])
    with pytest.raises(dw.InputError, match="raw has 5 members, corrected 4, and the CRPS of fewer"):
        dw.plot_gain(RAW, CORRECTED.isel(number=slice(4)), TRUTH)


def test_ranks_are_counted_among_equally_probable_intervals():
    """The corrected forecast is calibrated: a sixth of the cases has each rank among its quantiles at k/6."""
    bars = [bar.get_height() for bar in dw.plot_rank_histogram(*ALL).axes[0].patches]
    ranks = (RAW.values < VALUES[:, :, None]).sum(2)
    np.testing.assert_allclose(bars[:6], np.bincount(ranks.ravel(), minlength=6) / ranks.size * 6)
    standard = (VALUES - SIGNAL).ravel()
    levels = np.interp(np.arange(1, 6) / 6, [0.1, 0.3, 0.5, 0.7, 0.9], HAZEN)
    expected = np.bincount(np.searchsorted(levels, standard), minlength=6) / standard.size * 6
    np.testing.assert_allclose(bars[6:12], expected)
    assert abs(np.array(bars[6:12]) - 1).max() < 0.25
    drawn = [bar.get_height() for bar in dw.plot_rank_histogram(*ALL, drawn=True).axes[0].patches][6:12]
    np.testing.assert_allclose(drawn, np.bincount(np.searchsorted(HAZEN, standard), minlength=6) / standard.size * 6)


def test_the_reliability_diagram_counts_events():
    lines = {line.get_label(): line for line in dw.plot_reliability(*ALL, "> 280 K").axes[0].lines}
    for name, members in (("raw", RAW), ("corrected", CORRECTED)):
        share = (members.values > 280).mean(2)
        for x, y in lines[name].get_xydata():
            assert y == pytest.approx((VALUES > 280)[np.isclose(share, x)].mean())


def test_a_meteogram_has_the_members_and_quantiles_of_the_nearest_place():
    figure = dw.plot_meteogram(*ALL, init_time="2020-01-06", latitude=51.2, longitude=0)
    (axes,) = figure.axes
    assert axes.get_title("left") == "b, 51°N 1°W, 2020-01-06 00 UTC"
    values = [line.get_ydata() for line in axes.lines]
    np.testing.assert_allclose(values[:5], RAW.values[1, :, :, 1].T)
    np.testing.assert_allclose(values[5], SIGNAL[1, :, 1])
    np.testing.assert_allclose(values[6], VALUES[1, :, 1])
    without = dw.plot_meteogram(RAW, CORRECTED, station="c").axes[0]
    np.testing.assert_allclose(without.lines[0].get_ydata(), RAW.values[-1, :, 0, 2])
    assert "analysis" not in without.get_legend_handles_labels()[1]
    with pytest.raises(dw.InputError, match="name a place with latitude and longitude, or a station"):
        dw.plot_meteogram(RAW, CORRECTED)


def test_forecasts_of_only_one_side_are_left_out_with_a_count():
    with pytest.warns(UserWarning, match="^20 forecasts are only raw or only corrected and left out"):
        dw.plot_rank_histogram(RAW, CORRECTED.isel(init_time=slice(10, None)), TRUTH)
