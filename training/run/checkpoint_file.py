"""Checkpoint files that show whether they are whole: each carries the SHA-256 of its content.

PyTorch's checkpoint is a zip archive, and the hash stands in the archive's comment, so that `torch.load` and other
programs read the file as before.
"""

from __future__ import annotations

import os
import shutil
from pathlib import Path

from data_pipeline.common.errors import InputError
from data_pipeline.common.files import atomic_path
from data_pipeline.common.identity import running_hash

_LABEL = b"deepweather sha256 "
_COMMENT_BYTES = len(_LABEL) + 64
_END, _END_BYTES = b"PK\x05\x06", 22
"""Signature and length of the record at the end of a zip archive without comment; its last two bytes are the comment's
length."""
_CHUNK_BYTES = 1 << 22


def seal(path: Path) -> None:
    """Write the hash of a checkpoint file into its comment."""
    with path.open("r+b") as file:
        size = file.seek(0, os.SEEK_END)
        file.seek(max(size - _END_BYTES, 0))
        end = file.read()
        if not end.startswith(_END) or end[-2:] != b"\0\0":
            raise InputError(
                f"{path.parent}: the checkpoint is no file of torch.save, and damage could not be noticed; leave out "
                "the plugin of trainer.lightning that writes it"
            )
        digest = _digest(path, size)
        file.seek(size - 2)
        file.write(_COMMENT_BYTES.to_bytes(2, "little") + _LABEL + digest.encode())


def is_whole(path: Path) -> bool:
    """Return whether a file is as `seal` left it: not cut off, and no byte changed."""
    size = path.stat().st_size - _COMMENT_BYTES
    if size < _END_BYTES:
        return False
    with path.open("rb") as file:
        file.seek(size)
        comment = file.read()
    return comment == _LABEL + _digest(path, size).encode()


def keep_as(path: Path, name: Path) -> None:
    """Give the file `path`, if it exists, the second name `name`; both names always have a whole file."""
    if not path.exists():
        return
    with atomic_path(name) as partial:
        try:
            os.link(path, partial)
        except OSError:  # a file system without hard links
            shutil.copyfile(path, partial)


def _digest(path: Path, size: int) -> str:
    """Return the SHA-256 of the first `size` bytes, with zero as the length of the comment."""
    found, left = running_hash(), size - 2
    with path.open("rb") as file:
        while left:
            chunk = file.read(min(left, _CHUNK_BYTES))
            if not chunk:
                break
            found.update(chunk)
            left -= len(chunk)
    found.update(b"\0\0")
    return found.hexdigest()
