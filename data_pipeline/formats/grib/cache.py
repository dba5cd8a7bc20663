"""Cache the tables of GRIB files, so that each file is scanned once.

The cache is in the user's cache folder, never beside the data: `DEEPWEATHER_CACHE`, otherwise
`XDG_CACHE_HOME`/deepweather, otherwise ~/.cache/deepweather. A cached table is used only while path, size, modification
time, first and last bytes of its file are unchanged. If the cache cannot be read, the file is scanned again.

A cache file holds a checksum, a line of JSON (identity, kinds) and the records as they are in memory, so that an
archive of millions of messages opens in seconds.
"""

from __future__ import annotations

import hashlib
import json
import os
import struct
import zlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict
from pathlib import Path
from typing import TypeVar

import numpy as np

from data_pipeline.common.errors import InputError
from data_pipeline.common.files import Paths, atomic_write, expand_paths
from data_pipeline.formats.grib.horizontal import Layout
from data_pipeline.formats.grib.table import RECORD, Kind, Stamp, Table

CACHE_VERSION = 3
"""Increased whenever the table of an unchanged file would differ."""
END_BYTES = 4096
"""Bytes at both ends of a file that must be unchanged."""
CHECKSUM, JSON_LENGTH = struct.Struct("<I"), struct.Struct("<Q")
"""The checksum of everything after it; the length of the line of JSON."""
SCAN_THREADS = 4
"""Files that are scanned at once."""
CACHE_ERRORS = (OSError, RuntimeError)
"""Errors of a cache folder that cannot be used; RuntimeError if the user has no home folder."""


ProgressFunction = Callable[[int, int], None]
_Result = TypeVar("_Result")


def table_of(path: Path) -> Table:
    """Return the table of a GRIB file, from the cache if possible."""
    try:
        identity, stamp = _identity(path)
    except OSError as error:
        raise InputError(f"cannot read {path} ({error.strerror})") from None
    table = _load(path, identity, stamp)
    if table is None:
        table = Table.of(path)
        _save(table, identity)
    return table


def is_cached(path: Path) -> bool:
    """Whether the cache holds the table of a file in its present state."""
    try:
        return _load(path, *_identity(path)) is not None
    except OSError:
        return False


def cache_folder() -> Path:
    """Return the folder of the cached tables."""
    own = os.environ.get("DEEPWEATHER_CACHE")
    shared = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    return (Path(own) if own else shared / "deepweather") / "grib"


def tables_of(paths: Sequence[Path]) -> Iterator[Table]:
    """Yield the tables of many files; a few are in memory at once."""
    for first in range(0, len(paths), SCAN_THREADS):
        yield from _in_threads(table_of, paths[first : first + SCAN_THREADS])


def index_files(
    paths: Paths, each: Callable[..., Iterable[str | None]] | None = None, progress: ProgressFunction | None = None
) -> dict[Path, str]:
    """Scan the files that are not in the cache; return the files that cannot be read, with the error message.

    `each(function, paths)` calls a function for every path, like the built-in `map`; by default it uses threads. It may
    use other processes that share the files and the cache folder: an Executor's `map`, or
    `lambda function, paths: client.gather(client.map(function, paths))` with a Dask client. `progress(done, total)` is
    called after each file.
    """
    files = expand_paths(paths)
    errors: dict[Path, str] = {}
    results = (each or _in_threads)(_scan, files)
    for done, (path, error) in enumerate(zip(files, results, strict=True), start=1):
        if error:
            errors[path] = error
        if progress:
            progress(done, len(files))
    return errors


def _in_threads(function: Callable[[Path], _Result], paths: Sequence[Path]) -> Iterator[_Result]:
    """Yield the results of `function` for each path; several calls run at once, to hide the latency of file systems."""
    with ThreadPoolExecutor(min(SCAN_THREADS, len(paths))) as pool:
        yield from pool.map(function, paths)


def _scan(path: Path) -> str | None:
    """Put the table of a file into the cache; return the error message if the file cannot be read."""
    try:
        table_of(path)
    except InputError as error:
        return str(error)
    return None


def _cache_file(path: Path) -> Path:
    name = hashlib.sha256(os.fsencode(path.absolute())).hexdigest()[:24]
    return cache_folder() / f"{name}.index"


def _identity(path: Path) -> tuple[str, Stamp]:
    """Return a text that changes with the file, and its stamp."""
    with path.open("rb", buffering=0) as file:
        stamp = Stamp.of(file.fileno())
        ends = b"".join(os.pread(file.fileno(), END_BYTES, at) for at in (0, max(0, stamp.size - END_BYTES)))
    digest = hashlib.sha256(ends).hexdigest()
    return json.dumps([CACHE_VERSION, str(path.absolute()), *stamp, digest]), stamp


def _load(path: Path, identity: str, stamp: Stamp) -> Table | None:
    try:
        content = memoryview(_cache_file(path).read_bytes())
        start = CHECKSUM.size + JSON_LENGTH.size
        (length,) = JSON_LENGTH.unpack_from(content, CHECKSUM.size)
        if (zlib.crc32(content[CHECKSUM.size :]),) != CHECKSUM.unpack_from(content):
            return None
        header = json.loads(bytes(content[start : start + length]))
        if header["identity"] != identity:
            return None
        kinds = tuple(Kind(**{**kind, "layout": Layout(**kind["layout"])}) for kind in header["kinds"])
        return Table(path, stamp, np.frombuffer(content[start + length :], RECORD), kinds)
    except (*CACHE_ERRORS, ValueError, KeyError, TypeError, struct.error):
        return None


def _save(table: Table, identity: str) -> None:
    header = json.dumps({"identity": identity, "kinds": [asdict(kind) for kind in table.kinds]}).encode()
    content = JSON_LENGTH.pack(len(header)) + header + table.records.tobytes()
    try:
        with atomic_write(_cache_file(table.path)) as file:
            file.write(CHECKSUM.pack(zlib.crc32(content)) + content)
    except (*CACHE_ERRORS, InputError):
        return  # the table is in memory; the next run scans the file again
