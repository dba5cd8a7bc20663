"""Formula: the text of an input that is computed from other fields, as a tree of operations on channels.

    advection(t@850)                       -u·∇t with the wind at 850 hPa, K s⁻¹
    change(thickness(500, 850), 24)        thickness less the thickness 24 h earlier in the same forecast, m

`FORMULA_OPERATIONS` lists all operations. Formulas are parsed and checked without reading a file.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

from data_pipeline.common.errors import InputError
from data_pipeline.common.identity import sha256_of_bytes
from data_pipeline.common.messages import joined
from data_pipeline.formulas.sphere_derivatives import REACH
from data_pipeline.variables.parameters import VECTOR_COMPONENTS
from data_pipeline.variables.units import normalize_units
from data_pipeline.variables.variable import Channel, Variable

WIND_OPERATIONS = ("vorticity", "absolute_vorticity", "divergence", "speed", "geopotential_tendency")
"""Operations on both components of the wind; `vorticity@500` is short for `vorticity(u@500, v@500)`."""
GROUP_OPERATIONS = GROUP_MEAN, GROUP_SPREAD, IN_GROUP = "group_mean", "group_spread", "in_group"
LAGGED_OPERATIONS = LAGGED_MEAN, LAGGED_SPREAD = "lagged_mean", "lagged_spread"
"""Operations on a group of members, or on all members of an earlier start. All members have the same value, but for
`in_group`: 1 for the members of the group, 0 for all others."""
MEANS_OF_GROUPS, SPREADS_OF_GROUPS = (GROUP_MEAN, LAGGED_MEAN), (GROUP_SPREAD, LAGGED_SPREAD)
WHOLE_GLOBE = 1_000_000
"""Reach of operations whose values depend on all rows: more rows than any grid has."""
_SUPERSCRIPTS = str.maketrans("0123456789-", "⁰¹²³⁴⁵⁶⁷⁸⁹⁻")


@dataclass(frozen=True)
class Formula(Variable):
    """An input that is computed from other fields, separately for every member, or from a group of members.

    `name` consists of the operation and a hash of the operands, so that a store can hold the values like a variable.
    `operation` is a key of `FORMULA_OPERATIONS`; its `operands` are channels of the same forecast, or other formulas.
    `members` are the first and the last number of the members of a group, or the first number only; `lag` says how many
    hours before the forecast the group has started. Its fields are valid at the same time.
    Formulas with equal operations and operands are equal: `vorticity@500` equals `vorticity(u@500, v@500)`.
    """

    operation: str = ""
    operands: tuple[Channel | Formula, ...] = ()
    members: tuple[int, ...] = ()
    lag: int = 0
    text: str = field(default="", compare=False)

    @classmethod
    def parse(cls, text: str) -> Formula:
        """Parse the text of a formula.

        >>> print(Formula.parse("advection( t@850 )"), *Formula.parse("vorticity@500").leaves)
        advection(t@850) u@500 v@500
        """
        found = _parse(str(text).strip(), str(text))
        if isinstance(found, Channel):
            raise InputError(
                f"{text!r} in formulas is no formula; write it in inputs or other_leads, or choose one of "
                f"{', '.join(FORMULA_OPERATIONS)}"
            )
        return found

    @property
    def leaves(self) -> tuple[Channel, ...]:
        """The different fields that the formula reads."""
        found: dict[Channel, None] = {}
        for operand in self.operands:
            found |= dict.fromkeys((operand,) if isinstance(operand, Channel) else operand.leaves)
        return tuple(found)

    @property
    def reach(self) -> int:
        """How many rows to the north and to the south the values in a row depend on."""
        own = FORMULA_OPERATIONS[self.operation].reach
        return own + max((one.reach for one in self.operands if isinstance(one, Formula)), default=0)

    @property
    def units(self) -> str:
        """Units of the values if the fields have the units in `PARAMETERS`."""
        return self.units_from({leaf: leaf.variable.units for leaf in self.leaves}).translate(_SUPERSCRIPTS)

    def units_from(self, units: dict[Channel, str]) -> str:
        """Return the units of the values from the `units` of all `leaves`; raise `InputError` if they do not fit.

        The result is empty (unknown) if it depends on a field with empty units.
        """
        own = [one.units_from(units) if isinstance(one, Formula) else units[one] for one in self.operands]
        return FORMULA_OPERATIONS[self.operation].units(self, [normalize_units(one) if one else "" for one in own])

    @property
    def title(self) -> str:
        """The text of the formula."""
        return self.text

    def in_group(self, number: int) -> bool:
        """Return whether the member `number` belongs to the group of members."""
        return within(number, self.members)

    @property
    def sea_only(self) -> bool:
        """Whether a field that the formula reads is missing on land."""
        return any(leaf.variable.sea_only for leaf in self.leaves)

    @property
    def parity(self) -> int:
        """The factor on the values across a pole: -1 if they change sign there, else 1."""
        own = FORMULA_OPERATIONS[self.operation].parity
        return own * _parity(self.operands[0]) if own else 1

    def __str__(self) -> str:
        return self.text


def within(number: int, members: Sequence[int]) -> bool:
    """Return whether a member is among `members`: the first and the last number, or the first only."""
    return members[0] <= number <= members[-1] or (len(members) == 1 and members[0] <= number)


def read_variable(text: str) -> Variable:
    """Return the formula or the variable that `text` describes."""
    return Formula.parse(text) if _is_formula(text) else Variable.parse(text)


class FormulaOperation(NamedTuple):
    """Arguments and units of an operation; `formula_values.py` computes its values."""

    usage: str
    operands: Callable[[Sequence[Any], str], tuple[Channel | Formula, ...]]
    """Function that returns the operands from the arguments in the text, or raises `InputError`."""
    units: Callable[[Formula, list[str]], str]
    """Function that returns the units of the values from the units of the operands."""
    reach: int = 0
    """How many rows to the north and to the south the values in a row depend on; `WHOLE_GLOBE` for all rows."""
    parity: int = 1
    """Parity of the values if the first operand does not change sign across a pole; 0 if they never do."""


def _parse(text: str, whole: str) -> Channel | Formula:
    if not _is_formula(text):
        return _leaf(text)
    if found := re.fullmatch(r"([a-z_]+)@(\d+)", text):
        return _make(found[1], text, [_leaf(f"{name}@{found[2]}") for name in "uv"])
    name, bracket, inside = text.partition("(")
    name = name.strip()
    if name not in FORMULA_OPERATIONS or not bracket or not inside.endswith(")"):
        usages = ", ".join(one.usage for one in FORMULA_OPERATIONS.values())
        raise InputError(f"cannot read the formula {whole!r}; write one of {usages}")
    arguments = [int(part) if part.isdigit() else _parse(part, whole) for part in _split(inside[:-1], whole)]
    return _make(name, f"{name}({joined(arguments)})", arguments)


def _make(operation: str, text: str, arguments: Sequence[Any]) -> Formula:
    found = _named(operation, text, FORMULA_OPERATIONS[operation].operands(arguments, text), arguments[1:])
    if operation in GROUP_OPERATIONS:
        return replace(found, members=tuple(arguments[1:]))
    return replace(found, members=(0,), lag=arguments[1]) if operation in LAGGED_OPERATIONS else found


def _named(operation: str, text: str, operands: Sequence[Channel | Formula], arguments: Sequence[Any] = ()) -> Formula:
    """Return a formula; the `arguments` that are numbers belong to its name if the operands do not have them."""
    numbers = arguments if operation in (*GROUP_OPERATIONS, *LAGGED_OPERATIONS) else ()
    full = ", ".join([*(one.name if isinstance(one, Formula) else str(one) for one in operands), *map(str, numbers)])
    name = f"{operation}_{sha256_of_bytes(full.encode())[:12]}"
    return Formula(name, operation=operation, operands=tuple(operands), text=text)


def _is_formula(text: str) -> bool:
    return "(" in text or ")" in text or text.partition("@")[0] in WIND_OPERATIONS


def _split(text: str, whole: str) -> Iterator[str]:
    """Yield the arguments of an operation; commas inside brackets do not separate arguments."""
    depth, part = 0, ""
    for character in text:
        depth += (character == "(") - (character == ")")
        if depth < 0:
            break
        if character == "," and not depth:
            yield part.strip()
            part = ""
        else:
            part += character
    if depth:
        raise InputError(f"the brackets of the formula {whole!r} do not match; close every bracket once")
    yield part.strip()


def _leaf(text: str) -> Channel:
    return Channel.other_lead(text) if re.search(r"[+-]\d+h$", text) else Channel(Variable.parse(text))


def _parity(operand: Channel | Formula) -> int:
    return operand.parity if isinstance(operand, Formula) else operand.variable.parity


def _earlier(operand: Channel | Formula, hours: int) -> Channel | Formula:
    """Return the same field or formula `hours` earlier in the forecast."""
    if isinstance(operand, Formula):
        return _named(
            operand.operation, f"{operand} {hours} h earlier", [_earlier(one, hours) for one in operand.operands]
        )
    if operand.origin == "start":
        raise InputError(
            f"{operand} has a fixed lead time, so it has no change; write change({operand.variable}, {hours})"
        )
    return Channel(operand.variable, "before", operand.hours + hours)


def _require(right: bool, text: str) -> None:
    if not right:
        operation = FORMULA_OPERATIONS[re.split("[@(]", text)[0]]
        raise InputError(f"the formula {text} has wrong arguments; write it like {operation.usage}")


def _are_fields(arguments: Sequence[Any], count: int) -> bool:
    """Return whether there are `count` arguments that have a value for every member."""
    return len(arguments) == count and all(
        isinstance(one, Channel) or (isinstance(one, Formula) and not one.members) for one in arguments
    )


def _grouped(arguments: Sequence[Any], text: str) -> tuple[Channel | Formula, ...]:
    """Return the variable of a group of members, whose numbers are whole and in order."""
    field, *numbers = arguments
    _require(isinstance(field, Channel) and field.origin == "lead" and len(numbers) in (1, 2), text)
    _require(all(type(one) is int for one in numbers) and numbers == sorted(numbers), text)
    return (field,)


def _lagged(arguments: Sequence[Any], text: str) -> tuple[Channel | Formula, ...]:
    """Return the variable of all members of an earlier start."""
    _require(len(arguments) == 2 and type(arguments[1]) is int and arguments[1] > 0, text)
    return _grouped(arguments, text)


def _scalar(arguments: Sequence[Any], text: str) -> tuple[Channel | Formula, ...]:
    _require(_are_fields(arguments, 1), text)
    _refuse_component(arguments[0], text)
    return (arguments[0],)


def _refuse_component(operand: Channel | Formula, text: str) -> None:
    if _parity(operand) == -1:
        raise InputError(
            f"{text}: {operand} is a component of a vector, whose directions turn from cell to cell; use vorticity, "
            "divergence or speed of the wind, or another field"
        )


def _wind(arguments: Sequence[Any], text: str) -> tuple[Channel | Formula, ...]:
    _require(_are_fields(arguments, 2), text)
    return _wind_of(arguments, text)


def _rotating(arguments: Sequence[Any], text: str) -> tuple[Formula, ...]:
    """Return the relative vorticity of the wind as operand; the operation adds the planetary vorticity."""
    return (_made_of("vorticity", *_wind(arguments, text)),)


def _changing(arguments: Sequence[Any], text: str) -> tuple[Formula, ...]:
    """Return the advection of absolute vorticity by the wind as operand."""
    wind = _wind(arguments, text)
    return (_made_of("advection", _made_of("absolute_vorticity", *wind), *wind),)


def _made_of(operation: str, *arguments: Channel | Formula) -> Formula:
    return _make(operation, f"{operation}({joined(arguments)})", arguments)


def _wind_of(components: Sequence[Channel | Formula], text: str) -> tuple[Channel, Channel]:
    """Return `components`; raise `InputError` unless they are the eastward and the northward component of one wind."""
    east, north = components
    if isinstance(east, Channel) and isinstance(north, Channel):
        place = {
            (one.variable.level, one.variable.period, one.variable.process, one.origin, one.hours)
            for one in (east, north)
        }
        names = east.variable.name, north.variable.name
        if len(place) == 1 and names in zip(VECTOR_COMPONENTS[::2], VECTOR_COMPONENTS[1::2], strict=True):
            return east, north
    raise InputError(
        f"{text}: {east} and {north} are not the eastward and the northward component of one wind; write both, in this "
        "order, of one level and lead time, such as u@500, v@500"
    )


def _advected(arguments: Sequence[Any], text: str) -> tuple[Channel | Formula, ...]:
    _require(_are_fields(arguments, 1) or _are_fields(arguments, 3), text)
    _refuse_component(arguments[0], text)
    if len(arguments) == 3:
        return arguments[0], *_wind_of(arguments[1:], text)
    leaves = (arguments[0],) if isinstance(arguments[0], Channel) else arguments[0].leaves
    places = {(leaf.variable.level, leaf.origin, leaf.hours) for leaf in leaves}
    if len(places) > 1:
        raise InputError(
            f"{text} has fields of several levels or lead times; name the wind, such as {text[:-1]}, u@700, v@700)"
        )
    ((level, origin, hours),) = places
    names = (f"u@{level}", f"v@{level}") if level else ("10u", "10v")
    return arguments[0], *(Channel(Variable.parse(name), origin, hours) for name in names)


def _layer(arguments: Sequence[Any], text: str) -> tuple[Channel | Formula, ...]:
    _require(len(arguments) == 2 and all(type(one) is int for one in arguments), text)
    _require(arguments[0] != arguments[1], text)
    return tuple(Channel(Variable("z", level)) for level in sorted(arguments))


def _pair(arguments: Sequence[Any], text: str) -> tuple[Channel | Formula, ...]:
    _require(_are_fields(arguments, 2) and _parity(arguments[0]) == _parity(arguments[1]), text)
    return tuple(arguments)


def _changed(arguments: Sequence[Any], text: str) -> tuple[Channel | Formula, ...]:
    _require(len(arguments) == 2 and _are_fields(arguments[:1], 1), text)
    _require(type(arguments[1]) is int and arguments[1] > 0, text)
    return arguments[0], _earlier(*arguments)


def _followed(arguments: Sequence[Any], text: str) -> tuple[Channel | Formula, ...]:
    """Return a field, the same field some hours earlier, and the wind at both times."""
    _require(len(arguments) in (2, 4), text)
    value, wind = _changed(arguments[:2], text), _advected([arguments[0], *arguments[2:]], text)[1:]
    return *value, *wind, *(_earlier(component, arguments[1]) for component in wind)


def _times(power: str) -> Callable[[Formula, list[str]], str]:
    def units(formula: Formula, own: list[str]) -> str:
        return normalize_units(f"{own[0]} {power}") if own[0] else ""

    return units


def _of_wind(power: str) -> Callable[[Formula, list[str]], str]:
    def units(formula: Formula, own: list[str]) -> str:
        _check_units(formula, own, "m s-1")
        return normalize_units(f"m s-1 {power}") if all(own) else ""

    return units


def _of_advection(formula: Formula, own: list[str]) -> str:
    _check_units(formula, ["m s-1", *own[1:]], "m s-1")
    return normalize_units(f"{own[0]} s-1") if all(own) else ""


def _of_layer(formula: Formula, own: list[str]) -> str:
    _check_units(formula, own, "m2 s-2")
    return "m" if all(own) else ""


def _of_parcel(formula: Formula, own: list[str]) -> str:
    _check_units(formula, ["m s-1", "m s-1", *own[2:]], "m s-1")
    return _equal_units(formula, own[:2])


def _equal_units(formula: Formula, own: list[str]) -> str:
    if all(own) and own[0] != own[1]:
        first, second, *_ = formula.operands
        raise InputError(f"{formula}: {first} is in {own[0]} and {second} in {own[1]}; convert one of them")
    return own[0] if all(own) else ""


def _check_units(formula: Formula, own: list[str], needed: str) -> None:
    for operand, found in zip(formula.operands, own, strict=True):
        if found and found != needed:
            raise InputError(
                f"{formula} needs {operand} in {needed}, it is in {found}; convert it, for instance with cdo"
            )


FORMULA_OPERATIONS = {
    "gradient": FormulaOperation("gradient(t@850)", _scalar, _times("m-1"), REACH),
    "eastward_gradient": FormulaOperation("eastward_gradient(t@850)", _scalar, _times("m-1"), REACH, parity=-1),
    "northward_gradient": FormulaOperation("northward_gradient(t@850)", _scalar, _times("m-1"), REACH, parity=-1),
    "laplacian": FormulaOperation("laplacian(t@850)", _scalar, _times("m-2"), REACH),
    "inverse_laplacian": FormulaOperation("inverse_laplacian(vorticity@500)", _scalar, _times("m2"), WHOLE_GLOBE),
    "balanced_geopotential": FormulaOperation(
        "balanced_geopotential(stretching(d@500))", _scalar, _times("m2 s-1"), WHOLE_GLOBE
    ),
    "stretching": FormulaOperation("stretching(d@500)", _scalar, _times("s-1")),
    "advection": FormulaOperation("advection(t@850)", _advected, _of_advection, REACH),
    "vorticity": FormulaOperation("vorticity@500", _wind, _of_wind("m-1"), REACH, parity=-1),
    "absolute_vorticity": FormulaOperation("absolute_vorticity@500", _rotating, _times("")),
    "divergence": FormulaOperation("divergence@500", _wind, _of_wind("m-1"), REACH, parity=-1),
    "geopotential_tendency": FormulaOperation("geopotential_tendency@500", _changing, _times("m2 s-1"), WHOLE_GLOBE),
    "speed": FormulaOperation("speed(10u, 10v)", _wind, _of_wind(""), parity=-1),
    "thickness": FormulaOperation("thickness(500, 850)", _layer, _of_layer),
    "difference": FormulaOperation("difference(skt, 2t)", _pair, _equal_units),
    "change": FormulaOperation("change(z@500, 24)", _changed, _equal_units),
    GROUP_MEAN: FormulaOperation("group_mean(2t, 1, 50)", _grouped, _times("")),
    GROUP_SPREAD: FormulaOperation("group_spread(2t, 1, 50)", _grouped, _times(""), parity=0),
    IN_GROUP: FormulaOperation("in_group(2t, 1, 50)", _grouped, lambda *_: "1", parity=0),
    LAGGED_MEAN: FormulaOperation("lagged_mean(2t, 24)", _lagged, _times("")),
    LAGGED_SPREAD: FormulaOperation("lagged_spread(2t, 24)", _lagged, _times(""), parity=0),
    "lagrangian_change": FormulaOperation("lagrangian_change(t@850, 24)", _followed, _of_parcel, WHOLE_GLOBE),
}
"""The operations by name. An operation of parity -1 on wind components, which also have parity -1, has parity 1."""
