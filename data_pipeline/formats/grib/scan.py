"""Find the messages of a GRIB file by their lengths, check that each is complete, and read single messages.

No values are decoded. Each message costs four short reads: one for its last bytes and the first bytes of the next
message, and three for blocks in between. A hash of these bytes is part of the file's fingerprint.
"""

from __future__ import annotations

import os
import string
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from data_pipeline.common.errors import InputError
from data_pipeline.common.file_format import GRIB_FORMAT, UNKNOWN_FORMAT, file_format, wrong_format
from data_pipeline.common.identity import number_of
from data_pipeline.formats.grib.cfgrib_reader import read_field

FIRST_BYTES, LAST_BYTES = 256, 64
"""Bytes read from the ends of each message; the first bytes hold sections 1 and 2 of nearly every GRIB1 message."""
BLOCKS, BLOCK = 3, 512
"""Number and size of the blocks between both ends of a message; in fields of rain, both ends are often zeros."""
MAX_HEADING = 128
"""Longest text between two messages that is skipped as the heading of a WMO bulletin."""
PADDING = b"\0" + string.whitespace.encode() + b"\1\3"
"""Bytes that may follow the last message: zeros, line ends, control characters of bulletins."""


class ScannedMessage(NamedTuple):
    """The position of a message in its file, its first bytes, and a hash of some of its bytes."""

    offset: int
    length: int
    first_bytes: bytes
    sample: int


def scan_messages(path: Path) -> Iterator[ScannedMessage]:
    """Yield the messages of a file in order; incomplete messages, or other bytes between them, raise `InputError`."""
    with path.open("rb", buffering=0) as file:
        descriptor, size = file.fileno(), os.fstat(file.fileno()).st_size
        offset = _next_offset(path, descriptor, 0)
        while offset < size:
            first = os.pread(descriptor, FIRST_BYTES, offset)
            while first[:4] == b"GRIB":
                length = _message_length(path, descriptor, offset, first)
                if offset + length > size:
                    raise InputError(
                        f"{path} is cut off: the message at byte {offset} has {length} bytes, the file ends "
                        f"after {size - offset} of them; fetch the file again"
                    )
                last = min(LAST_BYTES, length)
                tail = os.pread(descriptor, last + FIRST_BYTES, offset + length - last)
                if tail[last - 4 : last] != b"7777":
                    raise InputError(
                        f"{path} is damaged: the message at byte {offset} does not end after the {length} "
                        "bytes given in its header; fetch the file again"
                    )
                inner = range(offset, offset + length, length // (BLOCKS + 1) + 1)[1:] if length > FIRST_BYTES else ()
                blocks = [os.pread(descriptor, min(BLOCK, offset + length - at), at) for at in inner]
                yield ScannedMessage(offset, length, first, number_of(first[:length], *blocks, tail[:last]))
                offset, first = offset + length, tail[last:]
            offset = _next_offset(path, descriptor, offset)


def read_message(descriptor: int, path: Path, offset: int, length: int, field: int = 0) -> bytes:
    """Return the message at `offset`; if it has several fields, return `field`, counted from 1, as a separate message.

    A file that changed since it was scanned raises `InputError`.
    """
    message = os.pread(descriptor, length, offset)
    if len(message) != length or message[:4] != b"GRIB" or message[-4:] != b"7777":
        raise changed_file(path, offset)
    return read_field(path, offset, field) if field else message


def damaged_message(path: Path, offset: int, problem: object) -> InputError:
    """Return the error for a message whose headers contradict each other or cannot be read."""
    return InputError(f"{path} is damaged: the message at byte {offset} {problem}; fetch the file again")


def changed_file(path: Path, offset: int | None = None) -> InputError:
    """Return the error for a file that has changed since it was scanned."""
    where = "" if offset is None else f" at byte {offset}"
    return InputError(f"{path} has changed{where} since it was opened; run again when it is complete")


def _next_offset(path: Path, descriptor: int, offset: int) -> int:
    """Return the position of the next message; the end of the file if only padding follows."""
    beginning = offset == 0
    while block := os.pread(descriptor, 1 << 16, offset):
        if rest := block.lstrip(PADDING):
            offset += len(block) - len(rest)
            # An archive file (tar, zip) may contain an uncompressed GRIB file, which must not be read as this file.
            if beginning and rest[:4] != b"GRIB" and file_format(path) not in (GRIB_FORMAT, UNKNOWN_FORMAT):
                raise wrong_format(path, "GRIB")
            start = os.pread(descriptor, MAX_HEADING + 4, offset).find(b"GRIB")
            if start < 0:
                raise InputError(
                    f"{path} holds no GRIB message from byte {offset} on; is it the right file, and complete?"
                )
            return offset + start
        offset += len(block)
    return offset


def _message_length(path: Path, descriptor: int, offset: int, first: bytes) -> int:
    """Return the length of the message at `offset`, from its header."""
    if len(first) < 16:
        raise InputError(f"{path} is cut off within the message at byte {offset}; fetch the file again")
    edition = first[7]
    if edition == 2:
        length = int.from_bytes(first[8:16], "big")
    elif edition == 1:
        length = int.from_bytes(first[4:7], "big")
        if length & 0x800000:
            length = _long_length(descriptor, offset, first, length)
    else:
        raise InputError(
            f"{path} holds a message of GRIB edition {edition} at byte {offset}; only editions 1 and 2 can be read"
        )
    if length < 16:
        raise InputError(
            f"{path} is damaged: the message at byte {offset} has the impossible length {length}; fetch the file again"
        )
    return length


def _long_length(descriptor: int, offset: int, first: bytes, length: int) -> int:
    """Return the length of a GRIB1 message whose three-byte length is 8 MiB or more.

    By ECMWF's convention such a length may be counted in units of 120 bytes. Section 4 then starts with the number of
    unused bytes of the last unit, which is below 120, instead of its own length.
    """
    position = offset + 8
    for present in (True, first[15] & 128, first[15] & 64):
        if present:
            position += int.from_bytes(os.pread(descriptor, 3, position), "big")
    unused = int.from_bytes(os.pread(descriptor, 3, position), "big")
    return (length & 0x7FFFFF) * 120 - unused + 4 if unused < 120 else length
