"""A corrector of stations at other stations: what it has for each station is predicted from the known stations.

A *map* is a tensor of the corrector with a number for each station, such as coefficients, means of the inputs, or past
errors. All other tensors are shared by all stations and stay as they are. A new station gets each map by `Kriging`,
with the altitude and the static fields of the task as trend. The smoothness of the model's maps is chosen such that
forecasts with maps that were predicted from all other stations differ least from forecasts with the station's own maps;
the mean square of this difference is the additional error at new stations.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np
import torch
import xarray as xr
from torch import Tensor

from data_pipeline.common.errors import InputError
from data_pipeline.grid import COORDINATE_TOLERANCE, Grid
from data_pipeline.grids.points import Points, station_fields
from data_pipeline.sample import Sample
from data_pipeline.samples.inputs import static_values
from data_pipeline.task import POSITION, Task
from models import protocol
from models.corrector import Corrector, build_model
from models.distribution import from_power
from models.normalizer import Normalizer
from models.outline import outline
from models.statistical.kriging import Kriging, Smoothness, distances

FEWEST_STATIONS, MOST_STATIONS, MOST_FOR_CHOICE = 5, 5000, 500
"""Stations that a prediction needs; for which its matrices take about a minute; that choose its smoothness."""
REACH, LEAST_REACH = 3.0, 100.0
"""A new station may be so many times farther from all known stations than these are from each other, at least so many
kilometres."""
DEPARTURES, SPREAD = (-1.0, 0.0, 1.0), 0.3
"""Reference forecasts: ensemble means and half the difference of two members, in units of the typical departure."""
ERROR_SHARES = (0.0, 0.25, 0.5, 0.75, 1.0)
"""Candidates for the additional error, in units of the root mean square at left-out stations."""
REFERENCE_TIMES = tuple(np.datetime64(f"2001-{month:02}-15", "s").astype(int) for month in (1, 4, 7, 10))
"""Valid times of the reference forecasts, seconds since 1970."""


def moved_to(corrector: Corrector, points: Points, static: xr.Dataset | None = None) -> Corrector:
    """Return a corrector of stations at other stations `points`; see `Corrector.at`."""
    own = corrector.grid
    if own.matches(points):
        return corrector
    if not isinstance(own, Points) or not isinstance(points, Points):
        raise InputError(f"a corrector of {own} cannot be moved to {points}; only one of stations can")
    if "stations" in corrector.provenance:
        raise InputError("the corrector was moved to other stations already; move the one that was trained")
    found = _found(points, own)
    at = torch.from_numpy(np.maximum(found, 0))
    fields = torch.from_numpy(_static(corrector, points, found, static))
    state, maps = corrector.state_dict(), _maps(corrector)
    learnt = _learnt(corrector, state, maps)
    new = np.flatnonzero(found < 0)
    moved = {name: values[..., at, :] if name in maps else values for name, values in state.items()}
    moved |= {name: fields for name in maps if name.rpartition(".")[2] == "static"}
    leads, targets = len(corrector.task.lead_times), len(corrector.task.targets)
    about: dict[str, Any] = {
        "known": len(learnt), "new": [], "far": [], "reach": 0.0, "error": [[0.0] * targets] * leads,
        "relative": [False] * targets,
    }  # fmt: skip
    if len(new):
        known = own.at(learnt)
        reach = _reach(known)
        far = distances(points.at(new), known).min(1) > reach
        about |= {"new": new[~far].tolist(), "far": new[far].tolist(), "reach": reach}
        kriging = _kriging(corrector, known, learnt, points, new, fields)
        choice = _choose(corrector, state, maps, learnt, kriging)
        about |= {"error": choice.error, "relative": choice.relative}
        for name, weights in choice.weights(kriging).items():
            moved[name][..., new, :] = _predicted(state[name][..., learnt, :], weights)
    provenance = {**corrector.provenance, "stations": about}
    other = Corrector(corrector.task, points, corrector.spec, fields, provenance, corrector.meanings)
    _load(other, moved)
    # Means over the stations cannot be compared with means over other stations.
    if corrector.envelope is not None:
        channels = {name: replace(one, months={}) for name, one in corrector.envelope.channels.items()}
        other.envelope = replace(corrector.envelope, channels=channels)
    return other.train(corrector.training)


def _found(points: Points, own: Points) -> np.ndarray:
    """Return the position of each point among the corrector's, (m,), -1 for new ones: by id, else by position."""
    found = points.positions_in(own) if points.ids and own.ids else np.full(points.shape[0], -1)
    kilometres = distances(points, own)
    nearest = kilometres.argmin(1)
    same = kilometres[np.arange(len(nearest)), nearest] < 111 * COORDINATE_TOLERANCE
    free = same & (found < 0) & ~np.isin(nearest, found[found >= 0])
    if points.altitudes and own.altitudes:
        free &= abs(np.array(points.altitudes) - np.array(own.altitudes)[nearest]) < 50
    return np.where(free, nearest, found)


