"""One NetCDF file: told from others by its first bytes, opened under one lock, its damage said in one sentence."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import netCDF4
from xarray.backends.netCDF4_ import NETCDF4_PYTHON_LOCK

from data_pipeline.common.errors import InputError
from data_pipeline.formats.netcdf.classic import least_size

CLASSIC = (b"CDF\x01", b"CDF\x02", b"CDF\x05")
HDF5 = b"\x89HDF\r\n\x1a\n"


def is_netcdf(path: str | Path) -> bool:
    """Whether a file begins as NetCDF files do, classic or NetCDF-4."""
    try:
        with Path(path).open("rb") as file:
            head = file.read(8)
    except OSError as error:
        raise InputError(f"cannot read {path} ({error.strerror})") from None
    return head == HDF5 or head[:4] in CLASSIC


@dataclass(frozen=True)
class File:
    """A file as it was when it was first looked at; sent to another process, it is opened there anew."""

    path: Path
    size: int
    modified: int

    @classmethod
    def at(cls, path: Path) -> File:
        """Look at a file; one that is no NetCDF or is cut off is an error."""
        if not is_netcdf(path):
            raise InputError(f"{path} is no NetCDF file; is it the right one?")
        status = path.stat()
        file = cls(path, status.st_size, status.st_mtime_ns)
        with file.opened() as dataset:
            classic = dataset.data_model.startswith("NETCDF3")
        if classic:
            file._refuse_if_cut_off()
        return file

    def _refuse_if_cut_off(self) -> None:
        try:
            promised = least_size(self.path)
        except EOFError:
            raise InputError(f"{self.path} is cut off within its header; fetch the file again") from None
        if promised > self.size:
            raise InputError(
                f"{self.path} is cut off: it has {self.size:,} bytes of {promised:,}; fetch the file again"
            )

    @contextmanager
    def opened(self) -> Iterator[netCDF4.Dataset]:
        """Lend the file, open, to one thread at a time: the NetCDF and HDF5 libraries are not safe with more.

        The lock is xarray's, so that files which the user has opened with xarray are safe as well. The file is closed
        at once: HDF5 keeps what it knows of an open file, and crashes when that file is written anew meanwhile.
        """
        with NETCDF4_PYTHON_LOCK:
            try:
                status = self.path.stat()
                if (status.st_size, status.st_mtime_ns) != (self.size, self.modified):
                    raise InputError(f"{self.path} has changed since it was opened; run again when it is complete")
                dataset = netCDF4.Dataset(self.path)
            except OSError as error:
                reason = str(error.strerror or error).removeprefix("NetCDF: ")
                raise InputError(f"cannot read {self.path} ({reason}); fetch the file again if it is damaged") from None
            with dataset:
                yield dataset
