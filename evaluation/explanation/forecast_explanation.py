"""Explanation of one corrected forecast: the change of mean and spread, and the part that each input has in it.

The part of an input is found by occlusion (Zeiler & Fergus 2014, doi:10.1007/978-3-319-10590-1_53). The ensemble mean
of the input is moved to its mean in the training years, and the forecast is corrected once more. The correction is the
corrected mean less the raw mean; the part of the input is the correction less the correction without this input. For a
model that is linear in the means, c + Σ b_k (x_k - m_k), the part of input k is exactly b_k (x_k - m_k).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np

from data_pipeline.grid import Grid
from evaluation.explanation.places import largest_cells
from models.engines.engine import Prediction
from models.engines.forecast import RawForecast
from models.provenance.training_climate import TrainingClimate

PLACES = 8
"""Number of places that are listed for each target."""
SINGLE_ROUNDING = 4 * float(np.finfo(np.float32).eps)
"""Changes up to this share of the raw mean are rounding errors of a model that changes nothing: 1e-4 K."""


@dataclass(frozen=True)
class Change:
    """The raw and the corrected distribution of one target, fields (H, W) in physical units.

    `usual` is the change of the mean if all inputs have their training mean: the correction that belongs to place,
    season, lead time and spread. It is None if the training climate is unknown.
    """

    raw_mean: np.ndarray
    mean: np.ndarray
    raw_std: np.ndarray
    std: np.ndarray
    cells: tuple[tuple[int, int], ...]
    """The cells with the largest changes of the mean."""
    usual: np.ndarray | None = None

    @property
    def of_mean(self) -> np.ndarray:
        """Corrected mean less raw mean."""
        return self.mean - self.raw_mean

    @property
    def of_spread(self) -> np.ndarray:
        """Corrected standard deviation less the raw one."""
        return self.std - self.raw_std


@dataclass(frozen=True)
class InputPart:
    """One input of one forecast: how unusual it is, and its part in the corrections.

    `departure` is the departure of its ensemble mean from the training mean, in typical departures of the training
    years: the root of its mean square over the area, and the largest one with its cell. `mean_part` (T,) is the root
    mean square over the area of its part in the correction of each target, `spread_part` (T,) that of its part in the
    corrected standard deviation. `at_cells` are its parts in the correction at the cells of each `Change`.
    """

    name: str
    departure: float
    largest: float
    cell: tuple[int, int] | None
    mean_part: tuple[float, ...]
    spread_part: tuple[float, ...]
    at_cells: tuple[tuple[float, ...], ...]


@dataclass(frozen=True)
class StrongestInput:
    """The input with the largest part in the correction of a target: its departure and its part as fields (H, W)."""

    name: str
    departure: np.ndarray
    part: np.ndarray


@dataclass(frozen=True)
class ForecastExplanation:
    """Explanation of one forecast; `inputs` and `strongest` are empty if the training climate is unknown."""

    init_time: np.datetime64
    lead_time: int
    changes: tuple[Change, ...]
    inputs: tuple[InputPart, ...] = ()
    strongest: tuple[StrongestInput | None, ...] = ()


def explain_forecast(
    predict: Callable[[RawForecast], Prediction],
    forecast: RawForecast,
    grid: Grid,
    channels: Sequence[str],
    targets: Sequence[int],
    climate: TrainingClimate | None,
) -> ForecastExplanation:
    """Return the explanation of a forecast on the whole `grid` by C + 2 predictions, for C input `channels`.

    `targets` are the channels of the targets. Memory holds a few fields for each target, whatever C is.
    """
    prediction = predict(forecast)
    mean, std = prediction.mean(), prediction.std()
    raw_mean, raw_std = _moments(forecast.raw)
    correction = mean - raw_mean
    beyond = np.where(abs(correction) > SINGLE_ROUNDING * abs(raw_mean), correction, 0)
    cells = [tuple(largest_cells(field, grid, PLACES)) for field in beyond]
    usual: Sequence[np.ndarray | None] = [None] * len(targets)
    if climate is None:
        return ForecastExplanation(
            forecast.init_time,
            forecast.lead_time,
            tuple(map(Change, raw_mean, mean, raw_std, std, cells)),
        )
    usual = list(_correction(predict, without_inputs(forecast, range(len(channels)), targets, climate))[0])
    area = np.broadcast_to(np.asarray(grid.weights)[:, None], grid.shape)
    inputs: list[InputPart] = []
    strongest: list[StrongestInput | None] = [None] * len(targets)
    size = [0.0] * len(targets)
    for channel, departure in enumerate(climate.departures(forecast.ensemble, forecast.mask)):
        other, other_std = _correction(predict, without_inputs(forecast, [channel], targets, climate))
        part, spread_part = correction - other, std - other_std
        mean_parts = tuple(root_mean_square(field, area) for field in part)
        at_cells = tuple(tuple(float(field[cell]) for cell in mine) for field, mine in zip(part, cells, strict=True))
        furthest = largest_cells(departure, grid, 1)
        inputs.append(
            InputPart(
                channels[channel], root_mean_square(departure, area),
                float(departure[furthest[0]]) if furthest else float("nan"), furthest[0] if furthest else None,
                mean_parts, tuple(root_mean_square(field, area) for field in spread_part), at_cells,
            )
        )  # fmt: skip
        for target, part_size in enumerate(mean_parts):
            if part_size > size[target]:
                size[target] = part_size
                strongest[target] = StrongestInput(channels[channel], departure, part[target])
    return ForecastExplanation(
        forecast.init_time,
        forecast.lead_time,
        tuple(map(Change, raw_mean, mean, raw_std, std, cells, usual)),
        tuple(inputs),
        tuple(strongest),
    )


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


def bias_share(change: Change, area: np.ndarray) -> float:
    """Return the share of the mean in the whole change, from 0 to 1; NaN without a change.

    The change of a distribution is measured by the squared Wasserstein distance of normal distributions, which is
    (change of the mean)² + (change of the standard deviation)² (Gelbrich 1990, doi:10.1002/mana.19901470121).
    """
    mean, spread = root_mean_square(change.of_mean, area) ** 2, root_mean_square(change.of_spread, area) ** 2
    spread = 0.0 if np.isnan(spread) else spread  # a single member has no spread
    return mean / (mean + spread) if mean + spread > 0 else float("nan")


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
