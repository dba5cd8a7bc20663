"""Read keys of ecCodes messages that not every kind of message has."""

from __future__ import annotations

import eccodes


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
