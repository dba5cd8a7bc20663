"""Table: what is in a GRIB file, one row per message.

ecCodes takes about a millisecond to tell the keys of a message, and an archive has millions of them. But the
messages of ECMWF's ensembles are of few kinds: within one variable, level and grid, only the date, the step
and the member change, and in GRIB1 these stand at fixed places. So ecCodes is asked for the first message of
each kind, and for every message that is not of this form.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import datetime
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple

import eccodes
import numpy as np

from data_pipeline.errors import InputError
from data_pipeline.grib.layout import Layout
from data_pipeline.grib.scan import Raw, messages, read
from data_pipeline.task import Variable

RECORD = np.dtype(
    [("offset", "i8"), ("length", "i8"), ("kind", "i4"), ("init", "i8"), ("step", "i4"), ("number", "i4")]
)
"""One message: place in the file, kind, start (seconds since 1970), step (minutes, -1 if unknown), member."""

NUMBER_AT_50 = (1, 26, 30, 36)
"""ECMWF's local definitions of GRIB1 section 1 that hold the member's number in octet 50."""

EPOCH = datetime(1970, 1, 1)


@dataclass(frozen=True)
class Kind:
    """What messages of one variable on one level and one grid have in common."""

    short_name: str
    long_name: str
    units: str
    type_of_level: str
    level: float
    data_type: str
    layout: Layout

    @cached_property
    def variable(self) -> Variable | None:
        """The variable; None where it has no name or lies on a pressure level that is no whole number of hPa.

        Only pressure levels are told apart. Everything else is one field per name, such as `2t` or `stl1`.
        """
        if not re.fullmatch(r"[A-Za-z0-9_]+", self.short_name):
            return None
        units = {"isobaricInhPa": 1, "isobaricInPa": 100}.get(self.type_of_level)
        if units is None:
            return Variable(self.short_name)
        level, rest = divmod(self.level, units)
        return Variable(self.short_name, int(level)) if 1 <= level <= 1100 and not rest else None

    def __str__(self) -> str:
        return str(self.variable or f"{self.short_name} ({self.type_of_level} {self.level:g})")


@dataclass(frozen=True, eq=False)
class Table:
    """The messages of one file in the order in which they stand there."""

    path: Path
    records: np.ndarray
    kinds: tuple[Kind, ...]

    @classmethod
    def of(cls, path: Path) -> Table:
        """Read the keys of every message of a file."""
        try:
            with path.open("rb", buffering=0) as file:
                collector = _Collector(path, file.fileno())
                rows = [(raw.offset, raw.length, *collector.row(raw)) for raw in messages(path)]
        except OSError as error:
            raise InputError(f"cannot read {path} ({error.strerror})") from None
        if not rows:
            raise InputError(f"{path} holds no GRIB message; is it the right file?")
        return cls(path, np.array(rows, RECORD), tuple(collector.kinds))


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
    """Turns the first bytes of messages into rows; remembers the kinds it has met."""

    def __init__(self, path: Path, descriptor: int) -> None:
        self.path = path
        self.descriptor = descriptor
        self.kinds: dict[Kind, int] = {}
        self._known: dict[bytes, int | None] = {}
        self._starts: dict[bytes, int] = {}
        self._names: dict[int, tuple[str, str, str]] = {}

    def row(self, raw: Raw) -> _Row:
        """Return kind, start, step and number of a message."""
        key = _kind_key(raw.head)
        if key is not None and (kind := self._known.get(key)) is not None:
            return self._quick(raw.head, kind)
        row = self._ask(raw)
        # What the octets say is believed for a kind only where ecCodes says the same of its first message.
        if key is not None and key not in self._known:
            self._known[key] = row.kind if self._quick(raw.head, row.kind) == row else None
        return row

    def _quick(self, head: bytes, kind: int) -> _Row:
        """Read start, step and number from section 1 of GRIB1; its octet n is `head[n + 7]`."""
        stamp = head[20:25] + head[32:33]
        init = self._starts.get(stamp)
        if init is None:
            year_of_century, month, day, hour, minute, century = stamp
            init = self._starts[stamp] = self._seconds((century - 1) * 100 + year_of_century, month, day, hour, minute)
        hours = head[26] << 8 | head[27] if head[28] == 10 else head[26]
        return _Row(kind, init, hours * 60, head[57])

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


def _kind_key(head: bytes) -> bytes | None:
    """Return sections 1 and 2 without date, step and number; None where these are not at fixed places.

    That is: GRIB1 of ECMWF with one of the local definitions known here, a grid section, and a step in hours
    that is a single time (time range indicator 0 or 10) or the start itself (1).
    """
    if head[7] != 1 or head[12] != 98 or len(head) < 60 or not head[15] & 128 or head[25] != 1:
        return None
    local = 8 + int.from_bytes(head[8:11], "big")
    end = local + int.from_bytes(head[local : local + 3], "big")
    if local < 58 or end > len(head) or head[48] not in NUMBER_AT_50:
        return None
    if not (head[28] in (0, 10) or (head[28] == 1 and head[26:28] == b"\0\0")):
        return None
    return head[8:20] + head[28:32] + head[33:57] + head[58:end]


def _count_fields(message: bytes) -> int:
    """Count the product definitions (section 4) of a GRIB2 message; ecCodes would show the first only."""
    count, position = 0, 16
    while position < len(message) - 4:
        count += message[position + 4] == 4
        position += int.from_bytes(message[position : position + 4], "big") or len(message)
    return count


def _step(handle: int) -> int:
    """Return the end of the step in minutes; -1 where ecCodes cannot say it so, as with months."""
    try:
        eccodes.codes_set_string(handle, "stepUnits", "m")
        return int(eccodes.codes_get_string(handle, "endStep").removesuffix("m"))
    except (eccodes.CodesInternalError, ValueError):
        return -1


def _optional(get: Callable[[int, str], Any], handle: int, key: str, default: Any) -> Any:
    """Return a key that some kinds of message do not have."""
    try:
        return get(handle, key)
    except eccodes.KeyValueNotFoundError:
        return default
