"""Plots for notebooks, each from one call: drawings of the report for raw and corrected forecasts in memory."""

from __future__ import annotations

import sys
import warnings
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import torch
import xarray as xr
from matplotlib import pyplot
from matplotlib.figure import Figure

from data_pipeline.common.errors import InputError
from data_pipeline.grids.points import Points
from data_pipeline.sample import Sample
from data_pipeline.sources.array_fields import find_dimension
from data_pipeline.variables.thresholds import parse_thresholds
from evaluation.regions import region_weights
from evaluation.report.case_figures import plume_panel
from evaluation.report.diagrams import calibration_drawing, curve_drawing
from evaluation.report.drawing import Panel
from evaluation.report.figure_style import model_colours
from evaluation.report.maps import BETTER, Coast, ColourScale, colour_scale, map_panel
from evaluation.report.shown_data import PLUME_LEVELS, Plume, place_name
from evaluation.score_xarray import ArrayForecasts
from evaluation.scoring.score_options import choose_scores
from evaluation.scoring.scoreboard import Scoreboard
from evaluation.scoring.scoring import ScoringOptions, score_models
from evaluation.significance.field_significance import longest_lead_blocks, significant_gain
from evaluation.tables.score_json import scores_of
from models.distribution import Distribution

if "ipykernel" in sys.modules:
    # A notebook displays figures only after its backend is loaded, which pyplot does with its first own figure.
    pyplot.switch_backend(pyplot.get_backend())

Forecast = xr.DataArray | xr.Dataset
"""Members, quantiles, or mean and standard deviation, as `score` takes them."""


def plot_gain(raw: Forecast, corrected: Forecast, truth: xr.DataArray, *, coasts: bool = True) -> Figure:
    """Return a map of the reduction of the CRPS from `raw` to `corrected`, at the longest lead time, in per cent.

    Arguments are those of `score`. Members are compared by the plain CRPS, which depends on their number, so both must
    have as many. Cells where the difference is not significant are hatched, points crossed, with at most 5 % false
    discoveries; the title says if there are too few dates for this test. `coasts=False` leaves out the coasts of the
    Earth.
    """
    board = _scored(raw, corrected, truth, maps=True)
    models, lead = board.tallies, int(board.lead_times.max())
    name = board.judging_score("corrected")
    if name == "crps" and len({_count(one) for one in (raw, corrected)}) > 1:
        raise InputError(
            f"plot_gain: raw has {_count(raw)} members, corrected {_count(corrected)}, and the CRPS of fewer members "
            "is higher; correct without member_count"
        )
    before, after = (models[one].per_cell[name][board.task.lead_times.index(lead), 0].value for one in board.tallies)
    gain = 100 * (before - after) / np.where(before > 0, before, np.nan)
    tested = significant_gain(board, 0, "corrected")
    title = f"Gain {lead} h ahead" + (", too few dates for a test" if tested is None else "")
    label = f"{'fair' if name == 'crps_fair' else 'plain'} CRPS below raw (%)"
    scale = ColourScale(colour_scale([gain], True), BETTER, label)
    return _shown(map_panel(Coast(board.grid, None, coasts), gain, scale, title, tested))


def plot_rank_histogram(raw: Forecast, corrected: Forecast, truth: xr.DataArray, *, drawn: bool = False) -> Figure:
    """Return the histograms of the rank of the truth among the members, relative to a flat one.

    A grey band holds 95 % of the bars of a calibrated forecast; few starts do not tell how wide it is. Arguments are
    those of `score`. Corrected members are quantiles at the levels (k - 1/2)/M, unless they are `drawn`: between the
    first two of these lies 1/M of the distribution, below the first only 1/(2 M). So ranks are counted among quantiles
    at the levels k/(M + 1), which are interpolated linearly.
    """
    scores = scores_of(_scored(raw, corrected, truth, ranked=not drawn), 0)
    return _shown(calibration_drawing(scores, "corrected").panels[0])


def plot_reliability(raw: Forecast, corrected: Forecast, truth: xr.DataArray, threshold: str) -> Figure:
    """Return the reliability diagram of the event that the truth is beyond a `threshold`, such as "> 0 degC".

    Bars hold 90 % of the frequencies of a reliable forecast. The lower panel has the share of the cases with each
    probability. Arguments are those of `score`.
    """
    scores = scores_of(_scored(raw, corrected, truth, ["reliability"], [threshold]), 0)
    drawing = curve_drawing(scores, "reliability", list(scores["models"]))
    if drawing is None:
        raise InputError(f"plot_reliability: no forecast has a probability of {threshold}")
    return _shown(drawing.panels[0])


def plot_meteogram(
    raw: Forecast, corrected: Forecast, truth: xr.DataArray | None = None, *, init_time: Any = None,
    latitude: float | None = None, longitude: float | None = None, station: str | None = None,
) -> Figure:  # fmt: skip
    """Return members and corrected quantiles of one place over lead time, from the start `init_time` (None: the last).

    The place is a `station`, or the cell or point nearest to `latitude` and `longitude`. The `truth` is drawn where
    there is any.
    """
    both = [ArrayForecasts.of(one, _blank(one) if truth is None else truth) for one in (raw, corrected)]
    _check_alike(*both)
    times = sorted({*both[0].values.init_time.values} & {*both[1].values.init_time.values})
    start = times[-1:] if init_time is None else [one for one in times if one == np.datetime64(init_time)]
    leads = [lead for lead in both[0].task.lead_times if lead in both[1].task.lead_times]
    if not start or not leads:
        raise InputError(f"plot_meteogram: raw and corrected have no common forecast of {init_time or 'any start'}")
    cell = _cell_of(both[0], latitude, longitude, station)
    before, after = (
        torch.from_numpy(one.values.sel(init_time=start[0], lead_time=leads).values[:, :, *cell]) for one in both
    )
    quantiles = both[1].distribution_of(after.T[:, :, None, None, None].contiguous())
    found = quantiles.quantile(torch.tensor(PLUME_LEVELS).to(after))[..., 0, 0, 0].T.numpy()
    known = both[0].truth.sel(init_time=start[0], lead_time=leads).values[:, *cell]
    plume = Plume("", cell, np.array(leads), before.numpy(), found, known if truth is not None else known * np.nan)
    title = f"{place_name(both[0].grid, cell)}, {np.datetime_as_string(start[0], 'h').replace('T', ' ')} UTC"
    return _shown(plume_panel(plume, title, "corrected", both[0].units, 1.0, model_colours(["corrected"])["corrected"]))


