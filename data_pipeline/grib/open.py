"""GRIB files as xarray datasets that read lazily: ensembles, analyses, fields that never change."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import numpy as np
import xarray as xr
from xarray.core import indexing

from data_pipeline.errors import InputError
from data_pipeline.grib.cube import Cube
from data_pipeline.grib.fields import SINGLE, FieldArray
from data_pipeline.grib.gather import Messages
from data_pipeline.grib.paths import Paths
from data_pipeline.task import Variable

Missing = Literal["error", "mask"]
Chunks = Literal["auto"] | None

ATTRIBUTES = {
    "init_time": {"long_name": "start of the forecast (UTC)"},
    "lead_time": {"long_name": "hours since the start of the forecast"},
    "number": {"long_name": "member of the ensemble, 0 is the control"},
    "time": {"long_name": "time for which the analysis is valid (UTC)"},
    "level": {"long_name": "pressure", "units": "hPa"},
    "latitude": {"long_name": "latitude", "units": "degrees_north"},
    "longitude": {"long_name": "longitude", "units": "degrees_east"},
}


def open_ensemble(
    paths: Paths,
    variables: Sequence[Variable] | None = None,
    lead_times: Sequence[int] | None = None,
    *,
    missing: Missing = "error",
    chunks: Chunks = "auto",
    dtype: np.dtype = SINGLE,
) -> xr.Dataset:
    """Open forecasts as (init_time, lead_time, number, [level,] latitude, longitude), float32 or float64.

    `lead_time` counts hours, `number` is 0 for a control forecast or where there is one forecast only,
    `level` is in hPa and belongs to variables aloft; `variables` and `lead_times` (hours) choose among what
    is there. Variables are named by their GRIB shortName; where one name lies at the surface and aloft, see
    `select`.

    A field that is not in the files is an error, or NaN with `missing="mask"`. If only some levels of a
    variable were asked for, the others are NaN. With `chunks="auto"` the arrays are dask's, one chunk per
    start and lead time; with None they are read when they are indexed.
    """
    _check(missing, chunks)
    messages = Messages.gather(paths, variables)
    minutes = messages.rows["step"]
    if lead_times is not None:
        leads = np.unique(np.array(lead_times, np.int64))
        if not leads.size:
            raise InputError(f"no lead time of {messages} was named; name at least one, in hours")
        there = np.unique(minutes)
        if absent := [lead for lead in leads.tolist() if lead * 60 not in there]:
            hours = ", ".join(f"{step / 60:g}" for step in there if step >= 0)
            raise InputError(f"{messages} has no lead time {', '.join(map(str, absent))} h; it has {hours} h")
        messages = messages.where(np.isin(minutes, leads * 60))
    elif odd := np.flatnonzero((minutes < 0) | (minutes % 60 > 0)).tolist():
        raise InputError(
            f"{messages.place(odd[0])} is not valid a whole number of hours after its start; "
            "name the lead_times (in hours) that you want"
        )
    rows = messages.rows
    values = {
        "init_time": _times(rows),
        "lead_time": rows["step"].astype(np.int64) // 60,
        "number": rows["number"].astype(np.int64),
    }
    return _dataset(messages, values, missing, {"init_time": 1, "lead_time": 1} if chunks else None, dtype)


def open_analysis(
    paths: Paths,
    variables: Sequence[Variable] | None = None,
    *,
    missing: Missing = "error",
    chunks: Chunks = "auto",
) -> xr.Dataset:
    """Open analyses as (time, [level,] latitude, longitude), float32; otherwise like `open_ensemble`.

    Analyses are the messages that are valid at their own start; longer forecasts in the files are passed
    over.
    """
    _check(missing, chunks)
    messages = Messages.gather(paths, variables)
    messages = messages.where(messages.rows["step"] == 0)
    if not len(messages.rows):
        raise InputError(f"{messages} has forecasts but no analysis (step 0); name files of analyses")
    return _dataset(messages, {"time": _times(messages.rows)}, missing, {"time": 1} if chunks else None)


def open_static(paths: Paths, names: Sequence[str] | None = None) -> xr.Dataset:
    """Open surface fields, all or those in `names`, as (latitude, longitude), whatever their date."""
    variables = None if names is None else [Variable(name) for name in names]
    return _dataset(Messages.gather(paths, variables, surface=True), {}, "error", None)


def select(dataset: xr.Dataset, variable: Variable) -> xr.DataArray:
    """Return one variable of an opened dataset, at its level.

    A surface field whose name is also taken aloft is called `NAME_surface` in the dataset, for instance
    `z_surface`.
    """
    if variable.level:
        return dataset[variable.name].sel(level=variable.level)
    surface = f"{variable.name}_surface"
    return dataset[surface if surface in dataset else variable.name]


def _check(missing: str, chunks: str | None) -> None:
    if missing not in ("error", "mask"):
        raise InputError(f"missing must be error or mask, got {missing!r}")
    if chunks not in ("auto", None):
        raise InputError(f"chunks must be auto or None, got {chunks!r}")


def _times(rows: np.ndarray) -> np.ndarray:
    return rows["init"].astype("datetime64[s]").astype("datetime64[ns]")


def _dataset(
    messages: Messages,
    values: dict[str, np.ndarray],
    missing: Missing,
    chunks: dict[str, int] | None,
    dtype: np.dtype = SINGLE,
) -> xr.Dataset:
    """Lay out `messages` along the axes of `values` and open them."""
    cube = Cube.of(messages, values)
    if missing == "error":
        cube.refuse_holes()
    source, wanted, axes = messages.source, messages.wanted, cube.axes
    levels = sorted({variable.level for variable in wanted if variable.level}, reverse=True)
    fields: dict[str, xr.Variable] = {}
    for name in dict.fromkeys(variable.name for variable in wanted):
        at = {variable.level: cube.cells[k] for k, variable in enumerate(wanted) if variable.name == name}
        attributes = _attributes(messages, name)
        aloft = [level for level in at if level]
        if aloft:
            nothing = np.full(cube.cells.shape[1:], -1, np.int32)
            cells = np.stack([at.get(level, nothing) for level in levels], axis=-1)
            array = indexing.LazilyIndexedArray(FieldArray(source, cells, dtype))
            fields[name] = xr.Variable((*axes, "level", "latitude", "longitude"), array, attributes)
        if 0 in at:
            array = indexing.LazilyIndexedArray(FieldArray(source, at[0], dtype))
            surface = f"{name}_surface" if aloft else name
            fields[surface] = xr.Variable((*axes, "latitude", "longitude"), array, attributes)
    grid = source.layouts[0].grid
    coordinates = {
        **axes,
        **({"level": np.array(levels)} if levels else {}),
        "latitude": np.array(grid.latitudes),
        "longitude": np.array(grid.longitudes),
    }
    dataset = xr.Dataset(fields, {name: (name, value, ATTRIBUTES[name]) for name, value in coordinates.items()})
    return dataset.chunk(chunks, token=cube.token) if chunks else dataset


def _attributes(messages: Messages, name: str) -> dict[str, str]:
    """Return units and long name of a variable; its messages must agree on the units."""
    kinds = [kind for kind in messages.kinds if kind.variable in messages.wanted and kind.short_name == name]
    names = {kind.units: kind.long_name for kind in kinds}
    if len(names) > 1:
        raise InputError(f"{messages} has {name} in {' and in '.join(sorted(names))}; name files that agree")
    ((units, long_name),) = names.items()
    return {"units": units, "long_name": long_name}
