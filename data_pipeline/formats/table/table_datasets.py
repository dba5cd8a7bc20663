"""Rows of a table as datasets: forecasts (init_time, lead_time, number, point) and observations (time, point)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import xarray as xr

from data_pipeline.common.errors import InputError
from data_pipeline.formats.cf.cf_header import Role
from data_pipeline.formats.table.columns import Columns, ValueColumns, role_of_column
from data_pipeline.formats.table.table_file import read_table, stations_beside
from data_pipeline.grids.points import Points

FORECASTS, OBSERVATIONS = "forecasts", "observations"
_SPARSEST = 50
"""Most places of a dataset for each value of its table."""
_ATTRIBUTES = {
    "init_time": {"standard_name": "forecast_reference_time"},
    "time": {"standard_name": "time"},
    "lead_time": {"standard_name": "forecast_period", "units": "hours"},
    "number": {"standard_name": "realization"},
    "station": {"cf_role": "timeseries_id"},
    "latitude": {"standard_name": "latitude", "units": "degrees_north"},
    "longitude": {"standard_name": "longitude", "units": "degrees_east"},
    "altitude": {"standard_name": "altitude", "units": "m"},
    "model_altitude": {"units": "m"},
}
_PLACES: tuple[Role, ...] = ("latitude", "longitude", "altitude", "model_altitude")


def open_table(
    table: pd.DataFrame | str | Path, stations: pd.DataFrame | str | Path | None = None
) -> tuple[xr.Dataset | None, xr.Dataset | None]:
    """Return the forecasts and the observations of a table, in the form of `open_ensemble` and `open_analysis`.

    `table` is a frame of pandas or polars, or the path of a file (CSV, Parquet, SQLite). `stations` has the positions
    of its stations, where the table lacks them; for a file, those of stations.csv beside it are the default. What the
    table does not have is None.
    """
    place = "the table"
    if isinstance(table, str | Path):
        path = Path(table)
        place, table, beside = str(path), read_table(path), stations_beside(path)
        stations = beside if stations is None else stations
    if isinstance(stations, str | Path):
        stations = read_table(Path(stations))
    frames = [one if one is None or isinstance(one, pd.DataFrame) else _of_columns(one) for one in (table, stations)]
    if frames[0] is None:
        raise InputError("table must be a frame or the path of a file, got None")
    found = table_datasets(frames[0], frames[1], place)
    return found.get(FORECASTS), found.get(OBSERVATIONS)


def stations_of(path: Path) -> Points:
    """Return the stations in a table, which needs no values."""
    found = _Rows(read_table(path).assign(**{"?": 0.0}), None, str(path)).points
    heights = ("altitude", "model_altitude")
    further: dict[str, Any] = {f"{name}s": tuple(found[name]) for name in heights if name in found}
    return Points(tuple(found["latitude"]), tuple(found["longitude"]), ids=tuple(found["station"]), **further)


def _of_columns(frame: Any) -> pd.DataFrame:
    """Return the columns of a frame of polars; its own conversion needs pyarrow."""
    try:
        return pd.DataFrame({name: frame[name].to_numpy() for name in frame.columns})
    except (AttributeError, TypeError):
        raise InputError(f"table must be a frame or the path of a file, got {type(frame).__name__}") from None


def table_datasets(table: pd.DataFrame, stations: pd.DataFrame | None, place: str) -> dict[str, xr.Dataset]:
    """Return the forecasts and the observations of a table; a kind that the table lacks is absent.

    `stations` has the positions of stations that the table lacks. `place` begins error messages. Rows in any order;
    what a table lacks is NaN. A table without starts and lead times holds observations.
    """
    rows = _Rows(_with_numbers(table, place), stations, place)
    return {kind: rows.dataset(layout) for kind, layout in rows.layouts.items()}


def _with_numbers(table: pd.DataFrame, place: str) -> pd.DataFrame:
    """Return a table whose numbers in text are numbers; a column of numbers with other text is an `InputError`."""
    changed = table.copy(deep=False)
    for name in table.columns:
        if table[name].dtype.kind in "fiubMm" or role_of_column(str(name)):
            continue
        numbers, known = pd.to_numeric(table[name], errors="coerce"), table[name].notna()
        if numbers.notna().any():
            if (wrong := (known & numbers.isna()).to_numpy()).any():
                row = int(wrong.argmax())
                raise InputError(
                    f"{place}: in row {row + 1:,}, the first of {wrong.sum():,}, {name} is {table[name].iloc[row]!r}, "
                    "no number; leave it empty where there is no value"
                )
            changed[name] = numbers
    return changed


def with_forecasts(
    table: pd.DataFrame, stations: pd.DataFrame | None, forecasts: xr.Dataset, place: str
) -> pd.DataFrame:
    """Return a copy of a table with the values of `forecasts`, a dataset as of `table_datasets`, where they differ."""
    table = _with_numbers(table, place)
    rows = _Rows(table, stations, place)
    layout, changed = rows.layouts[FORECASTS], table.copy()
    for one in layout.values:
        array = forecasts[rows.variable(one)]
        order = [*layout.axes, "number"] if one.members else [*layout.axes]
        full = array.transpose(*order).to_numpy().reshape(int(np.prod(layout.shape)), -1)
        for k, name in enumerate(one.columns):
            new, old = full[layout.cells, k], table[name].to_numpy(np.float32)[layout.rows]
            values = table[name].to_numpy(float, copy=True)
            differ = (new != old) & ~(np.isnan(new) & np.isnan(old))
            values[np.flatnonzero(layout.rows)[differ]] = new[differ].astype(str).astype(float)
            changed[name] = values
    return changed


@dataclass(frozen=True, eq=False)
class _Layout:
    """The rows (mask) with `values`, and for each axis its coordinate and the place of each such row along it."""

    values: Sequence[ValueColumns]
    rows: np.ndarray
    axes: Mapping[str, tuple[np.ndarray, np.ndarray]]

    @property
    def shape(self) -> tuple[int, ...]:
        return tuple(len(axis) for axis, _ in self.axes.values())

    @cached_property
    def cells(self) -> np.ndarray:
        """The place of each row in an array of this shape."""
        return np.ravel_multi_index([places for _, places in self.axes.values()], self.shape)


@dataclass(frozen=True, eq=False)
class _Rows:
    table: pd.DataFrame
    stations: pd.DataFrame | None
    place: str

    @cached_property
    def columns(self) -> Columns:
        names = [str(name) for name in self.table.columns]
        numeric = [str(name) for name, kind in self.table.dtypes.items() if kind.kind in "fiu"]
        return Columns.of(names, numeric, self.place)

    def column(self, role: Role) -> pd.Series | None:
        name = self.columns.roles.get(role)
        return None if name is None else self.table[name]

    @cached_property
    def layouts(self) -> dict[str, _Layout]:
        """The layouts of forecasts and of observations; a kind that the table lacks is absent."""
        starts, leads, valid = self.times
        forecasts = [one for one in self.columns.values if not one.observed]
        observed = [one for one in self.columns.values if one.observed]
        found: dict[str, _Layout | None] = {}
        if starts is None or leads is None:
            observed += forecasts
        else:
            found[FORECASTS] = self._layout(forecasts, {"init_time": starts, "lead_time": leads}, self._members())
        found[OBSERVATIONS] = self._layout(observed, {"time": valid}, None)
        return {kind: layout for kind, layout in found.items() if layout}

    @cached_property
    def times(self) -> tuple[np.ndarray | None, np.ndarray | None, np.ndarray]:
        """Starts (datetime64), lead times (hours) and valid times of the rows; the former are None in observations."""
        start, valid, lead = self._dates("start"), self._dates("valid"), self._hours()
        time = self._dates("time") if start is None or valid is None else None
        if time is not None and start is None and valid is None and lead is not None and lead.any():
            name = self.columns.roles["time"]
            raise InputError(
                f"{self.place}: its column {name} may be the start or the valid time of forecasts; call it init_time "
                "or valid_time"
            )
        if time is not None:
            start, valid = (start, time) if start is not None else (time, valid) if valid is not None else (None, time)
        if lead is not None:
            span = np.round(lead * 3600).astype("timedelta64[s]")
            start = valid - span if start is None and valid is not None else start
            valid = start + span if valid is None and start is not None else valid
            if start is not None and valid is not None and (wrong := start + span != valid).any():
                raise self._error(wrong, f"{self._name('lead')} is not the time from start to valid time")
        elif start is not None and valid is not None:
            lead = (valid - start) / np.timedelta64(1, "h")
        elif start is not None:
            raise InputError(f"{self.place} has starts of forecasts but no lead times; add a column lead_time in hours")
        if valid is None:
            raise InputError(f"{self.place} has no times; add a column time, or init_time and lead_time")
        return start, None if start is None else lead, valid

    def _dates(self, role: Role) -> np.ndarray | None:
        if (column := self.column(role)) is None:
            return None
        numbers = column.dtype.kind in "fiu"
        if numbers and (wrong := ~np.isfinite(column.to_numpy(float))).any():
            raise self._error(wrong, f"{column.name} has no value")
        try:
            if numbers and column.min() >= 1e8 and column.max() < 1e10:
                dates = pd.to_datetime(column, unit="s", utc=True)
            elif numbers:
                digits = column.astype(np.int64).astype(str)
                form = {8: "%Y%m%d", 10: "%Y%m%d%H", 12: "%Y%m%d%H%M", 14: "%Y%m%d%H%M%S"}[len(digits.iloc[0])]
                dates = pd.to_datetime(digits, format=form, utc=True)
            else:
                dates = pd.to_datetime(column, format="ISO8601", utc=True)
        except (KeyError, ValueError, TypeError):
            raise InputError(
                f"{self.place}: {column.name} has {column.iloc[0]!r}, which is not read as a date; write dates as "
                "2018-01-31 or 2018-01-31T12:00, in UTC"
            ) from None
        if (wrong := dates.isna().to_numpy()).any():
            raise self._error(wrong, f"{column.name} has no value")
        return dates.dt.tz_localize(None).to_numpy("datetime64[s]")

    def _hours(self) -> np.ndarray | None:
        if (column := self.column("lead")) is None:
            return None
        if column.dtype.kind == "m":
            return (column / np.timedelta64(1, "h")).to_numpy(float)
        if column.dtype.kind not in "fiu":
            raise InputError(
                f"{self.place}: {column.name} has {column.iloc[0]!r}; write lead times as numbers of hours"
            )
        hours = column.to_numpy(float)
        if (wrong := ~np.isfinite(hours)).any():
            raise self._error(wrong, f"{column.name} has no value")
        return hours

    @cached_property
    def ids(self) -> np.ndarray:
        """The station of each row; without a column of stations, all rows are of one."""
        if (column := self.column("station")) is None:
            return np.full(len(self.table), "site", object)
        if (wrong := column.isna().to_numpy()).any():
            raise self._error(wrong, f"{column.name} has no value")
        return _texts(column)

    @cached_property
    def points(self) -> dict[str, np.ndarray]:
        """Id and position of each station, in the order of the ids."""
        names = np.unique(self.ids)
        found: dict[str, np.ndarray] = {"station": names}
        own = {role: self.columns.roles[role] for role in _PLACES if role in self.columns.roles}
        source, ids, place = self.table, self.ids, self.place
        if self.stations is not None and not {"latitude", "longitude"} <= {*own}:
            place = f"the stations of {self.place}"
            source = self.stations
            own = {role: name for role in _PLACES if (name := _first(source, role)) is not None}
            by_id = _first(source, "station")
            if by_id is None and len(source) > 1:
                raise InputError(f"{place} have no column station; add it")
            ids = np.full(1, "site", object) if by_id is None else _texts(source[by_id])
            if by_id is None or "station" not in self.columns.roles:
                ids = np.full(len(source), names[0], object) if len(source) == 1 else ids
        if not {"latitude", "longitude"} <= {*own}:
            raise InputError(
                f"{self.place} has no positions; add the columns latitude and longitude (and altitude), or a file "
                "stations.csv beside it with station, latitude and longitude"
            )
        at = pd.Series(np.arange(len(ids)), ids)
        first = at[~at.index.duplicated()].reindex(names)
        if (absent := first.isna().to_numpy()).any():
            raise InputError(f"{place} lack {absent.sum()} of its stations, the first is {names[absent][0]}; add them")
        for role, name in own.items():
            values = source[name].to_numpy(float)
            found[role] = values[first.to_numpy(int)]
            moved = ~np.isclose(values, pd.Series(found[role], names).reindex(ids).to_numpy(), equal_nan=True)
            if (moved & np.isin(ids, names)).any():
                k = int((moved & np.isin(ids, names)).argmax())
                raise InputError(f"{place}: the station {ids[k]} has several values of {name}; give it one")
        return found

    def _members(self) -> np.ndarray | None:
        """Return the member of each row; None without a column of members."""
        if (column := self.column("number")) is None:
            return None
        digits = column.astype(str).str.extract(r"(\d+)(?:\.0)?$")[0]
        if (wrong := digits.isna().to_numpy()).any():
            raise self._error(wrong, f"{column.name} has no number; number the members from 0 or 1")
        if several := [one for one in self.columns.values if one.members]:
            raise InputError(
                f"{self.place} has members in columns ({several[0].columns[0]}) and in rows ({column.name}); use one"
            )
        return digits.to_numpy(int)

    def _layout(
        self, values: Sequence[ValueColumns], times: Mapping[str, np.ndarray], members: np.ndarray | None
    ) -> _Layout | None:
        """Return the layout of some columns, without the rows that lack all of them; None if no row has a value."""
        rows = self.table[[name for one in values for name in one.columns]].notna().any(axis=1).to_numpy()
        if not rows.any():
            return None
        outer = {**times} if members is None else {**times, "number": members}
        axes = {name: np.unique(each[rows], return_inverse=True) for name, each in outer.items()}
        names = self.points["station"]
        layout = _Layout(values, rows, axes | {"point": (names, np.searchsorted(names, self.ids[rows]))})
        if np.prod(layout.shape, dtype=float) > _SPARSEST * rows.sum() + 1000:
            sizes = " x ".join(f"{name} {size}" for name, size in zip(layout.axes, layout.shape, strict=True))
            raise InputError(
                f"{self.place} has {rows.sum():,} rows for {sizes}, so nearly all of them would be missing; write "
                "tables of rows that share their times"
            )
        return layout

    def dataset(self, layout: _Layout) -> xr.Dataset:
        """Return the values of a layout."""
        variables = {}
        members = sorted({member for one in layout.values for member in one.members})
        coordinates = {name: (name, axis) for name, (axis, _) in layout.axes.items() if name != "point"}
        coordinates |= {"number": ("number", np.array(members))} if members else {}
        for one in layout.values:
            full, dimensions = self._filled(one, layout).reshape(*layout.shape, -1), [*layout.axes]
            if one.members and [*one.members] != members:
                raise InputError(f"{self.place}: {one.name} has other members than other variables; write two tables")
            if one.members:
                full = np.moveaxis(full, -1, -2)
                dimensions.insert(-1, "number")
            else:
                full = full[..., 0]
            units = one.units or self._label("units")
            variables[self.variable(one)] = (dimensions, full, {"units": units} if units else {})
        coordinates |= {name: ("point", each) for name, each in self.points.items()}
        found = xr.Dataset(variables, coordinates, {"featureType": "timeSeries"})
        for name in found.coords:
            found[name].attrs = _ATTRIBUTES[str(name)]
        return found

    def variable(self, one: ValueColumns) -> str:
        """Return the name of a variable."""
        return self._label("parameter") or one.name

    def _filled(self, one: ValueColumns, layout: _Layout) -> np.ndarray:
        """Return values (n, members) at their cells, NaN elsewhere; two values for one cell are an `InputError`."""
        block = self.table[list(one.columns)].to_numpy(np.float32)[layout.rows]
        full = np.full((int(np.prod(layout.shape)), block.shape[1]), np.nan, np.float32)
        full[layout.cells] = block
        wrong = np.zeros(len(self.table), bool)
        wrong[layout.rows] = ~np.isclose(full[layout.cells], block, equal_nan=True).all(axis=1)
        if wrong.any():
            raise self._error(wrong, f"it has another {one.columns[0]} for the time and station of a later row")
        return full

    def _label(self, name: str) -> str:
        if name not in self.columns.labels:
            return ""
        found = self.table[self.columns.labels[name]].dropna().astype(str).unique()
        if len(found) > 1:
            raise InputError(f"{self.place}: {name} has {found[0]!r} and {found[1]!r}; write a table for each")
        return str(found[0]) if len(found) else ""

    def _name(self, role: Role) -> str:
        return self.columns.roles[role]

    def _error(self, wrong: np.ndarray, what: str) -> InputError:
        """Return the error of the first of some rows, counted from 1 without the header."""
        return InputError(f"{self.place}: in row {int(wrong.argmax()) + 1:,}, the first of {wrong.sum():,}, {what}")


def _first(table: pd.DataFrame, role: Role) -> str | None:
    names = [str(name) for name in table.columns]
    return Columns.of([*names, "?"], ["?"], "the stations").roles.get(role)


def _texts(column: pd.Series) -> np.ndarray:
    """Return the ids of stations as texts; whole numbers without a decimal point."""
    if column.dtype.kind == "f" and (column == column.round()).all():
        column = column.astype(np.int64)
    return column.astype(str).to_numpy(object)