def _static(corrector: Corrector, points: Points, found: np.ndarray, given: xr.Dataset | None) -> np.ndarray:
    """Return the static fields (S, m, 1) of the task at the points."""
    task, known = corrector.task, corrector.static.cpu().numpy()
    if given is None and (found >= 0).all():
        return known[:, found]
    known_names = {*(given or ()), *station_fields(points)}
    if lacking := [name for name in task.static if name not in known_names]:
        raise InputError(
            f"the corrector reads the static field {lacking[0]}, which is unknown at {int((found < 0).sum())} new "
            "stations; make a corrector for them with Corrector.at(points, static=DATASET).save(FILE)"
        )
    return static_values(points, task, xr.Dataset() if given is None else given)


def _maps(corrector: Corrector) -> list[str]:
    """Return the names of all tensors with a number for each station, whose size depends on the number of stations."""
    own = corrector.grid
    more = Points((*own.latitudes, 0.0), (*own.longitudes, 0.0))

    def build() -> Corrector:
        static = torch.zeros(len(corrector.task.static_names), *more.shape)
        return Corrector(corrector.task, more, corrector.spec, static)

    other = (outline(build) or build()).state_dict()
    return [name for name, values in corrector.state_dict().items() if values.shape != other[name].shape]


def _learnt(corrector: Corrector, state: Mapping[str, Tensor], maps: list[str]) -> np.ndarray:
    """Return the positions of the stations with a fit: their maps are finite and differ from an unfitted model's."""
    fresh = build_model(corrector.spec, corrector.task, corrector.grid).state_dict()
    count, fits = corrector.grid.shape[0], []
    known = torch.ones(count, dtype=torch.bool)
    for name in maps:
        values = state[name].movedim(-2, 0).reshape(count, -1)
        if name.endswith("normalizer.known"):
            known &= (values > 0).all(1)
        elif "normalizer." not in name and name.rpartition(".")[2] not in ("static", "lower"):
            blank = fresh[name.removeprefix("model.")].movedim(-2, 0).reshape(count, -1)
            finite = values.isfinite()
            known &= (finite | ~finite.any(0)).all(1)  # a number that no station has is not used
            fits.append((values != blank).any(1))
    positions = np.flatnonzero((known & torch.stack(fits).any(0) if fits else known).numpy())
    if not FEWEST_STATIONS <= len(positions) <= MOST_STATIONS:
        raise InputError(
            f"the corrector has a fit at {len(positions)} stations; to predict others it needs {FEWEST_STATIONS} to "
            f"{MOST_STATIONS}; correct only stations of the training"
        )
    return positions


def _reach(known: Points) -> float:
    """Return the greatest distance (km) of a new station from the nearest known one."""
    apart = distances(known, known)
    np.fill_diagonal(apart, np.inf)
    return max(LEAST_REACH, REACH * float(apart.min(1).max()))


