"""The fields of arrays of xarray, in memory or of dask, as samples read them.

`StandardDataset` gives the dimensions of a dataset their standard names and order, and opens its variables. Only the
forecast that is read is computed.
"""

from __future__ import annotations

import re
from collections.abc import Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial
from typing import Any

import numpy as np
import xarray as xr

from data_pipeline.common.errors import InputError
from data_pipeline.common.messages import joined
from data_pipeline.formats.cf.cf_header import Role, named_role, role_of
from data_pipeline.formats.cf.cf_variables import NameMap
from data_pipeline.formats.cf.positions import compact
from data_pipeline.formats.cube import missing_fields
from data_pipeline.formats.datasets import select_variable
from data_pipeline.formats.levels import stated_level
from data_pipeline.grid import Grid
from data_pipeline.grids.grid_coordinates import grid_coordinates, grid_of
from data_pipeline.grids.points import Points
from data_pipeline.protocols import Fields, MissingFields, Window
from data_pipeline.regridding.stations import station_weights
from data_pipeline.regridding.weights import MINIMUM_SHARE
from data_pipeline.task import Variable
from data_pipeline.variables.meaning import Meaning
from data_pipeline.variables.parameters import PARAMETERS
from data_pipeline.variables.units import Conversion, find_conversion, normalize_units

DIMENSIONS: dict[str, tuple[Role, ...]] = {
    "init_time": ("start", "time"), "lead_time": ("lead",), "valid_time": ("valid", "time"), "number": ("number",),
    "quantile": ("quantile",), "level": ("level",), "latitude": ("latitude",), "longitude": ("longitude",),
}  # fmt: skip
"""The roles in CF files that a dimension of each standard name can have, best first. Levels are in hPa."""


def find_dimension(array: xr.DataArray | xr.Dataset, name: str) -> str | None:
    """Return the name that a dimension of `DIMENSIONS` has in an array; None if the array lacks it."""
    for role in DIMENSIONS[name]:
        for own in map(str, array.dims):
            attributes = array[own].attrs if role == "level" and own in array.coords else {}
            if named_role(own) == role and (not attributes or role_of(own, attributes) == role):
                return own
    return None


def whole_hours(leads: xr.DataArray, what: str) -> list[int]:
    """Return lead times in whole hours, from timedeltas or numbers of hours; `what` begins the error.

    >>> import xarray as xr
    >>> whole_hours(xr.DataArray(np.array([6, 12], "timedelta64[h]")), "score")
    [6, 12]
    """
    values = leads.values
    hours = values / np.timedelta64(1, "h") if values.dtype.kind == "m" else values.astype(float)
    if (hours != np.round(hours)).any() or (hours < 0).any() or len(np.unique(hours)) < hours.size:
        raise InputError(f"{what}: lead_time must be different whole hours or timedeltas, got {values[:5]}")
    return [int(hour) for hour in hours.tolist()]


FORECAST, ANALYSIS = ("init_time", "lead_time", "number"), ("time",)
"""Outer dimensions of forecasts and of analyses."""


