"""Copy a GRIB file with other values in some of its messages, to write corrected forecasts."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from datetime import datetime, timedelta
from pathlib import Path
from typing import NamedTuple

import eccodes
import numpy as np

from data_pipeline.common.errors import InputError
from data_pipeline.common.files import atomic_path
from data_pipeline.formats.grib.cache import table_of
from data_pipeline.formats.grib.decode import decode
from data_pipeline.formats.grib.encode import MISSING
from data_pipeline.formats.grib.horizontal import Layout
from data_pipeline.formats.grib.lattice import Lattice
from data_pipeline.formats.grib.scan import scan_messages
from data_pipeline.formats.grib.table import UNIX_EPOCH, Kind
from data_pipeline.task import Variable


class Message(NamedTuple):
    """Variable, start (UTC), lead time (hours) and member of a message."""

    variable: Variable
    init_time: datetime
    lead_time: int
    number: int


Correction = Callable[[Message], np.ndarray | None]
"""Returns the new field (H, W) of a message, north first as `open_ensemble` reads it, or None to keep the field."""


def rewrite(source: str | Path, target: str | Path, correction: Correction) -> int:
    """Copy `source` to `target` with the fields that `correction` returns; return the number of replaced fields.

    A message without a new field is copied byte for byte. A message with a new field keeps all keys; it gets as many
    bits per value as the message of its variable with the most bits. Missing values stay missing. A message with
    several fields is written as one message per field. The file is read back before it gets its name: it must hold all
    messages, and each new field within the precision of its packing.
    """
    source, target = Path(source), Path(target)
    if target.is_dir():
        raise InputError(f"{target} is a folder; name a file to write")
    if source.resolve() == target.resolve() or (target.exists() and source.exists() and source.samefile(target)):
        raise InputError(f"{target} is the file to read; name another file to write")
    table = table_of(source)
    bits: dict[Variable, int] = {}
    replaced, digest = 0, hashlib.sha256()
    with atomic_path(target) as partial:
        with source.open("rb", buffering=0) as original, partial.open("wb") as file:
            for record in table.records:
                old = table.message(original.fileno(), record)
                kind = table.kinds[record["kind"]]
                message = _message(kind, record)
                new = old
                if message and (field := correction(message)) is not None:
                    if message.variable not in bits:
                        bits[message.variable] = Lattice.of(source, message.variable).bits
                    new = _replace(old, kind.layout, field, bits[message.variable], message)
                    replaced += 1
                digest.update(new)
                file.write(new)
        _check_file(partial, target, len(table.records), digest.hexdigest())
    return replaced


def _message(kind: Kind, record: np.void) -> Message | None:
    """Return the contents of a message; None if its grid, level or step cannot be corrected."""
    if not kind.variable or not kind.layout.regular or record["step"] < 0 or record["step"] % 60:
        return None
    start = UNIX_EPOCH + timedelta(seconds=int(record["init"]))
    return Message(kind.variable, start, int(record["step"]) // 60, int(record["number"]))


def _replace(old: bytes, layout: Layout, field: np.ndarray, bits: int, message: Message) -> bytes:
    """Return the message `old` with the values of `field`, packed in `bits` per value."""
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
            "with ecCodes' grib_set -r -s packingType=grid_simple"
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
