"""Memory of `deepweather prepare`: four times the files must not take more of it.

Makes an archive shaped as ENS-10's in a temporary folder (GRIB1, one file per start date, all years in it, no
extension), runs `deepweather prepare` with all statistics and a store on a quarter of the dates and on all of them,
each in a process of its own with an empty cache, and compares their peak memory (ru_maxrss). The fields are small,
because what could grow is what is kept per message and per file; the task reads some of the variables, as tasks do.

    python -m benchmarks.prepare [--json]
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

from benchmarks.common import command_line, machine, report
from data_pipeline.formats.grib import Encoder
from data_pipeline.grid import Grid

ROOT = Path(__file__).parents[1]
DATES, YEARS, LEADS, MEMBERS = 40, range(1998, 2018), (0, 24, 48), 10
VARIABLES = ("2t", "msl", "10u", "10v", "tcc", "skt")
GRID = Grid.regular(19, 36)


def write_archive(folder: Path) -> None:
    """Write forecasts of all dates and their analyses."""
    local = {"centre": "ecmf", "setLocalDefinition": 1, "localDefinitionNumber": 26, "dataTime": 0, "level": 0}
    forecast = Encoder(GRID, **local, stream="enfh", type="pf", stepUnits="h", typeOfLevel="surface")
    analysis = Encoder(GRID, **local, stream="oper", type="an", shortName="2t", typeOfLevel="surface")
    random = np.random.default_rng(0)
    for day in dates():
        with (folder / f"output.sfc.{day:%Y%m%d}").open("wb") as file:
            for year in YEARS:
                for name in VARIABLES:
                    for lead in LEADS:
                        for number in range(1, MEMBERS + 1):
                            keys = {"dataDate": year * 10000 + int(f"{day:%m%d}"), "endStep": lead}
                            field = 280 + random.normal(size=GRID.shape)
                            file.write(forecast.encode(field, shortName=name, **keys, perturbationNumber=number))
        with (folder / f"analysis.{day:%Y%m%d}").open("wb") as file:
            for year in YEARS:
                valid = date(year, day.month, day.day) + timedelta(hours=48)
                file.write(analysis.encode(280 + random.normal(size=GRID.shape), dataDate=int(f"{valid:%Y%m%d}")))


def dates() -> list[date]:
    """Start dates, every third day."""
    return [date(2018, 1, 2) + timedelta(days=3 * k) for k in range(DATES)]


def peak(folder: Path, count: int) -> tuple[float, float]:
    """Prepare the first `count` dates; return the peak memory of the process in MB and its time in seconds."""
    part = folder / f"{count}-dates"
    part.mkdir()
    for day in dates()[:count]:
        for kind in ("output.sfc", "analysis"):
            (part / f"{kind}.{day:%Y%m%d}").symlink_to(folder / f"{kind}.{day:%Y%m%d}")
    began = time.perf_counter()
    process = subprocess.Popen(
        [
            sys.executable, "-m", "deepweather", "prepare", "data=ens10", f"path={part}",
            "task.inputs=[2t,msl]", "statistics=[normalization,local,climatology,efi]", "store=store",
        ],
        cwd=part, stdout=subprocess.DEVNULL,
        env=os.environ | {"PYTHONPATH": f"{ROOT}:{ROOT / 'scripts'}", "DEEPWEATHER_CACHE": str(part / "cache")},
    )  # fmt: skip
    _, status, usage = os.wait4(process.pid, 0)
    if status:
        sys.exit(f"prepare failed on {count} dates")
    return usage.ru_maxrss * (1 if sys.platform == "darwin" else 1024) / 1e6, time.perf_counter() - began


def main() -> None:
    """Write, prepare, compare."""
    options = command_line(__doc__).parse_args()
    print(f"prepare on {machine()}", flush=True)
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        write_archive(folder)
        few, many = DATES // 4, DATES
        peaks = {}
        for count in (few, many):
            peaks[count], seconds = peak(folder, count)
            messages = count * len(YEARS) * (len(VARIABLES) * len(LEADS) * MEMBERS + 1)
            print(
                f"{2 * count:4} files, {messages:8,} messages: peak {peaks[count]:5.0f} MB, {seconds:5.1f} s",
                flush=True,
            )
    report("prepare", {"memory_4x_vs_1x": peaks[many] / peaks[few]}, options.json)


if __name__ == "__main__":
    main()
