"""Time to read samples from Zarr stores, compared with xarray and dask on the same chunks.

The stores have WeatherBench2's layout: 8 variables, 10 members on 361 x 720 points, one start and lead time a chunk.
A sample is all of one start and lead time, 80 fields. This project fills an existing float32 array; xarray and dask
make arrays of their own, because they offer no other way. `zarr_vs_xarray` is the smallest ratio of all stores.
`decoding` is a limit for compressed chunks: numcodecs alone in as many threads, on bytes that are in memory. The files
are in the page cache, all readers are timed in turn, and the shortest time of each counts.

    python -m benchmarks.zarr_read [--json] [--rounds 5] [--threads 2]
"""

from __future__ import annotations

import tempfile
import warnings
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import dask
import numcodecs
import numpy as np
import xarray as xr

from benchmarks.common import HALF_DEGREE, MEMBER_COUNT, best_times, command_line, filling, report
from data_pipeline.common.threads import BUDGET
from data_pipeline.task import Variable

NAMES = {
    "2m_temperature": "2t", "10m_u_component_of_wind": "10u", "10m_v_component_of_wind": "10v",
    "mean_sea_level_pressure": "msl", "surface_pressure": "sp", "2m_dewpoint_temperature": "2d",
    "skin_temperature": "skt", "total_column_water_vapour": "tcwv",
}  # fmt: skip
VARIABLES = [Variable(name) for name in NAMES.values()]
UNITS = ("K", "m s**-1", "m s**-1", "Pa", "Pa", "K", "K", "kg m**-2")
START, LEADS = "2016-01-04", (24, 48)
SAMPLE_SHAPE = (MEMBER_COUNT, len(NAMES), *HALF_DEGREE.shape)
MEGABYTES = 4e-6 * int(np.prod(SAMPLE_SHAPE)) * len(LEADS)
COMPRESSIONS: dict[str, dict[str, Any] | None] = {
    "uncompressed": None,
    "zstd": {"id": "zstd", "level": 3},
    "blosc": {"id": "blosc", "cname": "lz4", "clevel": 5, "shuffle": 1},
}
"""Compressions, as numcodecs writes them; Blosc with LZ4 is what WeatherBench2 uses."""


def write_stores(folder: Path) -> None:
    """Write smooth fields with noise, about 16 significant bits per value as weather centres store them."""
    random = np.random.default_rng(0)
    lat, lon = np.radians(HALF_DEGREE.latitudes)[:, None], np.radians(HALF_DEGREE.longitudes)[None, :]
    dimensions = ("time", "prediction_timedelta", "number", "latitude", "longitude")
    fields: dict[str, Any] = {}
    for name, units in zip(NAMES, UNITS, strict=True):
        waves = [
            random.normal() * np.cos(lat) * np.cos(k * lon + random.uniform(0, 6))
            for k in range(1, 1 + len(LEADS) * MEMBER_COUNT)
        ]
        noise = random.normal(0, 0.05, (len(waves), *HALF_DEGREE.shape))
        values = (np.round((280 + 40 * np.cos(lat) + 10 * np.stack(waves) + noise) * 512) / 512).astype(np.float32)
        values = values.reshape(1, len(LEADS), MEMBER_COUNT, *HALF_DEGREE.shape)
        fields[name] = (dimensions, values, {"units": units})
    dataset = xr.Dataset(
        fields,
        {
            "time": np.array([START], "datetime64[ns]"),
            "prediction_timedelta": np.array(LEADS, "timedelta64[h]").astype("timedelta64[ns]"),
            "number": np.arange(MEMBER_COUNT),
            "latitude": np.array(HALF_DEGREE.latitudes),
            "longitude": np.array(HALF_DEGREE.longitudes),
        },
    )
    chunks = (1, 1, *fields[name][1].shape[2:])
    for compression, settings in COMPRESSIONS.items():
        codec = numcodecs.get_codec(settings) if settings else None
        encoding = {each: {"chunks": chunks, "compressors": codec} for each in NAMES}
        dataset.to_zarr(folder / f"{compression}.zarr", zarr_format=2, encoding=encoding)


def with_xarray(path: Path, threads: int) -> Callable[[], list[xr.Dataset]]:
    """Return a function that reads with xarray and dask, one dask chunk for each chunk of the store."""
    dataset = xr.open_zarr(path, chunks={}, decode_timedelta=True)[[*NAMES]]

    def read() -> list[xr.Dataset]:
        with dask.config.set(scheduler="threads", num_workers=threads):
            return [dataset.isel(time=0, prediction_timedelta=lead).compute() for lead in range(len(LEADS))]

    return read


def with_numcodecs(path: Path, settings: dict[str, Any], threads: int) -> Callable[[], None]:
    """Return a function that decodes the chunks of the store, which are in memory, into existing arrays."""
    codec = numcodecs.get_codec(settings)
    chunks = [file.read_bytes() for name in NAMES for file in sorted((path / name).glob("0.*"))]
    out = np.zeros((threads, MEMBER_COUNT, *HALF_DEGREE.shape), np.float32)

    def read_part(thread: int) -> None:
        for chunk in chunks[thread::threads]:
            codec.decode(chunk, out=out[thread])

    def read() -> None:
        with ThreadPoolExecutor(threads) as pool:
            list(pool.map(read_part, range(threads)))

    return read


def compare_readers(path: Path, name: str, out: np.ndarray, threads: int, rounds: int) -> dict[str, float]:
    """Return the ratios for one store."""
    ours, theirs = filling(path, VARIABLES, LEADS, out), with_xarray(path, threads)
    ours()
    for lead, expected in enumerate(theirs()):
        for channel, variable in enumerate(NAMES):
            np.testing.assert_array_equal(out[lead, :, channel], expected[variable].values)
    readers: dict[str, Callable[[], object]] = {"ours": ours, "xarray": theirs}
    if settings := COMPRESSIONS[name]:
        readers["decoding"] = with_numcodecs(path, settings, threads)
    times = best_times(readers, rounds)
    for reader, seconds in times.items():
        print(f"{name} {reader:<12} {seconds:7.3f} s {MEGABYTES / seconds:8.0f} MB/s of float32")
    ratios = {f"{name}_vs_xarray": times["xarray"] / times["ours"]}
    if settings:
        ratios[f"{name}_vs_decoding"] = times["decoding"] / times["ours"]
    return ratios


def main() -> None:
    """Write the stores, read them with all readers, print the ratios."""
    arguments = command_line(__doc__, rounds=5, threads=2).parse_args()
    warnings.simplefilter("ignore")
    BUDGET.limit(arguments.threads)
    ratios: dict[str, float] = {}
    out = np.zeros((len(LEADS), *SAMPLE_SHAPE), np.float32)
    with tempfile.TemporaryDirectory() as folder:
        write_stores(Path(folder))
        for name in COMPRESSIONS:
            path = Path(folder) / f"{name}.zarr"
            size = sum(file.stat().st_size for file in path.rglob("*") if file.is_file())
            print(f"{name}: {size / 1e6:.0f} MB hold {MEGABYTES:.0f} MB of float32")
            ratios |= compare_readers(path, name, out, arguments.threads, arguments.rounds)
    ratios["zarr_vs_xarray"] = min(ratio for name, ratio in ratios.items() if name.endswith("_vs_xarray"))
    report("zarr_read", ratios, arguments.json)


if __name__ == "__main__":
    main()
