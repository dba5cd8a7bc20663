"""Twin: the experiment as a data source, from its options to its files."""

from __future__ import annotations

import json
import signal
import threading
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path

from data_pipeline.cluster import processors
from data_pipeline.common.checks import check_integer
from data_pipeline.common.errors import InputError, InterruptedRunError
from data_pipeline.common.files import atomic_write, lock_folder, remove_partial_files
from data_pipeline.common.messages import Progress, format_size
from data_pipeline.grid import Grid
from data_pipeline.synthetic.twin.layout import STATIC, Block, message_bytes
from data_pipeline.synthetic.twin.parameters import FORECAST, NATURE
from data_pipeline.synthetic.twin.processes import run_in_processes
from data_pipeline.synthetic.twin.starts import MOST, start_pairs

VERSION = 1
"""Of the experiment; a change of its equations or its random numbers is another one."""
RECORD = "twin.json"
LARGEST_MESSAGE = 2**23
"""Bytes that GRIB edition 1 can count."""


@dataclass(frozen=True)
class Twin:
    """Past forecasts of a small planet, with the truth, written to `path` as ENS-10 and ERA5 are.

    `rows` x `columns` points from pole to pole; `dates` start dates (an even number) in each year from
    `first_year` to `last_year`; `members` forecasts each. The `oracle_years` get the best possible ensemble
    as well. `difficulty` is the distance of the forecast model from nature: 0 is a perfect model, 0.5 one
    about as good as real ones. The same options make the same data, whatever the number of `workers` (by
    default one per processor).
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
    workers: int | None = None

    def __post_init__(self) -> None:
        check_integer("twin: rows", self.rows, 3, 10000)
        check_integer("twin: columns", self.columns, 4, 10000)
        check_integer("twin: first_year", self.first_year, 1900, 2100)
        check_integer("twin: last_year", self.last_year, self.first_year, 2100)
        check_integer("twin: dates", self.dates, 2, MOST)
        check_integer("twin: members", self.members, 2, 250)
        check_integer("twin: seed", self.seed, 0, 2**32 - 1)
        if self.workers is not None:
            check_integer("twin: workers", self.workers, 1, 4096)
        if message_bytes(self.rows * self.columns) >= LARGEST_MESSAGE:
            raise InputError(f"twin: {self.rows} x {self.columns} points do not fit into a GRIB1 message")
        if self.dates % 2:
            raise InputError(f"twin: dates must be even, because they come in pairs; got {self.dates}")
        if isinstance(self.oracle_years, int | str) or not set(self.oracle_years) <= set(self.years):
            raise InputError(
                f"twin: oracle_years must be a list of years from {self.first_year} to {self.last_year}, "
                f"got {self.oracle_years!r}"
            )
        object.__setattr__(self, "oracle_years", tuple(sorted(set(self.oracle_years))))
        if not isinstance(self.difficulty, int | float) or not 0 <= self.difficulty <= 2:
            raise InputError(f"twin: difficulty must lie between 0 and 2, got {self.difficulty!r}")
        object.__setattr__(self, "difficulty", float(self.difficulty))

    @property
    def folder(self) -> Path:
        """Where the files lie."""
        return Path(self.path)

    @property
    def years(self) -> tuple[int, ...]:
        """All years."""
        return tuple(range(self.first_year, self.last_year + 1))

    def plan(self) -> str:
        """Say what will be written."""
        blocks = self._blocks()
        files = sum(len(self._files(block)) for block in blocks) + 1
        messages = sum(block.count_messages() for block in blocks) + 2
        taken = format_size(messages * message_bytes(self.rows * self.columns))
        return (
            f"twin: {len(self.years)} years from {self.first_year}, {self.dates} start dates, "
            f"{self.members} members, {self.rows} x {self.columns} points\n"
            f"twin: {files} files, {messages:,} GRIB messages, {taken} in {self.path}; "
            f"{len(blocks) - len(self._missing())} of {len(blocks)} blocks are there"
        )

    def prepare(self) -> None:
        """Write what is missing: after an interruption the rest, after a complete run nothing."""
        self._record()
        with lock_folder(self.folder):
            remove_partial_files(self.folder)
            if missing := self._missing():
                self._fill(missing)
        print(f"twin: all {len(self._blocks())} blocks are in {self.path}", flush=True)

    def _fill(self, missing: list[Block]) -> None:
        """Integrate and write the missing blocks, with a line for each."""
        total = len(self._blocks())
        progress = Progress("twin: block", total, total - len(missing))
        workers = min(self.workers or processors(), len(missing))
        print(f"twin: {len(missing)} of {total} blocks to do, {workers} at a time", flush=True)
        try:
            with _terminable(), closing(run_in_processes(self._write, missing, workers)) as finished:
                for block in finished:
                    progress.step(" and ".join(f"{start:%d %b}" for start in block.starts))
        except KeyboardInterrupt:
            raise InterruptedRunError(
                f"interrupted after {progress.done} of {total} blocks; run the same command again to go on"
            ) from None
        except InputError as error:
            raise InterruptedRunError(
                f"{error}; {progress.done} of {total} blocks are done, then run the same command again to go on"
            ) from None
        finally:
            remove_partial_files(self.folder)

    def _write(self, block: Block) -> None:
        """In a worker: integrate a block and write its files."""
        # Workers alone need PyTorch: a run that finds all done is over before it would be loaded.
        import torch

        from data_pipeline.synthetic.twin.output import Writer

        torch.set_num_threads(1)
        writer = Writer(self.folder, Grid.regular(self.rows, self.columns))
        if self.folder / STATIC in self._files(block):
            writer.write_static()
        with torch.inference_mode():
            writer.write_block(block)

    def _blocks(self) -> list[Block]:
        return [
            Block(pair, self.years, self.oracle_years, self.members, self.difficulty, self.seed)
            for pair in start_pairs(self.dates)
        ]

    def _files(self, block: Block) -> list[Path]:
        names = [name for start in block.starts for name in block.file_names(start)]
        if block == self._blocks()[0]:
            names.append(STATIC)
        return [self.folder / name for name in names]

    def _missing(self) -> list[Block]:
        return [block for block in self._blocks() if not all(file.exists() for file in self._files(block))]

    def _record(self) -> None:
        """Write the options beside the data, or see that the data there were made with the same."""
        options = {name: value for name, value in asdict(self).items() if name not in ("path", "workers")}
        models = {"nature": asdict(NATURE), "forecast": asdict(NATURE.towards(FORECAST, self.difficulty))}
        text = json.dumps({"version": VERSION} | options | models, indent=2) + "\n"
        file = self.folder / RECORD
        if not file.exists():
            with atomic_write(file, "w") as stream:
                stream.write(text)
            return
        way_out = f"choose another path or remove {self.path}"
        try:
            found = dict(json.loads(file.read_text()))
        except (ValueError, TypeError, OSError):
            raise InputError(f"{file} is not the record of a twin experiment; {way_out}") from None
        for name, value in json.loads(text).items():
            if found.get(name) != value:
                raise InputError(
                    f"the data in {self.path} were made with {name}={found.get(name)}, not {value}; {way_out}"
                )


@contextmanager
def _terminable() -> Iterator[None]:
    """Let SIGTERM do what Ctrl-C does, where Python lets us: in the main thread."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)
