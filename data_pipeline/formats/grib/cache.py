"""Keep the tables of GRIB files, so that each file is scanned once.

A cached table lies in the user's cache folder, never beside the data: in `DEEPWEATHER_CACHE`, else in
`XDG_CACHE_HOME`/deepweather, else in ~/.cache/deepweather. It counts only while the file has the path, size,
modification time, first and last bytes that it had; whatever is wrong with the cache, the file is scanned as if
there were none.

The cache file is a checksum, a line of JSON (identity, kinds) and the records as they are in memory: an archive of
millions of messages is opened in seconds.
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
from data_pipeline.formats.grib.kind import Kind
from data_pipeline.formats.grib.table import RECORD, Stamp, Table

VERSION = 2
"""Goes up whenever a table of the same file would look different."""
ENDS = 4096
"""Bytes at either end of a file that must not have changed."""
CHECKSUM, LENGTH = struct.Struct("<I"), struct.Struct("<Q")
"""Of all that follows it; of the line of JSON."""
READERS = 4
"""Files that are looked at at a time."""
UNUSABLE = (OSError, RuntimeError)
"""What a cache folder that cannot be used says; RuntimeError is that of a user without a home."""


Progress = Callable[[int, int], None]
Result = TypeVar("Result")


def table_of(path: Path) -> Table:
    """Return the table of a GRIB file, from the cache if it is there."""
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
    """Whether the table of a file is in the cache and would be believed."""
    try:
        return _load(path, *_identity(path)) is not None
    except OSError:
        return False


def cache_folder() -> Path:
    """Return where the tables are kept."""
    own = os.environ.get("DEEPWEATHER_CACHE")
    shared = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    return (Path(own) if own else shared / "deepweather") / "grib"


def tables_of(paths: Sequence[Path]) -> Iterator[Table]:
    """Yield the tables of many files, of which a few are in memory at a time."""
    for first in range(0, len(paths), READERS):
        yield from _in_threads(table_of, paths[first : first + READERS])


def index(
    paths: Paths, each: Callable[..., Iterable[str | None]] | None = None, progress: Progress | None = None
) -> dict[Path, str]:
    """Scan those of the files that are not in the cache; return what is wrong with those that cannot be read.

    `each(function, paths)` calls a function for every path like the built-in `map` does; by default in threads. Where
    other processes see the files and the cache folder, it may be theirs: an Executor's `map`, or
    `lambda function, paths: client.gather(client.map(function, paths))` of a Dask client. `progress(done, total)` is
    called after each file.
    """
    files = expand_paths(paths)
    wrong: dict[Path, str] = {}
    complaints = (each or _in_threads)(_complaint, files)
    for done, (path, complaint) in enumerate(zip(files, complaints, strict=True), start=1):
        if complaint:
            wrong[path] = complaint
        if progress:
            progress(done, len(files))
    return wrong


def _in_threads(function: Callable[[Path], Result], paths: Sequence[Path]) -> Iterator[Result]:
    """Yield what `function` returns for each path; several are under way at a time, for file systems take theirs."""
    with ThreadPoolExecutor(min(READERS, len(paths))) as pool:
        yield from pool.map(function, paths)


def _complaint(path: Path) -> str | None:
    """Bring a file into the cache; return what is wrong with it."""
    try:
        table_of(path)
    except InputError as error:
        return str(error)
    return None


def _place(path: Path) -> Path:
    name = hashlib.sha256(os.fsencode(path.absolute())).hexdigest()[:24]
    return cache_folder() / f"{name}.index"


def _identity(path: Path) -> tuple[str, Stamp]:
    """Return what makes this file this file."""
    with path.open("rb", buffering=0) as file:
        stamp = Stamp.of(file.fileno())
        ends = os.pread(file.fileno(), ENDS, 0) + os.pread(file.fileno(), ENDS, max(0, stamp.size - ENDS))
    digest = hashlib.sha256(ends).hexdigest()
    return json.dumps([VERSION, str(path.absolute()), *stamp, digest]), stamp


def _load(path: Path, identity: str, stamp: Stamp) -> Table | None:
    try:
        content = memoryview(_place(path).read_bytes())
        start = CHECKSUM.size + LENGTH.size
        (length,) = LENGTH.unpack_from(content, CHECKSUM.size)
        if (zlib.crc32(content[CHECKSUM.size :]),) != CHECKSUM.unpack_from(content):
            return None
        header = json.loads(bytes(content[start : start + length]))
        if header["identity"] != identity:
            return None
        kinds = tuple(Kind(**{**kind, "layout": Layout(**kind["layout"])}) for kind in header["kinds"])
        return Table(path, stamp, np.frombuffer(content[start + length :], RECORD), kinds)
    except (*UNUSABLE, ValueError, KeyError, TypeError, struct.error):
        return None


def _save(table: Table, identity: str) -> None:
    header = json.dumps({"identity": identity, "kinds": [asdict(kind) for kind in table.kinds]}).encode()
    content = LENGTH.pack(len(header)) + header + table.records.tobytes()
    try:
        with atomic_write(_place(table.path)) as file:
            file.write(CHECKSUM.pack(zlib.crc32(content)) + content)
    except (*UNUSABLE, InputError):
        return  # a cache that cannot be written is no reason to stop