@dataclass(frozen=True, eq=False)
class StandardDataset:
    """A dataset with standard names of its dimensions; latitudes decrease, lead times are whole hours.

    `own_names` maps standard names of dimensions to those that the user's dataset has, `labels` the label of a variable
    (`Variable.label`) to its own name. `flipped`: the user's latitudes increase. `stations` are those at which a
    dataset on a grid is read; see `at_stations`.
    """

    dataset: xr.Dataset
    what: str
    """The subject of error messages, such as `the ensemble`."""
    own_names: Mapping[str, Hashable]
    labels: Mapping[str, str]
    flipped: bool
    stations: Points | None = None

    @classmethod
    def forecasts(cls, dataset: xr.Dataset, what: str, names: Mapping[str, str] | None = None) -> StandardDataset:
        """Return forecasts with the dimensions init_time, lead_time, number, [level,] latitude and longitude."""
        found = cls._of(dataset, what, names, FORECAST)
        hours = whole_hours(found.dataset.lead_time, what)
        found._refuse_disorder("lead_time", np.array(hours))
        return replace(found, dataset=found.dataset.assign_coords(lead_time=hours))

    @classmethod
    def analyses(cls, dataset: xr.Dataset, what: str, names: Mapping[str, str] | None = None) -> StandardDataset:
        """Return analyses with the dimensions time, [level,] latitude and longitude."""
        return cls._of(dataset, what, names, ANALYSIS)

    @classmethod
    def static(cls, dataset: xr.Dataset, what: str) -> StandardDataset:
        """Return the fields without times, latitude and longitude their only dimensions."""
        return cls._of(dataset[static_names(dataset)], what, None, ())

    @classmethod
    def _of(
        cls, dataset: xr.Dataset, what: str, names: Mapping[str, str] | None, outer: Sequence[str]
    ) -> StandardDataset:
        if not isinstance(dataset, xr.Dataset):
            advice = "open it with open_ensemble or open_analysis"
            if isinstance(dataset, xr.DataArray):
                advice = "name the array's variable, such as 2t, with array.to_dataset(name='2t')"
            raise InputError(f"{what} must be a Dataset of xarray, got {type(dataset).__name__}; {advice}")
        space = ("point",) if "point" in dataset.dims else ("latitude", "longitude")
        own_names: dict[str, Hashable] = {}
        for role in (*outer, "level", *space):
            known = "valid_time" if role == "time" else role
            own = find_dimension(dataset, known) if known in DIMENSIONS else role
            if own is None and role != "level":
                raise InputError(
                    f"{what} lacks the dimension {role}; it has {joined(dataset.dims)}; rename one of "
                    "them, or add it with dataset.expand_dims"
                )
            if own is not None:
                own_names[role] = own
        changed = {own: role for role, own in own_names.items() if own != role}
        if taken := [role for role in changed.values() if role in dataset.variables]:
            raise InputError(
                f"{what} has {taken[0]} beside the dimension {own_names[taken[0]]}; drop or rename {taken[0]}"
            )
        standard = dataset.rename(changed)
        for role in (*outer, *space):
            if role not in standard.coords and role != "point":
                raise InputError(f"{what} has no coordinate {role}; add its values with dataset.assign_coords")
        flipped = "latitude" in space and standard.latitude.size > 1 and bool((np.diff(standard.latitude) > 0).all())
        if flipped:
            standard = standard.isel(latitude=slice(None, None, -1))
        found = cls(standard, what, own_names, _labels(dataset, what, names), flipped)
        for name in outer[:1]:
            first = standard[name]
            if first.dtype.kind != "M":
                raise InputError(f"{what} has {name} of the type {first.dtype}; convert it with pandas.to_datetime")
            found._refuse_disorder(name, first.values)
        return found

    def _refuse_disorder(self, name: str, values: np.ndarray) -> None:
        if not (values[1:] > values[:-1]).all():
            place = int(np.argmin(values[1:] > values[:-1]))
            own = self.own_names[name]
            raise InputError(
                f"{self.what}: {own} must increase, and {values[place]} is followed by {values[place + 1]}; sort it "
                f"with dataset.sortby({own!r}), and keep each once with drop_duplicates"
            )

    @cached_property
    def grid(self) -> Grid:
        """The grid, or the points."""
        if self.stations is not None:
            return self.stations
        try:
            return grid_of(self.dataset)
        except InputError as error:
            raise InputError(f"{self.what}: {error}") from None

    def at_stations(self, points: Points) -> StandardDataset:
        """Return the fields of a grid at stations, from the cells that `points` name, as `RegriddedReader` has them.

        Arrays of dask stay lazy.
        """
        weights = station_weights(self.grid, points)
        names = ("latitude", "longitude") if "latitude" in self.dataset.dims else ("point",)
        numbers = np.divmod(weights.positions, weights.columns) if len(names) > 1 else (weights.positions,)
        places = {name: xr.Variable(("station_", "cell_"), each) for name, each in zip(names, numbers, strict=True)}
        shares = xr.DataArray(weights.weights, dims=("station_", "cell_"))

        def brought(array: xr.DataArray) -> xr.DataArray:
            if not {*names} & {*array.dims}:
                return array
            cells = array.drop_vars(names, errors="ignore").isel(places)
            there = cells.notnull()
            share = (there * shares).sum("cell_")
            share = share.where(share <= 1 - 1e-9, 1.0)
            mean = (cells.fillna(0).astype(np.float64) * shares).sum("cell_") / share.where(share > 0, 1.0)
            mean = mean.where(share >= MINIMUM_SHARE - 1e-9)
            mean = mean.astype(array.dtype) if array.dtype.kind == "f" else mean  # a mean of whole numbers is none
            return mean.rename(station_="point").assign_attrs(array.attrs)

        dataset = self.dataset.drop_vars(
            [name for name, one in self.dataset.coords.items() if name not in one.dims and {*names} & {*one.dims}]
        )
        moved = dataset.map(brought, keep_attrs=True).drop_vars(names, errors="ignore")
        moved = moved.assign_coords(grid_coordinates(points))
        own = {name: own for name, own in self.own_names.items() if name not in names} | {"point": "point"}
        return replace(self, dataset=moved, own_names=own, flipped=False, stations=points)

    def own_name(self, variable: Variable) -> str:
        """Return the name of a variable in the user's dataset."""
        surface = f"{variable.label}_surface"
        if not variable.level and surface in self.labels:
            return self.labels[surface]
        if variable.label not in self.labels:
            known = ", ".join(self.labels) or "none"
            raise InputError(
                f"{self.what} lacks the variable {variable}; it has {known}; open it, or state its name there with "
                f"names={{NAME: {str(variable)!r}}}"
            )
        return self.labels[variable.label]

    def field(self, variable: Variable, outer: Sequence[str]) -> xr.DataArray:
        """Return a variable in GRIB's units, with the dimensions `outer` and latitude, longitude, or point."""
        array = self.dataset[self.own_name(variable)].rename(variable.label)
        if variable.level:
            if "level" not in array.dims or variable.level not in array.level.values:
                levels = array.level.values.tolist() if "level" in array.dims else "no dimension level"
                raise InputError(f"{self.what} lacks {variable}: {variable.label} has {levels}; open this level")
            array = select_variable(array.to_dataset(), variable)
        space = ("point",) if isinstance(self.grid, Points) else ("latitude", "longitude")
        wanted = (*outer, *space)
        if missing := [name for name in wanted if name not in array.dims]:
            raise InputError(f"{self.what}: {variable} lacks the dimension {missing[0]}; it has {joined(array.dims)}")
        if further := [name for name in array.dims if name not in wanted]:
            raise InputError(
                f"{self.what}: {variable} has the dimension {further[0]}, which is not known here; select one of its "
                f"values, or rename it to one of {', '.join((*outer, 'level', *space))}"
            )
        if array.dtype.kind != "f":
            raise InputError(f"{self.what}: {variable} has the type {array.dtype}; convert it with astype('float32')")
        return self.conversion(variable).apply(array.transpose(*wanted))

    def conversion(self, variable: Variable) -> Conversion:
        """Return the conversion from the dataset's units to GRIB's; none where either are unknown, or others."""
        own, known = self._own_units(variable), PARAMETERS.get(variable.name)
        found = find_conversion(own, known.units, water=known.water) if own and known else None
        return found or Conversion()

    def units(self, variable: Variable) -> str:
        """Return the units of `field` in standard spelling, "" without the attribute `units`."""
        units = PARAMETERS[variable.name].units if self.conversion(variable).changes else self._own_units(variable)
        return normalize_units(units) if units else ""

    def _own_units(self, variable: Variable) -> str:
        return str(self.dataset[self.own_name(variable)].attrs.get("units", ""))

    def forecast_fields(self, variables: Sequence[Variable], lead_times: Sequence[int]) -> Fields:
        """Open forecasts of variables at `lead_times` (hours)."""
        arrays = {variable: self.field(variable, FORECAST) for variable in variables}
        return forecasts_in_arrays(arrays, map(self.meaning, arrays), self.grid, lead_times, self.what)

    def analysis_fields(self, variables: Sequence[Variable]) -> Fields:
        """Open analyses of variables, as forecasts with lead time 0 and one member; their start is the valid time."""
        arrays = {variable: self.field(variable, ANALYSIS) for variable in variables}
        return analyses_in_arrays(arrays, map(self.meaning, arrays), self.grid, self.what)

    def meaning(self, variable: Variable) -> Meaning:
        """Return units and level of a variable, without lead times."""
        return Meaning(variable, self.units(variable), (), _level(variable, self.dataset[self.own_name(variable)]))


