"""The fields of one variable of one file: which time, member and level each field belongs to."""

from __future__ import annotations

import math
import re
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np

from data_pipeline.common.errors import InputError
from data_pipeline.formats.catalog import Summary
from data_pipeline.formats.cf.cell_methods import PRODUCT_ATTRIBUTE, refuse_statistics, stated_process
from data_pipeline.formats.cf.cf_header import DataVariable, Header, Role, role_of
from data_pipeline.formats.cf.cf_variables import NameMap, amount_conversion, find_own_conversion, rate_conversion
from data_pipeline.formats.cf.coordinates import NO_WHOLE_LEVEL, SURFACE, Horizontal, levels_of, model_levels
from data_pipeline.formats.cf.geometry import Geometry
from data_pipeline.formats.cf.percentiles import members_of_percentiles, percentile_levels
from data_pipeline.formats.cf.times import FieldTimes, TimeCoordinates
from data_pipeline.formats.levels import MODEL_LEVELS, axis_level, stated_level, with_axes
from data_pipeline.grids.points import Points, has_ids
from data_pipeline.task import Variable, own_process
from data_pipeline.variables.meaning import UNKNOWN
from data_pipeline.variables.parameters import PARAMETERS
from data_pipeline.variables.units import Conversion, normalize_units


@dataclass(frozen=True)
class RefusedVariable:
    """A variable that cannot be read, and the reason; `product` if `correct` has written it beside its members."""

    short_name: str
    reason: str
    product: bool = False


