"""Keep the tables of GRIB files, so that each file is scanned once.

A cached table is a compressed .npz without pickles in the user's cache folder, never beside the data: in
`DEEPWEATHER_CACHE`, else in `XDG_CACHE_HOME`/deepweather, else in ~/.cache/deepweather. It
counts only while the file has the path, size, modification time, first and last bytes that it had; whatever
is wrong with the cache, the file is scanned as if there were none.
"""

from __future__ import annotations

import hashlib
import json
import os
import zipfile
import zlib
from dataclasses import asdict
from pathlib import Path

import numpy as np

from data_pipeline.errors import InputError
from data_pipeline.files import atomic_write
from data_pipeline.grib.layout import Layout
from data_pipeline.grib.table import RECORD, Kind, Table

VERSION = 1
"""Goes up whenever a table of the same file would look different."""
ENDS = 4096
"""Bytes at either end of a file that must not have changed."""
UNUSABLE = (OSError, RuntimeError)
"""What a cache folder that cannot be used says; RuntimeError is that of a user without a home."""


def table_of(path: Path) -> Table:
    """Return the table of a GRIB file, from the cache if it is there."""
    try:
        identity = _identity(path)
    except OSError as error:
        raise InputError(f"cannot read {path} ({error.strerror})") from None
    table = _load(path, identity)
    if table is None:
        table = Table.of(path)
        _save(table, identity)
    return table


def _place(path: Path) -> Path:
    own = os.environ.get("DEEPWEATHER_CACHE")
    shared = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    name = hashlib.sha256(os.fsencode(path.absolute())).hexdigest()[:24]
    return (Path(own) if own else shared / "deepweather") / "grib" / f"{name}.npz"


def _identity(path: Path) -> str:
    """Return what makes this file this file."""
    with path.open("rb") as file:
        status = os.fstat(file.fileno())
        ends = file.read(ENDS)
        file.seek(max(0, status.st_size - ENDS))
        ends += file.read(ENDS)
    digest = hashlib.sha256(ends).hexdigest()
    return json.dumps([VERSION, str(path.absolute()), status.st_size, status.st_mtime_ns, digest])


def _load(path: Path, identity: str) -> Table | None:
    try:
        with np.load(_place(path), allow_pickle=False) as stored:
            if stored["identity"].item() != identity:
                return None
            records, kinds = stored["records"], json.loads(stored["kinds"].item())
        if records.dtype != RECORD:
            return None
        return Table(path, records, tuple(Kind(**{**kind, "layout": Layout(**kind["layout"])}) for kind in kinds))
    except (*UNUSABLE, ValueError, KeyError, TypeError, EOFError, zipfile.BadZipFile, zlib.error):
        return None


def _save(table: Table, identity: str) -> None:
    kinds = json.dumps([asdict(kind) for kind in table.kinds])
    try:
        with atomic_write(_place(table.path)) as file:
            np.savez_compressed(
                file,
                records=table.records,
                kinds=np.array(kinds),
                identity=np.array(identity),
                allow_pickle=False,
            )
    except (*UNUSABLE, InputError):
        return  # a cache that cannot be written is no reason to stop
