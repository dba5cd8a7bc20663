"""Copy a GRIB file with other values in some of its messages, to write corrected forecasts."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator, Mapping
from datetime import datetime, timedelta
from pathlib import Path
from typing import NamedTuple

import eccodes
import numpy as np

from data_pipeline.common.errors import InputError
from data_pipeline.common.files import atomic_path
from data_pipeline.formats.grib.cache import table_of
from data_pipeline.formats.grib.decode import decode
from data_pipeline.formats.grib.encode import MISSING, ORDER
from data_pipeline.formats.grib.horizontal import Layout
from data_pipeline.formats.grib.kind import Kind
from data_pipeline.formats.grib.lattice import Lattice
from data_pipeline.formats.grib.names import MessageNames
from data_pipeline.formats.grib.regridder import MessageRegridder
from data_pipeline.formats.grib.scan import scan_messages
from data_pipeline.formats.grib.table import UNIX_EPOCH, Table
from data_pipeline.meaning import INSTANT
from data_pipeline.task import Variable


class Message(NamedTuple):
    """Variable, start (UTC), lead time (hours), member and interval (minutes, see `Meaning`) of a message."""

    variable: Variable
    init_time: datetime
    lead_time: int
    number: int
    interval: int = INSTANT


class NewMessage(NamedTuple):
    """A message to write after another one, which is copied: it has all keys of the other, except `keys`.

    `holds` says what it must hold when it is read back. The field (H, W) is in the units of the other message.
    """

    holds: Message
    keys: Mapping[str, str | int]
    field: np.ndarray


Correction = Callable[[Message], np.ndarray | NewMessage | None]
"""Returns the new field (H, W) of a message in the message's units, north first; a message to add; or None."""


def rewrite(
    source: str | Path,
    target: str | Path,
    correction: Correction,
    regridder: MessageRegridder | None = None,
    names: Mapping[str, str] | None = None,
) -> int:
    """Copy `source` to `target` with the fields that `correction` returns; return their number.

    A message without a new field is copied byte for byte. A message with a new field keeps all keys; it gets as many
    bits per value as the message of its variable with the most bits. Missing values stay missing. A message with
    several fields is written as one message per field. With a `regridder`, new fields are on its grid, and messages on
    other grids get this grid. The file is read back before it gets its name: it must hold all messages, each new field
    within the precision of its packing, and each added message as it was meant. `names` are those of `MessageNames`.
    """
    own_names = MessageNames(names or {})
    source, target = Path(source), Path(target)
    if target.is_dir():
        raise InputError(f"{target} is a folder; name a file to write")
    if source.resolve() == target.resolve() or (target.exists() and source.exists() and source.samefile(target)):
        raise InputError(f"{target} is the file to read; name another file to write")
    table = table_of(source)
    bits: dict[Variable, int] = {}
    replaced, added, digest = 0, list[Message](), hashlib.sha256()
    with atomic_path(target) as partial:
        with source.open("rb", buffering=0) as original, partial.open("wb") as file:
            for record in table.records:
                old = table.message(original.fileno(), record)
                kind = table.kinds[record["kind"]]
                message = _message(own_names.variable(kind), kind, record)
                new = old
                if message and (field := correction(message)) is not None:
                    if message.variable not in bits:
                        bits[message.variable] = Lattice.of(source, message.variable, names).bits
                    if isinstance(field, NewMessage):
                        digest.update(old)
                        file.write(old)
                        added.append(field.holds)
                        moved = bool(regridder and regridder.needs(kind.layout))
                        old, field = _with_keys(old, kind.layout, field, source, moved), field.field
                    new = _replace(old, kind.layout, field, bits[message.variable], message, regridder)
                    replaced += 1
                digest.update(new)
                file.write(new)
        _check_file(partial, target, len(table.records) + len(added), digest.hexdigest())
        if added and (lost := set(added) - set(_messages(Table.of(partial), own_names))):
            raise _cannot_hold(source, min(lost))
    return replaced


def messages(source: str | Path, names: Mapping[str, str] | None = None) -> Iterator[Message]:
    """Return the messages of a file that `rewrite` can replace, in file order."""
    return _messages(table_of(Path(source)), MessageNames(names or {}))


def _messages(table: Table, names: MessageNames) -> Iterator[Message]:
    variables = [names.variable(kind) for kind in table.kinds]
    for record in table.records:
        kind = int(record["kind"])
        if message := _message(variables[kind], table.kinds[kind], record):
            yield message


