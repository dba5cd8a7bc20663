"""Replace the values of a message, and read them back from the new message before it is written to a file.

Values in simple packing are read back by numpy (see `packing`), which takes less time than packing them with ecCodes;
ecCodes decodes all other packings.
"""

from __future__ import annotations

import eccodes
import numpy as np

from data_pipeline.common.errors import InputError
from data_pipeline.formats.catalog import DOUBLE
from data_pipeline.formats.grib.decode import decode
from data_pipeline.formats.grib.headers import GRIB1_BITMAP, NO_BITMAP, SIMPLE_PACKING
from data_pipeline.formats.grib.horizontal import Layout
from data_pipeline.formats.grib.keys import opened
from data_pipeline.formats.grib.packing import BUFFER_START, PACKED_BYTES, Packing, Resolution, decodable, unpack
from data_pipeline.writing.encode import MISSING
from data_pipeline.writing.marks import SectionError, section_starts

COMPLETE_PACKINGS = (0, 40, 41, 42)
"""GRIB2 packing templates that mark missing values only in a bitmap: simple, JPEG 2000, PNG, CCSDS."""


def missing_values(message: bytes, layout: Layout) -> np.ndarray | None:
    """Return where the values of a message are missing (H, W); None if its headers say that no value is missing."""
    if _is_complete(message):
        return None
    try:
        return np.isnan(decode(message, layout))
    except ValueError as error:
        raise SectionError(f"has another number of values than its grid has points ({error})") from None


def with_values(
    old: bytes, layout: Layout, field: np.ndarray, missing: np.ndarray | None, bits: int, name: object
) -> bytes:
    """Return the message `old` with the values of `field` (H, W), packed in `bits` per value.

    Values are missing where `missing` is true. `name` is the message's name in errors. Raises `InputError` for a
    packing that ecCodes cannot write, and for a header of `old` that ecCodes would change. Raises `RuntimeError` if the
    new message does not hold the values of `field`.
    """
    field = np.asarray(field, DOUBLE)
    shape = layout.grid.shape if missing is None else missing.shape
    if field.shape != shape:
        raise InputError(
            f"the correction of {name} has shape {field.shape}, the message has shape {shape}: its grid is not that of "
            "the forecast; fetch the file again, or leave this message out with ecCodes' grib_copy -w"
        )
    if not np.isfinite(field if missing is None else field[~missing]).all():
        raise ValueError(f"the correction of {name} is not finite where the message has values")
    stored = layout.store(field if missing is None else np.where(missing, MISSING, field))
    try:
        with opened(old) as handle:
            eccodes.codes_set_double(handle, "missingValue", MISSING)
            # With a decimal scale, ecCodes would choose the number of bits itself. Setting a key packs the old values
            # again, so a key that already has its value is not set.
            for key, value in (("decimalScaleFactor", 0), ("bitsPerValue", bits)):
                if eccodes.codes_get_long(handle, key) != value:
                    eccodes.codes_set_long(handle, key, value)
            eccodes.codes_set_double_array(handle, "values", stored)
            new = eccodes.codes_get_message(handle)
    except eccodes.CodesInternalError as error:
        raise InputError(
            f"{name} cannot be written in the packing of the input ({error}); repack the input first, for instance "
            "with ecCodes' grib_set -r -s packingType=grid_simple IN OUT"
        ) from None
    if _header(old) != _header(new):
        raise InputError(
            f"the header of {name} changed when ecCodes replaced its values, because the header has unusual or damaged "
            "octets; fetch the file again, or repack it first with ecCodes' grib_copy -r IN OUT"
        )
    if not _holds(new, stored, None if missing is None else layout.store(missing), bits):
        raise RuntimeError(f"the values of {name} differ from the written values when read back")
    return new


