"""What the columns of a table are: times, stations, and the values of members or observations."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from data_pipeline.common.errors import InputError
from data_pipeline.formats.cf.cf_header import Role, named_role

ROLES: tuple[Role, ...] = (
    "start", "time", "valid", "lead", "number", "station", "latitude", "longitude", "altitude", "model_altitude",
)  # fmt: skip
"""The roles that a column may have; values of other roles, such as levels, are not read from tables."""
_FURTHER_NAMES: dict[str, Role] = {
    "fcdate": "start", "fcst_dttm": "start", "date": "time", "datetime": "time", "validdate": "valid",
    "valid_dttm": "valid", "id": "station", "sid": "station", "site": "station", "location": "station",
}  # fmt: skip
"""Usual names of columns beside the names of coordinates; some are of harp's tables."""
_LABELS = ("parameter", "units")
"""Columns of a text that is the same in all rows."""
_OBSERVED = r"obs|observed|observation|observations|truth"
_MEMBER = r"(?:^|[._ -]+)(?:m|mem|mbr|member|ens|e|fc|fcst|forecast|value|x)?[._ -]*$"
VALUE = "value"
"""The name of the variable of columns that name none, such as `m0` and `m1`."""


@dataclass(frozen=True)
class ValueColumns:
    """The columns of one variable: a column for each member in `members`, or the one column of a single value."""

    name: str
    units: str
    columns: tuple[str, ...]
    members: tuple[int, ...] = ()
    observed: bool = False


@dataclass(frozen=True)
class Columns:
    """The columns of a table: at most one column for each role, and the columns of values."""

    roles: Mapping[Role, str]
    values: tuple[ValueColumns, ...]
    labels: Mapping[str, str]

    @classmethod
    def of(cls, names: Sequence[str], numeric: Sequence[str], place: str) -> Columns:
        """Sort the columns of a table; the columns `numeric` hold numbers, `place` begins error messages.

        >>> values = ["tp_1 [mm]", "tp_2 [mm]", "obs"]
        >>> found = Columns.of(["init_time", "lead", *values], values, "")
        >>> [(one.name, one.units, one.members, one.observed) for one in found.values]
        [('tp', 'mm', (1, 2), False), ('tp', 'mm', (), True)]
        """
        roles: dict[Role, str] = {}
        for name in names:
            if role := role_of_column(name):
                if role in roles:
                    raise InputError(
                        f"{place}: the columns {roles[role]} and {name} could each be its {role}; rename one of them"
                    )
                roles[role] = name
        if others := [name for name in names if len(name) > 1 and named_role(name) in ("level", "quantile")]:
            raise InputError(
                f"{place} has the column {others[0]}, and levels and quantiles are not read from tables; write a table "
                "for each level without this column, or members"
            )
        labels = {label: name for name in names for label in _LABELS if name.lower() == label}
        rest = [name for name in numeric if name not in (*roles.values(), *labels.values())]
        if not rest:
            raise InputError(f"{place} has no column of numbers beside {', '.join(roles.values())}; add the values")
        forecasts, observed = _grouped(rest)
        if len(observed) == 1 and observed[0].name == VALUE and len(forecasts) == 1:
            one = forecasts[0]
            observed = [ValueColumns(one.name, observed[0].units or one.units, observed[0].columns, observed=True)]
        return cls(roles, (*forecasts, *observed), labels)


def role_of_column(name: str) -> Role | None:
    """Return the role of a column with a usual name, or None."""
    role = _FURTHER_NAMES.get(name.lower()) or (named_role(name) if len(name) > 1 else None)  # `t` may be a temperature
    return role if role in ROLES else None


def _grouped(names: Sequence[str]) -> tuple[list[ValueColumns], list[ValueColumns]]:
    """Return the columns of forecasts, where the columns of members are one item, and the columns of observations.

    Numbers at the ends of names are members if they count from 0 or 1: `t500` and `t850` are two variables.
    """
    observed: list[ValueColumns] = []
    numbered: dict[tuple[str, str], dict[int, str]] = defaultdict(dict)
    plain: list[tuple[str, str, str]] = []
    for name in names:
        bare, units = _without_units(name)
        if found := re.fullmatch(rf"(?:(.+?)[._ -])?(?:{_OBSERVED})(?:[._ -](.+))?", bare, re.IGNORECASE):
            observed.append(ValueColumns(found[1] or found[2] or VALUE, units, (name,), observed=True))
        elif (found := re.fullmatch(r"(.*?)(\d+)", bare)) and not re.fullmatch(r"[pq][\d._]*", found[1].lower()):
            numbered[found[1], units][int(found[2])] = name
        else:
            plain.append((bare, units, name))
    forecasts: list[ValueColumns] = []
    for (stem, units), columns in numbered.items():
        numbers = sorted(columns)
        if len(numbers) > 1 and numbers[0] in (0, 1) and numbers[-1] - numbers[0] == len(numbers) - 1:
            members = tuple(columns[number] for number in numbers)
            forecasts.append(ValueColumns(_variable(stem), units, members, tuple(numbers)))
        else:
            plain += [(f"{stem}{number}", units, columns[number]) for number in numbers]
    forecasts += [ValueColumns(_variable(bare), units, (name,)) for bare, units, name in plain]
    return forecasts, observed


def _variable(stem: str) -> str:
    """Return the variable that the name of a column stands for without its number."""
    return re.sub(_MEMBER, "", stem, flags=re.IGNORECASE) or VALUE


def _without_units(name: str) -> tuple[str, str]:
    """Return a name and the units in brackets behind it: `t2m [degC]` or `t2m (degC)`."""
    found = re.fullmatch(r"(.*?)\s*[\[(]([^\[\]()]+)[\])]", name.strip())
    return (found[1], found[2].strip()) if found else (name.strip(), "")
