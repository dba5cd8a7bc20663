"""Recognise the format of a file by its first bytes, for the error message on a file of the wrong format."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from data_pipeline.common.errors import InputError
from data_pipeline.common.files import is_zarr_folder, reading

_HEAD_BYTES = 8192


@dataclass(frozen=True)
class FileFormat:
    """A file format: its `name` in a sentence, such as `a zip archive`, and `advice` on what to do with the file."""

    name: str
    advice: str

    def __str__(self) -> str:
        return self.name


GRIB_FORMAT = FileFormat("GRIB", "name it where GRIB is read")
NETCDF_FORMAT = FileFormat("NetCDF", "name it where NetCDF is read")
CSV_FORMAT = FileFormat("a table of text (CSV)", "name it where tables are read")
PARQUET_FORMAT = FileFormat("Parquet", "name it where tables are read")
SQLITE_FORMAT = FileFormat("SQLite", "name it where tables are read")
HDF5_FORMAT = FileFormat("HDF5", "name it where NetCDF is read, if it is NetCDF-4")
REFERENCE_FORMAT = FileFormat("references to chunks (kerchunk)", "name it where Zarr is read")
ZARR_FORMAT = FileFormat("a Zarr store", "name it where Zarr is read")
SAFETENSORS_FORMAT = FileFormat("safetensors", "name it where a corrector is read")
ONNX_FORMAT = FileFormat("an exported corrector (ONNX)", "name it as the corrector of deepweather correct")
EMPTY_FORMAT = FileFormat("empty", "fetch the file again")
UNKNOWN_FORMAT = FileFormat("in no known format", "check the path, or fetch the file again")
_UNPACK, _FETCH = "unpack it first", "it may be the error message of a download; look at it, then fetch the file again"
_OBSERVATIONS = "it holds observations, not fields; name a file of fields"
_NO_FIELDS = "name a file of fields"

_MAGIC: tuple[tuple[int, bytes, FileFormat], ...] = (
    *((0, b"CDF" + version, NETCDF_FORMAT) for version in (b"\x01", b"\x02", b"\x05")),
    (0, b"\x89HDF\r\n\x1a\n", HDF5_FORMAT),
    (512, b"\x89HDF\r\n\x1a\n", HDF5_FORMAT),
    (0, b"\x0e\x03\x13\x01", FileFormat("HDF4", "convert it to NetCDF-4 first")),
    (0, b"BUFR", FileFormat("BUFR", _OBSERVATIONS)),
    (0, b"ODA", FileFormat("ODB", _OBSERVATIONS)),
    (0, b"PK\x03\x04", FileFormat("a zip archive", _UNPACK)),
    (0, b"\x1f\x8b", FileFormat("compressed with gzip", _UNPACK)),
    (0, b"\x1f\x9d", FileFormat("compressed with compress", _UNPACK)),
    (0, b"BZh", FileFormat("compressed with bzip2", _UNPACK)),
    (0, b"\xfd7zXZ\0", FileFormat("compressed with xz", _UNPACK)),
    (0, b"\x28\xb5\x2f\xfd", FileFormat("compressed with zstd", _UNPACK)),
    (0, b"7z\xbc\xaf\x27\x1c", FileFormat("a 7z archive", _UNPACK)),
    (257, b"ustar", FileFormat("a tar archive", _UNPACK)),
    (2, b"\x12\x0bdeepweather", ONNX_FORMAT),
    (2, b"\x12\x07pytorch", FileFormat("an ONNX model of PyTorch", "make one of a corrector with deepweather export")),
    (0, b"%PDF", FileFormat("a PDF document", _NO_FIELDS)),
    (0, b"\x89PNG", FileFormat("a PNG picture", _NO_FIELDS)),
    (0, b"\xff\xd8\xff", FileFormat("a JPEG picture", _NO_FIELDS)),
    (0, b"II*\0", FileFormat("a TIFF picture", "convert it to GRIB or NetCDF first")),
    (0, b"MM\0*", FileFormat("a TIFF picture", "convert it to GRIB or NetCDF first")),
    (0, b"\x93NUMPY", FileFormat("an array of NumPy", "convert it to NetCDF first")),
    (0, b"PAR1", PARQUET_FORMAT),
    (0, b"SQLite format 3\0", SQLITE_FORMAT),
    (0, b"ARROW1", FileFormat("Arrow", "convert it to NetCDF first")),
    (0, b"version https://git-lfs", FileFormat("a pointer of Git LFS", "fetch the file itself with git lfs pull")),
)
"""Position and value of the bytes that mark a format."""


def file_format(path: str | Path) -> FileFormat:
    """Return the format of a file or folder; `UNKNOWN_FORMAT` if its first bytes are not recognised."""
    path = Path(path)
    if path.is_dir():
        return ZARR_FORMAT if is_zarr_folder(path) else FileFormat("a folder", "name a file")
    with reading(path), path.open("rb") as file:
        head, size = file.read(_HEAD_BYTES), path.stat().st_size
    if not size:
        return EMPTY_FORMAT
    for at, mark, found in _MAGIC:
        if head[at : at + len(mark)] == mark:
            # NetCDF-4 libraries write this attribute into their HDF5 files.
            return NETCDF_FORMAT if found is HDF5_FORMAT and b"_NCProperties" in head else found
    if b"GRIB" in head[:132]:  # perhaps after the heading of a bulletin
        return GRIB_FORMAT
    if head[8:9] == b"{" and 2 <= int.from_bytes(head[:8], "little") <= size - 8:
        return SAFETENSORS_FORMAT
    return _text_format(head)


def wrong_format(path: str | Path, wanted: str) -> InputError:
    """Return the error for a file that is not of the format `wanted`, such as `GRIB`; it names the file's format."""
    found = file_format(path)
    if found in (EMPTY_FORMAT, UNKNOWN_FORMAT):
        return InputError(f"{path} is {'empty' if found is EMPTY_FORMAT else f'not {wanted}'}; {found.advice}")
    return InputError(f"{path} is {found}, not {wanted}; {found.advice}")


def _text_format(head: bytes) -> FileFormat:
    if len(head) < 4:
        return UNKNOWN_FORMAT
    try:
        text = head[: head.rfind(b"\n") + 1 or len(head)].decode()
    except UnicodeDecodeError:
        return UNKNOWN_FORMAT
    if any(ord(letter) < 32 and letter not in "\t\n\r\f" for letter in text):
        return UNKNOWN_FORMAT
    start = text.lstrip("\ufeff \t\r\n").lower()
    if start.startswith(("<!doctype html", "<html")):
        return FileFormat("a web page", _FETCH)
    if start.startswith("<"):
        return FileFormat("XML", _FETCH)
    if start.startswith("{") and any(key in start for key in ('"refs"', '".zgroup"', '"templates"')):
        return REFERENCE_FORMAT
    if start.startswith(("{", "[")):
        return FileFormat("JSON", _FETCH)
    lines = [line for line in text.splitlines() if line.strip() and not line.startswith("#")]
    for separator in (",", ";", "\t"):
        counts = {line.count(separator) for line in lines}
        if len(lines) > 1 and len(counts) == 1 and counts != {0}:
            return CSV_FORMAT
    return FileFormat("text", _NO_FIELDS)
