"""`score`: the scores of `evaluate` for forecasts and truth in memory, as xarray data sets or arrays."""

from __future__ import annotations

import re
import warnings
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial

import numpy as np
import torch
import xarray as xr

from data_pipeline.common.errors import InputError
from data_pipeline.dates import epoch_seconds
from data_pipeline.grid import Grid
from data_pipeline.grids.grid_coordinates import grid_of
from data_pipeline.grids.points import Points
from data_pipeline.sample import Sample
from data_pipeline.sources.array_fields import DIMENSIONS, find_dimension, levels_of_arrays, whole_hours
from data_pipeline.task import Task, Variable
from data_pipeline.truth_checks import TruthChecks
from data_pipeline.variables.thresholds import Threshold, parse_thresholds
from data_pipeline.variables.units import find_conversion
from evaluation.regions import region_weights
from evaluation.score_truth import check_truth
from evaluation.scoring.score_options import choose_scores
from evaluation.scoring.scoreboard import Scoreboard
from evaluation.scoring.scoring import Forecaster, ScoringOptions, score_models
from evaluation.tables.score_dataset import score_dataset
from evaluation.tables.score_rows import OVERALL, ScoreRows, list_parts
from models.distribution import Distribution, Ensemble, Normal, Quantiles

_BINS = 11
"""Bins of the PIT of forecasts without members."""


def score(
    forecast: xr.DataArray | xr.Dataset,
    truth: xr.DataArray | xr.Dataset,
    *,
    scores: str | Sequence[str] | None = None,
    thresholds: Sequence[str] = (),
    drawn: bool = True,
    by_lead_time: bool = True,
    seed: int = 0,
    truth_checks: TruthChecks = "report",
) -> xr.Dataset | xr.DataTree:
    """Return the scores of a forecast of members, of mean and standard deviation, or of quantiles.

    `forecast` has the dimensions `init_time`, `latitude`, `longitude`, and `lead_time` (hours or timedelta) if it has
    more than one. Stations have the dimension `point` in place of latitude and longitude, as from `open_ensemble`; the
    truth may have its stations in another order, and further ones. Members are an array with the dimension `number`,
    quantiles one with `quantile` (0 to 1) or `percentile` (0 to 100). Mean and standard deviation are a data set with
    the variables `mean` and `std`, and are scored as a normal distribution. Usual other names of dimensions are
    understood, such as `realization` or `lat`.

    `truth` has the same dimensions without members, or `valid_time` instead of `init_time` and `lead_time`; missing
    values are not scored. A forecast without truth is left out, and the attribute `left_out` counts those.

    The result has a variable for each score, with the dimensions `lead_time` (without it if not `by_lead_time`, and for
    scores over lead times) and `region`, and NAME_label for scores of several numbers, such as one for each threshold.
    NAME_low and NAME_high are the ends of its 95 % interval, NaN for few starts. All averages are weighted with the
    area of the cells, except in the region `unweighted`. The functions are those of `deepweather evaluate`.

    `scores` are None for those that `evaluate` computes without being asked, `all`, or names. `thresholds` are as in
    the option of `evaluate`, such as "> 0 degC". `drawn=False`: members are quantiles or depend on each other. `seed`
    is that of ties in rank histograms. Implausible values of the truth give a `UserWarning` that counts them; with
    `truth_checks="mask"` they are not scored, with `error` they raise an `InputError`.

    If both are data sets, the result is a `DataTree` with such a data set for each variable of both, and for each
    level of a variable aloft: `tree["2t"]`, `tree["t@850"]`. A `UserWarning` names variables that only one of them has.

    Forecasts that are not finite where there is truth, other grids and other units raise `InputError`.

    >>> import numpy as np, xarray as xr
    >>> space = {"latitude": [45.0, 0.0, -45.0], "longitude": [0.0, 90.0, 180.0, 270.0]}
    >>> starts = np.datetime64("2020-01-01", "ns") + np.arange(30) * np.timedelta64(5, "D")
    >>> times, rng = {"init_time": starts, "lead_time": [24, 48]}, np.random.default_rng(0)
    >>> truth = xr.DataArray(rng.normal(size=(30, 2, 3, 4)), {**times, **space}, name="t2m")
    >>> members = xr.DataArray(rng.normal(size=(30, 2, 10, 3, 4)), {**times, "number": range(10), **space})
    >>> found = score(members, truth)
    >>> found.crps_fair.dims, found.lead_time.values.tolist()
    (('lead_time', 'region'), [24, 48])
    >>> exact = 1 / np.sqrt(np.pi)  # the fair CRPS if members and truth have the same normal distribution
    >>> bool(found.crps_fair_low.sel(lead_time=24, region="global") < exact)
    True
    """
    of_one = partial(_score, scores=scores, drawn=drawn, by_lead_time=by_lead_time, seed=seed)
    if not isinstance(truth, xr.Dataset):
        arrays = ArrayForecasts.of(forecast, truth).checked(truth_checks)
        return of_one(arrays, *parse_thresholds(list(thresholds), arrays.task))
    pairs = _pairs_of(forecast, truth)
    limits: Sequence[tuple[Threshold, ...]] = ((),) * len(pairs)
    if thresholds:
        variables = tuple(map(Variable.parse, pairs))
        limits = parse_thresholds(list(thresholds), Task("score", variables, variables, (0,)))
    targets = {name: ArrayForecasts.of(*pair).checked(truth_checks) for name, pair in pairs.items()}
    return xr.DataTree.from_dict(
        {name: of_one(arrays, own) for (name, arrays), own in zip(targets.items(), limits, strict=True)}
    )


