"""Identity: every fingerprint, checksum and cache key of the project; no other module computes hashes.

Equal fingerprints mean equal samples. So a fingerprint is made of contents: names, units, versions of readers, and the
bytes of the values. A copy in another folder has the same fingerprint.

Small files are hashed whole. Reading terabytes would take hours, so a large file is hashed in blocks at equal
distances, at least two for each field (`sampled_hash`). A format adds the header of each field, and GRIB also adds
bytes of each message. In a large file, a change of fewer consecutive bytes than the distance between two blocks may go
unnoticed: half a field of mean size, or the 4096th part of a file of more than 2,048 fields.
"""

from __future__ import annotations

import hashlib
import json
import math
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

WHOLE_BYTES = 1 << 22
"""Files and Zarr stores up to this size are hashed whole."""
BLOCK_BYTES, LEAST_BLOCKS, MOST_BLOCKS = 1 << 12, 64, 1 << 12
"""Size of the blocks in which a larger file is hashed, and their least and greatest number."""
BLOCKS_PER_FIELD = 2
HASH_THREADS = 32
"""Files hashed at once, to hide the latency of file systems."""

running_hash = hashlib.sha256
"""A SHA-256 to which bytes are added with `update`."""


def hash_of(*parts: object) -> str:
    """Return the SHA-256 of values, 64 hexadecimal digits; values that are not bytes as JSON with sorted keys."""
    digest = hashlib.sha256()
    for part in parts:
        octets = part if isinstance(part, bytes) else json.dumps(part, sort_keys=True, default=_plain).encode()
        digest.update(f"{len(octets)} ".encode())
        digest.update(octets)
    return digest.hexdigest()


def fingerprint_of(*parts: object) -> str:
    """Return the first 16 digits of `hash_of`."""
    return hash_of(*parts)[:16]


def sha256_of(path: str | Path) -> str:
    """Return the SHA-256 of a file's contents, as hexadecimal digits.

    That of a folder is the hash of a list of its files: one line `SHA-256  NAME` for each, sorted by name.
    """
    if (folder := Path(path)).is_dir():
        files = sorted(file for file in folder.rglob("*") if file.is_file())
        listed = "".join(f"{sha256_of(file)}  {file.relative_to(folder).as_posix()}\n" for file in files)
        return sha256_of_bytes(listed.encode())
    with Path(path).open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def sha256_of_bytes(content: bytes | memoryview) -> str:
    """Return the SHA-256 of bytes, as hexadecimal digits."""
    return hashlib.sha256(content).hexdigest()


def number_of(*contents: bytes) -> int:
    """Return a hash of bytes as an integer below 2**64."""
    return int.from_bytes(hashlib.sha256(b"".join(contents)).digest()[:8])


def sampled_hash(descriptor: int, size: int, fields: int, *, start: int = 0, whole: int | None = None) -> str:
    """Return a hash of `size` bytes of an open file, beginning at `start`.

    Up to `whole` bytes (None: `WHOLE_BYTES`) are hashed completely. Of more bytes, only blocks at equal distances are
    hashed, including the first and the last bytes; their number follows from the number of `fields` in the bytes.
    """
    count = min(max(LEAST_BLOCKS if whole is None else 2, BLOCKS_PER_FIELD * fields), MOST_BLOCKS)
    digest = hashlib.sha256(f"{size}\n".encode())
    if size <= max(WHOLE_BYTES if whole is None else whole, count * BLOCK_BYTES):
        digest.update(os.pread(descriptor, size, start))
    else:
        for k in range(count):
            digest.update(os.pread(descriptor, BLOCK_BYTES, start + (size - BLOCK_BYTES) * k // (count - 1)))
    return digest.hexdigest()


def sampled_hash_of(path: Path) -> str:
    """Return the `sampled_hash` of a file, with `MOST_BLOCKS` blocks."""
    with path.open("rb", buffering=0) as file:
        return sampled_hash(file.fileno(), os.fstat(file.fileno()).st_size, MOST_BLOCKS)


def field_count(shape: Sequence[int]) -> int:
    """Return the number of fields in an array; its last two dimensions, or the last of two, are horizontal."""
    return math.prod(shape[: max(min(len(shape) - 1, 1), len(shape) - 2)])


def _plain(value: Any) -> Any:
    """Return a JSON value for a value that JSON does not know: the list of an array, else its text."""
    return value.tolist() if hasattr(value, "tolist") else str(value)