@dataclass(frozen=True, eq=False)
class ArrayReader:
    """Reads fields of arrays (init_time, lead_time, number, latitude, longitude) of xarray, one for each channel.

    Fields are numbered by start, lead time, member and channel.
    """

    arrays: tuple[xr.DataArray, ...]
    grid: Grid
    what: str
    """The subject of error messages."""

    @property
    def shape(self) -> tuple[int, ...]:
        """Number of starts, lead times, members and channels."""
        return (*self.arrays[0].shape[:3], len(self.arrays))

    def read(self, wanted: np.ndarray, out: np.ndarray, window: Window) -> None:
        """Read the `window` of the fields with the numbers `wanted` (..., C); see `FieldReader`."""
        if wanted.ndim == 1:
            wanted, out = wanted[None], out[None]
        out[wanted < 0] = np.nan
        rows, columns = window
        part = (rows,) if isinstance(self.grid, Points) else window
        arrays, places, start, lead = [], [], 0, 0
        for channel in np.flatnonzero((wanted >= 0).any(0)).tolist():
            there = np.flatnonzero(wanted[:, channel] >= 0)
            starts, leads, members, owns = np.unravel_index(wanted[there, channel], self.shape)
            borders = np.flatnonzero(np.diff(starts) | np.diff(leads)) + 1
            for rows in np.split(np.arange(len(there)), borders):  # the members of one start and lead time
                start, lead, own = (int(axis[rows[0]]) for axis in (starts, leads, owns))
                arrays.append(self.arrays[own].variable[(start, lead, compact(members[rows]), *part)].data)
                places.append((compact(there[rows]), channel))
        times = self.arrays[0].coords
        time = times["init_time"].values[start].astype("datetime64[s]")
        where = f"the forecast of {time} +{times['lead_time'].values[lead]} h"
        for place, values in zip(places, self._computed(arrays, where), strict=True):
            out[place] = values[..., None][..., columns] if isinstance(self.grid, Points) else values

    def incomplete(
        self, variables: Sequence[Variable], numbers: Sequence[int]
    ) -> Mapping[tuple[int, int], MissingFields]:
        """Return the fields without any value, as in `Fields`; each array is read once for this."""
        starts = [array[k : k + 1] for k in range(self.shape[0]) for array in self.arrays]
        if any(array.chunks for array in self.arrays):
            starts = list(self.arrays)
        space = [axis for axis in self.arrays[0].dims if axis not in FORECAST]
        empty = list(self._emptiness(starts, space))
        count = len(self.arrays)
        tables = [np.concatenate(empty[channel::count]) for channel in range(count)]
        return missing_fields(np.stack(tables, -1), variables, numbers, lambda *_: self.what)

    def _emptiness(self, arrays: Sequence[xr.DataArray], space: Sequence[Hashable]) -> Iterator[np.ndarray]:
        """Yield for each array where no cell has a value, (init, lead, member)."""
        if any(array.chunks for array in arrays):
            yield from self._computed([array.isnull().all(space).data for array in arrays], "all forecasts")
        else:
            yield from (np.isnan(array.values).all(tuple(range(3, array.ndim))) for array in arrays)

    def _computed(self, arrays: Sequence[Any], where: str) -> Sequence[np.ndarray]:
        """Return arrays in memory; those of dask are computed together."""
        if not any(hasattr(array, "dask") for array in arrays):
            return [np.asarray(array) for array in arrays]
        import dask

        try:
            computed: Sequence[np.ndarray] = dask.compute(*arrays)
        except InputError:
            raise
        except Exception as error:  # a chunk may call any library
            raise InputError(
                f"{self.what} cannot be computed for {where} ({type(error).__name__}: {error}); check it with "
                "dataset.compute()"
            ) from error
        return computed


