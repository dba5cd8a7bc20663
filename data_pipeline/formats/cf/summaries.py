"""Means, standard deviations and quantiles of forecasts in CF files, read as if they were numbered members.

An archive refuses such summaries, because they are not members. A forecast that is only scored may consist of them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np

from data_pipeline.common.errors import InputError
from data_pipeline.formats.catalog import LEVEL_STEPS, MEAN, STD, Summary
from data_pipeline.formats.cf.block import FieldBlock, RefusedVariable
from data_pipeline.formats.cf.cell_methods import PRODUCT_ATTRIBUTE, parse_cell_methods
from data_pipeline.formats.cf.cf_header import Coordinate, DataVariable, Header, role_of
from data_pipeline.formats.cf.cf_variables import NameMap
from data_pipeline.formats.cf.percentiles import percentile_levels

_OF_METHOD: dict[str, Summary] = {
    "mean": "mean", "average": "mean", "standard_deviation": "std", "stdev": "std", "std": "std",
}  # fmt: skip
"""Summaries by their names in `cell_methods` over members."""
_OF_DATA_TYPE: dict[str, Summary] = {"em": "mean", "taem": "mean", "es": "std", "taes": "std", "ssd": "std"}
"""Summaries by their names in `GRIB_dataType`."""
_OF_ENDING: dict[str, Summary] = {
    "mean": "mean", "mu": "mean", "std": "std", "stddev": "std", "stdev": "std", "sd": "std", "sigma": "std",
    "spread": "std",
}  # fmt: skip
"""Summaries by the last word of a variable's name, such as `t2m_std`."""


def interpret_summary(
    header: Header, data: DataVariable, names: NameMap, timeless: bool = False
) -> FieldBlock | RefusedVariable | None:
    """Interpret a variable like `FieldBlock.of`, and also means, standard deviations and quantiles.

    The first of these that applies decides: a coordinate of quantile levels; `cell_methods` over members,
    `GRIB_dataType` or the modifier of `standard_name`; the ending of the user's name or of the variable's name
    (`t2m_mean`, `t2m_std`), unless the variable has members.
    """
    try:
        levels, members = header.coordinate(data, "quantile"), header.coordinate(data, "number")
    except InputError as error:
        return RefusedVariable(data.name, str(error))
    attributes, stated = _without_summary(header, data.attributes)
    given = names.given(data.name)
    stem, _, ending = (given.name if given else data.name).rpartition("_")
    named = _OF_ENDING.get(ending.lower()) if stem and not (members and members.dimensions) else None
    summary: Summary = "quantile" if levels else stated or named or ""
    if not summary:
        return FieldBlock.of(header, data, names, timeless)
    if named and not levels:
        attributes = attributes | {"short_name": stem}
        names = names.with_given(data.name, replace(given, name=stem)) if given else names
    try:
        own = replace(header, coordinates=_as_numbers(header, data, levels)) if levels else header
    except InputError as error:
        return RefusedVariable(data.name, str(error))
    found = FieldBlock.of(own, replace(data, attributes=attributes), names, timeless)
    if not isinstance(found, FieldBlock):
        return found
    numbers = found.numbers if levels else np.full_like(found.numbers, STD if summary == "std" else MEAN)
    return replace(found, summary=summary, numbers=numbers)


def _without_summary(header: Header, attributes: Mapping[str, Any]) -> tuple[dict[str, Any], Summary]:
    """Return the attributes without any that state a summary over members, and the summary ("" if none is stated)."""
    roles = {coordinate.name: coordinate.role for coordinate in header.coordinates}
    found: Summary = ""
    entries, kept = parse_cell_methods(str(attributes.get("cell_methods", ""))), []
    for entry in entries:
        over_members = any((roles.get(name) or role_of(name, {})) == "number" for name in entry.names)
        if over_members and entry.method in _OF_METHOD:
            found = _OF_METHOD[entry.method]
        else:
            kept.append(f"{': '.join(entry.names)}: {entry.method} {entry.qualifier}".strip())
    own = dict(attributes)
    if len(kept) < len(entries):
        own["cell_methods"] = " ".join(kept)
    if (kind := str(own.get("GRIB_dataType", ""))) in _OF_DATA_TYPE:
        found = found or _OF_DATA_TYPE[kind]
        del own["GRIB_dataType"]
    name, _, modifier = str(own.get("standard_name", "")).partition(" ")
    if modifier == "standard_error":
        found, own["standard_name"] = found or "std", name
    if own.get(PRODUCT_ATTRIBUTE) in ("mean", "spread", "quantile"):
        del own[PRODUCT_ATTRIBUTE]
    return own, found


def _as_numbers(header: Header, data: DataVariable, levels: Coordinate) -> tuple[Coordinate, ...]:
    """Return the coordinates of a header, with the quantile levels in place of member numbers."""
    if (member := header.coordinate(data, "number")) and set(member.dimensions) & set(data.dimensions):
        raise InputError(
            f"{header.place(data)} has members ({member.name}) and quantiles ({levels.name}); select one of them, for "
            f"instance with ncks -d {member.name},0"
        )
    values = percentile_levels(levels, header.place(data))
    numbered = replace(levels, role="number", values=np.round(values * LEVEL_STEPS).astype(np.int64), attributes={})
    return tuple(numbered if one is levels else one for one in header.coordinates if one.role != "number")
