"""`load`: a corrector from its file."""

from __future__ import annotations

from pathlib import Path

from models.corrector import Corrector


def load(path: str | Path) -> Corrector:
    """Return the corrector in a file. Raises `InputError` if the file is missing, damaged or not a corrector."""
    return Corrector.load(Path(path).expanduser())
