"""Memory of a Dask graph over raw GRIB: a mean over four times as many starts must not need more memory.

Writes ensembles of 10 members on the full 0.5 degree grid (GRIB1, 16 bits) to a temporary folder and computes
`open_ensemble(files).sel(lead_time=48).mean("init_time").compute()` over a quarter of the starts and over all of
them, in processes of their own, on Dask's threads. Memory is compared with the decoded size of the fields.

    python -m benchmarks.dask_memory [--json]
"""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

import numpy as np

from benchmarks.common import ECMWF_KEYS, HALF_DEGREE, MEMBER_COUNT, command_line, machine, memory_rise, report
from data_pipeline.formats.open import open_ensemble
from data_pipeline.writing import Encoder

START_COUNT, STORED_LEADS = 160, (24, 48)
START_MEGABYTES = 4e-6 * MEMBER_COUNT * HALF_DEGREE.shape[0] * HALF_DEGREE.shape[1]
"""Decoded size of one start."""


def write_ensembles(folder: Path) -> None:
    """Write a file for each start, all with the same values."""
    encoder = Encoder(HALF_DEGREE, **ECMWF_KEYS, shortName="2t", typeOfLevel="surface")
    field = 280 + np.random.default_rng(0).normal(size=HALF_DEGREE.shape)
    for start in range(START_COUNT):
        date = 19980101 + 10_000 * (start // 12) + 100 * (start % 12)
        with (folder / f"start.{start:03d}").open("wb") as file:
            for lead in STORED_LEADS:
                for member in range(1, MEMBER_COUNT + 1):
                    file.write(encoder.encode(field, dataDate=date, endStep=lead, perturbationNumber=member))


def mean_over_starts(folder: Path, count: int) -> None:
    """Compute the mean of `count` starts on Dask's threads."""
    files = [folder / f"start.{start:03d}" for start in range(count)]
    open_ensemble(files)["2t"].sel(lead_time=48).mean("init_time").compute(scheduler="threads")


def main() -> None:
    """Write the ensembles, compute both means, compare their memory."""
    options = command_line(__doc__).parse_args()
    print(f"dask_memory on {machine()}")
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        os.environ["DEEPWEATHER_CACHE"] = str(folder / "cache")
        write_ensembles(folder)
        counts = START_COUNT // 4, START_COUNT
        few, many = (memory_rise(mean_over_starts, folder, count) / 1e6 for count in counts)
    for count, megabytes in zip(counts, (few, many), strict=True):
        print(f"{count:3} starts, {count * START_MEGABYTES:5.0f} MB decoded: memory rises by {megabytes:4.0f} MB")
    ratios = {"memory_4x_vs_1x": many / few, "memory_vs_decoded": many / (START_COUNT * START_MEGABYTES)}
    report("dask_memory", ratios, options.json)


if __name__ == "__main__":
    main()
