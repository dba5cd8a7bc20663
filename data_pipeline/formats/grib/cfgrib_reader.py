"""Read GRIB2 messages that hold several fields, with cfgrib; NCEP writes wind components in such messages.

`MessageReader` needs messages with one field. cfgrib separates the fields, and each field is then read as a message.
See docs/decisions/003-grib-reading.md.
"""

from __future__ import annotations

import os
import threading
from pathlib import Path

import eccodes

from data_pipeline.common.errors import InputError

_LOCK = threading.Lock()
"""cfgrib switches ecCodes to messages with several fields for the whole process, so threads must not do so at once."""


def count_fields(descriptor: int, offset: int, length: int) -> int:
    """Return the number of fields in the message at `offset` of an open file; GRIB1 messages hold one field."""
    if os.pread(descriptor, 1, offset + 7) != b"\2":
        return 1
    count, position = 0, 16
    while position < length - 4:
        section = os.pread(descriptor, 5, offset + position)
        count += section[4:] == b"\4"  # product definition
        position += int.from_bytes(section[:4], "big") or length
    return max(count, 1)


def read_field(path: Path, offset: int, field: int) -> bytes:
    """Return one field of the message at `offset`, counted from 1, as a GRIB2 message of its own."""
    # Imported here because few files need it and the import takes as long as opening a file.
    from cfgrib.messages import Message, multi_enabled

    try:
        with _LOCK, path.open("rb") as file:
            file.seek(offset)
            with multi_enabled(file):
                for _ in range(field):
                    message = Message.from_file(file, errors="raise")
            return eccodes.codes_get_message(message.codes_id)
    except (eccodes.CodesInternalError, EOFError, KeyError) as error:
        raise InputError(
            f"{path}: cfgrib cannot read field {field} of the message at byte {offset}: {error}; "
            "fetch the file again, or write one message per field with ecCodes' grib_copy"
        ) from None
