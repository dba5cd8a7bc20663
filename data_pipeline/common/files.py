"""Files: atomic writes, folder locks, disk errors, path patterns and URLs."""

from __future__ import annotations

import csv
import errno
import fcntl
import glob
import os
import re
import shutil
import socket
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from itertools import count
from pathlib import Path
from typing import IO

from data_pipeline.common.errors import DiskFullError, InputError
from data_pipeline.common.messages import say_once

_HOST = socket.gethostname()
"""Part of temporary file names, because machines share folders and process numbers are unique on one machine only."""
_WRITES = count()
"""The last part of temporary file names, because several threads may write to one path."""

LOCK_NAME = ".lock"
"""The file in a folder that a run locks. It is never removed, or two runs could hold locks on two such files."""
_WITHOUT_LOCKS = (errno.ENOLCK, errno.ENOTSUP, errno.EOPNOTSUPP, errno.ENOSYS, errno.EBADF)
"""Errors of file systems without locks; NFS gives EBADF for a file that is not open for writing."""

Paths = str | Path | Iterable[str | Path]
"""A path, a pattern such as `data/output.sfc.*`, a URL, or several of them."""


class Url(str):
    """The address of a store: `https://host/folder/store.zarr`, which fsspec opens, or `icechunk::/data/store`."""

    @property
    def name(self) -> str:
        """The last part of the address."""
        return self.rstrip("/").rpartition("/")[2]

    @property
    def state(self) -> str:
        """A text for `describe_state`."""
        return self


FileAddress = Path | Url
"""A file, the folder of a Zarr store, or a URL."""

