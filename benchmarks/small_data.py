"""CPU time of `train`, `evaluate` and `correct` on small data: 1,808 daily forecasts of ten members at stations.

Commands on such data are mostly start-up, which grows with what a verb imports and with the work for each forecast.
`VERB_N_s` are the CPU seconds of the whole command for N stations, and `VERB_N_ratio` compares them with
`python -c "import torch"`, which every verb must import; both run in turn. `evaluate_N_results_s` are the CPU seconds
until the table of scores is printed. CPU time depends less on other programs than the time that passes. Numba's loops
are compiled before, as in every run after the first; each number is the median of all rounds.

    python -m benchmarks.small_data [--json] [--rounds 3] [--stations 1 100]
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from statistics import median
from typing import NamedTuple

import numpy as np
import xarray as xr

from benchmarks.common import command_line, machine, report

STARTS, MEMBERS, LEAD = 1808, 10, 24
OPTIONS = (
    "data=netcdf", "data.split.train=[2016,2019]", "data.split.test=[2020,2020]", "task.name=stations",
    "task.inputs=[2t]", f"task.lead_times=[{LEAD}]", "task.static=[]",
)  # fmt: skip
TABLE = b"model "
"""Beginning of the head of the table that `evaluate` prints."""


def write_stations(folder: Path, count: int) -> None:
    """Write `ensemble.nc` and `analysis.nc` of `count` stations: a forecast that is too warm in the mountains."""
    random = np.random.default_rng(1)
    starts = np.datetime64("2016-01-01", "ns") + np.arange(STARTS) * np.timedelta64(1, "D")
    altitude = random.uniform(0, 2500, count)
    stations = {
        "station_id": ("station", [f"{10000 + 7 * k}" for k in range(count)], {"cf_role": "timeseries_id"}),
        "lat": ("station", random.uniform(47, 55, count), {"standard_name": "latitude", "units": "degrees_north"}),
        "lon": ("station", random.uniform(6, 15, count), {"standard_name": "longitude", "units": "degrees_east"}),
        "alt": ("station", altitude, {"standard_name": "altitude", "units": "m"}),
    }
    season = -10 * np.cos(2 * np.pi * np.arange(STARTS) / 365.25)[:, None]
    weather = 12 + season - 0.0065 * altitude + 4 * random.standard_normal((STARTS, count))
    spread = random.uniform(0.5, 1.5, (STARTS, count))
    truth = weather + 1.5 * spread * random.standard_normal((STARTS, count))
    noise = spread[:, None] * random.standard_normal((STARTS, MEMBERS, count))
    members = (weather + 0.001 * altitude)[:, None] + noise
    axes = {
        "init_time": ("init_time", starts, {"standard_name": "forecast_reference_time"}),
        "step": ("step", [LEAD], {"standard_name": "forecast_period", "units": "hours"}),
        "number": ("number", range(MEMBERS), {"standard_name": "realization"}),
    }
    about = {"Conventions": "CF-1.11", "featureType": "timeSeries"}
    forecast = (*axes, "station"), members[:, None].astype("f4"), {"units": "degC"}
    xr.Dataset({"t2m": forecast}, axes | stations, about).to_netcdf(folder / "ensemble.nc")
    valid = {"time": ("time", starts + np.timedelta64(LEAD, "h"), {"standard_name": "time"})}
    analysis = ("time", "station"), truth.astype("f4"), {"units": "degC"}
    xr.Dataset({"t2m": analysis}, valid | stations, about).to_netcdf(folder / "analysis.nc")


class Cost(NamedTuple):
    """CPU seconds of a process, in all and until it printed the table of scores."""

    whole: float
    table: float


def run(*words: str | Path) -> Cost:
    """Run Python with these words; return its cost."""
    process = subprocess.Popen(
        [sys.executable, *words], stdout=subprocess.PIPE, env=os.environ | {"PYTHONUNBUFFERED": "1"}
    )
    assert process.stdout is not None
    table = 0.0
    for line in process.stdout:
        if line.startswith(TABLE):
            fields = Path(f"/proc/{process.pid}/stat").read_text().rpartition(")")[2].split()
            table = (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
    _, status, usage = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode:
        raise SystemExit(f"the command failed: {' '.join(map(str, words))}")
    return Cost(usage.ru_utime + usage.ru_stime, table)


def measure(folder: Path, stations: int, rounds: int) -> dict[str, float]:
    """Return the numbers of the verbs for a number of stations."""
    write_stations(folder, stations)
    script, found = Path(__file__).parents[1] / "scripts" / "deepweather.py", dict[str, list[float]]()
    options = [*OPTIONS, f"data.path={folder}"]
    for number in range(rounds + 1):
        runs = folder / str(number)
        corrector = runs / "emos" / "corrector.safetensors"
        verbs = {
            "train": [*options, "model=emos", f"run_dir={corrector.parent}"],
            "evaluate": [*options, f"correctors={{emos:{corrector}}}", f"run_dir={runs / 'scores'}"],
            "correct": [f"corrector={corrector}", f"input={folder}/ensemble.nc", f"output={runs}/out.nc"],
        }
        for verb, words in verbs.items():
            torch, cost = run("-c", "import torch").whole, run(script, verb, *words)
            if number:  # in the first round, loops are compiled and files come into the page cache
                name = f"{verb}_{stations}"
                found.setdefault(f"{name}_s", []).append(cost.whole)
                found.setdefault(f"{name}_ratio", []).append(cost.whole / torch)
                if cost.table:
                    found.setdefault(f"{name}_results_s", []).append(cost.table)
    return {name: median(values) for name, values in found.items()}


def main(arguments: Sequence[str] | None = None) -> None:
    """Measure and report."""
    parser = command_line(__doc__, rounds=3)
    parser.add_argument("--stations", type=int, nargs="+", default=[1, 100])
    options = parser.parse_args(arguments)
    found: dict[str, float] = {}
    for stations in options.stations:
        with tempfile.TemporaryDirectory() as name:
            found |= measure(Path(name), stations, options.rounds)
    print(machine())
    report("small_data", found, options.json)


if __name__ == "__main__":
    main()
