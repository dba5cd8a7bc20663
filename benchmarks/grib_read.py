"""Time to read GRIB, compared with cfgrib and dask and with ecCodes in threads.

One file for each packing has the messages of one start of ENS-10: 10 members, 3 lead times, 11 levels of z and t on
361 x 720 points, 660 messages. The files are in the page cache, all readers are timed in turn, and the shortest time of
each counts. This project and ecCodes fill an existing array; cfgrib's index exists before the timing, its arrays do
not. `dask_vs_cfgrib` therefore compares the same dataset through xarray and dask, with the allocation of its arrays.

    python -m benchmarks.grib_read [--json] [--rounds 5] [--threads 2]
"""

from __future__ import annotations

import os
import tempfile
import warnings
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from itertools import product
from pathlib import Path

import dask
import eccodes
import numpy as np
import xarray as xr

from benchmarks.common import (
    ECMWF_KEYS,
    HALF_DEGREE,
    LEAD_HOURS,
    MEMBER_COUNT,
    PRESSURE_LEVELS,
    best_times,
    command_line,
    filling,
    report,
)
from data_pipeline.common.threads import BUDGET
from data_pipeline.formats.grib.cache import table_of
from data_pipeline.formats.open import open_ensemble
from data_pipeline.task import Variable
from data_pipeline.writing import Encoder

MEASURED_VARIABLES = [Variable(name, level) for name in ("z", "t") for level in PRESSURE_LEVELS]
PACKINGS = {
    "grib1": {"edition": 1} | ECMWF_KEYS,
    "grib2": {"edition": 2, "centre": "ecmf", "productDefinitionTemplateNumber": 1},
    "ccsds": {"edition": 2, "centre": "ecmf", "productDefinitionTemplateNumber": 1, "packingType": "grid_ccsds"},
}
ARRAY_SHAPE = (len(LEAD_HOURS), MEMBER_COUNT, len(MEASURED_VARIABLES), *HALF_DEGREE.shape)
MEGABYTES = 4e-6 * int(np.prod(ARRAY_SHAPE))


def write_fields(path: Path, **keys: object) -> None:
    """Write a file of smooth fields with little noise, 16 bits per value."""
    random = np.random.default_rng(0)
    lat, lon = np.radians(HALF_DEGREE.latitudes)[:, None], np.radians(HALF_DEGREE.longitudes)[None, :]
    encoder = Encoder(HALF_DEGREE, typeOfLevel="isobaricInhPa", numberOfForecastsInEnsemble=11, **keys)
    noise = random.normal(0, 0.05, HALF_DEGREE.shape)
    with path.open("wb") as file:
        for variable, lead, member in product(MEASURED_VARIABLES, LEAD_HOURS, range(1, MEMBER_COUNT + 1)):
            waves = sum(
                random.normal() * np.cos(lat) * np.cos(k * lon + random.uniform(0, 6)) * np.cos(j * lat)
                for j, k in ((1, 2), (3, 5), (6, 9))
            )
            field = 250 + 40 * np.cos(lat) + 10 * waves + np.roll(noise, random.integers(720), 1)
            file.write(
                encoder.encode(
                    field, shortName=variable.name, level=variable.level, dataDate=20160104, endStep=lead,
                    perturbationNumber=member,
                )
            )  # fmt: skip


def with_eccodes(path: Path, out: np.ndarray, threads: int) -> Callable[[], None]:
    """Return a function that reads with ecCodes as fast as possible: known offsets, float32 arrays, threads."""
    flat = out.reshape(-1, HALF_DEGREE.shape[0] * HALF_DEGREE.shape[1])
    locations = list(zip(*(table_of(path).records[name].tolist() for name in ("offset", "length")), strict=True))

    def read_part(numbers: np.ndarray) -> None:
        descriptor = os.open(path, os.O_RDONLY)
        for k in numbers.tolist():
            handle = eccodes.codes_new_from_message(os.pread(descriptor, locations[k][1], locations[k][0]))
            flat[k] = eccodes.codes_get_float_array(handle, "values")
            eccodes.codes_release(handle)
        os.close(descriptor)

    def read() -> None:
        with ThreadPoolExecutor(threads) as pool:
            list(pool.map(read_part, np.array_split(np.arange(len(locations)), 8 * threads)))

    return read


def with_cfgrib(path: Path, threads: int) -> Callable[[], None]:
    """Return a function that reads with cfgrib and dask, one chunk per lead time."""
    dataset = xr.open_dataset(path, engine="cfgrib", chunks={"step": 1}, decode_timedelta=True)

    def read() -> None:
        with dask.config.set(scheduler="threads", num_workers=threads):
            dataset.compute()

    return read


def with_dask(path: Path, threads: int) -> Callable[[], None]:
    """Return a function that reads this project's dask arrays, one chunk per start and lead time."""
    dataset = open_ensemble(path)

    def read() -> None:
        with dask.config.set(scheduler="threads", num_workers=threads):
            dataset.compute()

    return read


def compare_readers(path: Path, name: str, out: np.ndarray, threads: int, rounds: int) -> dict[str, float]:
    """Return the ratios for the file of one packing."""
    ours, theirs = filling(path, MEASURED_VARIABLES, LEAD_HOURS, out), with_eccodes(path, out, threads)

    def with_one_thread() -> None:
        BUDGET.limit(1)
        ours()
        BUDGET.limit(threads)

    theirs()
    expected = out.reshape(len(MEASURED_VARIABLES), len(LEAD_HOURS), MEMBER_COUNT, *HALF_DEGREE.shape).copy()
    ours()
    np.testing.assert_array_equal(np.moveaxis(out, 2, 0), expected)
    readers = {"ours": ours, "ecCodes": theirs}
    slow: dict[str, Callable[[], None]] = {}
    if name != "ccsds":
        readers["one thread"] = with_one_thread
        slow = {"cfgrib": with_cfgrib(path, threads), "ours, dask": with_dask(path, threads)}
    times = best_times(readers, rounds) | best_times(slow, max(1, rounds // 3))
    for reader, seconds in times.items():
        print(f"{name} {reader:<12} {seconds:7.3f} s {MEGABYTES / seconds:8.0f} MB/s of float32")
    ratios = {f"{name}_vs_eccodes": times["ecCodes"] / times["ours"]}
    if slow:
        ratios[f"{name}_vs_cfgrib"] = times["cfgrib"] / times["ours"]
        ratios[f"{name}_dask_vs_cfgrib"] = times["cfgrib"] / times["ours, dask"]
    if name == "grib1" and threads == 2:
        ratios["threads_2_vs_1"] = times["one thread"] / times["ours"]
    return ratios


def main() -> None:
    """Write the files, read them with all readers, print the ratios."""
    arguments = command_line(__doc__, rounds=5, threads=2).parse_args()
    warnings.simplefilter("ignore")
    BUDGET.limit(arguments.threads)
    ratios: dict[str, float] = {}
    out = np.zeros(ARRAY_SHAPE, np.float32)
    with tempfile.TemporaryDirectory() as folder:
        os.environ["DEEPWEATHER_CACHE"] = f"{folder}/cache"
        for name, keys in PACKINGS.items():
            path = Path(folder) / f"{name}.grib"
            write_fields(path, **keys)
            print(f"{name}: {path.stat().st_size / 1e6:.0f} MB hold {MEGABYTES:.0f} MB of float32")
            ratios |= compare_readers(path, name, out, arguments.threads, arguments.rounds)
            path.unlink()
    report("grib_read", ratios, arguments.json)


if __name__ == "__main__":
    main()
