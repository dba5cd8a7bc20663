"""The files that a path, a pattern or a list of them stands for."""

from __future__ import annotations

import glob
from collections.abc import Iterable
from pathlib import Path

from data_pipeline.common.errors import InputError

Paths = str | Path | Iterable[str | Path]


def expand(paths: Paths) -> list[Path]:
    """Return the files in the order given, those of a pattern such as `data/output.sfc.*` sorted, each once.

    Index files (`.idx`) that other software leaves beside GRIB files are not matched by a pattern.
    """
    patterns = [paths] if isinstance(paths, str | Path) else list(paths)
    if not patterns:
        raise InputError("no files were named; give paths or patterns such as data/output.sfc.*")
    found: dict[Path, None] = {}
    for pattern in patterns:
        found.update(dict.fromkeys(_matches(str(Path(pattern).expanduser()))))
    return list(found)


def _matches(pattern: str) -> list[Path]:
    path = Path(pattern)
    if path.is_file():
        return [path]
    if path.is_dir():
        raise InputError(f"{pattern} is a folder; name its files, for example with {pattern.rstrip('/')}/*")
    if not glob.has_magic(pattern):
        raise InputError(f"there is no file {pattern}; check the path")
    names = sorted(glob.glob(pattern, recursive=True))  # noqa: PTH207 (Path.glob takes no absolute patterns)
    files = [path for name in names if not name.endswith(".idx") and (path := Path(name)).is_file()]
    if not files:
        raise InputError(f"no file matches {pattern}; check the path and the pattern")
    return files
