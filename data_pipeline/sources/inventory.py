"""Inventory: a check of all files of an archive, and a summary of their contents, before training."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from concurrent.futures import Executor
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from data_pipeline.archive import Archive
from data_pipeline.common.errors import InputError
from data_pipeline.common.files import FileAddress, expand_addresses, expand_paths, remove_abandoned_files, total_bytes
from data_pipeline.common.messages import format_duration, format_size, say
from data_pipeline.common.progress import Progress
from data_pipeline.dates import Dates
from data_pipeline.formats.cache_files import cache_folder
from data_pipeline.formats.grib.cache import index_file, is_cached, table_of
from data_pipeline.formats.registry import GRIB
from data_pipeline.protocols import DataSource
from data_pipeline.samples.inputs import open_task
from data_pipeline.samples.selection import select_forecasts, survey_forecasts
from data_pipeline.task import Task

_PART_NAMES = {"ensemble": "ensemble", "analysis": "analysis", "static_fields": "static fields"}


@dataclass(frozen=True)
class Inventory:
    """Scans every file of an archive once; the index is cached, so that later runs start at once."""

    archive: Archive

    def plan(self, at_once: int) -> str:
        """Return a list of the files and the estimated duration of the scan with `at_once` files at a time.

        The estimate comes from indexing one file of median size that is not in the cache.
        """
        remaining = [path for path in self._to_index if not is_cached(path)]
        remaining.sort(key=lambda path: path.stat().st_size)
        probe = remaining[len(remaining) // 2 :][:1]
        start_time = time.monotonic()
        if probe and not index_file(probe[0]) and not is_cached(probe[0]):
            raise InputError(
                f"the index cannot be written to {cache_folder('grib')}; free some space, or set DEEPWEATHER_CACHE "
                "to a folder that you may write to"
            )
        elapsed = time.monotonic() - start_time
        lines = []
        for part, files in self._files.items():
            total = total_bytes(files)
            lines.append(
                f"{_PART_NAMES[part]}: {len(files)} files, {format_size(total) if total else 'of unknown size'}, "
                f"{files[0].name} to {files[-1].name}"
            )
            if grib_files := self._grib_files(part):
                lines[-1] += f", about {_messages(grib_files, total):,.0f} messages"
        if self._to_index:
            known = len(self._to_index) - len(remaining)
            lines.append(f"index: {known} of {len(self._to_index)} GRIB files are known, in {cache_folder('grib')}")
        if probe and (measured := total_bytes(probe)):
            others = [path for path in remaining if path not in probe]
            seconds = elapsed * total_bytes(others) / measured / min(at_once, max(len(others), 1))
            lines.append(
                f"index: about {format_duration(seconds)} for {len(others)} files, {at_once} at a time, because "
                f"{probe[0].name} ({format_size(measured)}) took {elapsed:.1f} s"
            )
        return "\n".join(lines)

    def scan(self, workers: Executor) -> None:
        """Index the files, print a summary of each part, and raise an `InputError` if a file cannot be read."""
        remove_abandoned_files(cache_folder("grib"))
        remaining = [path for path in self._to_index if not is_cached(path)]
        damaged: dict[FileAddress, str] = {}
        if remaining:
            known = len(self._to_index) - len(remaining)
            with Progress("index: file", len(self._to_index), known) as progress:
                for path, reason in zip(remaining, workers.map(index_file, remaining), strict=True):
                    damaged |= {path: reason} if reason else {}
                    progress.step(path.name)
        for part in self._files:
            form, paths, names = self.archive.format_of(part), getattr(self.archive, part), self.archive.variable_names
            say(f"\n{_PART_NAMES[part]}\n{form.summarize(paths, names)}")
            damaged |= form.unreadable(paths, names)
        if damaged:
            first = next(iter(damaged.values()))
            others = f" (and {len(damaged) - 1} more files cannot be read)" if len(damaged) > 1 else ""
            raise InputError(f"{first}{others}; fetch it again, or leave it out of data.archive")

    @cached_property
    def _files(self) -> dict[str, list[FileAddress]]:
        return {
            part: expand_addresses(getattr(self.archive, part)) for part in _PART_NAMES if getattr(self.archive, part)
        }

    @cached_property
    def _to_index(self) -> list[Path]:
        """All GRIB files, without repetition."""
        return list(dict.fromkeys(file for part in self._files for file in self._grib_files(part)))

    def _grib_files(self, part: str) -> list[Path]:
        """Return the files of a part if they are GRIB, else an empty list."""
        return expand_paths(self._files[part]) if self.archive.format_of(part) is GRIB else []


def task_report(source: DataSource, task: Task, splits: Mapping[str, Dates]) -> Iterator[str]:
    """Yield lines with the ledger of a task over all dates, and the ledger of each split in `train` or `evaluate`.

    Raises the `InputError` with which `train` would refuse the task or a split. For the split `test`, the error is only
    a line, because a model can be trained before the test dates have data.
    """
    title, stops, opened = f"task {task.name}", source.missing == "error", open_task(source, task, Dates.all())
    ledger = survey_forecasts(source, task, opened, Dates.all(), "drop" if stops else source.missing).ledger
    yield from ledger.lines(title)
    if stops and "missing_field" in ledger.by_reason:
        yield (
            f"{title}: train and evaluate stop at a missing field, because data.archive.missing=error; with mask these "
            "forecasts are used with missing values, with drop they are left out"
        )
    # This reads samples and imports PyTorch, which workers and other code of this module do not need.
    from data_pipeline.sources.plausibility import data_warnings, truth_warnings

    if ledger.used and not splits:
        yield from (f"warning: {text}" for text in truth_warnings(source, task, Dates.all()))
    for name, dates in splits.items() if ledger.used else [("all dates", Dates.all())]:
        try:
            yield from select_forecasts(source, task, opened, dates).ledger.lines(name)
            training = name == "training"
            found = data_warnings(source, task, dates, refuse=True) if training else truth_warnings(source, task, dates)
            yield from (f"warning: {text}" for text in found)
        except InputError as error:
            if name != "test":
                raise
            yield f"test: {error}"


def _messages(files: list[Path], total: int) -> float:
    """Estimate the number of messages from the first readable file."""
    for path in files:
        try:
            return len(table_of(path).records) * total / path.stat().st_size
        except InputError:
            continue
    return 0