_URL = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*(://|::)")
ICECHUNK_FILE = "refs/branch.main/ref.json"
"""The file in every Icechunk repository that names its last snapshot."""
ZARR_FILES = ("zarr.json", ".zgroup", ".zmetadata", ".zarray", ICECHUNK_FILE)
"""Names of metadata files; the folder of every Zarr store and Icechunk repository holds at least one of them."""


def is_zarr_folder(path: Path) -> bool:
    """Whether a path is the folder of a Zarr store or an Icechunk repository."""
    return path.is_dir() and any((path / name).is_file() for name in ZARR_FILES)


@contextmanager
def atomic_path(path: str | Path, durable: bool = True) -> Iterator[Path]:
    """Yield a temporary path beside `path`; it is renamed to `path` when the block ends without an error.

    The block makes a file, or a folder, which then also takes the place of an older folder. Without `durable` the call
    does not wait for the disk, which takes seconds on a busy disk. The file then survives the end of the process, but
    perhaps not a power failure. A full disk, a read-only folder or a missing permission raises an `InputError` that
    names the file. The temporary path is always removed.
    """
    path = Path(path)
    partial = path.with_name(f".{path.name}.{_HOST}.{os.getpid()}-{next(_WRITES)}.partial")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        yield partial
        if durable:
            for each in partial.rglob("*") if partial.is_dir() else [partial]:
                if each.is_file():
                    with each.open("rb") as file:
                        os.fsync(file.fileno())
        if partial.is_dir() and path.is_dir():
            _replace_folder(partial, path)
        else:
            partial.replace(path)
    except OSError as error:
        raise disk_error(error, path) or error from None
    finally:
        _remove(partial)


def _replace_folder(partial: Path, path: Path) -> None:
    """Put a folder in the place of an older one; the older one comes back if that fails."""
    older = partial.with_name(partial.name.replace(".partial", "-older.partial"))
    path.replace(older)
    try:
        partial.replace(path)
    except BaseException:
        older.replace(path)
        raise
    _remove(older)


def _remove(partial: Path) -> None:
    """Remove an unfinished file or folder, if it is there and may be removed."""
    with suppress(OSError):
        if partial.is_dir():
            shutil.rmtree(partial)
        else:
            partial.unlink()


@contextmanager
def atomic_write(path: str | Path, mode: str = "wb", durable: bool = True) -> Iterator[IO]:
    """Open a temporary file for writing; rename it to `path` when the block ends without an error (`atomic_path`)."""
    with atomic_path(path, durable) as partial, partial.open(mode) as file:
        yield file


def write_text(path: str | Path, text: str) -> None:
    """Write a file as a whole, in UTF-8; see `atomic_path`."""
    with atomic_write(path) as file:
        file.write(text.encode())


@contextmanager
def lock_folder(folder: Path, *inner: Path, patience: float = 0.0) -> Iterator[int]:
    """Lock a folder, and remove the unfinished files of killed runs in it and in the folders `inner`.

    Raises an `InputError` if another run still holds the lock after `patience` seconds. Yields the descriptor of the
    lock file: a process that inherits it holds the lock too. On a file system without locks, a line is printed, and
    only unfinished files of ended processes are removed.
    """
    descriptor = _open_lock(folder)
    try:
        locked = _take_lock(descriptor, folder, time.monotonic() + patience)
        for each in (folder, *inner):
            remove_abandoned_files(each, locked)
        yield descriptor
    finally:
        os.close(descriptor)


def _open_lock(folder: Path) -> int:
    """Open the lock file for writing: NFS passes locks on such files, but not on folders, to other machines."""
    path = folder / LOCK_NAME
    try:
        return os.open(path, os.O_RDWR | os.O_CREAT, 0o666)
    except OSError as error:
        if error.errno not in (errno.EACCES, errno.EPERM, errno.EROFS):
            raise disk_error(error, path) or error from None
    # The folder is another user's, and this run may not need to write there.
    return os.open(path if path.exists() else folder, os.O_RDONLY)


def _take_lock(descriptor: int, folder: Path, until: float) -> bool:
    """Lock an open file; wait `until` a time if another run holds it. Return False if the file system has no locks."""
    while True:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return True
        except BlockingIOError:
            if time.monotonic() >= until:
                raise InputError(
                    f"another run is writing to {folder}; wait until it ends, or choose another folder"
                ) from None
        except OSError as error:
            if error.errno not in _WITHOUT_LOCKS:
                raise
            say_once(f"{folder} cannot be locked ({error.strerror}): do not start a second run that writes there")
            return False
        say_once(f"another run is still writing to {folder}; waiting for its end")
        time.sleep(0.2)


def remove_abandoned_files(folder: Path, locked: bool = False) -> None:
    """Remove unfinished files whose process ran on this machine and has ended; other processes may still be writing.

    If the caller has `locked` the folder, no other process is writing there, and all unfinished files are removed.
    """
    for partial in folder.glob(".*.partial" if locked else f".*.{_HOST}.*.partial"):
        process = partial.name.split(".")[-2].partition("-")[0]
        if locked or (process.isdecimal() and not _is_running(int(process))):
            _remove(partial)  # unless the folder belongs to another user


def _is_running(process: int) -> bool:
    try:
        os.kill(process, 0)
    except OSError as error:
        return error.errno != errno.ESRCH  # a running process of another user gives EPERM
    return True


@contextmanager
def reading(path: FileAddress | None = None) -> Iterator[None]:
    """Raise an `InputError` with the name of the file, `path` or that of the error, if the block cannot read it."""
    try:
        yield
    except OSError as error:
        raise InputError(f"cannot read {path or error.filename} ({error.strerror})") from None


def disk_error(error: OSError, path: Path) -> InputError | None:
    """Return an `InputError` if `error` says that `path` cannot be written; None for any other error."""
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        return DiskFullError(
            f"no space left on the device while writing {path}; free some space or choose another path "
            "(the unfinished file was removed)"
        )
    if error.filename is not None and _concerns(Path(os.fsdecode(error.filename)), path):
        return InputError(f"cannot write {path} ({error.strerror}); choose a path that you may write to")
    return None


def _concerns(refused: Path, path: Path) -> bool:
    """Whether `refused` is `path`, a folder above it, a file below it, or its temporary file."""
    partial = refused.parent == path.parent and refused.name.startswith(f".{path.name}.")
    return partial or refused in path.parents or refused.is_relative_to(path)


def describe_state(address: FileAddress) -> str:
    """Return a text that changes when a file, or the metadata of a Zarr folder, is rewritten; a URL is returned as is.

    The text includes the inode's change time, because a copy over the file may keep the modification time.
    """
    if isinstance(address, Url):
        return address.state
    files = [address / name for name in ZARR_FILES] if address.is_dir() else [address]
    found = [file.stat() for file in files if file.exists()]
    states = [(status.st_size, status.st_mtime_ns, status.st_ctime_ns, status.st_ino) for status in found]
    return f"{address.absolute()} {states}"


def write_csv(path: Path, columns: Sequence[str], rows: Iterable[Sequence[object]]) -> None:
    """Write a table; floating-point numbers have nine digits, and undefined ones are empty."""
    with atomic_path(path) as partial, partial.open("w", newline="", encoding="utf-8") as file:
        table = csv.writer(file)
        table.writerow(columns)
        for row in rows:
            table.writerow([f"{one:.9g}" * (one == one) if isinstance(one, float) else one for one in row])


def total_bytes(addresses: Iterable[FileAddress]) -> int:
    """Return the total bytes of files and of all files in Zarr folders; a URL counts as 0."""
    files = [
        file
        for address in addresses
        if isinstance(address, Path)
        for file in (address.rglob("*") if address.is_dir() else [address])
    ]
    return sum(file.stat().st_size for file in files if file.is_file())


def expand_addresses(paths: Paths) -> list[FileAddress]:
    """Return the files and Zarr stores that paths, patterns and URLs name, in the given order without repetition.

    Matches of a pattern are sorted. Patterns do not match index files (`.idx`), which other software leaves beside GRIB
    files. URLs are not patterns.
    """
    patterns = [paths] if isinstance(paths, str | Path) else list(paths)
    if not patterns:
        raise InputError("no files were given; give paths or patterns such as data/output.sfc.*")
    found: dict[FileAddress, None] = {}
    for pattern in patterns:
        if isinstance(pattern, Url):
            found[pattern] = None
        elif isinstance(pattern, str) and _URL.match(pattern):
            found[Url(pattern)] = None
        else:
            found.update(dict.fromkeys(_matches(str(Path(pattern).expanduser()))))
    return list(found)


def expand_paths(paths: Paths) -> list[Path]:
    """Return the files that paths and patterns match, like `expand_addresses`; Zarr folders and URLs are refused."""
    files: list[Path] = []
    for address in expand_addresses(paths):
        if isinstance(address, Url):
            raise InputError(f"{address} is a URL, which is for Zarr stores only; name files of one format")
        if address.is_dir():
            raise InputError(f"{address} is a Zarr store among other files; name files of one format")
        files.append(address)
    return files


def _matches(pattern: str) -> list[Path]:
    path = Path(pattern)
    if path.is_file() or is_zarr_folder(path):
        return [path]
    if path.is_dir():
        raise InputError(
            f"{pattern} is a folder but no Zarr store; name its files, for example with {pattern.rstrip('/')}/*"
        )
    if not glob.has_magic(pattern):
        raise InputError(f"there is no file {pattern}; check the path")
    names = sorted(glob.glob(pattern, recursive=True))  # noqa: PTH207 (Path.glob takes no absolute patterns)
    paths = [Path(name) for name in names if not name.endswith(".idx")]
    files = [path for path in paths if path.is_file() or is_zarr_folder(path)]
    if not files:
        folders = f" but {paths[0]}, a folder that is no Zarr store" if paths else ""
        raise InputError(f"no file matches {pattern}{folders}; check the path and the pattern")
    return files
