"""Hashes of the contents of files and Zarr stores, with the version of the reader of their format."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

from data_pipeline.common import identity
from data_pipeline.common.files import FileAddress, reading
from data_pipeline.common.progress import watched
from data_pipeline.common.threads import in_threads
from data_pipeline.formats.reader_versions import READER_VERSIONS
from data_pipeline.formats.registry import format_of


def content_hashes(addresses: Sequence[FileAddress]) -> list[str]:
    """Return a hash of each file or store, whatever its name, folder and time; see `common.identity` for its limits."""
    with reading():
        hashes = in_threads(_content_hash, addresses, identity.HASH_THREADS)
        return list(watched(hashes, "fingerprint: file", len(addresses)))


def _content_hash(address: FileAddress) -> str:
    form = format_of(address)
    if form.is_store:
        return identity.hash_of(form.name, READER_VERSIONS[form.name], *form.describe(address))
    assert isinstance(address, Path)
    known = form.detects(address)  # the reader of GRIB gets what no format knows
    fields: int = 0
    description: list[object] = []
    with address.open("rb", buffering=0) as file:
        size = os.fstat(file.fileno()).st_size
        if size > identity.WHOLE_BYTES and known:
            fields, *description = form.describe(address)
        blocks = identity.sampled_hash(file.fileno(), size, fields)
    name = form.name if known else ""
    return identity.hash_of(name, READER_VERSIONS.get(name, 0), blocks, *description)
