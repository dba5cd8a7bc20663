"""Messages that ecCodes opens, and keys that not every kind of message has."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import eccodes


@contextmanager
def opened(message: bytes) -> Iterator[int]:
    """Open a message with ecCodes; yield its handle."""
    handle = eccodes.codes_new_from_message(message)
    try:
        yield handle
    finally:
        eccodes.codes_release(handle)


def get_text(handle: int, key: str, default: str = "") -> str:
    """Return the value of a key as text, or `default` for kinds of message that do not have it."""
    try:
        return eccodes.codes_get_string(handle, key)
    except eccodes.KeyValueNotFoundError:
        return default


def get_whole(handle: int, key: str, default: int) -> int:
    """Return the value of a key as a whole number, or `default` for kinds of message that do not have it."""
    try:
        return eccodes.codes_get_long(handle, key)
    except eccodes.KeyValueNotFoundError:
        return default