def _kriging(
    corrector: Corrector, known: Points, learnt: np.ndarray, points: Points, new: np.ndarray, fields: Tensor
) -> Kriging:
    """Return the prediction; terms of the trend are the fields that are known at all of these stations."""
    own = _trend_fields(corrector.task, corrector.grid, corrector.static)
    other = _trend_fields(corrector.task, points, fields)
    names = [name for name in own if name in other]
    terms, new_terms = (
        np.array([side[name][at] for name in names]).reshape(-1, len(at)).T
        for side, at in ((own, learnt), (other, new))
    )
    return Kriging(known, points.at(new), terms, new_terms)


def _trend_fields(task: Task, grid: Grid, static: Tensor) -> dict[str, np.ndarray]:
    """Return fields (n,) that explain differences between stations, the most important first.

    The forecast is that of the model's altitude, so the difference from the station's comes first.
    """
    known = station_fields(grid)
    found = {name: known[name] for name in ("height_difference", "altitude") if name in known}
    others = [k for k, name in enumerate(task.static_names) if name not in (*POSITION, *known)]
    return found | {task.static_names[k]: static[k, :, 0].numpy() for k in others}


class _Choice(NamedTuple):
    """The smoothness of each map, and the additional error (L, T) at new stations, in physical units or `relative`."""

    smoothness: Mapping[str, Smoothness]
    error: list[list[float]]
    relative: list[bool]

    def weights(self, kriging: Kriging) -> dict[str, np.ndarray]:
        """Return the weights of each map, which predict the new stations."""
        each = {one: kriging.weights(one) for one in set(self.smoothness.values())}
        return {name: each[one] for name, one in self.smoothness.items()}


def _choose(
    corrector: Corrector, state: Mapping[str, Tensor], maps: list[str], learnt: np.ndarray, kriging: Kriging
) -> _Choice:
    """Choose the smoothness of the means of the inputs by their own errors, that of other maps by the forecasts."""
    few = np.sort(np.random.default_rng(0).permutation(len(learnt))[:MOST_FOR_CHOICE])
    thin = kriging.select(few)
    means = {
        name: thin.choose(_rows(state[name], learnt[few])) for name in maps if name.endswith("normalizer.location")
    }
    others = [name for name in maps if name not in means and name.rpartition(".")[2] != "static"]
    batches = list(_reference_forecasts(corrector))
    scale = _normalizers(corrector)[0].target_scaling[1].flatten()
    trial = copy.deepcopy(corrector).eval()

    def forecasts(values: Mapping[str, Tensor], at: np.ndarray) -> Tensor:
        """Return mean and standard deviation (2, L, B, T, n) of the reference forecasts at known stations."""
        _load(trial, values)
        with torch.no_grad():
            found = [trial(batch) for batch in batches]
        return torch.stack([torch.stack([one.mean, one.std])[..., at, 0] for one in found], 1).double()

    def left_out(smoothness: Mapping[str, Smoothness], prediction: Kriging, at: np.ndarray) -> Tensor:
        """Return the same with maps that are predicted from all other of these stations."""
        values = dict(state)
        weights = {one: prediction.leave_one_out(one) for one in set(smoothness.values())}
        for name, one in smoothness.items():
            values[name] = state[name].clone()
            values[name][..., at, :] = _predicted(state[name][..., at, :], weights[one])
        return forecasts(values, at)

    mean, std = forecasts(state, learnt)

    def cost(candidate: Smoothness) -> float:
        found = left_out(means | dict.fromkeys(others, candidate), thin, learnt[few])[0]
        return float(((found - mean[..., few]).square().mean((0, 1, 3)) / scale.square()).sum())

    best = min(thin.candidates(), key=cost) if others else None
    smoothness = means if best is None else means | dict.fromkeys(others, best)
    predicted, wide = left_out(smoothness, kriging, learnt)
    return _Choice(smoothness, *_errors(predicted - mean, std, wide))


