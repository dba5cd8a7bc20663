"""Table: one row per field of a GRIB file, and the kinds of message the rows belong to.

ecCodes takes about a millisecond to read the keys of a message, and an archive has millions of messages. But messages
of one variable, level and grid differ only in date, step and member, at known positions. So ecCodes reads the first
message of each kind, and every message whose form `headers` does not read.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple

import eccodes
import numpy as np

from data_pipeline.common.errors import InputError
from data_pipeline.formats.grib.cfgrib_reader import count_fields
from data_pipeline.formats.grib.headers import FirstBytes, read_headers
from data_pipeline.formats.grib.horizontal import Layout
from data_pipeline.formats.grib.scan import FIRST_BYTES, ScannedMessage, read_message, scan_messages
from data_pipeline.task import Variable

RECORD = np.dtype(
    [
        ("offset", "i8"), ("length", "i8"), ("field", "i4"), ("kind", "i4"), ("init", "i8"), ("step", "i4"),
        ("number", "i4"), ("data", "i4"), ("bits", "i2"), ("binary", "i2"), ("decimal", "i2"), ("reference", "f8"),
    ]
)  # fmt: skip
"""One field: `offset` and `length` of its message; `field`, its position from 1 in a message with several fields, or 0;
kind; start (`init`, seconds since 1970); step (minutes, -1 if unknown); member (`number`).

