"""Find the messages of a GRIB file by their lengths, and see that each of them is whole.

Nothing is decoded here. Each message costs one short read: its end marker together with the start of what
follows.
"""

from __future__ import annotations

import os
import string
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from data_pipeline.common.errors import InputError

HEAD = 256
"""Bytes of a message that are read at once: in GRIB1 the first two sections of nearly every file."""
HEADING = 128
"""Longest text between two messages that is taken for the heading of a bulletin and passed over."""
BLANK = b"\0" + string.whitespace.encode() + b"\1\3"
"""Bytes that may follow the last message: padding, line ends, the control characters of bulletins."""


class Raw(NamedTuple):
    """One message: its place in the file and its first bytes."""

    offset: int
    length: int
    head: bytes


def messages(path: Path) -> Iterator[Raw]:
    """Yield the messages of a file in order; one that is not whole, and bytes that are none, are errors."""
    with path.open("rb", buffering=0) as file:
        descriptor, size = file.fileno(), os.fstat(file.fileno()).st_size
        offset = _next(path, descriptor, 0)
        while offset < size:
            head = os.pread(descriptor, HEAD, offset)
            while head[:4] == b"GRIB":
                length = _length(path, descriptor, offset, head)
                if offset + length > size:
                    raise InputError(
                        f"{path} is cut off: the message at byte {offset} has {length} bytes, the file ends "
                        f"after {size - offset} of them; fetch the file again"
                    )
                tail = os.pread(descriptor, 4 + HEAD, offset + length - 4)
                if tail[:4] != b"7777":
                    raise InputError(
                        f"{path} is damaged: the message at byte {offset} does not end after the {length} "
                        "bytes that it says it has; fetch the file again"
                    )
                yield Raw(offset, length, head)
                offset, head = offset + length, tail[4:]
            offset = _next(path, descriptor, offset)


def read(descriptor: int, path: Path, offset: int, length: int) -> bytes:
    """Return the message at `offset`, which is as whole as it was when the file was scanned."""
    message = os.pread(descriptor, length, offset)
    if len(message) != length or message[:4] != b"GRIB" or message[-4:] != b"7777":
        raise changed(path, offset)
    return message


def changed(path: Path, offset: int | None = None) -> InputError:
    """Return the sentence for a file that is not what it was when it was scanned."""
    where = "" if offset is None else f" at byte {offset}"
    return InputError(f"{path} has changed{where} since it was opened; run again when it is complete")


def _next(path: Path, descriptor: int, offset: int) -> int:
    """Return where the next message starts; the end of the file if only blank bytes follow."""
    while block := os.pread(descriptor, 1 << 16, offset):
        if rest := block.lstrip(BLANK):
            offset += len(block) - len(rest)
            start = os.pread(descriptor, HEADING + 4, offset).find(b"GRIB")
            if start < 0:
                raise InputError(f"{path} holds no GRIB at byte {offset} and what follows; fetch the file again")
            return offset + start
        offset += len(block)
    return offset


def _length(path: Path, descriptor: int, offset: int, head: bytes) -> int:
    """Return how many bytes the message at `offset` says it has."""
    if len(head) < 16:
        raise InputError(f"{path} is cut off within the message at byte {offset}; fetch the file again")
    edition = head[7]
    if edition == 2:
        length = int.from_bytes(head[8:16], "big")
    elif edition == 1:
        length = int.from_bytes(head[4:7], "big")
        if length & 0x800000:
            length = _long_length(descriptor, offset, head, length)
    else:
        raise InputError(f"{path} holds a message of GRIB edition {edition} at byte {offset}; only 1 and 2 are read")
    if length < 16:
        raise InputError(f"{path} is damaged: the message at byte {offset} says it has {length} bytes")
    return length


def _long_length(descriptor: int, offset: int, head: bytes, length: int) -> int:
    """Return the length of a GRIB1 message that says, in three bytes, it has 8 MiB or more.

    By ECMWF's convention such a length may be counted in units of 120 bytes. Section 4 then holds, instead of
    its own length, a number below 120: by how many bytes the last unit is too long.
    """
    position = offset + 8
    for present in (True, head[15] & 128, head[15] & 64):
        if present:
            position += int.from_bytes(os.pread(descriptor, 3, position), "big")
    excess = int.from_bytes(os.pread(descriptor, 3, position), "big")
    return (length & 0x7FFFFF) * 120 - excess + 4 if excess < 120 else length
