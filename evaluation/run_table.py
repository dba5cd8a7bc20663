"""Training runs side by side: the options in which they differ, validation scores, time, memory and energy."""

from __future__ import annotations

import csv
import json
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple

import yaml

from data_pipeline.common.errors import InputError
from data_pipeline.common.files import atomic_path
from data_pipeline.common.messages import format_duration, format_size
from data_pipeline.common.pruning_record import PruningRecord

OPTIONS, SUMMARY, LOSSES, CORRECTOR = "config.yaml", "summary.json", "metrics.csv", "corrector.safetensors"
"""Files of a run folder."""
NO_OPTIONS = ("run", "format", "fingerprint")
"""Keys of `config.yaml` that are no options."""
FORECASTS = ("data", "task", "max_members", "fingerprint")
"""Keys of `config.yaml` that determine which forecasts validate a run, and in which units."""
BLANK = "–"
_CLASS = "_target_"


@dataclass(frozen=True)
class TrainedRun:
    """A run of `train`: the content of the files of its folder, under a name."""

    name: str
    folder: Path
    options: Mapping[str, Any]
    summary: Mapping[str, Any]
    losses: Sequence[Mapping[str, float]]

    @classmethod
    def load(cls, name: str, folder: Path) -> TrainedRun:
        """Read a run folder; `summary.json` and `metrics.csv` may be missing."""
        try:
            options = yaml.safe_load((folder / OPTIONS).read_text("utf-8"))
        except yaml.YAMLError:
            options = None
        if not isinstance(options, dict) or "run" not in options:
            raise InputError(f"{folder / OPTIONS} was not written by deepweather train; name run folders of train")
        try:
            summary = json.loads((folder / SUMMARY).read_text("utf-8"))
        except FileNotFoundError:
            summary = {}
        except ValueError:
            raise InputError(f"{folder / SUMMARY} is not JSON; leave out this run, or repeat it") from None
        losses = []
        if (folder / LOSSES).exists():
            with (folder / LOSSES).open(newline="", encoding="utf-8") as file:
                losses = [{key: float(value) for key, value in row.items()} for row in csv.DictReader(file)]
        return cls(name, folder, options, summary, losses)

    @property
    def finished(self) -> bool:
        """Whether the run has written its corrector."""
        return (self.folder / CORRECTOR).exists()

    @property
    def state(self) -> str:
        """Whether the run is done, pruned or unfinished."""
        if self.finished:
            return "done"
        epoch = PruningRecord.read(self.folder).pruned_after
        return "unfinished" if epoch is None else f"pruned after epoch {epoch}"

    @cached_property
    def flat_options(self) -> dict[str, Any]:
        """The options by dotted name."""
        return dict(_flat({key: value for key, value in self.options.items() if key not in NO_OPTIONS}))

    def of_summary(self, *keys: str) -> Any:
        """Return a value of `summary.json`, None if it is not there."""
        found: Any = self.summary
        for key in keys:
            found = found.get(key) if isinstance(found, Mapping) else None
        return found

    @property
    def lowest_loss(self) -> float | None:
        """The lowest validation loss of all epochs."""
        found = [row["val_loss"] for row in self.losses if math.isfinite(row["val_loss"])]
        return min(found) if found else None

    @property
    def gain(self) -> float | None:
        """The reduction of the validation CRPS relative to the raw ensemble."""
        crps, raw = self.of_summary("validation", "crps"), self.of_summary("validation", "crps_raw")
        return None if crps is None or not raw else 1 - crps / raw

    @property
    def epochs(self) -> int | None:
        """The number of epochs of a network."""
        return len(self.losses) or None


def is_run_folder(path: Path) -> bool:
    """Whether a run of `train` has claimed a folder."""
    return (path / OPTIONS).is_file()


