"""Cache files: each format stores the headers of its files here, so that every file is indexed once.

The cache is in the user's cache folder, never beside the data: `DEEPWEATHER_CACHE`, otherwise
`XDG_CACHE_HOME`/deepweather, otherwise ~/.cache/deepweather, with a folder for each format. A cache file holds a
checksum, a line of JSON, and arrays as they are in memory. The JSON has the identity of the file that was read.
"""

from __future__ import annotations

import json
import os
import struct
import zlib
from pathlib import Path
from typing import Any

from data_pipeline.common.errors import InputError
from data_pipeline.common.files import CACHE_ERRORS, atomic_write, cache_folder
from data_pipeline.common.identity import sha256_of_bytes

CHECKSUM, JSON_LENGTH = struct.Struct("<I"), struct.Struct("<Q")
"""The checksum of everything after it; the length of the line of JSON."""


def read_cache(file_format: str, path: Path, identity: str) -> tuple[dict[str, Any], memoryview] | None:
    """Return JSON and arrays about the file at `path`; None if there are none, or if they have another identity."""
    try:
        content = memoryview(_cache_file(file_format, path).read_bytes())
        start = CHECKSUM.size + JSON_LENGTH.size
        (length,) = JSON_LENGTH.unpack_from(content, CHECKSUM.size)
        if (zlib.crc32(content[CHECKSUM.size :]),) != CHECKSUM.unpack_from(content):
            return None
        header = json.loads(bytes(content[start : start + length]))
        return (header, content[start + length :]) if header["identity"] == identity else None
    except (*CACHE_ERRORS, ValueError, KeyError, TypeError, struct.error):
        return None


def write_cache(file_format: str, path: Path, identity: str, values: dict[str, Any], arrays: bytes) -> None:
    """Keep JSON values and arrays about the file at `path`; nothing happens if the cache cannot be written."""
    header = json.dumps({"identity": identity, **values}).encode()
    content = JSON_LENGTH.pack(len(header)) + header + arrays
    try:
        with atomic_write(_cache_file(file_format, path)) as file:
            file.write(CHECKSUM.pack(zlib.crc32(content)) + content)
    except (*CACHE_ERRORS, InputError):
        return  # the next run reads the file again


def _cache_file(file_format: str, path: Path) -> Path:
    name = sha256_of_bytes(os.fsencode(path.absolute()))[:24]
    return cache_folder(file_format) / f"{name}.index"