def _errors(difference: Tensor, own: Tensor, std: Tensor) -> tuple[list[list[float]], list[bool]]:
    """Return the error (L, T) with which forecasts score best, and for which targets it is relative to `std`.

    `difference` (L, B, T, n) is that of the means of forecasts at left-out stations, with the standard deviation `std`,
    from forecasts with the station's own maps, with the standard deviation `own`. The score is the expected CRPS of
    normal distributions. Candidates are shares of the root mean square, because a few stations may differ by far more
    than the others.
    """
    std = std.clamp(min=1e-6 * float(std.mean()))
    best: list[tuple[float, list[float], bool]] = []
    for t in range(difference.shape[2]):
        d, s, truth = (values[:, :, t] for values in (difference, std, own))
        found = []
        for relative in (False, True):
            unit = s if relative else torch.ones_like(s)
            size = (d / unit).square().mean((1, 2)).sqrt()
            for share in ERROR_SHARES:
                wide = torch.hypot(s, share * size[:, None, None] * unit)
                spread = torch.hypot(wide, truth)
                apart = spread * (2 / math.pi) ** 0.5 * (-0.5 * (d / spread).square()).exp()
                apart = apart + d * torch.erf(d / (2**0.5 * spread))
                found.append((float((apart - wide / math.pi**0.5).mean()), (share * size).tolist(), relative))
        best.append(min(found))
    return [list(of_lead) for of_lead in zip(*(error for _, error, _ in best), strict=True)], [one[2] for one in best]


def _rows(values: Tensor, at: np.ndarray) -> np.ndarray:
    """Return the map (..., n, 1) at some stations as rows (R, k)."""
    return values[..., at, 0].reshape(-1, len(at)).double().numpy()


def _predicted(values: Tensor, weights: np.ndarray) -> Tensor:
    """Return the map (..., n, 1) of known stations at others (..., m, 1), within the range of the known values.

    A map of zeros and ones marks stations with a property; others have it if all known ones do.
    """
    rows = _rows(values, np.arange(values.shape[-2]))
    low, high = rows.min(1, keepdims=True), rows.max(1, keepdims=True)
    marks = bool(np.isin(rows, (0, 1)).all())
    found = np.repeat(low, len(weights), 1) if marks else np.clip(rows @ weights.T, low, high)
    return torch.from_numpy(found).to(values).reshape(*values.shape[:-2], len(weights), 1)


def _reference_forecasts(corrector: Corrector) -> Iterator[Sample]:
    """Yield for each lead time a batch of forecasts like those of the training: four seasons, three anomalies."""
    normalizer, task = _normalizers(corrector)[0], corrector.task
    departure = torch.tensor(DEPARTURES)[:, None] + torch.tensor([-SPREAD, SPREAD])
    ensemble = normalizer.location + departure[..., None, None, None] * normalizer.scale[:, None, None]
    for target, channel in enumerate(task.target_channels):
        lower = torch.tensor(normalizer.bounds[target])
        if (power := normalizer.powers[target]) < 1:
            ensemble[:, :, channel] = from_power(ensemble[:, :, channel], power, lower)
    count = len(REFERENCE_TIMES) * len(DEPARTURES)
    ensemble = ensemble.repeat(len(REFERENCE_TIMES), 1, 1, 1, 1)
    for lead in task.lead_times:
        valid = torch.tensor(REFERENCE_TIMES).repeat_interleave(len(DEPARTURES))
        yield Sample(
            ensemble=ensemble,
            mask=torch.ones_like(ensemble[:, 0], dtype=torch.bool),
            static=corrector.static.expand(count, *corrector.static.shape),
            target=torch.full((count, len(task.targets), *corrector.grid.shape), torch.nan),
            init_time=valid - 3600 * lead,
            lead_time=torch.full((count,), lead),
        )


def _normalizers(corrector: Corrector) -> list[Normalizer]:
    """Return the `fitted_normalizers`. Raises `InputError` if there are none."""
    if not (found := corrector.fitted_normalizers):
        raise InputError(
            f"model {type(corrector.model).__name__} reads physical values, so nothing is known about new stations; "
            "correct only stations of the training"
        )
    return found


def _load(corrector: Corrector, state: Mapping[str, Tensor]) -> None:
    """Load a state, and adapt bounds in units of the samples to the means of the inputs."""
    corrector.load_state_dict(state)
    for part in corrector.modules():
        if isinstance(part, Corrector):
            protocol.normalise(part.model, *part.normalizer.target_scaling)