def _flat(options: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    for key, value in options.items():
        if isinstance(value, dict) and value:
            yield from _flat(value, f"{prefix}{key}.")
        else:
            yield f"{prefix}{key}", value


class Column(NamedTuple):
    """A result of a run: its title, its key in the CSV file, its value, and the value as text."""

    title: str
    key: str
    value: Callable[[TrainedRun], Any]
    text: Callable[[Any], str] = str


def _significant(value: float) -> str:
    return f"{value:.4g}"


RESULTS = (
    Column("state", "state", lambda run: run.state),
    Column("epochs", "epochs", lambda run: run.epochs),
    Column("val_loss", "val_loss", lambda run: run.lowest_loss, _significant),
    Column("CRPS", "crps", lambda run: run.of_summary("validation", "crps"), _significant),
    Column("vs raw", "gain", lambda run: run.gain, lambda gain: f"{100 * gain:+.1f} %"),
    Column("time", "seconds", lambda run: run.of_summary("seconds"), format_duration),
    Column("samples/s", "samples_per_second", lambda run: run.of_summary("samples_per_second"), _significant),
    Column("memory", "peak_memory_bytes", lambda run: run.of_summary("peak_memory_bytes"), format_size),
    Column("GPU memory", "peak_gpu_memory_bytes", lambda run: run.of_summary("peak_gpu_memory_bytes"), format_size),
    Column("energy", "kwh", lambda run: run.of_summary("energy", "kwh"), lambda kwh: f"{kwh:.3g} kWh"),
)


@dataclass(frozen=True)
class RunTable:
    """Training runs: the finished ones by validation CRPS, then the others by their lowest validation loss.

    `without` are folders beside them that hold no run.
    """

    runs: tuple[TrainedRun, ...]
    without: tuple[Path, ...]

    @classmethod
    def of(cls, runs: Sequence[TrainedRun], without: Sequence[Path] = ()) -> RunTable:
        """Return the table of some runs."""

        def order(run: TrainedRun) -> tuple[bool, float]:
            score = run.of_summary("validation", "crps") if run.finished else None
            found = run.lowest_loss if score is None else score
            return not run.finished, math.inf if found is None else found

        return cls(tuple(sorted(runs, key=order)), tuple(without))

    @cached_property
    def options(self) -> dict[str, list[str]]:
        """The options in which runs differ, by name, as texts in the order of the runs.

        Where runs have other classes, such as two models, the class counts, and its options only if they differ among
        runs of that class.
        """
        found: dict[str, list[str]] = {}
        for name in dict.fromkeys(name for run in self.runs for name in run.flat_options):
            texts = [self._option_text(run, name) for run in self.runs]
            of_class: dict[tuple[Any, ...], set[str]] = {}
            for run, text in zip(self.runs, texts, strict=True):
                of_class.setdefault(_classes_above(run, name), set()).add(text)
            if any(len(different) > 1 for different in of_class.values()):
                title = name.removesuffix(f".{_CLASS}")
                # `optimizer: null` in one run, and `optimizer._target_` in another.
                known = found.get(title, texts)
                found[title] = [one if other == BLANK else other for one, other in zip(known, texts, strict=True)]
        return found

    @staticmethod
    def _option_text(run: TrainedRun, name: str) -> str:
        if name not in run.flat_options:
            return BLANK
        text = _text(run.flat_options[name])
        return text.rpartition(".")[2] if name.endswith(_CLASS) else text

    @cached_property
    def columns(self) -> list[Column]:
        """The results that at least one run has."""
        return [column for column in RESULTS if any(column.value(run) is not None for run in self.runs)]

    def cells(self, run: TrainedRun) -> list[str]:
        """Return the texts of a run: name, options, results."""
        options = [texts[self.runs.index(run)] for texts in self.options.values()]
        values = [(column, column.value(run)) for column in self.columns]
        results = [BLANK if value is None else column.text(value) for column, value in values]
        return [run.name, *options, *results]

    @property
    def titles(self) -> list[str]:
        """The titles of the cells."""
        return ["run", *self.options, *(column.title for column in self.columns)]

    def notes(self) -> list[str]:
        """Return sentences on what the table does not show: other forecasts, other losses, missing results."""
        found = []
        for key in FORECASTS:
            if len({_text(_without_cache(run.options.get(key))) for run in self.runs}) > 1:
                found.append(
                    f"the runs differ in {'the files of data' if key == 'fingerprint' else key}, so that their "
                    "validation scores are of other forecasts or units and cannot be ranked"
                )
        if len({_text(run.options.get("loss")) for run in self.runs}) > 1:
            found.append("the runs were trained with different losses, so that val_loss is comparable within one loss")
        if missing := [run.name for run in self.runs if run.finished and not run.summary]:
            found.append(f"no {SUMMARY}, so no scores, time and memory: {', '.join(missing)}")
        if self.without:
            names = ", ".join(path.name for path in self.without)
            found.append(f"no run in these folders, where a run failed before its training or has not begun: {names}")
        return found


def _classes_above(run: TrainedRun, name: str) -> tuple[Any, ...]:
    """Return the classes of the groups of options around an option, without that of the option itself."""
    parts = name.removesuffix(f".{_CLASS}").split(".")
    return tuple(run.flat_options.get(".".join([*parts[:count], _CLASS])) for count in range(1, len(parts)))


def _without_cache(value: Any) -> Any:
    return {key: inner for key, inner in value.items() if key != "cache"} if isinstance(value, dict) else value


def _text(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value)


def plain_run_table(table: RunTable) -> str:
    """Return the table for the terminal."""
    rows = [table.titles, *(table.cells(run) for run in table.runs)]
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    lines = ["  ".join(text.ljust(width) for text, width in zip(row, widths, strict=True)).rstrip() for row in rows]
    return "\n".join([*lines, *(f"note: {text}" for text in table.notes())])


def write_run_table(path: Path, table: RunTable) -> None:
    """Write a row for each run, with all results as numbers in SI units."""
    with atomic_path(path) as partial, partial.open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file)
        writer.writerow(["run", *table.options, *(column.key for column in RESULTS), "folder"])
        for position, run in enumerate(table.runs):
            options = [texts[position].replace(BLANK, "") for texts in table.options.values()]
            results = ["" if (value := column.value(run)) is None else value for column in RESULTS]
            writer.writerow([run.name, *options, *results, run.folder])