def _score(
    arrays: ArrayForecasts, limits: tuple[Threshold, ...], scores: str | Sequence[str] | None, drawn: bool,
    by_lead_time: bool, seed: int,
) -> xr.Dataset:  # fmt: skip
    """Return the scores of one target."""
    chosen, _ = choose_scores(list(scores) if isinstance(scores, Sequence) and scores != "all" else scores)
    options = ScoringOptions(
        seed=seed, scores=chosen, diagrams=(), thresholds=(limits,), undrawn=() if drawn else ("raw",)
    )
    models: dict[str, Forecaster] = {"raw": arrays.distribution}
    board = score_models(models, arrays, region_weights(arrays.grid), options=options)
    if isinstance(scores, Sequence) and scores != "all":
        if drawings := {*scores} - {one.name for one in chosen}:
            raise InputError(
                f"score computes numbers, and {sorted(drawings)[0]} is a diagram; leave it out, or draw it with plot_*"
            )
        for one in chosen:
            if why := one.missing(board.settings):
                raise InputError(f"score cannot compute {one.name}: {why}")
    return _as_dataset(board, arrays, by_lead_time)


def _pairs_of(forecast: xr.DataArray | xr.Dataset, truth: xr.Dataset) -> dict[str, tuple[xr.DataArray, xr.DataArray]]:
    """Return forecast and truth of each variable, and of each level of a variable, that both data sets have."""
    if not isinstance(forecast, xr.Dataset) or {"mean", "std"} <= {*forecast.data_vars}:
        raise InputError("score: the truth is a data set of several variables; select the forecast's variable of it")
    parts = [
        {str(name): array for name, array in forecast.data_vars.items() if _has_members(array)},
        {str(name): array for name, array in truth.data_vars.items()},
    ]
    for part in parts:
        for name, array in list(part.items()):
            if level := find_dimension(array, "level"):
                levels = part.pop(name)[level].values
                part |= {f"{name}@{one:g}": array.sel({level: one}) for one in levels}
    both = [name for name in parts[0] if name in parts[1]]
    alone = sorted({*parts[0]} ^ {*parts[1]})
    if not both:
        raise InputError(f"score: forecast and truth have no variable in common, but {', '.join(alone)}; rename one")
    if alone:
        warnings.warn(
            f"score: {len(alone)} variables are not in both data sets and not scored: {', '.join(alone)}",
            UserWarning, stacklevel=3,
        )  # fmt: skip
    return {name: (parts[0][name], parts[1][name]) for name in both}


def _has_members(array: xr.DataArray) -> bool:
    return any(find_dimension(array, name) for name in ("number", "quantile"))