@dataclass(frozen=True, eq=False)
class FieldBlock:
    """The fields of a variable, in the file's order along its `outer` dimensions.

    `across` are the dimensions of rows and columns, or of points (two, one, or none for a single point); `outer` are
    all other dimensions. `levels` (hPa; negative numbers of model levels) and `numbers` (members) have one entry per
    field. `process` is the processing over time; it is empty if neither the file nor the user's name states it. `hours`
    is the interval that the user's name states, or 0. `summary` is empty except for the means, standard deviations and
    quantiles of `cf.summaries`.
    """

    header: Header
    data: DataVariable
    short_name: str
    outer: tuple[str, ...]
    across: tuple[str, ...]
    levels: np.ndarray
    numbers: np.ndarray
    time: TimeCoordinates
    horizontal: Horizontal
    process: str = ""
    summary: Summary = ""
    hours: int = 0

    @classmethod
    def of(
        cls, header: Header, data: DataVariable, names: NameMap, timeless: bool = False
    ) -> FieldBlock | RefusedVariable | None:
        """Interpret a variable; None if it has no latitudes and longitudes. `timeless` ignores processing over time."""
        short_name, given = data.name, names.given(data.name)
        try:
            data = _with_units(header, data, names.given_units(data.name))
            geometry = Geometry.of(header, data)
            if geometry is None:
                return None
            _refuse_probabilities(header, data)
            height = None if header.coordinates_of(data, "level") else _height(header, data, geometry.dimensions)
            short_name = names.short_name(data.name, data.attributes, height)
            Variable(short_name)
            horizontal, across = geometry.horizontal(header, data), geometry.dimensions
            outer = tuple(name for name in data.dimensions if name not in across)
            levels = levels_of(header, data, outer, short_name, given)
            time = TimeCoordinates.of(header, data)
            roles: tuple[Role, Role] = ("number", "quantile")
            members = {coordinate.name for role in roles for coordinate in header.coordinates_of(data, role)}
            refuse_statistics(data.attributes, {*data.dimensions, *data.coordinate_names} - members)
            _refuse_other_dimensions(header, data, outer, time, bool((levels < 0).any()))
            numbers = _numbers(header, data, outer)
            process = "" if timeless else _process(header, data, given)
            hours = given.period if given and not timeless else 0
            return cls(header, data, short_name, outer, across, levels, numbers, time, horizontal, process, hours=hours)
        except InputError as error:
            place = header.place(data)
            reason = str(error) if str(error).startswith(place) else f"{place}: {error}"
            return RefusedVariable(short_name, reason, PRODUCT_ATTRIBUTE in data.attributes)

    def __str__(self) -> str:
        return self.header.place(self.data)

    @cached_property
    def shape(self) -> tuple[int, ...]:
        """The sizes of the outer dimensions."""
        return self.data.sizes(self.outer)

    @cached_property
    def stored(self) -> np.ndarray:
        """Whether the values of each field were ever written, (n,)."""
        found = self.header.file.stored_fields(self.data, self.outer)
        return np.ones(len(self.levels), bool) if found is None else found

    @cached_property
    def variables(self) -> tuple[Variable | None, ...]:
        """The different variables of the fields; None for fields whose pressure is not a whole number of hPa."""
        levels = np.unique(self.levels).tolist()
        return tuple(None if level == NO_WHOLE_LEVEL else self.variable(level) for level in levels)

    def variable(self, level: int) -> Variable:
        """Return the variable of the fields at a level; a negative one is the number of a model level."""
        process = own_process(self.short_name) if self.rate else self.process
        if level < 0:
            return Variable(f"{self.short_name}_ml{-level}", process=process)
        return Variable(self.short_name, level, process=process)

    def fields_of(self, variable: Variable) -> np.ndarray:
        """Return whether each field belongs to a variable."""
        fits = np.array([own == variable for own in self.variables])
        return np.asarray(fits[np.unique(self.levels, return_inverse=True)[1]])

    @property
    def percentiles(self) -> np.ndarray:
        """The levels of the percentiles that are read as members; empty for members."""
        found = None if self.header.coordinate(self.data, "number") else self.header.coordinate(self.data, "quantile")
        return np.empty(0) if found is None else percentile_levels(found, str(self))

    @cached_property
    def level(self) -> str:
        """The level of fields that are not on pressure levels; see `formats.levels`."""
        axes = (one for one in self.header.vertical_axes(self.data) if not set(one.dimensions) & set(self.across))
        described = [(axis.name, axis.attributes, axis.values) for axis in axes]
        if (self.levels < 0).any():
            kinds = (axis_level(name, about, 1.0)[0] for name, about, _ in described)
            return next(kind for kind in kinds if kind in MODEL_LEVELS)
        grid = self.horizontal.grid
        variable, plane = self.variable(SURFACE), isinstance(grid, Points) and not grid.ids
        level = stated_level(variable, self.data.attributes, described, plane)
        # Winds at stations are eastward and northward.
        return with_axes(variable, level, False) if has_ids(grid) else level

    @cached_property
    def times(self) -> FieldTimes:
        """Starts, lead times and intervals of the fields."""
        instant = self.variable(0).processing == "instant"
        if instant and not self.process and self.time.has_intervals:
            raise InputError(
                f"{self} has time bounds but no cell_methods, so its values may be instantaneous or means; state "
                f"what they are in a copy with ncatted -a cell_methods,{self.data.name},o,c,'time: point' (or "
                "'time: mean') IN OUT"
            )
        found = self.time.decode(self.data, self.outer, instant)
        return self._over_given_hours(found) if self.hours and not instant else found

    def _over_given_hours(self, found: FieldTimes) -> FieldTimes:
        """Return the times with the interval that the user's name states; the file's bounds must agree with it."""
        minutes = 60 * self.hours
        if self.time.has_intervals:
            if other := {*found.intervals.tolist()} - {minutes}:
                raise InputError(
                    f"{self} covers {min(other) / 60:g} h according to the bounds of its times, not {self.hours} h; "
                    f"write data.archive.variable_names={{{self.data.name}: {self.short_name}}}"
                )
            return found
        whole = (found.leads >= minutes) | (not self.time.has_leads)
        return found._replace(intervals=np.where(whole, minutes, UNKNOWN))

    @cached_property
    def rate(self) -> Conversion | None:
        """For mean rates, such as precipitation in kg m-2 s-1, the conversion to GRIB's units per second."""
        return rate_conversion(self.short_name, self.process, self.data.attributes)

    @cached_property
    def conversion(self) -> Conversion:
        """The conversion from the file's units to GRIB's; an `InputError` if it is unknown."""
        if self.rate:
            found = amount_conversion(str(self), self.short_name, self.rate, self.times.intervals)
        else:
            found = find_own_conversion(str(self), self.short_name, self.data)
        return Conversion(found.factor) if self.summary == "std" else found  # 2 degC of spread are 2 K

    @property
    def units_and_long_name(self) -> tuple[str, str]:
        """Units and long name: GRIB's for a known parameter, else the file's."""
        if self.short_name in PARAMETERS:
            return PARAMETERS[self.short_name].units, PARAMETERS[self.short_name].long_name
        attributes = self.data.attributes
        return str(attributes.get("units", "unknown")), str(attributes.get("long_name", self.data.name))


