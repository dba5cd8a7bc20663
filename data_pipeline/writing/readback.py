"""Read a corrected GRIB file back from the disk: count of messages, headers, ranges of values, order of members."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from data_pipeline.formats.grib.decode import decode
from data_pipeline.formats.grib.names import MessageNames
from data_pipeline.formats.grib.table import Table
from data_pipeline.task import Variable

MOST_CELLS = 1 << 18
"""Values of one forecast whose order is compared; of larger forecasts, every n-th cell, because sorting takes long."""


def read_back(
    path: Path, sources: Sequence[Path], variables: Sequence[Variable], names: Mapping[str, str] | None = None
) -> dict[str, Any]:
    """Return what the file at `path` holds, compared with the `sources` that it was made from.

    `messages` counts all messages and those of the sources. `headers` is true if every message of the sources has one
    with its variable, start, step, interval and member. For each of the `variables`: number of messages, lowest and
    highest value of the first forecast, and the share of its cells in which the members have the sources' order
    (`ranks`; members that are equal in one of both files have no order; null on another grid).
    """
    own_names = MessageNames(names or {})
    written, originals = Table.of(path), [Table.of(source) for source in sources]
    before = Counter(row for table in originals for row in _rows(table))
    kept = not before - Counter(_rows(written))
    ranges = {str(variable): _forecast(written, originals, variable, own_names) for variable in variables}
    found = {"messages": len(written.records), "messages_of_input": before.total(), "headers": kept}
    return found | {"fields": {name: one for name, one in ranges.items() if one}}


def _rows(table: Table) -> list[tuple[str, int, int, int, int]]:
    """Return variable, start, step, interval and member of each message."""
    columns = (table.records[name].tolist() for name in ("kind", "init", "step", "interval", "number"))
    return [(str(table.kinds[kind]), *rest) for kind, *rest in zip(*columns, strict=True)]


def _forecast(
    written: Table, originals: Sequence[Table], variable: Variable, names: MessageNames
) -> dict[str, Any] | None:
    """Return count, range and order of members of the first forecast of a variable."""
    own = _of_variable(written, variable, names)
    if not len(own):
        return None
    place = own[["init", "step", "interval"]][0]
    members = _members(written, own[own[["init", "step", "interval"]] == place])
    fields = np.stack([members[number] for number in sorted(members)])
    found: dict[str, Any] = {"messages": len(own), "lowest": None, "highest": None, "ranks": None}
    if np.isfinite(fields).any():
        found |= {"lowest": float(np.nanmin(fields)), "highest": float(np.nanmax(fields))}
    raw: dict[int, np.ndarray] = {}
    for table in originals:
        records = _of_variable(table, variable, names)
        raw |= _members(table, records[records[["init", "step", "interval"]] == place])
    if raw.keys() == members.keys() and len(raw) > 1:
        before = np.stack([raw[number] for number in sorted(raw)])
        if before.shape == fields.shape:
            found["ranks"] = same_order(before, fields)
    return found


def _of_variable(table: Table, variable: Variable, names: MessageNames) -> np.ndarray:
    own = np.array([names.variable(kind) == variable for kind in table.kinds])
    return table.records[own[table.records["kind"]]]


def _members(table: Table, records: np.ndarray) -> dict[int, np.ndarray]:
    """Return the fields of messages by member, flat."""
    with table.path.open("rb", buffering=0) as file:
        return {
            int(record["number"]): decode(
                table.message(file.fileno(), record), table.kinds[record["kind"]].layout
            ).ravel()
            for record in records
        }


def same_order(raw: np.ndarray, corrected: np.ndarray) -> float | None:
    """Return the share of cells in which no two members (M, cells) have changed places.

    >>> same_order(np.array([[1.0, 1.0], [2.0, 2.0]]), np.array([[3.0, 5.0], [3.0, 4.0]]))
    0.5
    """
    step = max(1, raw.size // MOST_CELLS)
    raw, corrected = raw[:, ::step], corrected[:, ::step]
    whole = np.isfinite(raw).all(0) & np.isfinite(corrected).all(0)
    if not whole.any():
        return None
    # Among equal raw members, any order is right, so the corrected values order them.
    order = np.lexsort((corrected[:, whole], raw[:, whole]), axis=0)
    values = np.take_along_axis(corrected[:, whole], order, 0)
    return float((np.diff(values, axis=0) >= 0).all(0).mean())
