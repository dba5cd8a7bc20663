"""Explanation of one corrected forecast: the change of mean and spread, and the part that each input has in it.

The part of an input is found by occlusion (Zeiler & Fergus 2014, doi:10.1007/978-3-319-10590-1_53). The ensemble mean
of the input is moved to its mean in the training years, and the forecast is corrected once more. The correction is the
corrected mean less the raw mean; the part of the input is the correction less the correction without this input. For a
model that is linear in the means, c + Σ b_k (x_k - m_k), the part of input k is exactly b_k (x_k - m_k).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np
import xarray as xr

from data_pipeline.grid import Grid
from data_pipeline.grids.grid_coordinates import grid_coordinates
from data_pipeline.grids.points import Points
from evaluation.explanation.places import largest_cells
from models.engines.engine import Prediction
from models.engines.forecast import RawForecast
from models.provenance.training_climate import TrainingClimate

PLACES = 8
"""Number of places that are listed for each target."""
SINGLE_ROUNDING = 4 * float(np.finfo(np.float32).eps)
"""Changes up to this share of the raw mean are rounding errors of a model that changes nothing: 1e-4 K."""


def explain_forecast(
    predict: Callable[[RawForecast], Prediction],
    forecast: RawForecast,
    grid: Grid,
    channels: Sequence[str],
    targets: Sequence[int],
    climate: TrainingClimate | None,
) -> xr.Dataset:
    """Return the explanation of a forecast on the whole `grid` by C + 2 predictions, for C input `channels`.

    `targets` are the channels of the targets. Fields of each target are in physical units: mean and standard deviation
    (`raw_mean`, `corrected_mean`, `raw_spread`, `corrected_spread`). `cell` (target, place) has the cells with the
    largest changes of the mean, counted row by row from 0; -1 if there are fewer. The rest needs the training climate:

    - `usual_change` is the change of the mean if all inputs have their training mean: the correction that belongs to
      place, season, lead time and spread.
    - `departure` (input,) is how unusual an input is: the departure of its ensemble mean from the training mean, in
      typical departures of the training years, as root of the mean square over the area; `largest_departure` is the
      largest one, and `largest_cell` its cell, -1 without one.
    - `mean_part` and `spread_part` (input, target) are the root mean squares over the area of the part of an input in
      the correction and in the corrected standard deviation; `place_part` is its part in the correction at each place.
    - `strongest` (target,) is the number of the input with the largest part, -1 if there is none; the fields
      `strongest_departure` and `strongest_part` are its departure and its part.

    Memory holds a few fields for each target, whatever C is.
    """
    prediction = predict(forecast)
    mean, std = prediction.mean(), prediction.std()
    raw_mean, raw_std = _moments(forecast.raw)
    correction = mean - raw_mean
    beyond = np.where(abs(correction) > SINGLE_ROUNDING * abs(raw_mean), correction, 0)
    cells = np.stack([_numbers(field, grid, PLACES) for field in beyond])
    space = ("point", "column") if isinstance(grid, Points) else ("latitude", "longitude")
    fields = {"raw_mean": raw_mean, "corrected_mean": mean, "raw_spread": raw_std, "corrected_spread": std}
    coordinates = grid_coordinates(grid) | {"init_time": forecast.init_time, "lead_time": forecast.lead_time}
    data = xr.Dataset({"cell": (("target", "place"), cells)}, coordinates)
    if climate is not None:
        fields["usual_change"], _ = _correction(
            predict, without_inputs(forecast, range(len(channels)), targets, climate)
        )
        area = np.broadcast_to(np.asarray(grid.weights)[:, None], grid.shape)
        parts = []
        strongest, size = np.full(len(targets), -1), np.zeros(len(targets))
        fields |= {name: np.full(mean.shape, np.nan) for name in ("strongest_departure", "strongest_part")}
        for channel, departure in enumerate(climate.departures(forecast.ensemble, forecast.mask)):
            other, other_std = _correction(predict, without_inputs(forecast, [channel], targets, climate))
            part, spread_part = correction - other, std - other_std
            part_size = np.array([root_mean_square(field, area) for field in part])
            (furthest,) = _numbers(departure, grid, 1)
            parts.append(
                {
                    "departure": root_mean_square(departure, area),
                    "largest_departure": departure.flat[furthest] if furthest >= 0 else np.nan,
                    "largest_cell": furthest,
                    "mean_part": ("target", part_size),
                    "spread_part": ("target", [root_mean_square(field, area) for field in spread_part]),
                    "place_part": (
                        ("target", "place"),
                        np.where(cells >= 0, np.take_along_axis(part.reshape(len(targets), -1), cells, 1), np.nan),
                    ),
                }
            )
            for target in np.flatnonzero(part_size > size):
                strongest[target], size[target] = channel, part_size[target]
                fields["strongest_departure"][target], fields["strongest_part"][target] = departure, part[target]
        data = data.merge(xr.concat([xr.Dataset(one) for one in parts], "input")).assign_coords(input=list(channels))
        data["strongest"] = "target", strongest
    return data.assign({name: (("target", *space), values) for name, values in fields.items()})


def without_inputs(
    forecast: RawForecast, channels: Sequence[int], targets: Sequence[int], climate: TrainingClimate
) -> RawForecast:
    """Return a forecast in which the ensemble means of some channels are their training means."""
    ensemble, raw = forecast.ensemble.copy(), forecast.raw.copy()
    for channel in channels:
        ensemble[:, channel] = climate.centred(forecast.ensemble, channel)
        if channel in targets:
            target = list(targets).index(channel)
            raw[:, target] = np.where(np.isfinite(raw[:, target]), ensemble[:, channel], np.nan)
    return replace(forecast, ensemble=ensemble, raw=raw)


def root_mean_square(field: np.ndarray, area: np.ndarray) -> float:
    """Return the root of the mean square of a field (H, W) over the area of its cells with a value."""
    known = np.isfinite(field)
    return float(np.sqrt(np.average(field[known] ** 2, weights=area[known]))) if known.any() else float("nan")


def bias_share(change: np.ndarray, spread_change: np.ndarray, area: np.ndarray) -> float:
    """Return the share of the mean in the whole change, from 0 to 1; NaN without a change.

    The change of a distribution is measured by the squared Wasserstein distance of normal distributions, which is
    (change of the mean)² + (change of the standard deviation)² (Gelbrich 1990, doi:10.1002/mana.19901470121).
    """
    mean, spread = root_mean_square(change, area) ** 2, root_mean_square(spread_change, area) ** 2
    spread = 0.0 if np.isnan(spread) else spread  # a single member has no spread
    return mean / (mean + spread) if mean + spread > 0 else float("nan")


def _numbers(field: np.ndarray, grid: Grid, count: int) -> np.ndarray:
    """Return the numbers of the cells where |field| is largest, filled with -1 to `count`."""
    found = [row * grid.shape[1] + column for row, column in largest_cells(field, grid, count)]
    return np.array(found + [-1] * (count - len(found)))


def _correction(predict: Callable[[RawForecast], Prediction], forecast: RawForecast) -> tuple[np.ndarray, np.ndarray]:
    """Return the change of the mean and the corrected standard deviation, (T, H, W) each."""
    prediction = predict(forecast)
    return prediction.mean() - forecast.raw.mean(0), prediction.std()


def _moments(members: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return mean and unbiased standard deviation of members; NaN where one is missing, or for a single member."""
    mean = members.mean(0)
    if len(members) == 1:
        return mean, np.full_like(mean, np.nan)
    return mean, members.std(0, ddof=1)
