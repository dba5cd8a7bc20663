"""Hashes of file contents: of all bytes, or for terabytes of the size, both ends and blocks in between."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterator, Sequence
from pathlib import Path

from data_pipeline.common.threads import in_threads

HASHED_END_BYTES = 1 << 16
"""Bytes hashed at each end of a file: headers, the first and the last fields."""
BLOCK_BYTES, BLOCK_COUNT = 1 << 12, 8
"""Size and number of the blocks hashed in between, at equal distances."""
HASH_THREADS = 8
"""Files hashed at once, to hide the latency of file systems."""


def sampled_hash(path: Path) -> str:
    """Return a hash of a file's size, both ends and some blocks in between, whatever its name and time.

    A copy has the same hash. A change of the values in the middle of a file that keeps its size may go unnoticed unless
    it touches one of the blocks.
    """
    with path.open("rb", buffering=0) as file:
        size = os.fstat(file.fileno()).st_size
        digest = hashlib.sha256(f"{size}\n".encode())
        for start, count in _blocks(size):
            digest.update(os.pread(file.fileno(), count, start))
    return digest.hexdigest()


def sha256_of(path: Path) -> str:
    """Return the SHA-256 of a file's contents, as hexadecimal digits."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def sampled_hashes(paths: Sequence[Path]) -> list[str]:
    """Return the `sampled_hash` of each file."""
    return list(in_threads(sampled_hash, paths, HASH_THREADS))


def _blocks(size: int) -> Iterator[tuple[int, int]]:
    """Yield start and length of the hashed blocks of a file of `size` bytes."""
    yield 0, HASHED_END_BYTES
    if size <= HASHED_END_BYTES:
        return
    between = size - 2 * HASHED_END_BYTES
    if between > 0:
        for k in range(1, BLOCK_COUNT + 1):
            yield HASHED_END_BYTES + between * k // (BLOCK_COUNT + 1), BLOCK_BYTES
    yield max(HASHED_END_BYTES, size - HASHED_END_BYTES), HASHED_END_BYTES
