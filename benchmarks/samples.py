"""Time to read one sample from a store and from GRIB1, compared with reading its bytes with `preadv`.

A sample is one start and lead time: 10 members of 8 variables on 361 x 720 points, 83 MB, with its truth, mask and
static fields. The files are in the page cache, starts are in random order, all readers are timed in turn, and the
shortest round of each counts. `preadv` reads the bytes of the ensemble from the store into an existing array; a sample
allocates its arrays. The rise of memory while samples are read, and while the store is written from GRIB, is measured
in processes of its own.

    python -m benchmarks.samples [--json] [--rounds 7] [--starts 6]
"""

from __future__ import annotations

import os
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np

from benchmarks.common import ECMWF_KEYS, HALF_DEGREE, MEMBER_COUNT, command_line, memory_rise, report
from data_pipeline.archive import Archive
from data_pipeline.dataset import ForecastDataset
from data_pipeline.store import Store
from data_pipeline.task import Task, Variable
from data_pipeline.writing import Encoder

SAMPLE_TASK = Task("samples", ["2t", "msl", "10u", "10v", "t@850", "z@500", "u@850", "v@850"], ["2t"], [48])
FORECAST_YEAR = 2016
SAMPLE_BYTES = 4 * MEMBER_COUNT * len(SAMPLE_TASK.inputs) * HALF_DEGREE.shape[0] * HALF_DEGREE.shape[1]
MEMORY_LIMITS = {"store": 1.25, "grib1": 1.5, "write": 2.0}
"""Largest rise of memory, in samples, while samples are read or the store is written, one sample after the other."""


def grib_keys(variable: Variable) -> dict[str, object]:
    """Return the GRIB keys of a variable."""
    if variable.level:
        return {"typeOfLevel": "isobaricInhPa", "level": variable.level, "shortName": variable.name}
    return {"typeOfLevel": "surface", "shortName": variable.name}


def write_samples(folder: Path, starts: int, task: Task = SAMPLE_TASK) -> Archive:
    """Write `starts` files of forecasts of a task and one of analyses, 16 bits per value."""
    random = np.random.default_rng(0)
    forecast = Encoder(HALF_DEGREE, **ECMWF_KEYS, stream="enfh", type="pf", stepUnits="h")
    analysis = Encoder(HALF_DEGREE, **ECMWF_KEYS, stream="oper", type="an")
    field, first_day = random.normal(280, 10, HALF_DEGREE.shape), 10_000 * FORECAST_YEAR + 100
    with (folder / "analysis").open("wb") as truth:
        for day in range(1, starts + 1):
            with (folder / f"ensemble.{day:02}").open("wb") as file:
                for variable in task.inputs:
                    for member in range(1, MEMBER_COUNT + 1):
                        field = np.roll(field, random.integers(1, 720), axis=1)
                        when = {"dataDate": first_day + day, "endStep": 48, "perturbationNumber": member}
                        file.write(forecast.encode(field, **when, **grib_keys(variable)))
            truth.write(analysis.encode(field, dataDate=first_day + day + 2, **grib_keys(task.targets[0])))
    return Archive([f"{folder}/ensemble.*"], [f"{folder}/analysis"])


def preadv(store: Store) -> Callable[[int], None]:
    """Return a function that reads the bytes of a sample's ensemble into an existing array."""
    out = np.empty(SAMPLE_BYTES // 4, np.float32)
    fields = store.ensemble_fields(SAMPLE_TASK.inputs, SAMPLE_TASK.lead_times)
    first = fields.cells[:, 0, 0, 0]
    files = [os.open(path, os.O_RDONLY) for path in fields.reader.paths]

    def read(sample: int) -> None:
        file, offset = fields.reader.locations[first[sample]].tolist()
        assert os.preadv(files[file], [out], offset) == SAMPLE_BYTES

    return read


def seconds_per_sample(readers: dict[str, Callable[[int], object]], rounds: int, starts: int) -> dict[str, float]:
    """Return the seconds per sample in the shortest round of each reader; readers are timed in turn."""
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


def read_all(dataset: ForecastDataset) -> None:
    """Read all samples in order."""
    for index in range(len(dataset)):
        dataset[index]


def write_derived_store(archive: Archive, folder: str) -> Store:
    """Write a store of all samples, three in each file."""
    return Store.write(archive, SAMPLE_TASK, folder, shard_bytes=3 * SAMPLE_BYTES)


def main(arguments: Sequence[str] | None = None) -> None:
    """Write the data, time all readers, print the ratios."""
    options = command_line(__doc__, rounds=7, starts=6).parse_args(arguments)
    with tempfile.TemporaryDirectory() as folder:
        os.environ["DEEPWEATHER_CACHE"] = f"{folder}/cache"
        archive = write_samples(Path(folder), options.starts)
        rises = {"write": memory_rise(write_derived_store, archive, f"{folder}/store")}
        store = write_derived_store(archive, f"{folder}/store")
        datasets = {
            name: ForecastDataset(source, SAMPLE_TASK, [FORECAST_YEAR])
            for name, source in (("store", store), ("grib1", archive))
        }
        assert all(np.array_equal(a, b) for a, b in zip(*(data[0] for data in datasets.values()), strict=True))
        readers = {"preadv": preadv(store)} | {name: data.__getitem__ for name, data in datasets.items()}
        seconds = seconds_per_sample(readers, options.rounds, options.starts)
        rises |= {name: memory_rise(read_all, dataset) for name, dataset in datasets.items()}
    rises = {name: value / SAMPLE_BYTES for name, value in rises.items()}
    size = f"{SAMPLE_BYTES / 1e6:.0f} MB"
    print(f"one sample of {size}, {options.starts} starts in random order, best of {options.rounds} rounds")
    for name, value in seconds.items():
        print(f"{name:<8} {1e3 * value:7.1f} ms  {SAMPLE_BYTES / value / 1e9:6.2f} GB/s of float32")
    for name, value in rises.items():
        print(f"{name:<8} memory rises by {value:.2f} samples (limit: {MEMORY_LIMITS[name]})")
    ratios = {f"{name}_vs_preadv": seconds[name] / seconds["preadv"] for name in datasets}
    ratios |= {f"{name}_memory_vs_limit": value / MEMORY_LIMITS[name] for name, value in rises.items()}
    report("samples", ratios, options.json)


if __name__ == "__main__":
    main()
