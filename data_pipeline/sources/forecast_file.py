"""Files of forecasts that a comparison scores unchanged: members, mean and standard deviation, or quantiles."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from typing import Any, get_args

import numpy as np

from data_pipeline.archive import regridding_of
from data_pipeline.common.checks import check_choice
from data_pipeline.common.errors import InputError
from data_pipeline.common.files import expand_addresses
from data_pipeline.common.identity import fingerprint_of
from data_pipeline.dataset import ForecastDataset
from data_pipeline.dates import epoch_seconds
from data_pipeline.formats.catalog import LEVEL_STEPS
from data_pipeline.formats.content_hash import content_hashes
from data_pipeline.formats.open import ForecastKind, summary_fields
from data_pipeline.formats.reader_versions import common_versions
from data_pipeline.formats.regridded import RegriddedReader
from data_pipeline.formats.stated_intervals import StatedIntervals
from data_pipeline.formats.variables import checked_names
from data_pipeline.grid import Grid, how_to_regrid
from data_pipeline.ledger import Omission
from data_pipeline.protocols import ALL, Fields
from data_pipeline.regridding.target import TargetGrid, target_of
from data_pipeline.task import Task
from data_pipeline.variables.meaning import UNKNOWN, Meaning, differences

_KEYS = ("path", "kind", "drawn", "variable_names", "intervals")


@dataclass(frozen=True)
class ForecastFile:
    """An entry `name` of the option `forecasts`: a path, a pattern, a list of paths and patterns, or a mapping.

    `kind` is needed only for files with several kinds of forecasts. `drawn` is false for members that are not
    independent draws, such as the quantiles that `correct` writes. `variable_names` and `intervals` are as in
    `Archive`.
    """

    name: str
    paths: tuple[str, ...]
    kind: ForecastKind | None = None
    drawn: bool = True
    variable_names: Mapping[str, str] | None = None
    intervals: StatedIntervals | None = None

    @classmethod
    def parse(cls, name: str, option: object) -> ForecastFile:
        """Return the entry from the value of the option; a malformed value raises `InputError`."""
        own = option if isinstance(option, Mapping) else {"path": option}
        place = f"forecasts.{name}"
        if unknown := [key for key in own if key not in _KEYS]:
            raise InputError(f"{place} has no option {unknown[0]}; there is: {', '.join(_KEYS)}")
        paths = own.get("path")
        paths = paths if isinstance(paths, list) else [paths]
        if not paths or not all(isinstance(path, str) and path for path in paths):
            raise InputError(
                f"{place} must be a path, a list of paths, or {{path: ..., kind: ..., drawn: ...}}, got {option!r}"
            )
        kind: Any = own.get("kind")
        if kind is not None:
            check_choice(f"{place}.kind", kind, get_args(ForecastKind))
        if type(drawn := own.get("drawn", True)) is not bool:
            raise InputError(f"{place}.drawn must be true or false, got {drawn!r}")
        with _named_options(name):
            names = checked_names("data.archive.variable_names", own.get("variable_names"))
            intervals = StatedIntervals.parse(own.get("intervals"), "ensemble")
        return cls(name, tuple(paths), kind, drawn, names, intervals)

    @property
    def fingerprint(self) -> str:
        """A hash of all files' contents, the versions of their readers and the options; a copy has the same hash."""
        with _named_options(self.name):
            hashes = content_hashes(expand_addresses(self.paths))
        stated = self.intervals.described if self.intervals else []
        names = dict(self.variable_names or {})
        return fingerprint_of(hashes, common_versions(), self.kind, self.drawn, names, stated)

    def open(self, task: Task, grid: Grid, meanings: Sequence[Meaning], regridding: str | None) -> OpenedForecast:
        """Open the targets of `task` on `grid`; `meanings` are the targets' meanings in the raw ensemble.

        Fields on another grid are brought to `grid` by the method `regridding`; without a method, they are refused.
        """
        with _named_options(self.name):
            kind, fields = summary_fields(
                self.paths, task.targets, task.lead_times, self.kind,
                names=self.variable_names, intervals=self.intervals,
                target=target_of(grid, regridding) or TargetGrid(grid),
            )  # fmt: skip
            place = f"forecasts.{self.name}: {', '.join(self.paths)}"
            if not grid.matches(fields.grid):
                raise InputError(f"{place} has {fields.grid}, the ensemble {grid}; {how_to_regrid(grid, fields.grid)}")
        if kind != "members" and isinstance(fields.reader, RegriddedReader):
            raise InputError(
                f"{place} has another grid than {grid}, and a standard deviation or a quantile cannot be brought to "
                "another grid; compute it from members on that grid"
            )
        if found := differences(fields.meanings, fields.lead_times, meanings, task.lead_times):
            raise InputError(f"{place} has {'; '.join(found)} as the ensemble; convert it, for instance with cdo")
        for meaning in fields.meanings:
            if meaning.variable.processing != "instant" and UNKNOWN in meaning.intervals:
                raise InputError(
                    f"{place} does not state the intervals of {meaning.variable}; state them, for instance with "
                    f"forecasts={{{self.name}: {{path: ..., intervals: {{{meaning.variable.name}: since_start}}}}}}"
                )
        if kind != "normal" and len(fields.numbers) < 2:
            what = "one quantile" if kind == "quantiles" else "one member"
            raise InputError(f"{place} has {what} only, which is no probability forecast; give more of them")
        return OpenedForecast(self, kind, fields)