def _process(header: Header, data: DataVariable, given: Variable | None) -> str:
    """Return the processing over time from the file, else from the user's name; empty if neither states it."""
    roles = {coordinate.name: coordinate.role for coordinate in header.coordinates}
    stated = stated_process(data.attributes, lambda name: roles.get(name) or role_of(name, {}))
    if stated and given and given.process not in ("", stated):
        raise InputError(
            f"it is a {stated} according to its attributes, not a {given.process}; write "
            f"data.archive.variable_names={{{data.name}: {given.name}}}"
        )
    return stated or (given.process if given else "")


def _with_units(header: Header, data: DataVariable, units: str) -> DataVariable:
    """Return the variable, with the user's `units` if the file states none; an `InputError` if the file's differ."""
    own = str(data.attributes.get("units", ""))
    if not units or normalize_units(own) == normalize_units(units):
        return data
    if own:
        raise InputError(
            f"{header.place(data)} is in {own!r}, not in {units} as data.archive.variable_names says; leave out the "
            "units there"
        )
    return replace(data, attributes={**data.attributes, "units": units})


def _height(header: Header, data: DataVariable, across: tuple[str, ...]) -> float | None:
    """Return the height of a variable above the ground (m) if the file has a scalar height, else None.

    A height along the dimension `across` of stations is ignored: it is the height of the station.
    """
    found = [c for c in header.coordinates_of(data, "height") if not set(c.dimensions) & set(across)]
    values = [c.values for c in found if c.values is not None and c.values.dtype.kind in "fiu"]
    return float(values[0].item()) if len(values) == 1 and values[0].size == 1 else None


def _numbers(header: Header, data: DataVariable, outer: tuple[str, ...]) -> np.ndarray:
    """Return the member of each field: 0 without a member dimension; 1, 2, 3... if the dimension has no values.

    Percentiles of equal parts of the distribution are members, too.
    """
    member = header.coordinate(data, "number")
    if member is None and (percentiles := header.coordinate(data, "quantile")):
        return data.broadcast(percentiles, members_of_percentiles(percentiles, header.place(data)), outer)
    if member is None:
        return np.zeros(math.prod(data.sizes(outer)), np.int64)
    if member.values is None:
        return data.broadcast(member, np.arange(1, data.sizes([member.name])[0] + 1), outer)
    values = member.values
    if values.dtype.kind not in "fiu":
        found = [re.search(r"\d+$", str(value)) for value in values.ravel().tolist()]
        ends = [int(match[0]) if match else None for match in found]
        if values.size == 1 and None in ends:
            if re.search(r"mean|median|spread|std|stddev|sigma|prob", str(values.item()).lower()):
                raise InputError(
                    f"its member {values.item()!r} is a statistic, no member of an ensemble; name other files"
                )
            ends = [0]
        if None in ends or len(set(ends)) < len(ends):
            raise InputError(
                f"its members ({member.name}) have no numbers; number them, for instance with ncap2 of NCO"
            )
        values = np.array(ends).reshape(values.shape)
    if (values != np.round(values)).any() or (values < 0).any():
        raise InputError(
            f"its members ({member.name}) must have whole numbers from 0, got {values.ravel()[:3].tolist()}"
        )
    return data.broadcast(member, values.astype(np.int64), outer)


def _refuse_probabilities(header: Header, data: DataVariable) -> None:
    """Raise an `InputError` for probabilities of thresholds, as IMPROVER writes them."""
    names = (data.name, str(data.attributes.get("standard_name", "")), str(data.attributes.get("long_name", "")))
    if any(name.lower().startswith("probability_of_") for name in names):
        raise InputError(
            f"{header.place(data)} holds probabilities, not values of a forecast; make percentiles of them, for "
            "instance with improver generate-percentiles --percentiles 10 20 30 40 50 60 70 80 90"
        )


def _refuse_other_dimensions(
    header: Header, data: DataVariable, outer: tuple[str, ...], time: TimeCoordinates, numbered: bool
) -> None:
    """Raise an `InputError` if an outer dimension with several values is neither time, member nor level.

    Model levels count if the variable's fields are `numbered` by them.
    """
    member = header.coordinate(data, "number") or header.coordinate(data, "quantile")
    understood = [*time.coordinates, header.coordinate(data, "level"), member]
    understood += [model_levels(header, data)[0]] if numbered else []
    counted = {name for coordinate in understood if coordinate for name in coordinate.dimensions}
    for name, size in zip(data.dimensions, data.shape, strict=True):
        if name in outer and name not in counted and size > 1:
            raise InputError(
                f"its dimension {name} ({size} values) is not recognised as time, member, pressure, latitude or "
                f"longitude; select one value, for instance with ncks -d {name},0, or add its coordinate"
            )
