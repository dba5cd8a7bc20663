"""Files that appear whole or not at all: temporary name, fsync, rename."""

from __future__ import annotations

import errno
import fcntl
import os
import socket
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO

from data_pipeline.common.errors import DiskFullError, InputError

HOST = socket.gethostname()
"""Part of temporary names, because folders are shared between machines, and numbers of processes are not."""


@contextmanager
def atomic_path(path: str | Path) -> Iterator[Path]:
    """Yield a temporary path beside `path`; it takes the name `path` only if the block ends well.

    A full disk, a read-only folder or a missing permission becomes an `InputError` that names the file;
    whatever happens, nothing half-written is left behind.
    """
    path = Path(path)
    partial = path.with_name(f".{path.name}.{HOST}.{os.getpid()}.partial")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        yield partial
        with partial.open("rb") as file:
            os.fsync(file.fileno())
        partial.replace(path)
    except OSError as error:
        raise disk_error(error, path) or error from None
    finally:
        with suppress(OSError):
            partial.unlink()


@contextmanager
def atomic_write(path: str | Path, mode: str = "wb") -> Iterator[IO]:
    """Open a file that takes its name only when the block has ended well."""
    with atomic_path(path) as partial, partial.open(mode) as file:
        yield file


@contextmanager
def alone(folder: Path) -> Iterator[None]:
    """Hold a folder: another run in it would take our unfinished files for leftovers."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise InputError(f"another run is writing to {folder}; wait for its end") from None
        yield
    finally:
        os.close(descriptor)


def sweep(folder: Path) -> None:
    """Remove what a run that was killed left half-written; only for a run that is `alone`."""
    for partial in folder.glob(".*.partial"):
        partial.unlink(missing_ok=True)


def sweep_abandoned(folder: Path) -> None:
    """Remove what processes of this machine that are no more left half-written; others may be writing here."""
    for partial in folder.glob(f".*.{HOST}.*.partial"):
        process = partial.name.split(".")[-2]
        if process.isdecimal() and not _runs(int(process)):
            partial.unlink(missing_ok=True)


def _runs(process: int) -> bool:
    try:
        os.kill(process, 0)
    except OSError as error:
        return error.errno != errno.ESRCH  # of another user, it may not be signalled
    return True


def disk_error(error: OSError, path: Path) -> InputError | None:
    """Return the sentence for a disk that refuses to hold `path`, or None if that is not what `error` says."""
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        return DiskFullError(
            f"no space left on the device while writing {path}; free some space or choose another place "
            "(nothing half-written was kept)"
        )
    if error.filename is not None and _concerns(Path(os.fsdecode(error.filename)), path):
        return InputError(f"cannot write {path} ({error.strerror}); choose a place you may write to")
    return None


def _concerns(refused: Path, path: Path) -> bool:
    """Whether `refused` is `path` itself, a folder above it, something in it, or its temporary name."""
    partial = refused.parent == path.parent and refused.name.startswith(f".{path.name}.")
    return partial or refused in path.parents or refused.is_relative_to(path)
