"""Hashes of the contents of files and Zarr stores, with the version of the reader of their format."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from data_pipeline.common import identity
from data_pipeline.common.errors import InputError
from data_pipeline.common.extras import package
from data_pipeline.common.file_format import GRIB_FORMAT, file_format
from data_pipeline.common.files import FileAddress
from data_pipeline.common.progress import watched
from data_pipeline.common.threads import in_threads
from data_pipeline.formats.grib.cache import describe_messages
from data_pipeline.formats.netcdf import is_netcdf
from data_pipeline.formats.netcdf.header import describe_structure
from data_pipeline.formats.reader_versions import READER_VERSIONS
from data_pipeline.formats.zarr.detection import is_zarr

_DESCRIBED: dict[str, Callable[[Path], tuple[Any, ...]]] = {
    "grib": describe_messages, "netcdf": describe_structure, "": lambda path: (0,),
}  # fmt: skip
"""Functions that return the number of fields for which blocks are hashed, and what else is known of a large file."""


def content_hashes(addresses: Sequence[FileAddress]) -> list[str]:
    """Return a hash of each file or store, whatever its name, folder and time; see `common.identity` for its limits."""
    try:
        hashes = in_threads(_content_hash, addresses, identity.HASH_THREADS)
        return list(watched(hashes, "fingerprint: file", len(addresses)))
    except OSError as error:
        raise InputError(f"cannot read {error.filename} ({error.strerror})") from None


def _content_hash(address: FileAddress) -> str:
    if is_zarr(address):
        with package("reading Zarr", "train"):
            from data_pipeline.formats.zarr.header import describe_store

        return identity.hash_of("zarr", READER_VERSIONS["zarr"], *describe_store(address))
    assert isinstance(address, Path)
    name = "netcdf" if is_netcdf(address) else "grib" if file_format(address) == GRIB_FORMAT else ""
    fields: int = 0
    description: list[object] = []
    with address.open("rb", buffering=0) as file:
        size = os.fstat(file.fileno()).st_size
        if size > identity.WHOLE_BYTES:
            fields, *description = _DESCRIBED[name](address)
        blocks = identity.sampled_hash(file.fileno(), size, fields)
    return identity.hash_of(name, READER_VERSIONS.get(name, 0), blocks, *description)