@dataclass(frozen=True, eq=False)
class OpenedForecast:
    """The open fields of the `ForecastFile` `source`."""

    source: ForecastFile
    kind: ForecastKind
    fields: Fields

    @property
    def levels(self) -> np.ndarray:
        """The levels of quantiles."""
        return np.array(self.fields.numbers) / LEVEL_STEPS

    def lacking(self, starts: np.ndarray, leads: np.ndarray) -> list[Omission]:
        """Return the forecasts at `starts` (seconds since 1970) and `leads` (hours) that lack a field.

        Raises `InputError` if all forecasts lack a field.
        """
        known = set(self._positions)
        lost = [(s, h) for s, h in zip(starts.tolist(), leads.tolist(), strict=True) if (s, h) not in known]
        if len(lost) == len(starts):
            own, wanted = self.fields.init_times, starts.astype("datetime64[s]")
            raise InputError(
                f"forecasts.{self.source.name}: {', '.join(self.source.paths)} has none of the {len(starts)} forecasts "
                f"that are scored: it starts between {own.min()} and {own.max()}, the scored forecasts between "
                f"{wanted.min()} and {wanted.max()}; give files of these dates, or score other dates"
            )
        return [Omission(start, lead, "no_forecast", (self.source.name,)) for start, lead in lost]

    def read(self, starts: Sequence[int], leads: Sequence[int], rows: slice = ALL, columns: slice = ALL) -> np.ndarray:
        """Return the fields (number, forecast, target, row, column) of some forecasts, on a tile of the grid."""
        tile = [len(range(size)[part]) for size, part in zip(self.fields.grid.shape, (rows, columns), strict=True)]
        values = np.empty((len(starts), *self.fields.cells.shape[2:], *tile), np.float32)
        for out, key in zip(values, zip(starts, leads, strict=True), strict=True):
            self.fields.read(self.fields.cells[self._positions[key]], out, (rows, columns))
        return np.moveaxis(values, 0, 1)

    @cached_property
    def _positions(self) -> dict[tuple[int, int], tuple[int, int]]:
        starts = epoch_seconds(self.fields.init_times).tolist()
        return {
            (start, lead): (i, j)
            for i, start in enumerate(starts)
            for j, lead in enumerate(self.fields.lead_times)
            if (i, j) not in self.fields.incomplete
        }


def open_files(
    files: Mapping[str, ForecastFile], forecasts: ForecastDataset, source: object
) -> tuple[dict[str, OpenedForecast], ForecastDataset]:
    """Open all files; return them, and the `forecasts` of the data `source` reduced to those that all files contain.

    A forecast that one file lacks is left out for all models, and the ledger counts it.
    """
    task = forecasts.task
    meanings = [forecasts.meanings[channel] for channel in task.target_channels]
    opened = {name: file.open(task, forecasts.grid, meanings, regridding_of(source)) for name, file in files.items()}
    starts, leads = (times.numpy() for times in forecasts.times())
    lost: dict[tuple[int, int], Omission] = {}
    for one in (omission for file in opened.values() for omission in file.lacking(starts, leads)):
        names = lost[one.key].channels if one.key in lost else ()
        lost[one.key] = Omission(one.start, one.lead, one.reason, (*names, *one.channels))
    if len(lost) == len(starts):
        raise InputError(
            f"no forecast is in the files of all models ({', '.join(files)}); give files of the same dates, or compare "
            "these models in several commands"
        )
    return opened, forecasts.without(sorted(lost.values())) if lost else forecasts


@contextmanager
def _named_options(name: str) -> Iterator[None]:
    """Raise errors about options of the archive as errors about the entry `name` of `forecasts`."""
    try:
        yield
    except InputError as error:
        text = str(error)
        for option in ("variable_names", "intervals"):
            text = text.replace(f"data.archive.{option}", f"forecasts.{name}.{option}")
        place = f"forecasts.{name}"
        raise type(error)(text if place in text else f"{place}: {text}") from None
