"""How fast GRIB is read, against cfgrib with dask and against ecCodes in threads.

One file for each packing, shaped like one start of ENS-10: 10 members, 3 lead times, 11 levels of z and t on 361 x 720
points, 660 messages. Everything is in the page cache, turns are interleaved and the best of each counts. This project
and ecCodes fill the same array, which has been filled before; cfgrib's index exists before the clock starts, its arrays
do not. `dask_vs_cfgrib` compares like with like there: the same dataset through xarray and dask, memory included.

    python -m benchmarks.grib_read [--json] [--rounds 5] [--threads 2]
"""

from __future__ import annotations

import os
import tempfile
import time
import warnings
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from itertools import product
from pathlib import Path

import dask
import eccodes
import numpy as np
import xarray as xr

from benchmarks.common import command_line, report
from data_pipeline.formats.grib import Encoder
from data_pipeline.formats.grib import reader as source
from data_pipeline.formats.grib.cache import table_of
from data_pipeline.formats.open import ensemble_fields, open_ensemble
from data_pipeline.grid import Grid
from data_pipeline.task import Variable

GRID = Grid.regular(361, 720)
NAMES, LEADS, MEMBERS = ("z", "t"), (0, 24, 48), tuple(range(1, 11))
LEVELS = (1000, 925, 850, 700, 500, 400, 300, 200, 100, 50, 10)
VARIABLES = [Variable(name, level) for name in NAMES for level in LEVELS]
FORMATS = {
    "grib1": {"edition": 1, "setLocalDefinition": 1, "localDefinitionNumber": 26},
    "grib2": {"edition": 2, "productDefinitionTemplateNumber": 1},
    "ccsds": {"edition": 2, "productDefinitionTemplateNumber": 1, "packingType": "grid_ccsds"},
}
MEGABYTES = len(VARIABLES) * len(LEADS) * len(MEMBERS) * GRID.shape[0] * GRID.shape[1] * 4 / 1e6


def write(path: Path, **keys: object) -> None:
    """Write a file of smooth fields with a little noise, 16 bits per value."""
    random = np.random.default_rng(0)
    lat, lon = np.radians(GRID.latitudes)[:, None], np.radians(GRID.longitudes)[None, :]
    encoder = Encoder(GRID, centre="ecmf", typeOfLevel="isobaricInhPa", numberOfForecastsInEnsemble=11, **keys)
    noise = random.normal(0, 0.05, GRID.shape)
    with path.open("wb") as file:
        for variable, lead, member in product(VARIABLES, LEADS, MEMBERS):
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


def reader(path: Path, out: np.ndarray) -> Callable[[], None]:
    """Return this project's way to fill `out` (L, M, C, H, W)."""
    fields = ensemble_fields(path, VARIABLES, LEADS)

    def read() -> None:
        for lead in range(len(LEADS)):
            fields.read(0, lead, out[lead])

    return read


def plain_ecCodes(path: Path, out: np.ndarray, threads: int) -> Callable[[], None]:
    """Return the way of a careful user of ecCodes: offsets known, one float32 array per message, in threads."""
    flat = out.reshape(-1, GRID.shape[0] * GRID.shape[1])
    places = list(zip(*(table_of(path).records[name].tolist() for name in ("offset", "length")), strict=True))

    def part(numbers: np.ndarray) -> None:
        descriptor = os.open(path, os.O_RDONLY)
        for k in numbers.tolist():
            handle = eccodes.codes_new_from_message(os.pread(descriptor, places[k][1], places[k][0]))
            flat[k] = eccodes.codes_get_float_array(handle, "values")
            eccodes.codes_release(handle)
        os.close(descriptor)

    def read() -> None:
        with ThreadPoolExecutor(threads) as pool:
            list(pool.map(part, np.array_split(np.arange(len(places)), 8 * threads)))

    return read


def through_cfgrib(path: Path, threads: int) -> Callable[[], None]:
    """Return cfgrib with dask, one chunk per lead time."""
    dataset = xr.open_dataset(path, engine="cfgrib", chunks={"step": 1}, decode_timedelta=True)

    def read() -> None:
        with dask.config.set(scheduler="threads", num_workers=threads):
            dataset.compute()

    return read


def through_dask(path: Path, threads: int) -> Callable[[], None]:
    """Return this project's dask arrays, one chunk per start and lead time."""
    dataset = open_ensemble(path)

    def read() -> None:
        with dask.config.set(scheduler="threads", num_workers=threads):
            dataset.compute()

    return read


def best(ways: dict[str, Callable[[], None]], rounds: int) -> dict[str, float]:
    """Return the shortest time of each way; turns are interleaved."""
    times = dict.fromkeys(ways, np.inf)
    for _ in range(rounds):
        for name, way in ways.items():
            start = time.perf_counter()
            way()
            times[name] = min(times[name], time.perf_counter() - start)
    return times


def measure(path: Path, name: str, out: np.ndarray, threads: int, rounds: int) -> dict[str, float]:
    """Return the ratios for the file of one packing."""
    ours, theirs = reader(path, out), plain_ecCodes(path, out, threads)

    def alone() -> None:
        source.THREADS = 1
        ours()
        source.THREADS = threads

    theirs()
    expected = out.reshape(len(NAMES) * len(LEVELS), len(LEADS), len(MEMBERS), *GRID.shape).copy()
    ours()
    np.testing.assert_array_equal(np.moveaxis(out, 2, 0), expected)
    ways = {"ours": ours, "ecCodes": theirs}
    slow: dict[str, Callable[[], None]] = {}
    if name != "ccsds":
        ways["one thread"] = alone
        slow = {"cfgrib": through_cfgrib(path, threads), "ours, dask": through_dask(path, threads)}
    times = best(ways, rounds) | best(slow, max(1, rounds // 3))
    for way, seconds in times.items():
        print(f"{name} {way:<12} {seconds:7.3f} s {MEGABYTES / seconds:8.0f} MB/s of float32")
    ratios = {f"{name}_vs_eccodes": times["ecCodes"] / times["ours"]}
    if slow:
        ratios[f"{name}_vs_cfgrib"] = times["cfgrib"] / times["ours"]
        ratios[f"{name}_dask_vs_cfgrib"] = times["cfgrib"] / times["ours, dask"]
    if name == "grib1" and threads == 2:
        ratios["threads_2_vs_1"] = times["one thread"] / times["ours"]
    return ratios


def main() -> None:
    """Write the files, read them in every way, print the ratios."""
    parser = command_line(__doc__)
    parser.add_argument("--rounds", type=int, default=5, help="turns of each way (default 5)")
    parser.add_argument("--threads", type=int, default=2, help="threads of each way (default 2)")
    arguments = parser.parse_args()
    warnings.simplefilter("ignore")
    source.THREADS = arguments.threads
    ratios: dict[str, float] = {}
    out = np.zeros((len(LEADS), len(MEMBERS), len(VARIABLES), *GRID.shape), np.float32)
    with tempfile.TemporaryDirectory() as folder:
        os.environ["DEEPWEATHER_CACHE"] = f"{folder}/cache"
        for name, keys in FORMATS.items():
            path = Path(folder) / f"{name}.grib"
            write(path, **keys)
            print(f"{name}: {path.stat().st_size / 1e6:.0f} MB hold {MEGABYTES:.0f} MB of float32")
            ratios |= measure(path, name, out, arguments.threads, arguments.rounds)
            path.unlink()
    report("grib_read", ratios, arguments.json)


if __name__ == "__main__":
    main()