def _holds(message: bytes, stored: np.ndarray, missing: np.ndarray | None, bits: int) -> bool:
    """Whether a message holds the values `stored`, in `bits` per value or as a constant.

    Values may differ by one step of the packing, 2^E (WMO Manual on Codes, regulation 92.9.4), and by the rounding of
    the reference value, which has as few as 21 binary digits in GRIB1's hexadecimal floating point.
    """
    found, used, step = _read_back(message, stored.size)
    # Because both ends of the range are rounded, complex packing may need one bit less.
    if found.shape != stored.shape or used not in (0, bits - 1, bits):
        return False
    if missing is not None:
        if (np.isnan(found) != missing).any():
            return False
        found, stored = found[~missing], stored[~missing]
    largest = max(abs(stored.max(initial=0.0)), abs(stored.min(initial=0.0)))
    np.abs(np.subtract(found, stored, out=found), out=found)
    return bool(found.max(initial=0.0) <= step + 2.0**-20 * largest)  # false for NaN


def _read_back(message: bytes, size: int) -> tuple[np.ndarray, int, float]:
    """Return the `size` stored values of a message, NaN where missing, and bits and step of its packing."""
    packing, data = _simple_packing(message)
    fits = packing.bits > 0 and PACKED_BYTES.get(packing.bits, len(message)) * size <= len(message) - data
    if fits and decodable(*map(np.array, packing)):
        values = np.empty(size, DOUBLE)
        unpack(np.frombuffer(message, np.uint8)[data - BUFFER_START :], packing, values)
        return values, packing.bits, 2.0**packing.binary / 10.0**packing.decimal
    with opened(message) as handle:
        eccodes.codes_set_double(handle, "missingValue", np.nan)
        used, step = Resolution.of(handle)
        return eccodes.codes_get_double_array(handle, "values"), used, step


def _simple_packing(message: bytes) -> tuple[Packing, int]:
    """Return the packing of a message and the position of its values.

    Bits are -1 unless the packing is simple and no value is missing. `headers` reads many messages at once; for a
    single message, it would take as long as decoding with ecCodes.
    """
    sections = section_starts(message)

    def signed(at: int) -> int:
        value = int.from_bytes(message[at : at + 2], "big")
        return 0x8000 - value if value & 0x8000 else value

    if message[7] == 1:
        at = sections[4]
        word = int.from_bytes(message[at + 6 : at + 10], "big")
        reference = np.ldexp((-1.0 if word >> 31 else 1.0) * (word & 0xFFFFFF), 4 * ((word >> 24 & 127) - 70))
        bits = message[at + 10] if _is_complete(message) else -1
        return Packing(bits, float(reference), signed(at + 4), signed(sections[1] + 26)), at + 11
    at, data = sections[5], sections[7] + 5
    reference = np.frombuffer(message[at + 11 : at + 15], ">f4")[0]
    simple = int.from_bytes(message[at + 9 : at + 11], "big") == SIMPLE_PACKING and _is_complete(message)
    return Packing(message[at + 19] if simple else -1, float(reference), signed(at + 15), signed(at + 17)), data


def _is_complete(message: bytes) -> bool:
    """Whether the headers of a message say that no value is missing."""
    sections = section_starts(message)
    if message[7] == 1:
        return not message[15] & GRIB1_BITMAP and not message[sections[4] + 3] & 0xF0  # simple packing of grid points
    packing = sections[5]
    template = int.from_bytes(message[packing + 9 : packing + 11], "big")
    return message[sections[6] + 5] == NO_BITMAP and template in COMPLETE_PACKINGS


def _header(message: bytes) -> bytes:
    """Return the bytes of all keys except the keys of values and packing.

    In GRIB1 these are section 1 without the decimal scale in octets 27 and 28, and section 2 if there is one; in GRIB2,
    sections 1 to 4.
    """
    sections = section_starts(message)
    if message[7] == 1:
        start, end = sections[1], sections.get(3, sections[4])
        return message[start : start + 26] + message[start + 28 : end]
    return message[sections[1] : sections[5]]
