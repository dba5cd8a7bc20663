"""How fast one sample is there, from a store and straight from GRIB1, against reading its bytes and doing nothing else.

A sample is one start and lead time: 10 members of 8 variables on 361 x 720 points, 83 MB, with its truth, mask and
static fields. Everything is in the page cache, starts come in random order, turns are interleaved and the best round of
each counts. The peer, `preadv`, reads the very bytes of the ensemble from the store into one array that it has had all
along; a sample brings its own memory. How far memory rises while samples are read, and while the store is written from
GRIB, is measured in processes of their own.

    python -m benchmarks.samples [--json] [--rounds 7] [--starts 6]
"""

from __future__ import annotations

import os
import tempfile
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path

import numpy as np

from benchmarks.common import command_line, report
from data_pipeline.archive import Archive
from data_pipeline.dataset import ForecastDataset
from data_pipeline.formats.grib import Encoder
from data_pipeline.grid import Grid
from data_pipeline.store import Store
from data_pipeline.task import Task, Variable

GRID = Grid.regular(361, 720)
TASK = Task("samples", ["2t", "msl", "10u", "10v", "t@850", "z@500", "u@850", "v@850"], ["2t"], [48])
MEMBERS, YEAR = 10, 2016
BYTES = 4 * MEMBERS * len(TASK.inputs) * GRID.shape[0] * GRID.shape[1]
BUDGET = {"store": 1.25, "grib1": 1.5, "write": 2.0}
"""How much memory may rise, in samples, while samples are read, or the store is written, one after the other."""


def keys(variable: Variable) -> dict[str, object]:
    """What GRIB calls a variable."""
    if variable.level:
        return {"typeOfLevel": "isobaricInhPa", "level": variable.level, "shortName": variable.name}
    return {"typeOfLevel": "surface", "shortName": variable.name}


def write(folder: Path, starts: int) -> Archive:
    """Write `starts` files of forecasts and one of analyses, 16 bits per value."""
    random = np.random.default_rng(0)
    local = {"centre": "ecmf", "setLocalDefinition": 1, "localDefinitionNumber": 26}
    forecast = Encoder(GRID, **local, stream="enfh", type="pf", stepUnits="h")
    analysis = Encoder(GRID, **local, stream="oper", type="an")
    field = random.normal(280, 10, GRID.shape)
    with (folder / "analysis").open("wb") as truth:
        for day in range(1, starts + 1):
            with (folder / f"ensemble.{day:02}").open("wb") as file:
                for variable in TASK.inputs:
                    for member in range(1, MEMBERS + 1):
                        field = np.roll(field, random.integers(1, 720), axis=1)
                        when = {"dataDate": 10_000 * YEAR + 100 + day, "endStep": 48, "perturbationNumber": member}
                        file.write(forecast.encode(field, **when, **keys(variable)))
            truth.write(analysis.encode(field, dataDate=10_000 * YEAR + 102 + day, **keys(TASK.targets[0])))
    return Archive([f"{folder}/ensemble.*"], [f"{folder}/analysis"])


def preadv(store: Store) -> Callable[[int], None]:
    """Return the peer: the bytes of a sample's ensemble into an array that is there."""
    out = np.empty(BYTES // 4, np.float32)
    fields = store.ensemble_fields(TASK.inputs, TASK.lead_times)
    first = fields.cells[:, 0, 0, 0]
    files = [os.open(path, os.O_RDONLY) for path in fields.source.paths]

    def read(sample: int) -> None:
        file, offset = fields.source.locations[first[sample]].tolist()
        assert os.preadv(files[file], [out], offset) == BYTES

    return read


def interleaved(readers: dict[str, Callable[[int], object]], rounds: int, starts: int) -> dict[str, float]:
    """Return the seconds per sample of each reader's best round."""
    random, best = np.random.default_rng(1), dict.fromkeys(readers, float("inf"))
    for _ in range(rounds + 1):  # the first round warms up
        spent = dict.fromkeys(readers, 0.0)
        for sample in random.permutation(starts).tolist():
            for name, read in readers.items():
                began = time.perf_counter()
                read(sample)
                spent[name] += time.perf_counter() - began
        best = {name: min(best[name], spent[name] / starts) for name in readers}
    return best


def rise(work: Callable[..., object], *arguments: object) -> float:
    """Return by how many samples the memory of a process of its own rises while it works."""
    with ProcessPoolExecutor(1, mp_context=get_context("spawn")) as process:
        return process.submit(_rise, work, *arguments).result()


def _rise(work: Callable[..., object], *arguments: object) -> float:
    Path("/proc/self/clear_refs").write_text("5")  # begin the peak anew: a process inherits that of its parent
    before = peak()
    work(*arguments)
    return (peak() - before) / BYTES


def read_all(dataset: ForecastDataset) -> None:
    """Read all samples, one after the other."""
    for index in range(len(dataset)):
        dataset[index]


def write_store(archive: Archive, folder: str) -> Store:
    """Write all samples, three to a file."""
    return Store.write(archive, TASK, folder, shard_bytes=3 * BYTES)


def peak() -> int:
    """Return the most memory that this process has had, in bytes."""
    return int(Path("/proc/self/status").read_text().partition("VmHWM:")[2].split()[0]) * 1024


def main(arguments: Sequence[str] | None = None) -> None:
    """Write the data, let everybody read, print the ratios."""
    parser = command_line(__doc__)
    parser.add_argument("--rounds", type=int, default=7, help="turns of each reader")
    parser.add_argument("--starts", type=int, default=6, help="starts to choose from")
    options = parser.parse_args(arguments)
    with tempfile.TemporaryDirectory() as folder:
        os.environ["DEEPWEATHER_CACHE"] = f"{folder}/cache"
        archive = write(Path(folder), options.starts)
        rises = {"write": rise(write_store, archive, f"{folder}/store")}
        store = write_store(archive, f"{folder}/store")
        datasets = {
            name: ForecastDataset(source, TASK, [YEAR]) for name, source in (("store", store), ("grib1", archive))
        }
        assert all(np.array_equal(a, b) for a, b in zip(*(data[0] for data in datasets.values()), strict=True))
        readers = {"preadv": preadv(store)} | {name: data.__getitem__ for name, data in datasets.items()}
        seconds = interleaved(readers, options.rounds, options.starts)
        rises |= {name: rise(read_all, dataset) for name, dataset in datasets.items()}
    print(
        f"one sample of {BYTES / 1e6:.0f} MB, {options.starts} starts in random order, best of {options.rounds} rounds"
    )
    for name, value in seconds.items():
        print(f"{name:<8} {1e3 * value:7.1f} ms  {BYTES / value / 1e9:6.2f} GB/s of float32")
    for name, value in rises.items():
        print(f"{name:<8} memory rises by {value:.2f} samples (budget: {BUDGET[name]})")
    ratios = {f"{name}_vs_preadv": seconds[name] / seconds["preadv"] for name in datasets}
    ratios |= {f"{name}_memory_vs_budget": value / BUDGET[name] for name, value in rises.items()}
    report("samples", ratios, options.json)


if __name__ == "__main__":
    main()