@dataclass(eq=False)
class ArrayForecasts:
    """Forecasts in arrays, as the data set that scoring reads: one sample for each start and lead time with truth.

    `values` are members, mean and standard deviation, or quantiles (`kind`), with the dimensions `init_time`,
    `lead_time`, `number`, `latitude`, `longitude`; `rows` are the positions of all samples.
    """

    task: Task
    grid: Grid
    kind: str
    values: xr.DataArray
    truth: xr.DataArray
    rows: tuple[tuple[int, int], ...]
    starts: np.ndarray
    levels: np.ndarray
    left_out: int
    units: str

    @classmethod
    def of(cls, forecast: xr.DataArray | xr.Dataset, truth: xr.DataArray) -> ArrayForecasts:
        """Interpret the arguments of `score`."""
        kind, values = _interpret(forecast)
        values = _standard(values, ("init_time",), "forecast")
        if "lead_time" not in values.dims:
            values = values.expand_dims(lead_time=[values.lead_time.item() if "lead_time" in values.coords else 0])
        truth = _truth_of(truth, values)
        hours = whole_hours(values.lead_time, "score")
        values = values.assign_coords(lead_time=hours).sortby("lead_time")
        truth = truth.assign_coords(lead_time=hours).sortby("lead_time")
        units = str(truth.attrs.get("units", values.attrs.get("units", "")))
        values = _converted(values, units, kind)
        grid, values, truth = _on_one_grid(values, truth)
        values = values.transpose("init_time", "lead_time", "number", "latitude", "longitude")
        truth = truth.transpose("init_time", "lead_time", "latitude", "longitude")
        known = truth.notnull().any(("latitude", "longitude")).values
        rows = tuple((int(i), int(j)) for i, j in np.argwhere(known))
        if not rows:
            raise InputError("score: no forecast has a truth at its valid time; check init_time and lead_time")
        name = str(truth.name or values.name or "")
        target = (Variable(name if re.fullmatch(r"[A-Za-z0-9_]+", name) else "forecast"),)
        task = Task("score", target, target, tuple(sorted(hours)))
        levels = values.number.values.copy() if kind == "quantiles" else np.zeros(0)
        starts = epoch_seconds(values.init_time.values)
        return cls(task, grid, kind, values, truth, rows, starts, levels, known.size - len(rows), units)

    def checked(self, policy: TruthChecks) -> ArrayForecasts:
        """Return the forecasts whose truth is checked; see `score_truth.check_truth`."""
        values = self.values[:, :, :1] if self.kind == "normal" else self.values  # without the standard deviation
        truth = check_truth(values, self.truth, self.grid, self.task.targets[0], self.units, policy)
        if truth is self.truth:
            return self
        known = truth.notnull().any(("latitude", "longitude")).values
        rows = tuple((i, j) for i, j in self.rows if known[i, j])
        if not rows:
            raise InputError("score: no value of the truth is left after truth_checks=mask; leave this argument out")
        return replace(self, truth=truth, rows=rows, left_out=self.left_out + len(self.rows) - len(rows))

    @property
    def members(self) -> int:
        """Number of members, which decides the bins of the rank histogram."""
        return self.values.sizes["number"] if self.kind == "members" else _BINS - 1

    def __len__(self) -> int:
        return len(self.rows)

    def times(self) -> tuple[torch.Tensor, torch.Tensor]:
        """Return start (seconds since 1970) and lead time (hours) of all samples."""
        starts, leads = zip(*((self.starts[i], self.task.lead_times[j]) for i, j in self.rows), strict=True)
        return torch.tensor(starts), torch.tensor(leads)

    def __getitem__(self, index: int) -> Sample:
        i, j = self.rows[index]
        values = np.asarray(self.values[i, j].values)
        kind = np.float32 if values.dtype == np.float32 else np.float64
        truth = np.asarray(self.truth[i, j].values)
        return Sample(
            ensemble=torch.from_numpy(values[:, None].astype(kind)),
            mask=torch.ones((1, *self.grid.shape), dtype=torch.bool),
            static=torch.zeros((0, *self.grid.shape)),
            target=torch.from_numpy(truth[None].astype(kind)),
            init_time=torch.tensor(self.starts[i]),
            lead_time=torch.tensor(self.task.lead_times[j]),
        )

    def distribution(self, batch: Sample) -> Distribution:
        """Return the forecasts of a batch over (B, 1, H, W)."""
        return self.distribution_of(batch.ensemble.movedim(1, 0).contiguous())

    def distribution_of(self, values: torch.Tensor) -> Distribution:
        """Return the forecasts with these members, quantiles, or mean and standard deviation (M, ...)."""
        if self.kind == "members":
            return Ensemble(values)
        if self.kind == "quantiles":
            return Quantiles(values, torch.from_numpy(self.levels))
        if bool((values[1] < 0).any()):
            raise InputError("score: std has negative values; check which variable is the standard deviation")
        return Normal(values[0], values[1])