def static_names(dataset: xr.Dataset) -> list[Hashable]:
    """Return the names of the variables that have no other dimensions than those of the grid."""
    space = {name for name in dataset.dims if name == "point" or named_role(str(name)) in ("latitude", "longitude")}
    return [name for name in dataset.data_vars if dataset[name].ndim and not {*dataset[name].dims} - space]


def forecasts_in_arrays(
    arrays: Mapping[Variable, xr.DataArray],
    meanings: Iterable[Meaning],
    grid: Grid,
    lead_times: Sequence[int],
    what: str,
) -> Fields:
    """Open arrays (init_time, lead_time, number, latitude, longitude) at `lead_times` (hours)."""
    first = next(iter(arrays.values()))
    known = first.lead_time.values.tolist()
    if absent := [lead for lead in lead_times if lead not in known]:
        has = joined(known)
        raise InputError(f"{what} has no lead time {absent[0]} h; it has {has} h; open it, or change the task")
    at = [known.index(lead) for lead in lead_times]
    chosen = list(arrays.values())
    if at != list(range(len(known))):
        chosen = [array.isel(lead_time=at) for array in chosen]
    numbers = first.number.values
    if numbers.dtype.kind not in "iu":
        numbers = np.arange(numbers.size)
    reader = ArrayReader(tuple(chosen), grid, what)
    variables, members = tuple(arrays), tuple(numbers.tolist())
    starts = first.init_time.values.astype("datetime64[s]")
    found = tuple(replace(one, intervals=Meaning.stated(one.variable, lead_times).intervals) for one in meanings)
    cells = np.arange(np.prod(reader.shape)).reshape(reader.shape)
    missing = partial(reader.incomplete, variables, members)
    return Fields(reader, variables, starts, tuple(lead_times), members, found, cells, missing)


