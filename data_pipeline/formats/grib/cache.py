"""Cache the tables of GRIB files, so that each file is scanned once.

A cached table is used only while path, size, times, first and last bytes of its file and the versions of reader and
ecCodes are unchanged. If the cache cannot be read, the file is scanned again. A cache file holds the kinds as JSON and
the records as an array, so that an archive of millions of messages opens in seconds.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import eccodes
import numpy as np

from data_pipeline.common.errors import InputError
from data_pipeline.common.files import describe_state, reading
from data_pipeline.common.identity import sha256_of_bytes
from data_pipeline.common.progress import Progress
from data_pipeline.common.threads import in_threads
from data_pipeline.formats.cache_files import read_cache, write_cache
from data_pipeline.formats.grib.horizontal import Layout
from data_pipeline.formats.grib.kind import Kind
from data_pipeline.formats.grib.table import RECORD, Stamp, Table
from data_pipeline.formats.reader_versions import READER_VERSIONS

CACHE_VERSION = 6
"""Increased whenever the table of an unchanged file would differ."""
END_BYTES = 4096
"""Bytes at both ends of a file that must be unchanged."""
SCAN_THREADS = 4
"""Files that are scanned at once, to hide the latency of file systems."""


def table_of(path: Path) -> Table:
    """Return the table of a GRIB file, from the cache if possible."""
    with reading(path):
        identity, stamp = _identity(path)
    table = _load(path, identity, stamp)
    if table is None:
        table = Table.of(path)
        _save(table, identity)
    return table


def describe_messages(path: Path) -> tuple[Any, ...]:
    """Return what identifies a file beside its bytes: records and kinds, after 0, as records need no further blocks."""
    table = table_of(path)
    return 0, table.records.tobytes(), _plain(table.kinds)


def is_cached(path: Path) -> bool:
    """Whether the cache holds the table of a file in its present state."""
    try:
        return _load(path, *_identity(path)) is not None
    except OSError:
        return False


def tables_of(paths: Sequence[Path]) -> Iterator[Table]:
    """Yield the tables of many files; at most `SCAN_THREADS` are in memory at once."""
    with Progress("reading headers: file", len(paths)) as progress:
        for first in range(0, len(paths), SCAN_THREADS):
            yield from in_threads(table_of, paths[first : first + SCAN_THREADS], SCAN_THREADS)
            progress.reach(min(first + SCAN_THREADS, len(paths)))


def index_file(path: Path) -> str | None:
    """Put the table of a file into the cache, if it is not there; return the error if the file cannot be read."""
    try:
        table_of(path)
    except InputError as error:
        return str(error)
    return None


def _identity(path: Path) -> tuple[str, Stamp]:
    """Return a text that changes whenever the file changes, and the file's stamp."""
    with path.open("rb", buffering=0) as file:
        stamp = Stamp.of(file.fileno())
        ends = b"".join(os.pread(file.fileno(), END_BYTES, at) for at in (0, max(0, stamp.size - END_BYTES)))
    # The names and units of variables come from the tables of ecCodes.
    versions = [CACHE_VERSION, READER_VERSIONS["grib"], eccodes.codes_get_api_version()]
    return json.dumps([*versions, describe_state(path), *stamp, sha256_of_bytes(ends)]), stamp


def _load(path: Path, identity: str, stamp: Stamp) -> Table | None:
    if (found := read_cache("grib", path, identity)) is None:
        return None
    header, records = found
    try:
        kinds = tuple(Kind(**{**kind, "layout": Layout(**kind["layout"])}) for kind in header["kinds"])
        return Table(path, stamp, np.frombuffer(records, RECORD), kinds)
    except (ValueError, KeyError, TypeError):
        return None


def _save(table: Table, identity: str) -> None:
    write_cache("grib", table.path, identity, {"kinds": _plain(table.kinds)}, table.records.tobytes())


def _plain(kinds: Iterable[Kind]) -> list[dict[str, Any]]:
    return [asdict(kind) for kind in kinds]