def _interpret(forecast: xr.DataArray | xr.Dataset) -> tuple[str, xr.DataArray]:
    """Return the kind of a forecast, and its values with the dimension `number`."""
    if isinstance(forecast, xr.Dataset):
        if {"mean", "std"} <= {*forecast.data_vars}:
            both = xr.concat([forecast["mean"], forecast["std"]], "number", combine_attrs="override", coords="minimal")
            return "normal", both.assign_coords(number=[0, 1]).rename(forecast["mean"].name)
        if len(forecast.data_vars) != 1:
            raise InputError(
                f"score: the data set has the variables {', '.join(map(str, forecast.data_vars))}; give one array, or "
                "a data set with the variables mean and std"
            )
        (name,) = forecast.data_vars
        forecast = forecast[name]
    if quantile := find_dimension(forecast, "quantile"):
        levels = forecast[quantile].values.astype(float)
        percent = quantile == "percentile" or levels.max() > 1
        levels = levels / 100 if percent else levels
        if levels.size < 2 or not ((levels > 0) & (levels < 1)).all() or len(np.unique(levels)) < levels.size:
            raise InputError(f"score: {quantile} must be two or more different levels between 0 and 1, got {levels}")
        return "quantiles", forecast.rename({quantile: "number"}).assign_coords(number=levels).sortby("number")
    number = find_dimension(forecast, "number")
    if number is None:
        raise InputError(
            f"score: the forecast has the dimensions {', '.join(map(str, forecast.dims))}; it needs number "
            "(one member or more), quantile, or a data set with mean and std"
        )
    return "members", forecast.rename({number: "number"})


def _on_one_grid(values: xr.DataArray, truth: xr.DataArray) -> tuple[Grid, xr.DataArray, xr.DataArray]:
    """Return the grid of the forecast, and both arrays on it, north first; n points are n rows of one column."""
    if ("point" in values.dims) != ("point" in truth.dims):
        raise InputError("score: only one of forecast and truth has the dimension point; bring both to the same points")
    if "point" in values.dims:
        grid, other = (_points_of(one, what) for one, what in ((values, "forecast"), (truth, "truth")))
        at = grid.positions_in(other)
        if (at < 0).all():
            raise InputError(f"score: the forecast has {grid}, the truth none of them; check the ids in station")
        truth = truth.isel(point=np.maximum(at, 0)).where(xr.DataArray(at >= 0, dims="point"))
        rows, columns = (
            one.reset_coords(drop=True).drop_vars("point", errors="ignore").rename(point="latitude")
            .expand_dims(longitude=1) for one in (values, truth)
        )  # fmt: skip
        return grid, rows, columns
    values, truth = (one.sortby("latitude", ascending=False).sortby("longitude") for one in (values, truth))
    grids = [Grid(*(tuple(one[axis].values.tolist()) for axis in ("latitude", "longitude"))) for one in (values, truth)]
    if not grids[0].matches(grids[1]):
        raise InputError(f"score: the forecast has {grids[0]}, the truth {grids[1]}; bring them to one grid")
    return grids[0], values, truth


def _points_of(array: xr.DataArray, what: str) -> Points:
    """Return the points of an array with the dimension `point`."""
    if missing := [name for name in ("latitude", "longitude") if name not in array.coords]:
        raise InputError(f"score: the {what} has points without the coordinate {missing[0]}; add it with assign_coords")
    found = grid_of(array.to_dataset(name="score"))
    assert isinstance(found, Points)
    return found


