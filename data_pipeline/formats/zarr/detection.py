"""Recognise a Zarr store without importing the packages that read it, because most files are not Zarr.

The chunks of a store are in files of its own, in other files to which references point (kerchunk), or in an Icechunk
repository.
"""

from __future__ import annotations

import json
import zipfile
from pathlib import Path

from data_pipeline.common.file_format import REFERENCE_FORMAT, file_format
from data_pipeline.common.files import ICECHUNK_FILE, ZARR_FILES, FileAddress, Url, is_zarr_folder, reading

_ZIP_MAGIC = b"PK\x03\x04"
REFERENCES, ICECHUNK = "reference::", "icechunk::"
"""Beginnings of addresses whose name does not tell that they hold references or an Icechunk repository."""


def is_zarr(address: FileAddress) -> bool:
    """Whether an address is a Zarr store: a URL, a folder or zip file with metadata, a damaged zip, or references."""
    if isinstance(address, Url):
        return True
    if address.is_dir():
        return is_zarr_folder(address)
    with reading(address):
        with address.open("rb") as file:
            head = file.read(4)
        if head.lstrip().startswith(b"{"):
            return is_references(address)
        if head != _ZIP_MAGIC:
            return False
        try:
            with zipfile.ZipFile(address) as archive:
                return bool({*ZARR_FILES} & {*archive.namelist()})
        except zipfile.BadZipFile:
            return True


def is_references(address: FileAddress) -> bool:
    """Whether an address holds kerchunk references: a JSON file, or a folder of Parquet files."""
    if isinstance(address, Url):
        place = split_address(address)[0]
        return address.startswith(("reference:", REFERENCES)) or place.endswith((".json", ".parq", ".parquet"))
    if not address.is_dir():
        return file_format(address) is REFERENCE_FORMAT
    if not (metadata := address / ".zmetadata").is_file():
        return False
    try:
        return "record_size" in json.loads(metadata.read_bytes())
    except (OSError, ValueError):
        return False


def is_icechunk(address: FileAddress) -> bool:
    """Whether an address is an Icechunk repository: a folder, or a URL whose last folder ends in `.icechunk`."""
    if isinstance(address, Path):
        return (address / ICECHUNK_FILE).is_file()
    return address.startswith(ICECHUNK) or split_address(address)[0].endswith(".icechunk")


def split_address(address: FileAddress) -> tuple[str, str, str]:
    """Return place, version and group of `icechunk::PLACE@VERSION#GROUP` or `reference::PLACE#GROUP`.

    >>> split_address(Url("icechunk::s3://bucket/ens.icechunk@v1#forecast"))
    ('s3://bucket/ens.icechunk', 'v1', 'forecast')
    """
    if isinstance(address, Path):
        return str(address), "", ""
    place, _, group = address.partition("#")
    for start in ("reference://::", REFERENCES, ICECHUNK):
        place = place.removeprefix(start)
    folder, _, name = place.rstrip("/").rpartition("/")
    name, _, version = name.partition("@")
    return f"{folder}/{name}" if folder or place.startswith("/") else name, version, group.strip("/")
