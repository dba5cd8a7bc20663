"""A file that is a table: recognise it, read it, and keep its forecasts and observations as NetCDF in the cache."""

from __future__ import annotations

import json
import sqlite3
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING

from data_pipeline.common.errors import InputError
from data_pipeline.common.extras import package
from data_pipeline.common.file_format import CSV_FORMAT, PARQUET_FORMAT, SQLITE_FORMAT, file_format
from data_pipeline.common.files import atomic_path, describe_state
from data_pipeline.common.identity import sha256_of, sha256_of_bytes
from data_pipeline.formats.cache_files import CACHE_ERRORS, cache_folder, read_cache, write_cache
from data_pipeline.formats.reader_versions import READER_VERSIONS
from data_pipeline.formats.table.columns import role_of_column

if TYPE_CHECKING:
    import pandas as pd

TABLE_FORMATS = (CSV_FORMAT, PARQUET_FORMAT, SQLITE_FORMAT)
STATIONS = "stations"
"""A table of this name beside another one has the positions of its stations."""
_HARP_TABLES = ("FC", "SYNOP")
"""Tables of harp's SQLite files; in other files, the only table is read."""


def is_table(path: str | Path) -> bool:
    """Whether a file starts like a table."""
    return file_format(path) in TABLE_FORMATS


def stations_beside(path: Path) -> Path | None:
    """Return the table of stations in the folder of another table, or None."""
    found = (path.with_name(STATIONS + ending) for ending in (".csv", ".parquet", ".sqlite"))
    return next((each for each in found if each.is_file() and each != path), None)


def contents(path: Path) -> list[str]:
    """Return hashes of a table and of the stations beside it."""
    beside = stations_beside(path)
    return [sha256_of(each) for each in (path, beside) if each is not None]


def as_netcdf(path: Path) -> list[Path]:
    """Return the NetCDF files in the cache that hold the forecasts and the observations of a table."""
    beside = stations_beside(path)
    states = [describe_state(path), str(beside), beside and describe_state(beside)]
    identity = json.dumps([READER_VERSIONS["table"], *states])
    folder = cache_folder("table") / sha256_of_bytes(bytes(path.absolute()))[:24]
    if known := read_cache("table", path, identity):
        files = [folder / name for name in known[0]["files"]]
        if all(file.is_file() for file in files):
            return files
    with package("reading tables", "train"):
        from data_pipeline.formats.table.table_datasets import table_datasets
    found = table_datasets(read_table(path), None if beside is None else read_table(beside), str(path))
    if not found:
        raise InputError(f"{path} has no values; check the file")
    files = []
    for kind, dataset in found.items():
        files.append(folder / f"{path.name}.{kind}.nc")
        smaller = {name: {"zlib": True, "complevel": 1, "chunksizes": one.shape} for name, one in dataset.items()}
        try:
            folder.mkdir(parents=True, exist_ok=True)
            with atomic_path(files[-1]) as partial:
                dataset.to_netcdf(partial, engine="netcdf4", encoding=smaller)
        except CACHE_ERRORS as error:
            raise InputError(
                f"{path} is read by way of NetCDF, which cannot be written to {folder} ({error}); free some space, or "
                "set DEEPWEATHER_CACHE to a folder that you may write to"
            ) from None
    write_cache("table", path, identity, {"files": [file.name for file in files]}, b"")
    return files


def write_copy_of_table(path: Path, forecasts: Path, output: Path) -> None:
    """Write a copy of the table at `path` with the values of `forecasts`, a NetCDF file as of `as_netcdf`."""
    import xarray as xr

    from data_pipeline.formats.table.table_datasets import with_forecasts

    beside = stations_beside(path)
    with xr.open_dataset(forecasts, decode_timedelta=False) as dataset:
        table = with_forecasts(read_table(path), None if beside is None else read_table(beside), dataset, str(path))
    with atomic_path(output) as partial:
        if output.suffix.lower() == ".parquet":
            table.to_parquet(partial, index=False)
        else:
            table.to_csv(partial, index=False)


def read_table(path: Path) -> pd.DataFrame:
    """Return the table in a file of text, Parquet or SQLite."""
    with package("reading tables", "train"):
        import pandas as pd
    kind = file_format(path)
    try:
        if kind is SQLITE_FORMAT:
            with closing(sqlite3.connect(f"file:{path.absolute()}?mode=ro", uri=True)) as database:
                return pd.read_sql_query(f'select * from "{_table_name(database, path)}"', database)
        if kind is PARQUET_FORMAT:
            with package("reading Parquet", "parquet"):
                return pd.read_parquet(path)
        with path.open(encoding="utf-8-sig") as file:
            lines = enumerate(file)
            comments, head = next((line for line in lines if not line[1].startswith("#")), (0, ""))
        separator = max(",;\t", key=head.count)
        decimal = "," if separator == ";" else "."
        names = [name.strip(" \"'\n") for name in head.split(separator)]
        texts = {name: str for name in names if role_of_column(name) == "station"}
        return pd.read_csv(
            path, sep=separator, decimal=decimal, dtype=texts, skiprows=comments, skipinitialspace=True,
            encoding="utf-8-sig",
        )  # fmt: skip
    except ImportError:
        raise InputError(
            f"reading {path} needs the package fastparquet; run: pip install 'deepweather[parquet]'"
        ) from None
    except (OSError, ValueError, sqlite3.Error, UnicodeDecodeError) as error:
        raise InputError(f"{path} cannot be read as {kind} ({error}); correct the file") from None


def _table_name(database: sqlite3.Connection, path: Path) -> str:
    names = [name for (name,) in database.execute("select name from sqlite_master where type = 'table' order by name")]
    chosen = [name for name in names if name in _HARP_TABLES] or names
    if len(chosen) != 1:
        raise InputError(f"{path} has {len(names)} tables ({', '.join(names)}); write one table to a file of its own")
    return str(chosen[0])
