"""Time to index a GRIB file, compared with cfgrib, and to read a cached index.

The file has the 46,200 messages of a pressure-level file of ENS-10 (7 variables, 11 levels, 20 years, 3 lead times, 10
members) on a small grid, because the cost per message does not depend on the grid. The file is in the page cache;
cfgrib indexes it once, this project several times, and the shortest time counts.

    python -m benchmarks.grib_index [--json] [--rounds 5] [--edition 1]
"""

from __future__ import annotations

import os
import shutil
import tempfile
from itertools import product
from pathlib import Path

import numpy as np
from cfgrib.messages import FileIndex, FileStream

from benchmarks.common import (
    ECMWF_KEYS,
    LEAD_HOURS,
    MEMBER_COUNT,
    PRESSURE_LEVELS,
    REFORECAST_YEARS,
    TEN_DEGREES,
    command_line,
    elapsed,
    report,
)
from data_pipeline.formats.grib import cache
from data_pipeline.writing import Encoder

SHORT_NAMES = ("z", "t", "u", "v", "q", "w", "d")
CFGRIB_KEYS = ["paramId", "shortName", "typeOfLevel", "level", "dataDate", "dataTime", "endStep", "number", "gridType"]
"""The keys that cfgrib indexes: no more than this project's index holds."""
EDITION_KEYS = {1: ECMWF_KEYS, 2: {"centre": "ecmf", "productDefinitionTemplateNumber": 1}}


def write_messages(path: Path, edition: int) -> int:
    """Write the file; return the number of its messages."""
    encoder = Encoder(
        TEN_DEGREES, edition=edition, typeOfLevel="isobaricInhPa", numberOfForecastsInEnsemble=11,
        **EDITION_KEYS[edition],
    )  # fmt: skip
    field = np.random.default_rng(0).normal(size=TEN_DEGREES.shape)
    count, members = 0, range(1, MEMBER_COUNT + 1)
    with path.open("wb") as file:
        for name, level, year, lead, member in product(
            SHORT_NAMES, PRESSURE_LEVELS, REFORECAST_YEARS, LEAD_HOURS, members
        ):
            keys = {"shortName": name, "level": level, "dataDate": year * 10000 + 104, "endStep": lead}
            file.write(encoder.encode(field, **keys, perturbationNumber=member))
            count += 1
    return count


def main() -> None:
    """Write the file, index it with both programs, print the ratios."""
    parser = command_line(__doc__, rounds=5)
    parser.add_argument("--edition", type=int, choices=(1, 2), default=1, help="GRIB edition (default 1)")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        path, cached = Path(folder) / "output.pl.20180104", Path(folder) / "cache"
        os.environ["DEEPWEATHER_CACHE"] = str(cached)
        count = write_messages(path, arguments.edition)
        print(f"{count:,} messages of GRIB{arguments.edition}, {path.stat().st_size / 1e6:.0f} MB")
        cache.table_of(path)
        cold, again = np.inf, np.inf
        for _ in range(arguments.rounds):
            shutil.rmtree(cached)
            cold = min(cold, elapsed(lambda: cache.table_of(path)))
            again = min(again, *(elapsed(lambda: cache.table_of(path)) for _ in range(5)))
        theirs = elapsed(lambda: FileIndex.from_fieldset(FileStream(str(path)), CFGRIB_KEYS))
    for name, seconds in {"cfgrib": theirs, "cold": cold, "cached": again}.items():
        print(f"{name:<8} {seconds:9.4f} s {1e6 * seconds / count:9.2f} microseconds per message")
    report("grib_index", {"cold_vs_cfgrib": theirs / cold, "cached_vs_cold": cold / again}, arguments.json)


if __name__ == "__main__":
    main()
