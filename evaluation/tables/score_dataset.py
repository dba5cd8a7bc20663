"""Scores as a data set of xarray and as the file `scores.nc`, by the CF conventions."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from importlib.metadata import version
from pathlib import Path

import numpy as np
import xarray as xr

from data_pipeline.common.files import atomic_path
from evaluation.scoring.scoreboard import DISTRIBUTION, MEMBERS, Scoreboard
from evaluation.tables.score_rows import OVERALL, SEASONS, ScoreRow

_AXES = {
    "model": {"long_name": "name of the model"},
    "form": {
        "long_name": "distribution of the model, the members that are written, or another method that makes members"
    },
    "lead_time": {"standard_name": "forecast_period", "long_name": "lead time", "units": "hours"},
    "region": {"long_name": "region over which scores are averaged"},
    "season": {"long_name": "season of the valid time"},
}
_NUMBERS = {
    "value": ("", ""),
    "low": ("_low", "lower end of the 95 % interval of the "),
    "high": ("_high", "upper end of the 95 % interval of the "),
    "skill": ("_skill_vs_raw", "1 - score / score of the raw ensemble, of the "),
    "skill_low": ("_skill_vs_raw_low", "lower end of the 95 % interval of the skill against the raw ensemble, of the "),
    "skill_high": (
        "_skill_vs_raw_high",
        "upper end of the 95 % interval of the skill against the raw ensemble, of the ",
    ),
}
"""Ending of the variable's name, and beginning of its long name, for each number of a row."""


def score_dataset(
    board: Scoreboard, target: int, rows: Iterable[ScoreRow], axes: Mapping[str, Sequence[str]], units: str = ""
) -> xr.Dataset:
    """Return a variable for each score of one target, with its `_low` and `_high`, over the labels of all `axes`.

    An axis is a column of the rows, such as `lead_time`; rows with other labels, such as all lead times together, are
    left out. Scores over all lead times of a start have no axis `lead_time`. With the axis `model`, scores have their
    skill too. Scores of several numbers have the axis `NAME_label`. Numbers without a row are NaN. `units` are used if
    the target does not tell its own.
    """
    places = {axis: {label: place for place, label in enumerate(labels)} for axis, labels in axes.items()}
    labels = {one.name: one.labels_of(board.settings, target) if one.labels else ("",) for one in board.computed}
    joint = {one.name for one in board.computed if one.joint == "lead_times"}
    axes_of = {name: [axis for axis in axes if axis != "lead_time" or name not in joint] for name in labels}
    numbers = {
        name: np.full((*(len(axes[axis]) for axis in axes_of[name]), len(found), len(_NUMBERS)), np.nan)
        for name, found in labels.items()
    }
    counts = np.zeros((*map(len, axes.values()), 2), np.int32)
    for row in rows:
        there = tuple(places[axis].get(getattr(row, axis), -1) for axis in axes_of[row.score])
        if row.n_forecasts and -1 not in there and (row.score not in joint or row.lead_time == OVERALL):
            number = labels[row.score].index(row.label)
            numbers[row.score][(*there, number)] = [getattr(row, column) for column in _NUMBERS]
            if row.score not in joint:
                counts[there] = row.n_forecasts, row.n_dates
    variables, coordinates = {}, {}
    for axis, found in axes.items():
        values = np.array(found, np.int32 if axis == "lead_time" else str)
        coordinates[axis] = xr.Variable(axis, values, _AXES[axis])
    for one in board.computed:
        dims = tuple(axes_of[one.name])
        if one.labels:
            dims = (*dims, f"{one.name}_label")
            coordinates[dims[-1]] = xr.Variable(dims[-1], np.array(labels[one.name], str), {"long_name": one.title})
        own_units = (board.task.targets[target].units or units) if one.units == "target" else "1"
        names = [column for column in _NUMBERS if "skill" not in column or ("model" in axes and one.has_skill)]
        for values, column in zip(np.moveaxis(numbers[one.name], -1, 0), names, strict=False):
            ending, beginning = _NUMBERS[column]
            comment = one.text + one.note(board.settings)
            about = {"long_name": beginning + one.title, "comment": comment, "references": one.reference}
            unit = "1" if "skill" in column else own_units
            about |= {"units": unit} if unit else {}
            variables[one.name + ending] = xr.Variable(dims, values if one.labels else values[..., 0], about)
        others = [one.name + _NUMBERS[column][0] for column in names[1:]]
        variables[one.name].attrs["ancillary_variables"] = " ".join(others)
    for k, (key, what) in enumerate((("n_forecasts", "forecasts"), ("n_dates", "starts"))):
        about = {"long_name": f"number of {what} with a scored cell", "units": "1"}
        variables[key] = xr.Variable(tuple(axes), counts[..., k], about)
    return xr.Dataset(variables, coordinates, {"Conventions": "CF-1.8"})


def write_score_file(path: Path, board: Scoreboard, target: int, rows: Iterable[ScoreRow], units: str = "") -> None:
    """Write the scores of all models by lead time, region and season to a NetCDF file."""
    axes = {
        "model": list(board.tallies), "form": [DISTRIBUTION, MEMBERS, *board.further],
        "lead_time": list(map(str, board.task.lead_times)), "region": list(board.regions),
        "season": [OVERALL, *SEASONS],
    }  # fmt: skip
    dataset = score_dataset(board, target, rows, axes, units)
    dataset.attrs["title"] = f"Scores of {board.task.name}, target {board.task.targets[target]}"
    dataset.attrs |= {"source": f"deepweather {version('deepweather')}", "grid": str(board.grid)}
    for variable in dataset.data_vars.values():
        # A text is no coordinate variable of the conventions, so variables name their labels (section 6.1).
        variable.encoding["coordinates"] = " ".join(str(axis) for axis in variable.dims if axis != "lead_time")
    with atomic_path(path) as partial:
        dataset.to_netcdf(partial, engine="netcdf4")