def _message(variable: Variable | None, kind: Kind, record: np.void) -> Message | None:
    """Return the contents of a message; None if its product, grid, level or step cannot be corrected."""
    if not variable or not kind.layout.readable or record["step"] < 0 or record["step"] % 60:
        return None
    start = UNIX_EPOCH + timedelta(seconds=int(record["init"]))
    return Message(variable, start, int(record["step"]) // 60, int(record["number"]), int(record["interval"]))


def _with_keys(old: bytes, layout: Layout, new: NewMessage, source: Path, moved: bool) -> bytes:
    """Return the message `old` with the keys of another one, and missing values where the new field has them.

    If the field is `moved` to another grid, its missing values are those of the old field there.
    """
    handle = eccodes.codes_new_from_message(old)
    try:
        for name in sorted(new.keys, key=ORDER.index):
            eccodes.codes_set(handle, name, new.keys[name])
        if not moved and (missing := np.isnan(new.field)).any():
            eccodes.codes_set(handle, "bitmapPresent", 1)
            eccodes.codes_set_double(handle, "missingValue", MISSING)
            eccodes.codes_set_double_array(handle, "values", layout.store(np.where(missing, MISSING, 0.0)))
        return eccodes.codes_get_message(handle)
    except eccodes.CodesInternalError:
        raise _cannot_hold(source, new.holds) from None
    finally:
        eccodes.codes_release(handle)


def _cannot_hold(source: Path, message: Message) -> InputError:
    return InputError(
        f"a message like those of {source} cannot hold {message.variable} over {message.interval / 60:g} h at "
        f"+{message.lead_time} h; write the input as GRIB2 first, for instance with ecCodes' grib_set -s edition=2 "
        "IN OUT"
    )


def _replace(
    old: bytes, layout: Layout, field: np.ndarray, bits: int, message: Message, regridder: MessageRegridder | None
) -> bytes:
    """Return the message `old` with the values of `field`, packed in `bits` per value."""
    if regridder and regridder.needs(layout):
        old, layout, missing = regridder.regrid(old, layout)
    else:
        missing = np.isnan(decode(old, layout))
    field = np.array(field, np.float64)
    if field.shape != missing.shape:
        raise ValueError(f"the correction of {message} has shape {field.shape}, the message has shape {missing.shape}")
    if not np.isfinite(field[~missing]).all():
        raise ValueError(f"the correction of {message} is not finite where the message has values")
    handle = eccodes.codes_new_from_message(old)
    try:
        eccodes.codes_set_double(handle, "missingValue", MISSING)
        # With a decimal scale, ecCodes would choose the number of bits itself.
        eccodes.codes_set_long(handle, "decimalScaleFactor", 0)
        eccodes.codes_set_long(handle, "bitsPerValue", bits)
        eccodes.codes_set_double_array(handle, "values", layout.store(np.where(missing, MISSING, field)))
        new = eccodes.codes_get_message(handle)
    except eccodes.CodesInternalError as error:
        raise InputError(
            f"{message} cannot be written in the packing of the input ({error}); repack the input first, for instance "
            "with ecCodes' grib_set -r -s packingType=grid_simple IN OUT"
        ) from None
    finally:
        eccodes.codes_release(handle)
    _check_message(old, new, layout, np.where(missing, np.nan, field), bits, message)
    return new


def _check_message(old: bytes, new: bytes, layout: Layout, field: np.ndarray, bits: int, message: Message) -> None:
    """Raise unless `new` has the header of `old` and the values of `field`.

    Values may differ by one step of the packing, 2^E (WMO Manual on Codes, regulation 92.9.4), and by the rounding of
    the reference value, which has as few as 21 binary digits in GRIB1's hexadecimal floating point.
    """
    if _header(old) != _header(new):
        raise RuntimeError(f"the header of {message} changed while its values were replaced")
    handle = eccodes.codes_new_from_message(new)
    try:
        used = eccodes.codes_get_long(handle, "bitsPerValue")
        binary, decimal = (eccodes.codes_get_long(handle, f"{base}ScaleFactor") for base in ("binary", "decimal"))
    finally:
        eccodes.codes_release(handle)
    step = 2.0**binary / 10.0**decimal if used else 0.0
    allowed = step + 2.0**-20 * np.nanmax(np.abs(field), initial=0.0)
    same = np.allclose(decode(new, layout), field, rtol=0, atol=allowed, equal_nan=True)
    if not same or used not in (0, bits):
        raise RuntimeError(f"the values of {message} differ from the written values when read back")


def _header(message: bytes) -> bytes:
    """Return the sections with all keys except the keys of values and packing.

    GRIB1: sections 1 and 2 (which may be absent) without the decimal scale in octets 27 and 28. GRIB2: sections 1 to 4.
    """
    if message[7] == 1:
        start = end = 8
        for present in (True, message[15] & 128):
            end += int.from_bytes(message[end : end + 3], "big") if present else 0
        return message[start : start + 26] + message[start + 28 : end]
    start = end = 16
    while message[end + 4] < 5:
        end += int.from_bytes(message[end : end + 4], "big")
    return message[start:end]


def _check_file(partial: Path, target: Path, count: int, digest: str) -> None:
    """Raise unless the file on disk holds the written bytes, in `count` messages."""
    with partial.open("rb") as file:
        found = hashlib.file_digest(file, "sha256").hexdigest()
    if found != digest or sum(1 for _ in scan_messages(partial)) != count:
        raise RuntimeError(f"{target} differs from the written bytes when read back; it was not kept")
