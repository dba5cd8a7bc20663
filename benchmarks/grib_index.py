"""How fast a GRIB file is indexed, against cfgrib, and how fast an index is read again.

A file with the 46,200 messages of one pressure-level file of ENS-10 (7 variables, 11 levels, 20 years, 3 lead times, 10
members) on a small grid: to find and name a message costs the same on a large one. Everything is in the page cache;
cfgrib indexes the same file once, this project several times, and the best counts.

    python -m benchmarks.grib_index [--json] [--rounds 5] [--edition 1]
"""

from __future__ import annotations

import os
import shutil
import tempfile
import time
from collections.abc import Callable
from itertools import product
from pathlib import Path

import numpy as np
from cfgrib.messages import FileIndex, FileStream

from benchmarks.common import command_line, report
from data_pipeline.formats.grib import Encoder, cache
from data_pipeline.grid import Grid

GRID = Grid.regular(19, 36)
NAMES = ("z", "t", "u", "v", "q", "w", "d")
LEVELS = (1000, 925, 850, 700, 500, 400, 300, 200, 100, 50, 10)
YEARS, LEADS, MEMBERS = range(1998, 2018), (0, 24, 48), range(1, 11)
KEYS = ["paramId", "shortName", "typeOfLevel", "level", "dataDate", "dataTime", "endStep", "number", "gridType"]
"""What cfgrib is asked: no more than this project's index holds."""
FORMS = {
    1: {"setLocalDefinition": 1, "localDefinitionNumber": 26},
    2: {"productDefinitionTemplateNumber": 1},
}


def write(path: Path, edition: int) -> int:
    """Write the file; return the number of its messages."""
    encoder = Encoder(
        GRID, edition=edition, centre="ecmf", typeOfLevel="isobaricInhPa", numberOfForecastsInEnsemble=11,
        **FORMS[edition],
    )  # fmt: skip
    field = np.random.default_rng(0).normal(size=GRID.shape)
    count = 0
    with path.open("wb") as file:
        for name, level, year, lead, member in product(NAMES, LEVELS, YEARS, LEADS, MEMBERS):
            keys = {"shortName": name, "level": level, "dataDate": year * 10000 + 104, "endStep": lead}
            file.write(encoder.encode(field, **keys, perturbationNumber=member))
            count += 1
    return count


def clock(function: Callable[[], object]) -> float:
    """Return how many seconds a call takes."""
    start = time.perf_counter()
    function()
    return time.perf_counter() - start


def main() -> None:
    """Write the file, index it in every way, print the ratios."""
    parser = command_line(__doc__)
    parser.add_argument("--rounds", type=int, default=5, help="turns of this project (default 5)")
    parser.add_argument("--edition", type=int, choices=(1, 2), default=1, help="edition of GRIB (default 1)")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        path, cached = Path(folder) / "output.pl.20180104", Path(folder) / "cache"
        os.environ["DEEPWEATHER_CACHE"] = str(cached)
        count = write(path, arguments.edition)
        print(f"{count:,} messages of GRIB{arguments.edition}, {path.stat().st_size / 1e6:.0f} MB")
        cache.table_of(path)
        cold, again = np.inf, np.inf
        for _ in range(arguments.rounds):
            shutil.rmtree(cached)
            cold = min(cold, clock(lambda: cache.table_of(path)))
            again = min(again, *(clock(lambda: cache.table_of(path)) for _ in range(5)))
        theirs = clock(lambda: FileIndex.from_fieldset(FileStream(str(path)), KEYS))
    for name, seconds in {"cfgrib": theirs, "cold": cold, "cached": again}.items():
        print(f"{name:<8} {seconds:9.4f} s {1e6 * seconds / count:9.2f} microseconds per message")
    report("grib_index", {"cold_vs_cfgrib": theirs / cold, "cached_vs_cold": cold / again}, arguments.json)


if __name__ == "__main__":
    main()