def _standard(array: xr.DataArray, needed: Sequence[str], what: str) -> xr.DataArray:
    """Return an array with standard names of its dimensions; `needed` dimensions of time, and those of space."""
    needed = (*needed, *(("point",) if "point" in array.dims else ("latitude", "longitude")))
    for role in ("init_time", "lead_time", "valid_time", "latitude", "longitude"):
        if role in array.dims or (role == "valid_time" and "init_time" in array.dims):
            continue
        if role == "init_time" and "valid_time" in needed:
            continue
        if name := find_dimension(array, role):
            array = array.rename({name: role})
    if missing := [role for role in needed if role not in array.dims]:
        raise InputError(
            f"score: the {what} lacks the dimension {missing[0]}; it has {', '.join(map(str, array.dims))}"
        )
    known = {*DIMENSIONS, "point"} - ({"level", "number"} if what == "truth" else {"level"})
    if others := [str(dimension) for dimension in array.dims if dimension not in known]:
        raise InputError(f"score: the {what} has the dimension {others[0]}; select one value of it")
    return array


def _truth_of(truth: xr.DataArray, values: xr.DataArray) -> xr.DataArray:
    """Return the truth of each start and lead time of the forecast, NaN where there is none."""
    if not isinstance(truth, xr.DataArray):
        raise InputError(f"score: truth must be a DataArray, got {type(truth).__name__}; select one variable")
    _refuse_other_level(values, truth)
    if find_dimension(truth, "lead_time") or "init_time" in truth.dims:
        found = _standard(truth, ("init_time",), "truth")
        if "lead_time" not in found.dims:
            if values.sizes["lead_time"] > 1:
                raise InputError("score: the truth has init_time but no lead_time; name its dimension valid_time")
            found = found.expand_dims(lead_time=values.lead_time.values)
        leads = whole_hours(found.lead_time, "score")
        wanted = [leads.index(lead) if lead in leads else -1 for lead in whole_hours(values.lead_time, "score")]
        if -1 in wanted:
            own = whole_hours(values.lead_time, "score")
            raise InputError(f"score: the truth has the lead times {leads} h, the forecast {own} h; give the same")
        found = found.isel(lead_time=wanted).assign_coords(lead_time=values.lead_time.values)
        return found.reindex(init_time=values.init_time.values)
    found = _standard(truth, ("valid_time",), "truth")
    hours = np.array(whole_hours(values.lead_time, "score"), "timedelta64[h]").astype("timedelta64[ns]")
    valid = values.init_time.values.astype("datetime64[ns]")[:, None] + hours
    parts = [found.reindex(valid_time=times).rename(valid_time="init_time") for times in valid.T]
    parts = [part.assign_coords(init_time=values.init_time.values) for part in parts]
    return xr.concat(parts, xr.DataArray(values.lead_time.values, dims="lead_time", name="lead_time"))


def _refuse_other_level(values: xr.DataArray, truth: xr.DataArray) -> None:
    """Raise `InputError` if both arrays state a level, and these differ."""
    own, other = levels_of_arrays(str(truth.name or values.name or ""), values, truth)
    if own and other and own != other:
        raise InputError(f"score: the forecast lies on {own}, the truth on {other}; give both on one level")


def _converted(values: xr.DataArray, units: str, kind: str) -> xr.DataArray:
    """Return the forecast in the units of the truth; without units in one of them as it is."""
    own = str(values.attrs.get("units", units))
    if not own or not units:
        return values
    conversion = find_conversion(own, units)
    if conversion is None:
        raise InputError(f"score: the forecast is in {own}, the truth in {units}; convert one of them")
    if not conversion.changes:
        return values
    if kind == "normal":
        offsets = xr.DataArray([conversion.offset, 0.0], dims="number", coords={"number": [0, 1]})
        return values * conversion.factor + offsets
    return values * conversion.factor + conversion.offset


def _as_dataset(board: Scoreboard, arrays: ArrayForecasts, by_lead_time: bool) -> xr.Dataset:
    """Return the rows of all seasons together as arrays."""
    leads = [str(lead) for lead in arrays.task.lead_times] if by_lead_time else [OVERALL]
    wanted = {*leads, OVERALL} if any(one.joint == "lead_times" for one in board.computed) else {*leads}
    parts = [part for part in list_parts(board) if part.season == part.hour == OVERALL and part.lead_time in wanted]
    axes = ({"lead_time": leads} if by_lead_time else {}) | {"region": list(board.regions)}
    result = score_dataset(board, 0, ScoreRows.of(board, 0, arrays.units, parts).rows, axes, arrays.units)
    return result.assign_attrs(left_out=arrays.left_out, grid=str(arrays.grid))
