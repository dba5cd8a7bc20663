"""Files that appear whole or not at all: temporary name, fsync, rename."""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO

from data_pipeline.errors import DiskFullError, InputError


@contextmanager
def atomic_path(path: str | Path) -> Iterator[Path]:
    """Yield a temporary path beside `path`; it takes the name `path` only if the block ends well.

    A full disk, a read-only folder or a missing permission becomes an `InputError` that names the file;
    whatever happens, nothing half-written is left behind.
    """
    path = Path(path)
    partial = path.with_name(f".{path.name}.{os.getpid()}.partial")
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
