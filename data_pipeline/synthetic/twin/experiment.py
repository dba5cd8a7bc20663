"""The twin experiment, from its options to its files."""

from __future__ import annotations

import json
from contextlib import closing
from dataclasses import asdict, dataclass
from pathlib import Path

from data_pipeline.common.checks import check_boolean, check_integer
from data_pipeline.common.errors import InputError, InterruptedRunError
from data_pipeline.common.files import atomic_write, lock_folder, remove_abandoned_files
from data_pipeline.common.interruption import handled
from data_pipeline.common.messages import format_size, say
from data_pipeline.common.progress import Progress
from data_pipeline.common.threads import processors
from data_pipeline.grid import Grid
from data_pipeline.synthetic.twin.model_parameters import FORECAST, NATURE
from data_pipeline.synthetic.twin.processes import run_in_processes
from data_pipeline.synthetic.twin.start_pairs import (
    MAX_DATES,
    STATIC_FIELDS_FILE,
    StartPair,
    message_bytes,
    start_pairs,
)

_VERSION = 1
"""Increased whenever the equations or the random numbers change."""
OPTIONS_FILE = "twin.json"
MAX_MESSAGE_BYTES = 2**23
"""Largest message in GRIB edition 1."""


@dataclass(frozen=True)
class Twin:
    """Past forecasts of a small planet and their truth, as GRIB files in `path` with the form of ENS-10 and ERA5.

    The grid has `rows` x `columns` points from pole to pole. Each year from `first_year` to `last_year` has `dates`
    start dates (an even number), and each start date has `members` members. The `oracle_years` also have the best
    possible ensemble. `difficulty` scales the error of the forecast model: 0 is a perfect model, 0.5 is about as good
    as real models. If `shuffled`, the members change places at random in each cell, lead time and variable, so that
    their dependence is wrong, and all that a cell alone shows is right. The files do not depend on the number of
    `workers`, by default one per processor.
    """

    path: str | Path
    rows: int = 33
    columns: int = 64
    first_year: int = 1998
    last_year: int = 2017
    dates: int = 16
    members: int = 10
    oracle_years: tuple[int, ...] = (2016, 2017)
    difficulty: float = 1.0
    seed: int = 0
    shuffled: bool = False
    workers: int | None = None

    def __post_init__(self) -> None:
        check_integer("data.generator.rows", self.rows, 3, 10000)
        check_integer("data.generator.columns", self.columns, 4, 10000)
        check_integer("data.generator.first_year", self.first_year, 1900, 2100)
        check_integer("data.generator.last_year", self.last_year, self.first_year, 2100)
        check_integer("data.generator.dates", self.dates, 2, MAX_DATES)
        check_integer("data.generator.members", self.members, 2, 250)
        check_integer("data.generator.seed", self.seed, 0, 2**32 - 1)
        check_boolean("data.generator.shuffled", self.shuffled)
        if self.workers is not None:
            check_integer("data.generator.workers", self.workers, 1, 4096)
        if message_bytes(self.rows * self.columns) >= MAX_MESSAGE_BYTES:
            raise InputError(
                f"data.generator: {self.rows} x {self.columns} points do not fit into a GRIB1 message; "
                "choose fewer rows or columns"
            )
        if self.dates % 2:
            raise InputError(f"data.generator.dates must be even, because dates come in pairs; got {self.dates}")
        if isinstance(self.oracle_years, int | str) or not set(self.oracle_years) <= set(self.years):
            raise InputError(
                f"data.generator.oracle_years must be a list of years from {self.first_year} to {self.last_year}, "
                f"got {self.oracle_years!r}"
            )
        object.__setattr__(self, "oracle_years", tuple(sorted(set(self.oracle_years))))
        if not isinstance(self.difficulty, int | float) or not 0 <= self.difficulty <= 2:
            raise InputError(f"data.generator.difficulty must be a number from 0 to 2, got {self.difficulty!r}")
        object.__setattr__(self, "difficulty", float(self.difficulty))

    @property
    def folder(self) -> Path:
        """The folder of the files."""
        return Path(self.path)

    @property
    def years(self) -> tuple[int, ...]:
        """All years with forecasts."""
        return tuple(range(self.first_year, self.last_year + 1))

    def plan(self) -> str:
        """Return a description of the files to be written, and how many of them exist."""
        pairs = self.pairs()
        files = sum(len(self._files(pair)) for pair in pairs) + 1
        messages = sum(pair.count_messages() for pair in pairs) + 2
        total_size = format_size(messages * message_bytes(self.rows * self.columns))
        return (
            f"twin: {len(self.years)} years from {self.first_year}, {self.dates} start dates, "
            f"{self.members} members, {self.rows} x {self.columns} points\n"
            f"twin: {files} files, {messages:,} GRIB messages, {total_size} in {self.path}; "
            f"{len(pairs) - len(self._missing())} of {len(pairs)} start pairs exist"
        )

    def prepare(self) -> None:
        """Write the missing files. After an interruption, the same call writes the rest."""
        self._check_options()
        with lock_folder(self.folder):
            if missing := self._missing():
                self._write_missing(missing)
        say(f"twin: all {len(self.pairs())} start pairs are in {self.path}")

    def _write_missing(self, missing: list[StartPair]) -> None:
        total = len(self.pairs())
        progress = Progress("twin: start pair", total, total - len(missing))
        workers = min(self.workers or processors(), len(missing))
        say(f"twin: {len(missing)} of {total} start pairs to write, {workers} at a time")
        try:
            with handled(), progress, closing(run_in_processes(self._write, missing, workers)) as finished:
                for pair in finished:
                    progress.step(" and ".join(f"{start:%d %b}" for start in pair.starts))
        except KeyboardInterrupt:
            raise InterruptedRunError(
                f"interrupted after {progress.done} of {total} start pairs; run the same command again to resume"
            ) from None
        except InputError as error:
            raise InterruptedRunError(
                f"{error}; {progress.done} of {total} start pairs are done; then run the same command again to resume"
            ) from None
        finally:
            remove_abandoned_files(self.folder)  # left by workers that were killed

    def _write(self, pair: StartPair) -> None:
        """Integrate a start pair in a worker and write its files."""
        # Imported only in workers, so that a run without work never loads PyTorch.
        import torch

        from data_pipeline.synthetic.twin.grib_writer import TwinWriter

        torch.set_num_threads(1)
        writer = TwinWriter(self.folder, Grid.regular(self.rows, self.columns))
        if self.folder / STATIC_FIELDS_FILE in self._files(pair):
            writer.write_static()
        with torch.inference_mode():
            writer.write_pair(pair)

    def pairs(self) -> list[StartPair]:
        """Return the start pairs; each is computed independently of the others."""
        return [
            StartPair(starts, self.years, self.oracle_years, self.members, self.difficulty, self.seed, self.shuffled)
            for starts in start_pairs(self.dates)
        ]

    def _files(self, pair: StartPair) -> list[Path]:
        names = [name for start in pair.starts for name in pair.file_names(start)]
        if pair == self.pairs()[0]:
            names.append(STATIC_FIELDS_FILE)
        return [self.folder / name for name in names]

    def _missing(self) -> list[StartPair]:
        return [pair for pair in self.pairs() if not all(file.exists() for file in self._files(pair))]

    def _check_options(self) -> None:
        """Write the options next to the data, or raise if existing data were made with other options."""
        options = {name: value for name, value in asdict(self).items() if name not in ("path", "workers")}
        models = {"nature": asdict(NATURE), "forecast": asdict(NATURE.towards(FORECAST, self.difficulty))}
        text = json.dumps({"version": _VERSION} | options | models, indent=2) + "\n"
        file = self.folder / OPTIONS_FILE
        if not file.exists():
            with atomic_write(file, "w") as stream:
                stream.write(text)
            return
        try:
            found = dict(json.loads(file.read_text()))
        except (ValueError, TypeError, OSError):
            raise InputError(
                f"{file} does not hold the options of a twin experiment; choose another data.path"
            ) from None
        for name, value in json.loads(text).items():
            if found.get(name) != value:
                raise InputError(
                    f"the data in {self.path} were made with {name}={found.get(name)}, not {value}; "
                    "choose another data.path"
                )
