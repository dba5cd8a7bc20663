"""Recognise a Zarr store without importing the packages that read it, because most files are not Zarr."""

from __future__ import annotations

import zipfile

from data_pipeline.common.files import ZARR_FILES, FileAddress, Url, is_zarr_folder, reading

_ZIP_MAGIC = b"PK\x03\x04"


def is_zarr(address: FileAddress) -> bool:
    """Whether an address is a Zarr store: a URL, or a folder or zip file with Zarr metadata, or a damaged zip."""
    if isinstance(address, Url):
        return True
    if address.is_dir():
        return is_zarr_folder(address)
    with reading(address):
        with address.open("rb") as file:
            if file.read(4) != _ZIP_MAGIC:
                return False
        try:
            with zipfile.ZipFile(address) as archive:
                return bool({*ZARR_FILES} & {*archive.namelist()})
        except zipfile.BadZipFile:
            return True
