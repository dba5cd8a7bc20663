"""Table: one record per field of a GRIB file, and the kinds of message that the records belong to.

ecCodes takes about a millisecond to read the keys of a message, and an archive has millions of messages. But messages
of one variable, level and grid differ only in date, step and member, at known positions. So ecCodes reads only the
first message of each kind, and every message in a form that `headers` does not read.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from pathlib import Path
from typing import NamedTuple

import eccodes
import numpy as np

from data_pipeline.common.errors import InputError
from data_pipeline.common.file_format import wrong_format
from data_pipeline.common.files import reading
from data_pipeline.formats.grib.cfgrib_reader import count_fields
from data_pipeline.formats.grib.headers import FirstBytes, read_headers
from data_pipeline.formats.grib.horizontal import size_problem
from data_pipeline.formats.grib.interval import meant_intervals, step_and_interval
from data_pipeline.formats.grib.keys import get_whole, opened
from data_pipeline.formats.grib.kind import Kind, parameter_of
from data_pipeline.formats.grib.scan import FIRST_BYTES, ScannedMessage, damaged_message, read_message, scan_messages

RECORD = np.dtype(
    [
        ("offset", "i8"), ("length", "i8"), ("field", "i4"), ("kind", "i4"), ("init", "i8"), ("step", "i4"),
        ("interval", "i4"), ("number", "i4"), ("data", "i4"), ("bits", "i2"), ("binary", "i2"), ("decimal", "i2"),
        ("reference", "f8"), ("sample", "u8"),
    ]
)  # fmt: skip
"""One field of a file.

`offset` and `length` locate the field's message in the file. `field` counts from 1 in a message with several fields,
and is 0 in all others. `kind` is a position in the table's kinds. `init` is the start (seconds since 1970), `step` the
lead time (minutes, -1 if unknown), `interval` (minutes, see `Meaning`) ends at the step, `number` is the member.

`bits` is -1 unless the values are in simple packing without a bitmap, with one value for each grid point; these values
begin at byte `data` of the message. `sample` is a hash of some bytes of the message.
"""

UNIX_EPOCH = datetime(1970, 1, 1)


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
        with reading(path), path.open("rb", buffering=0) as file:
            stamp = Stamp.of(file.fileno())
            found = list(scan_messages(path))
            if not found:
                raise wrong_format(path, "GRIB")
            records, kinds = _Collector(path, file.fileno()).collect(found)
        return cls(path, stamp, records, kinds)

    def split(self) -> tuple[Table, dict[Kind, int]]:
        """Return a table of the fields that can be read, and the number of messages by kind that are left out."""
        counts = np.bincount(self.records["kind"], minlength=len(self.kinds)).tolist()
        left_out = {kind: count for kind, count in zip(self.kinds, counts, strict=True) if kind.left_out}
        if not left_out:
            return self, {}
        kept = np.array([not kind.left_out for kind in self.kinds])
        records = self.records[kept[self.records["kind"]]]
        records["kind"] = (np.cumsum(kept) - 1)[records["kind"]]
        return replace(self, records=records, kinds=tuple(k for k in self.kinds if not k.left_out)), left_out

    def message(self, descriptor: int, record: np.void) -> bytes:
        """Return the message of a record, from the open file."""
        return read_message(descriptor, self.path, *(int(record[name]) for name in ("offset", "length", "field")))


def common_kinds(tables: Sequence[Table]) -> tuple[tuple[Kind, ...], list[np.ndarray]]:
    """Return the kinds of all tables, and for each table the positions of its records' kinds among them."""
    kinds = dict.fromkeys(kind for table in tables for kind in table.kinds)
    number = {kind: k for k, kind in enumerate(kinds)}
    of_records = [np.array([number[kind] for kind in t.kinds], np.int64)[t.records["kind"]] for t in tables]
    return tuple(kinds), of_records


class _Row(NamedTuple):
    """Keys of a message; `interval` is the message's own statement, `meant` the interval of its kind (see `STATED`)."""

    kind: int
    init: int
    step: int
    interval: int
    number: int
    meant: int