def analyses_in_arrays(
    arrays: Mapping[Variable, xr.DataArray], meanings: Iterable[Meaning], grid: Grid, what: str
) -> Fields:
    """Open arrays (time, latitude, longitude) as forecasts with lead time 0 and one member, that start then."""
    opened = {
        variable: one.rename(time="init_time").expand_dims({"lead_time": [0], "number": [0]}, (1, 2))
        for variable, one in arrays.items()
    }
    return forecasts_in_arrays(opened, meanings, grid, (0,), what)


def levels_of_arrays(name: str, *arrays: xr.DataArray) -> list[str]:
    """Return the level of each array of the variable with a usual name, such as `t2m`; empty where it is unknown."""
    short_name = NameMap().short_name(name, {}, None)
    known = re.fullmatch(r"[A-Za-z0-9_]+", short_name)
    return [_level(Variable(short_name), array) if known else "" for array in arrays]


def _level(variable: Variable, array: xr.DataArray) -> str:
    """Return the level of a variable, from the attributes and the scalar coordinates of its array."""
    axes = ((str(name), axis.attrs, axis.values) for name, axis in array.coords.items() if not axis.ndim)
    return stated_level(variable, array.attrs, axes)


def _labels(dataset: xr.Dataset, what: str, names: Mapping[str, str] | None) -> dict[str, str]:
    """Return the own name of each variable by its label; `names` maps own names to variables, such as t2m to 2t."""
    names = names or {}
    if absent := [name for name in names if name not in dataset.data_vars]:
        raise InputError(
            f"names has {absent[0]!r}, which {what} does not have; it has {joined(dataset.data_vars) or 'no variable'}"
        )
    found: dict[str, str] = {}
    for own in map(str, dataset.data_vars):
        label = Variable.parse(names[own]).label if own in names else own
        if label in found:
            raise InputError(f"{what} has {label} twice, as {found[label]} and as {own}; drop one of them")
        found[label] = own
    return found