def _scored(
    raw: Forecast, corrected: Forecast, truth: xr.DataArray, diagrams: Sequence[str] = (),
    thresholds: Sequence[str] = (), maps: bool = False, ranked: bool = False,
) -> Scoreboard:  # fmt: skip
    """Return the scores of both forecasts, in the same cells of the forecasts that both have.

    With `ranked`, corrected members are replaced by `_equally_ranked` ones.
    """
    first, other = (ArrayForecasts.of(one, truth) for one in (raw, corrected))
    _check_alike(first, other)
    index = {key: k for k, key in enumerate(_keys(other))}
    rows = tuple(row for row, key in zip(first.rows, _keys(first), strict=True) if key in index)
    if not rows:
        raise InputError("raw and corrected have no forecast with a truth in common; check init_time and lead_time")
    if left := len({*_keys(first)} ^ {*index}):
        warnings.warn(f"{left} forecasts are only raw or only corrected and left out", UserWarning, stacklevel=3)
    first = replace(first, rows=rows)

    def after(batch: Sample) -> Distribution:
        chosen = [index[key] for key in zip(batch.init_time.tolist(), batch.lead_time.tolist(), strict=True)]
        values = torch.stack([other[k].ensemble for k in chosen], 1).to(batch.target)
        return other.distribution_of(_equally_ranked(values) if ranked and other.kind == "members" else values)

    scores, drawn = choose_scores(list(diagrams))
    starts, leads = (one.numpy() for one in first.times())
    options = ScoringOptions(
        scores=scores, diagrams=drawn, undrawn=("corrected",), thresholds=parse_thresholds(thresholds, first.task),
        blocks=longest_lead_blocks(starts, leads, int(np.prod(first.grid.shape))) if maps else None,
    )  # fmt: skip
    models = {"raw": first.distribution, "corrected": after}
    return score_models(models, first, region_weights(first.grid), options=options)


def _equally_ranked(members: torch.Tensor) -> torch.Tensor:
    """Return quantiles (M, ...) at the levels k/(M + 1) from those at (k - 1/2)/M, in any order."""
    M = len(members)
    place = M * torch.arange(1, M + 1, dtype=members.dtype) / (M + 1) - 0.5
    low = place.long().clamp(max=max(M - 2, 0))
    share = (place - low).view(-1, *[1] * (members.ndim - 1))
    ordered = members.sort(0).values
    return torch.lerp(ordered[low], ordered[(low + 1).clamp(max=M - 1)], share)


def _keys(arrays: ArrayForecasts) -> list[tuple[int, int]]:
    """Return start (seconds since 1970) and lead time (hours) of each sample."""
    return list(zip(*(one.tolist() for one in arrays.times()), strict=True))


def _check_alike(raw: ArrayForecasts, corrected: ArrayForecasts) -> None:
    if not raw.grid.matches(corrected.grid):
        raise InputError(f"raw has {raw.grid}, corrected {corrected.grid}; give both on one grid")
    if raw.units != corrected.units:
        raise InputError(f"raw is in {raw.units!r}, corrected in {corrected.units!r}; give the truth its units")


def _count(forecast: Forecast) -> int:
    """Return the number of members, 0 for other forecasts."""
    name = find_dimension(forecast, "number")
    return int(forecast.sizes[name]) if name else 0


def _blank(forecast: Forecast) -> xr.DataArray:
    """Return a truth for each forecast, for a plot without one."""
    array = next(iter(forecast.data_vars.values())) if isinstance(forecast, xr.Dataset) else forecast
    outer = next((name for one in ("number", "quantile") if (name := find_dimension(array, one))), None)
    return xr.zeros_like(array if outer is None else array.isel({outer: 0}, drop=True))


def _cell_of(
    arrays: ArrayForecasts, latitude: float | None, longitude: float | None, station: str | None
) -> tuple[int, int]:
    """Return row and column of a station, or of the cell nearest to a place."""
    grid = arrays.grid
    if station is not None:
        if not isinstance(grid, Points) or station not in grid.ids:
            raise InputError(f"plot_meteogram: the forecast has no station {station!r}; it has {grid}")
        return grid.ids.index(station), 0
    if latitude is None or longitude is None:
        raise InputError("plot_meteogram: name a place with latitude and longitude, or a station")
    shape = grid.shape
    own = [np.radians(np.broadcast_to(one, shape)) for one in (grid.cell_latitudes, grid.cell_longitudes)]
    phi, lam = np.radians(latitude), np.radians(longitude)
    cosine = np.sin(own[0]) * np.sin(phi) + np.cos(own[0]) * np.cos(phi) * np.cos(own[1] - lam)
    row, column = np.unravel_index(int(cosine.argmax()), shape)
    return int(row), int(column)


def _shown(panel: Panel) -> Figure:
    """Return the figure of a panel on white, which a notebook displays."""
    panel.figure.set_facecolor("white")
    return panel.figure
