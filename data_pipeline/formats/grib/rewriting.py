"""Copy a GRIB file with other values in some of its messages: what a corrected forecast is written with."""

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
from data_pipeline.formats.grib.kind import Kind
from data_pipeline.formats.grib.lattice import Lattice
from data_pipeline.formats.grib.scan import messages, read
from data_pipeline.formats.grib.table import EPOCH
from data_pipeline.task import Variable


class Message(NamedTuple):
    """What a message holds: one variable, start (UTC), lead time in hours, and member."""

    variable: Variable
    init_time: datetime
    lead_time: int
    number: int


Correction = Callable[[Message], np.ndarray | None]
"""Returns the new field (H, W) of a message, north first as `open_ensemble` reads it, or None."""


def rewrite(source: str | Path, target: str | Path, correction: Correction) -> int:
    """Copy `source` to `target` with the fields that `correction` returns; return how many were replaced.

    Every message that gets no new field is copied byte for byte, and every key of the others stays what it
    was; they are packed in as many bits per value as the finest message of their variable. Values that are
    missing stay missing. Before the file takes its name, it is read again: it must hold each message, and each
    new field within the precision of the packing.
    """
    source, target = Path(source), Path(target)
    if target.is_dir():
        raise InputError(f"{target} is a folder; name a file to write")
    if source.resolve() == target.resolve() or (target.exists() and source.exists() and source.samefile(target)):
        raise InputError(f"{target} is the file that is read; name another file to write")
    table = table_of(source)
    bits: dict[Variable, int] = {}
    replaced, digest = 0, hashlib.sha256()
    with atomic_path(target) as partial:
        with source.open("rb", buffering=0) as original, partial.open("wb") as file:
            for record in table.records:
                old = read(original.fileno(), source, int(record["offset"]), int(record["length"]))
                kind = table.kinds[record["kind"]]
                asked = _message(kind, record)
                new = old
                if asked and (field := correction(asked)) is not None:
                    if asked.variable not in bits:
                        bits[asked.variable] = Lattice.of(source, asked.variable).bits
                    new = _replace(old, kind.layout, field, bits[asked.variable], asked)
                    replaced += 1
                digest.update(new)
                file.write(new)
        _audit_file(partial, target, len(table.records), digest.hexdigest())
    return replaced


def _message(kind: Kind, record: np.void) -> Message | None:
    """Return what a message holds; None for what cannot be corrected: other grids, levels and times."""
    if not kind.variable or not kind.layout.regular or record["step"] < 0 or record["step"] % 60:
        return None
    start = EPOCH + timedelta(seconds=int(record["init"]))
    return Message(kind.variable, start, int(record["step"]) // 60, int(record["number"]))


def _replace(old: bytes, layout: Layout, field: np.ndarray, bits: int, asked: Message) -> bytes:
    """Return the message `old` with the values of `field`, packed in so many `bits`."""
    missing = np.isnan(decode(old, layout))
    field = np.array(field, np.float64)
    if field.shape != missing.shape:
        raise ValueError(f"the correction of {asked} is {field.shape}, the message {missing.shape}")
    if not np.isfinite(field[~missing]).all():
        raise ValueError(f"the correction of {asked} is not finite where the message has values")
    handle = eccodes.codes_new_from_message(old)
    try:
        eccodes.codes_set_double(handle, "missingValue", MISSING)
        # With a decimal scale of its own, ecCodes would choose the number of bits anew.
        eccodes.codes_set_long(handle, "decimalScaleFactor", 0)
        eccodes.codes_set_long(handle, "bitsPerValue", bits)
        eccodes.codes_set_double_array(handle, "values", layout.store(np.where(missing, MISSING, field)))
        new = eccodes.codes_get_message(handle)
    except eccodes.CodesInternalError as error:
        raise InputError(f"ecCodes cannot write {asked} in the packing of the input: {error}") from None
    finally:
        eccodes.codes_release(handle)
    _audit_message(old, new, layout, np.where(missing, np.nan, field), bits, asked)
    return new


def _audit_message(old: bytes, new: bytes, layout: Layout, field: np.ndarray, bits: int, asked: Message) -> None:
    """Raise unless `new` has the header of `old` and the values of `field`.

    Values may differ by one step of the packing, 2^E (WMO Manual on Codes, regulation 92.9.4), and by
    the rounding of the reference value, whose hexadecimal floating point in GRIB1 carries as little as 21
    binary digits.
    """
    if _header(old) != _header(new):
        raise RuntimeError(f"the header of {asked} changed while its values were replaced")
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
        raise RuntimeError(f"the values of {asked} cannot be read back as they were written")


def _header(message: bytes) -> bytes:
    """Return the sections from which every key comes but those of values and packing.

    Sections 1 and 2 of GRIB1 (the second may be absent) but for the decimal scale in octets 27 and 28, 1 to 4 of
    GRIB2.
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


def _audit_file(partial: Path, target: Path, count: int, digest: str) -> None:
    """Raise unless the file on disk is what was written, message by message."""
    with partial.open("rb") as file:
        found = hashlib.file_digest(file, "sha256").hexdigest()
    if found != digest or sum(1 for _ in messages(partial)) != count:
        raise RuntimeError(f"{target} cannot be read back as it was written; nothing was kept")
