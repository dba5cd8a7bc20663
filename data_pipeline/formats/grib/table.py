"""Table: what is in a GRIB file, one row per message.

ecCodes takes about a millisecond to tell the keys of a message, and an archive has millions of them. But the
messages of an ensemble are of few kinds: within one variable, level and grid, only the date, the step and the
member change, and these stand at known places. So ecCodes is asked for the first message of each kind, and for every
message that is not of a form known here.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any, NamedTuple

import eccodes
import numpy as np

from data_pipeline.common.errors import InputError
from data_pipeline.formats.grib import edition1, edition2
from data_pipeline.formats.grib.glance import GLANCE, Heads, Keys
from data_pipeline.formats.grib.horizontal import Layout
from data_pipeline.formats.grib.kind import Kind
from data_pipeline.formats.grib.scan import HEAD, Raw, messages, read

RECORD = np.dtype(
    [
        ("offset", "i8"), ("length", "i8"), ("kind", "i4"), ("init", "i8"), ("step", "i4"), ("number", "i4"),
        ("data", "i4"), ("bits", "i2"), ("binary", "i2"), ("decimal", "i2"), ("reference", "f8"),
    ]
)  # fmt: skip
"""One message: place in the file, kind, start (seconds since 1970), step (minutes, -1 if unknown), member; and
where its values lie from its start and how they are packed, `bits` being -1 unless that is simple packing without a
bitmap of as many values as the grid has points."""

EPOCH = datetime(1970, 1, 1)


class Stamp(NamedTuple):
    """Size in bytes and time of the last change: what a file must still have when its values are read."""

    size: int
    changed: int

    @classmethod
    def of(cls, descriptor: int) -> Stamp:
        """Return the stamp of an open file."""
        status = os.fstat(descriptor)
        return cls(status.st_size, status.st_mtime_ns)


@dataclass(frozen=True, eq=False)
class Table:
    """The messages of one file in the order in which they stand there."""

    path: Path
    stamp: Stamp
    records: np.ndarray
    kinds: tuple[Kind, ...]

    @classmethod
    def of(cls, path: Path) -> Table:
        """Read the keys of every message of a file."""
        try:
            with path.open("rb", buffering=0) as file:
                stamp = Stamp.of(file.fileno())
                found = list(messages(path))
                if not found:
                    raise InputError(f"{path} holds no GRIB message; is it the right file?")
                records, kinds = _Collector(path, file.fileno()).collect(found)
        except OSError as error:
            raise InputError(f"cannot read {path} ({error.strerror})") from None
        return cls(path, stamp, records, kinds)


def common_kinds(tables: Sequence[Table]) -> tuple[tuple[Kind, ...], list[np.ndarray]]:
    """Return the kinds of all tables, and for each table which of them its records are of."""
    kinds = dict.fromkeys(kind for table in tables for kind in table.kinds)
    number = {kind: k for k, kind in enumerate(kinds)}
    of_records = [np.array([number[kind] for kind in t.kinds])[t.records["kind"]] for t in tables]
    return tuple(kinds), of_records


class _Row(NamedTuple):
    kind: int
    init: int
    step: int
    number: int


class _Collector:
    """Turns the first bytes of a file's messages into records; remembers the kinds it has met."""

    def __init__(self, path: Path, descriptor: int) -> None:
        self.path = path
        self.descriptor = descriptor
        self.kinds: dict[Kind, int] = {}
        self._names: dict[int, tuple[str, str, str]] = {}

    def collect(self, found: Sequence[Raw]) -> tuple[np.ndarray, tuple[Kind, ...]]:
        """Return the records and the kinds of the messages `found`."""
        glances = _glances(found)
        records = np.zeros(len(found), RECORD)
        records["offset"] = [raw.offset for raw in found]
        records["length"] = [raw.length for raw in found]
        for name in ("init", "step", "number", "data", "bits", "binary", "decimal", "reference"):
            records[name] = glances[name]
        plain, keys = np.flatnonzero(glances["plain"]), glances["key"]
        first = plain[np.unique(keys[plain], return_index=True)[1]]
        rows = {k: self._ask(found[k]) for k in sorted({*first.tolist(), *np.flatnonzero(~glances["plain"]).tolist()})}
        # What the octets say is believed of a kind only where ecCodes says the same of its first message.
        believed = np.zeros(keys.max(initial=-1) + 1, [("yes", "?"), ("kind", "i4"), ("number", "i4")])
        for k in first.tolist():
            believed[keys[k]] = (_agrees(rows[k], glances[k]), rows[k].kind, rows[k].number)
        of_kind = believed[keys[plain]]
        records["kind"][plain] = of_kind["kind"]
        records["number"][plain] = np.where(glances["number"][plain] < 0, of_kind["number"], glances["number"][plain])
        rows |= {k: self._ask(found[k]) for k in plain[~of_kind["yes"]].tolist() if k not in rows}
        for k, row in rows.items():
            records[["kind", "init", "step", "number"]][k] = tuple(row)
        points = np.array([kind.layout.rows * kind.layout.columns for kind in self.kinds])[records["kind"]]
        records["bits"][(glances["count"] != points) & (glances["count"] >= 0)] = -1
        return records, tuple(self.kinds)

    def _ask(self, raw: Raw) -> _Row:
        """Let ecCodes read the keys of a message."""
        message = read(self.descriptor, self.path, raw.offset, raw.length)
        if message[7] == 2 and _count_fields(message) > 1:
            raise InputError(
                f"{self.path}: the message at byte {raw.offset} holds several fields; take them apart first, "
                "for instance with ecCodes' grib_copy"
            )
        try:
            handle = eccodes.codes_new_from_message(message)
            try:
                return self._row_of(handle)
            finally:
                eccodes.codes_release(handle)
        except eccodes.CodesInternalError as error:
            raise InputError(f"{self.path}: ecCodes cannot read the message at byte {raw.offset}: {error}") from None

    def _row_of(self, handle: int) -> _Row:
        get = eccodes.codes_get_string
        kind = Kind(
            *self._parameter(handle),
            type_of_level=get(handle, "typeOfLevel"),
            level=_optional(eccodes.codes_get_double, handle, "level", 0.0),
            data_type=_optional(get, handle, "dataType", ""),
            version=_optional(get, handle, "expver", ""),
            layout=Layout.of(handle),
        )
        date, time = eccodes.codes_get_long(handle, "dataDate"), eccodes.codes_get_long(handle, "dataTime")
        init = self._seconds(date // 10000, date // 100 % 100, date % 100, time // 100, time % 100)
        number = _optional(eccodes.codes_get_long, handle, "number", 0)
        return _Row(self.kinds.setdefault(kind, len(self.kinds)), init, _step(handle), number)

    def _parameter(self, handle: int) -> tuple[str, str, str]:
        """Return short name, long name and units; to find each of them costs ecCodes milliseconds."""
        parameter = eccodes.codes_get_long(handle, "paramId")
        if parameter not in self._names or not parameter:
            short, name, units = (eccodes.codes_get_string(handle, key) for key in ("shortName", "name", "units"))
            self._names[parameter] = short, name, units
        return self._names[parameter]

    def _seconds(self, year: int, month: int, day: int, hour: int, minute: int) -> int:
        try:
            return int((datetime(year, month, day, hour, minute) - EPOCH).total_seconds())
        except ValueError:
            raise InputError(
                f"{self.path} holds a message with the impossible date {year}-{month}-{day} {hour}:{minute}"
            ) from None


def _glances(found: Sequence[Raw]) -> np.ndarray:
    """Return what can be known of messages without ecCodes."""
    octets = np.frombuffer(b"".join(raw.head.ljust(HEAD, b"\0") for raw in found), np.uint8).reshape(-1, HEAD)
    heads = Heads(octets, np.array([raw.length for raw in found]))
    glances, keys = np.zeros(len(found), GLANCE), Keys()
    for number, edition in ((1, edition1), (2, edition2)):
        mine = octets[:, 7] == number
        if mine.any():
            glances[mine] = edition.glance(heads.where(mine), keys)
    return glances


def _agrees(row: _Row, glance: np.void) -> bool:
    """Whether ecCodes says the same of a message as its octets."""
    same = row.init == glance["init"] and row.step == glance["step"]
    return bool(same and glance["number"] in (-1, row.number))


def _count_fields(message: bytes) -> int:
    """Count the product definitions (section 4) of a GRIB2 message; ecCodes would show the first only."""
    count, position = 0, 16
    while position < len(message) - 4:
        count += message[position + 4] == 4
        position += int.from_bytes(message[position : position + 4], "big") or len(message)
    return count


def _step(handle: int) -> int:
    """Return the end of the step in minutes; -1 where ecCodes cannot say it so, as with months."""
    for unit, minutes in (("m", 1), ("h", 60)):  # ecCodes writes a million minutes and more with six digits only
        with suppress(eccodes.CodesInternalError, ValueError):
            eccodes.codes_set_string(handle, "stepUnits", unit)
            return minutes * int(eccodes.codes_get_string(handle, "endStep").removesuffix(unit))
    return -1


def _optional(get: Callable[[int, str], Any], handle: int, key: str, default: Any) -> Any:
    """Return a key that some kinds of message do not have."""
    try:
        return get(handle, key)
    except eccodes.KeyValueNotFoundError:
        return default
