"""Read a corrected GRIB file back from the disk and check its messages, headers, ranges of values and member order."""

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
"""Most values of one forecast whose order is compared; larger forecasts are thinned, because sorting is slow."""


def read_back(
    path: Path, sources: Sequence[Path], variables: Sequence[Variable], names: Mapping[str, str] | None = None
) -> dict[str, Any]:
    """Return what the file at `path` holds, compared with the `sources` that it was made from.

    `messages` and `messages_of_input` count the messages of the file and of the sources. `headers` is true if every
    message of the sources has a message in the file with the same variable, start, step, interval and member. `fields`
    has for each of the `variables`: number of messages, lowest and highest value of the first forecast, and `ranks`,
    the share of its cells in which the members have the same order as in the sources. Members that are equal in either
    file may have any order; on another grid, `ranks` is None.
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
    """Return number of messages, range of values and order of members for the first forecast of a variable."""
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
    """Return the flat field of each message, by member."""
    with table.path.open("rb", buffering=0) as file:
        return {
            int(record["number"]): decode(
                table.message(file.fileno(), record), table.kinds[record["kind"]].layout
            ).ravel()
            for record in records
        }


def same_order(raw: np.ndarray, corrected: np.ndarray) -> float | None:
    """Return the share of cells in which no two members (M, cells) have changed their order.

    >>> same_order(np.array([[1.0, 1.0], [2.0, 2.0]]), np.array([[3.0, 5.0], [3.0, 4.0]]))
    0.5
    """
    step = max(1, raw.size // MOST_CELLS)
    raw, corrected = raw[:, ::step], corrected[:, ::step]
    whole = np.isfinite(raw).all(0) & np.isfinite(corrected).all(0)
    if not whole.any():
        return None
    # Equal raw members may have any order, so they are sorted by their corrected values.
    order = np.lexsort((corrected[:, whole], raw[:, whole]), axis=0)
    values = np.take_along_axis(corrected[:, whole], order, 0)
    return float((np.diff(values, axis=0) >= 0).all(0).mean())
