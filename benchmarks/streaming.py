"""Memory of a Dask graph over raw GRIB: a mean over all starts must not take more of it for four times the starts.

Writes ensembles of 10 members on the full 0.5 degree grid (GRIB1, 16 bits) to a temporary folder and computes
`open_ensemble(files).sel(lead_time=48).mean("init_time").compute()` over a quarter of the starts and over all of
them, in processes of their own, on Dask's threads. The limit is the decoded size of what is read.

    python -m benchmarks.streaming [--json]
"""

from __future__ import annotations

import os
import resource
import sys
import tempfile
from pathlib import Path

import numpy as np

from benchmarks.common import command_line, machine, report
from data_pipeline.formats.grib import Encoder
from data_pipeline.formats.open import open_ensemble
from data_pipeline.grid import Grid

STARTS, LEADS, MEMBERS = 160, (24, 48), 10
GRID = Grid.regular(361, 720)
SIZE = 4e-6 * MEMBERS * GRID.shape[0] * GRID.shape[1]
"""Megabytes of one start, decoded."""


def write(folder: Path) -> None:
    """Write a file for each start; all hold the same weather."""
    encoder = Encoder(
        GRID, centre="ecmf", setLocalDefinition=1, localDefinitionNumber=26, shortName="2t", typeOfLevel="surface"
    )
    field = 280 + np.random.default_rng(0).normal(size=GRID.shape)
    for start in range(STARTS):
        date = 19980101 + 10_000 * (start // 12) + 100 * (start % 12)
        with (folder / f"start.{start:03d}").open("wb") as file:
            for lead in LEADS:
                for member in range(1, MEMBERS + 1):
                    file.write(encoder.encode(field, dataDate=date, endStep=lead, perturbationNumber=member))


def peak(folder: Path, count: int) -> float:
    """Return by how many megabytes the memory of a new process rises while it computes the mean of `count` starts."""
    reading, writing = os.pipe()
    if os.fork():
        os.close(writing)
        with os.fdopen(reading) as pipe:
            text = pipe.read()
        os.wait()
        return float(text)
    files = [folder / f"start.{start:03d}" for start in range(count)]
    before = memory()
    open_ensemble(files)["2t"].sel(lead_time=48).mean("init_time").compute(scheduler="threads")
    os.write(writing, str(memory() - before).encode())
    os._exit(0)


def memory() -> float:
    """Return the peak memory of this process so far, in megabytes."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024) / 1e6


def main() -> None:
    """Write, compute, compare."""
    options = command_line(__doc__).parse_args()
    print(f"streaming on {machine()}")
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        os.environ["DEEPWEATHER_CACHE"] = str(folder / "cache")
        write(folder)
        few, many = peak(folder, STARTS // 4), peak(folder, STARTS)
    for count, megabytes in ((STARTS // 4, few), (STARTS, many)):
        print(f"{count:3} starts, {count * SIZE:5.0f} MB decoded: memory rises by {megabytes:4.0f} MB")
    ratios = {"memory_4x_vs_1x": many / few, "memory_vs_decoded": many / (STARTS * SIZE)}
    report("streaming", ratios, options.json)


if __name__ == "__main__":
    main()
