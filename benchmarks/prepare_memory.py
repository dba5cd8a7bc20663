"""Memory of `deepweather prepare`: four times as many files must not need more memory.

Writes an archive with the file layout of ENS-10 to a temporary folder (GRIB1, one file per start date with all years),
runs `deepweather prepare` with all statistics and a store on a quarter of the dates and on all of them, each in a
process of its own with an empty cache, and compares their peak memory (ru_maxrss). The fields are small, because only
memory per message and per file could grow. The task uses some of the variables.

    python -m benchmarks.prepare_memory [--json]
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import time
from datetime import date, timedelta
from pathlib import Path

import numpy as np

from benchmarks.common import (
    ECMWF_KEYS,
    LEAD_HOURS,
    MEMBER_COUNT,
    REFORECAST_YEARS,
    TEN_DEGREES,
    command_line,
    machine,
    report,
)
from data_pipeline.writing import Encoder

ROOT = Path(__file__).parents[1]
DATE_COUNT = 40
SURFACE_NAMES = ("2t", "msl", "10u", "10v", "tcc", "skt")


def write_reforecasts(folder: Path) -> None:
    """Write the forecasts of all start dates and their analyses."""
    keys = ECMWF_KEYS | {"dataTime": 0, "level": 0}
    forecast = Encoder(TEN_DEGREES, **keys, stream="enfh", type="pf", stepUnits="h", typeOfLevel="surface")
    analysis = Encoder(TEN_DEGREES, **keys, stream="oper", type="an", shortName="2t", typeOfLevel="surface")
    random = np.random.default_rng(0)
    for day in start_dates():
        with (folder / f"output.sfc.{day:%Y%m%d}").open("wb") as file:
            for year in REFORECAST_YEARS:
                for name in SURFACE_NAMES:
                    for lead in LEAD_HOURS:
                        for number in range(1, MEMBER_COUNT + 1):
                            when = {"dataDate": year * 10000 + int(f"{day:%m%d}"), "endStep": lead}
                            field = 280 + random.normal(size=TEN_DEGREES.shape)
                            file.write(forecast.encode(field, shortName=name, **when, perturbationNumber=number))
        with (folder / f"analysis.{day:%Y%m%d}").open("wb") as file:
            for year in REFORECAST_YEARS:
                valid = date(year, day.month, day.day) + timedelta(hours=48)
                file.write(
                    analysis.encode(280 + random.normal(size=TEN_DEGREES.shape), dataDate=int(f"{valid:%Y%m%d}"))
                )


def start_dates() -> list[date]:
    """Return the start dates, every third day."""
    return [date(2018, 1, 2) + timedelta(days=3 * k) for k in range(DATE_COUNT)]


def prepare_dates(folder: Path, count: int) -> tuple[float, float]:
    """Prepare the first `count` dates; return peak memory of the process in MB and its time in seconds."""
    part = folder / f"{count}-dates"
    part.mkdir()
    for day in start_dates()[:count]:
        for kind in ("output.sfc", "analysis"):
            (part / f"{kind}.{day:%Y%m%d}").symlink_to(folder / f"{kind}.{day:%Y%m%d}")
    began = time.perf_counter()
    process = subprocess.Popen(
        [
            sys.executable, "-m", "deepweather", "prepare", "data=ens10", f"path={part}",
            "task.inputs=[2t,msl]", "statistics=[efi]", "store=store",
        ],
        cwd=part, stdout=subprocess.DEVNULL,
        env=os.environ | {"PYTHONPATH": f"{ROOT}:{ROOT / 'scripts'}", "DEEPWEATHER_CACHE": str(part / "cache")},
    )  # fmt: skip
    _, status, usage = os.wait4(process.pid, 0)
    if status:
        sys.exit(f"prepare failed on {count} dates")
    return usage.ru_maxrss * (1 if sys.platform == "darwin" else 1024) / 1e6, time.perf_counter() - began


def main() -> None:
    """Write the archive, prepare both parts, compare their memory."""
    options = command_line(__doc__).parse_args()
    print(f"prepare_memory on {machine()}", flush=True)
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        write_reforecasts(folder)
        few, many = DATE_COUNT // 4, DATE_COUNT
        peaks = {}
        for count in (few, many):
            peaks[count], seconds = prepare_dates(folder, count)
            messages = count * len(REFORECAST_YEARS) * (len(SURFACE_NAMES) * len(LEAD_HOURS) * MEMBER_COUNT + 1)
            print(
                f"{2 * count:4} files, {messages:8,} messages: peak {peaks[count]:5.0f} MB, {seconds:5.1f} s",
                flush=True,
            )
    report("prepare_memory", {"memory_4x_vs_1x": peaks[many] / peaks[few]}, options.json)


if __name__ == "__main__":
    main()