`bits` is -1 unless the values are in simple packing without a bitmap, one for each grid point; they then begin at byte
`data` of the message.
"""

UNIX_EPOCH = datetime(1970, 1, 1)


@dataclass(frozen=True)
class Kind:
    """Properties that messages of one variable on one level and one grid share; `version` is ECMWF's expver."""

    short_name: str
    long_name: str
    units: str
    type_of_level: str
    level: float
    data_type: str
    version: str
    layout: Layout

    @cached_property
    def variable(self) -> Variable | None:
        """The variable; None without a short name, or on a pressure level that is not a whole number of hPa.

        Only pressure levels are distinguished. On other levels each short name is one variable, such as `2t` or `stl1`.
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


class Stamp(NamedTuple):
    """Size in bytes and modification time (ns) of a file; both must be unchanged when values are read."""

    size: int
    modified: int

    @classmethod
    def of(cls, descriptor: int) -> Stamp:
        """Return the stamp of an open file."""
        status = os.fstat(descriptor)
        return cls(status.st_size, status.st_mtime_ns)


@dataclass(frozen=True, eq=False)
class Table:
    """The fields of one file, in file order."""

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
                found = list(scan_messages(path))
                if not found:
                    raise InputError(f"{path} holds no GRIB message; is it the right file?")
                records, kinds = _Collector(path, file.fileno()).collect(found)
        except OSError as error:
            raise InputError(f"cannot read {path} ({error.strerror})") from None
        return cls(path, stamp, records, kinds)

    def message(self, descriptor: int, record: np.void) -> bytes:
        """Return the message of a record, from the open file."""
        return read_message(descriptor, self.path, *(int(record[name]) for name in ("offset", "length", "field")))


def common_kinds(tables: Sequence[Table]) -> tuple[tuple[Kind, ...], list[np.ndarray]]:
    """Return the kinds of all tables, and for each table the positions of its records' kinds among them."""
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
    """Turns the first bytes of a file's messages into records, and collects the kinds of message."""

    def __init__(self, path: Path, descriptor: int) -> None:
        self.path = path
        self.descriptor = descriptor
        self.kinds: dict[Kind, int] = {}
        self._names: dict[int, tuple[str, str, str]] = {}

    def collect(self, found: Sequence[ScannedMessage]) -> tuple[np.ndarray, tuple[Kind, ...]]:
        """Return one record for each field of the messages `found`, and the kinds of these fields."""
        octets = b"".join(message.first_bytes.ljust(FIRST_BYTES, b"\0") for message in found)
        first_bytes = FirstBytes(
            np.frombuffer(octets, np.uint8).reshape(-1, FIRST_BYTES), np.array([message.length for message in found])
        )
        headers = read_headers(first_bytes)
        message, field = self._fields(found, headers["plain"])
        headers = headers[message]
        records = np.zeros(len(message), RECORD)
        records["offset"] = np.array([each.offset for each in found])[message]
        records["length"] = first_bytes.lengths[message]
        records["field"] = field
        for name in ("init", "step", "number", "data", "bits", "binary", "decimal", "reference"):
            records[name] = headers[name]
        records["bits"][field > 0] = -1
        plain, keys = np.flatnonzero(headers["plain"]), headers["key"]
        first = plain[np.unique(keys[plain], return_index=True)[1]]
        others = np.flatnonzero(~headers["plain"])
        rows = {k: self._read_row(records[k]) for k in sorted({*first.tolist(), *others.tolist()})}
        # The headers of a kind are used only where ecCodes reads the same from its first message.
        known = np.zeros(keys.max(initial=-1) + 1, [("same", "?"), ("kind", "i4"), ("number", "i4")])
        for k in first.tolist():
            known[keys[k]] = (_same(rows[k], headers[k]), rows[k].kind, rows[k].number)
        of_kind = known[keys[plain]]
        records["kind"][plain] = of_kind["kind"]
        records["number"][plain] = np.where(headers["number"][plain] < 0, of_kind["number"], headers["number"][plain])
        rows |= {k: self._read_row(records[k]) for k in plain[~of_kind["same"]].tolist() if k not in rows}
        for k, row in rows.items():
            records[["kind", "init", "step", "number"]][k] = tuple(row)
        points = np.array([kind.layout.rows * kind.layout.columns for kind in self.kinds])[records["kind"]]
        records["bits"][(headers["count"] != points) & (headers["count"] >= 0)] = -1
        return records, tuple(self.kinds)

    def _fields(self, found: Sequence[ScannedMessage], plain: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return the message of each field, by position in `found`, and `RECORD`'s field; plain messages hold one."""
        counts = np.ones(len(found), np.int64)
        for k in np.flatnonzero(~plain).tolist():
            counts[k] = count_fields(self.descriptor, found[k].offset, found[k].length)
        message = np.repeat(np.arange(len(found)), counts)
        position = np.arange(len(message)) - np.repeat(np.cumsum(counts) - counts, counts)
        return message, np.where(counts[message] > 1, position + 1, 0)

    def _read_row(self, record: np.void) -> _Row:
        """Read the keys of a message by ecCodes."""
        offset = int(record["offset"])
        message = read_message(self.descriptor, self.path, offset, int(record["length"]), int(record["field"]))
        try:
            handle = eccodes.codes_new_from_message(message)
            try:
                return self._row_of(handle)
            finally:
                eccodes.codes_release(handle)
        except eccodes.CodesInternalError as error:
            raise InputError(f"{self.path}: ecCodes cannot read the message at byte {offset}: {error}") from None

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
        """Return short name, long name and units; ecCodes takes milliseconds for each."""
        parameter = eccodes.codes_get_long(handle, "paramId")
        if parameter not in self._names or not parameter:
            short, name, units = (eccodes.codes_get_string(handle, key) for key in ("shortName", "name", "units"))
            self._names[parameter] = short, name, units
        return self._names[parameter]

    def _seconds(self, year: int, month: int, day: int, hour: int, minute: int) -> int:
        try:
            return int((datetime(year, month, day, hour, minute) - UNIX_EPOCH).total_seconds())
        except ValueError:
            raise InputError(
                f"{self.path} holds a message with the impossible date {year}-{month}-{day} {hour}:{minute}; "
                "correct it, for instance with ecCodes' grib_set -s dataDate=YYYYMMDD"
            ) from None


def _same(row: _Row, header: np.void) -> bool:
    """Whether ecCodes and the header of a message agree."""
    same = row.init == header["init"] and row.step == header["step"]
    return bool(same and header["number"] in (-1, row.number))


def _step(handle: int) -> int:
    """Return the end of the step in minutes; -1 where ecCodes cannot convert it, for example from months."""
    for unit, minutes in (("m", 1), ("h", 60)):  # ecCodes writes a million minutes and more with six digits only
        with suppress(eccodes.CodesInternalError, ValueError):
            eccodes.codes_set_string(handle, "stepUnits", unit)
            return minutes * int(eccodes.codes_get_string(handle, "endStep").removesuffix(unit))
    return -1


def _optional(get: Callable[[int, str], Any], handle: int, key: str, default: Any) -> Any:
    """Return the value of a key, or `default` for kinds of message that do not have it."""
    try:
        return get(handle, key)
    except eccodes.KeyValueNotFoundError:
        return default
