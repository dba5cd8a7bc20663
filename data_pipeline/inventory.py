"""Inventory: what the user's own files hold, found out before anything is trained on them."""

from __future__ import annotations

import time
from concurrent.futures import Executor
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from data_pipeline.archive import Archive
from data_pipeline.common.errors import InputError
from data_pipeline.common.files import expand_paths, remove_abandoned_files
from data_pipeline.common.messages import Progress, format_duration, format_size
from data_pipeline.formats import grib, netcdf
from data_pipeline.formats.grib.cache import cache_folder, index, is_cached, table_of

PARTS = {"ensemble": "ensemble", "analysis": "analysis", "static_fields": "static fields"}


@dataclass(frozen=True)
class Inventory:
    """Looks through every file of an archive once; the index it leaves in the cache makes later runs start at once."""

    archive: Archive

    def plan(self, at_once: int) -> str:
        """Say which files will be looked through, and for how long with `at_once` of them at a time.

        How long a file takes is found out from one of middling size that is not in the cache.
        """
        left = sorted((path for path in self._to_index if not is_cached(path)), key=lambda path: path.stat().st_size)
        probe = left[len(left) // 2 :][:1]
        began = time.monotonic()
        if probe and not index(probe) and not is_cached(probe[0]):
            raise InputError(
                f"the index cannot be kept in {cache_folder()}; make room or set DEEPWEATHER_CACHE "
                "to a folder that you may write to"
            )
        took = time.monotonic() - began
        lines = []
        for part, files in self._files.items():
            total = _bytes(files)
            lines.append(
                f"{PARTS[part]}: {len(files)} files, {format_size(total)}, {files[0].name} to {files[-1].name}"
            )
            if self._is_grib(part):
                lines[-1] += f", about {_messages(files, total):,.0f} messages"
        if self._to_index:
            known = len(self._to_index) - len(left)
            lines.append(f"index: {known} of {len(self._to_index)} GRIB files are known, in {cache_folder()}")
        if probe and (measured := _bytes(probe)):
            others = [path for path in left if path not in probe]
            seconds = took * _bytes(others) / measured / min(at_once, max(len(others), 1))
            lines.append(
                f"index: about {format_duration(seconds)} for {len(others)} files, {at_once} at a time, because "
                f"{probe[0].name} ({format_size(measured)}) took {took:.1f} s"
            )
        return "\n".join(lines)

    def look_through(self, workers: Executor) -> None:
        """Index the files, print what they hold, and then refuse files that cannot be read, if there are any."""
        remove_abandoned_files(cache_folder())
        left = [path for path in self._to_index if not is_cached(path)]
        damaged: dict[Path, str] = {}
        if left:
            known = len(self._to_index) - len(left)
            progress = Progress("index: file", len(self._to_index), known)
            damaged = index(
                left, workers.map, lambda done, _: progress.reach(known + done, f" ({left[done - 1].name})")
            )
        for part in self._files:
            package, options = self.archive.reader(part)
            print(f"\n{PARTS[part]}\n{package.inventory(getattr(self.archive, part), **options)}", flush=True)
            if package is netcdf:
                damaged |= netcdf.unusable(getattr(self.archive, part), **options)
        if damaged:
            first = next(iter(damaged.values()))
            others = f" (and {len(damaged) - 1} more files cannot be read)" if len(damaged) > 1 else ""
            raise InputError(f"{first}{others}; mend it or leave it out, then run the same command again")

    @cached_property
    def _files(self) -> dict[str, list[Path]]:
        return {part: expand_paths(getattr(self.archive, part)) for part in PARTS if getattr(self.archive, part)}

    @cached_property
    def _to_index(self) -> list[Path]:
        """All GRIB files, each once."""
        return list(dict.fromkeys(path for part, files in self._files.items() if self._is_grib(part) for path in files))

    def _is_grib(self, part: str) -> bool:
        return self.archive.reader(part)[0] is grib


def _bytes(files: list[Path]) -> int:
    return sum(path.stat().st_size for path in files)


def _messages(files: list[Path], total: int) -> float:
    """Estimate how many messages there are from those of the first file that is whole."""
    for path in files:
        try:
            return len(table_of(path).records) * total / path.stat().st_size
        except InputError:
            continue
    return 0