class _Collector:
    """Turns the first bytes of a file's messages into records, and collects the kinds of message."""

    def __init__(self, path: Path, descriptor: int) -> None:
        self.path = path
        self.descriptor = descriptor
        self.kinds: dict[Kind, int] = {}
        self._parameters: dict[int, tuple[int, str, str, str]] = {}

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
        records["sample"] = np.array([each.sample for each in found], np.uint64)[message]
        records["field"] = field
        for name in ("init", "step", "interval", "number", "data", "bits", "binary", "decimal", "reference"):
            records[name] = headers[name]
        records["bits"][field > 0] = -1
        plain, keys = np.flatnonzero(headers["plain"]), headers["key"]
        first = plain[np.unique(keys[plain], return_index=True)[1]]
        others = np.flatnonzero(~headers["plain"])
        rows = {k: self._read_row(records[k]) for k in sorted({*first.tolist(), *others.tolist()})}
        # The headers of a kind are used only if ecCodes reads the same values from the kind's first message.
        known = np.zeros(keys.max(initial=-1) + 1, [("same", "?"), ("kind", "i4"), ("number", "i4"), ("meant", "i4")])
        for k in first.tolist():
            known[keys[k]] = (_same(rows[k], headers[k]), rows[k].kind, rows[k].number, rows[k].meant)
        of_kind = known[keys[plain]]
        records["kind"][plain] = of_kind["kind"]
        meant = np.zeros(len(records), np.int64)
        meant[plain] = of_kind["meant"]
        records["number"][plain] = np.where(headers["number"][plain] < 0, of_kind["number"], headers["number"][plain])
        rows |= {k: self._read_row(records[k]) for k in plain[~of_kind["same"]].tolist() if k not in rows}
        for k, row in rows.items():
            records[["kind", "init", "step", "interval", "number"]][k] = tuple(row[:-1])
            meant[k] = row.meant
        records["interval"] = meant_intervals(meant, records["interval"], records["step"])
        points = np.array([kind.layout.rows * kind.layout.columns for kind in self.kinds])[records["kind"]]
        records["bits"][(headers["count"] != points) & (headers["count"] >= 0)] = -1
        return records, tuple(self.kinds)

    def _fields(self, found: Sequence[ScannedMessage], plain: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return for each field the position of its message in `found`, and its `field` as in `RECORD`.

        Plain messages hold one field.
        """
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
            with opened(message) as handle:
                return self._row_of(handle, offset)
        except (eccodes.CodesInternalError, UnicodeDecodeError) as error:
            raise InputError(
                f"{self.path}: ecCodes cannot read the message at byte {offset}: {error}; fetch the file again"
            ) from None

    def _row_of(self, handle: int, offset: int) -> _Row:
        kind, processing = Kind.of(handle, self._parameter(handle))
        if problem := size_problem(handle, kind.layout):
            raise damaged_message(self.path, offset, problem)
        date, time = eccodes.codes_get_long(handle, "dataDate"), eccodes.codes_get_long(handle, "dataTime")
        init = self._seconds(date // 10000, date // 100 % 100, date % 100, time // 100, time % 100)
        number = get_whole(handle, "number", 0)
        step, interval = step_and_interval(handle, init)
        return _Row(self.kinds.setdefault(kind, len(self.kinds)), init, step, interval, number, processing.interval)

    def _parameter(self, handle: int) -> tuple[int, str, str, str]:
        """Return paramId, short name, long name and units; cached, because ecCodes takes milliseconds for each."""
        number = eccodes.codes_get_long(handle, "paramId")
        if number not in self._parameters or not number:
            self._parameters[number] = parameter_of(handle)
        return self._parameters[number]

    def _seconds(self, year: int, month: int, day: int, hour: int, minute: int) -> int:
        try:
            return int((datetime(year, month, day, hour, minute) - UNIX_EPOCH).total_seconds())
        except ValueError:
            raise InputError(
                f"{self.path} holds a message with the impossible date {year}-{month}-{day} {hour}:{minute}; "
                "messages that are no forecast have such dates; leave it out, for instance with ecCodes' "
                f"grib_copy -w dataDate!={year:04}{month:02}{day:02} IN OUT"
            ) from None


def _same(row: _Row, header: np.void) -> bool:
    """Whether ecCodes and the header of a message agree."""
    same = all(getattr(row, name) == header[name] for name in ("init", "step", "interval"))
    return bool(same and header["number"] in (-1, row.number))
