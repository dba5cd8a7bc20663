"""Speed and memory of scoring: CRPS kernels compared with other libraries, and a whole evaluation with its parts.

The members are 10 and 50 fields of 361 x 720 in single precision. Each library gets its fastest layout and computes one
form of the CRPS per call; ours computes what `evaluate` needs: plain and fair form, error, variance and rank. Of
scoringrules, all exact estimators are timed with the numba backend. `m10_vs_fastest` and `m50_vs_fastest` are the
shortest time of all libraries divided by ours, on one core. `threads_2_vs_1` is the gain from a second thread with 50
members.

`scoring_vs_floor` compares the default scores of raw members, a normal distribution and its members as `correct` writes
them with the least work: reading the forecasts of 10 members from files, one fair CRPS of the raw members by sorting,
and the CRPS of the normal distribution in closed form. Fits and the report are not part of either. `memory_64_vs_32`
compares the rise of peak memory with 64 and 32 forecasts, and `memory_vs_budget` the rise with 64 forecasts with
`memory_bytes`. With 8 forecasts, a single batch, nothing is read ahead.

`command_vs_floor` compares `deepweather evaluate`, from its start to its end with report and figures, with the least
work on the same NetCDF files: reading them, and one fair CRPS by sorting.

    OMP_NUM_THREADS=1 python -m benchmarks.score [--json] [--rounds 10]
"""

from __future__ import annotations

import contextlib
import math
import subprocess
import sys
import tempfile
from collections.abc import Callable
from functools import partial
from pathlib import Path

import numpy as np
import properscoring
import scoringrules
import torch
import xarray as xr
import xskillscore
from netCDF4 import Dataset

from benchmarks.common import HALF_DEGREE, best_times, command_line, machine, memory_rise, report
from data_pipeline.common.threads import BUDGET
from data_pipeline.sample import Sample
from data_pipeline.task import Task
from evaluation.kernels.ensemble_scores import ensemble_scores
from evaluation.regions import region_weights
from evaluation.scoring.scoring import ScoringOptions, score_models
from models.distribution import Normal
from models.statistical.raw import Raw

EXACT_ESTIMATORS = ("nrg", "fair", "pwm", "qd", "int")
MEMBER_COUNTS = (10, 50)
FILES, MEMORY_BYTES = 4, 1_000_000_000


def ways(members: np.ndarray, truth: np.ndarray) -> dict[str, Callable[[], object]]:
    """Return the functions that score `members` (M, cells), by name; the first is ours."""
    last = np.ascontiguousarray(members.T)
    labelled = xr.DataArray(last, dims=("cell", "member")), xr.DataArray(truth, dims="cell")
    works: dict[str, Callable[[], object]] = {"ours": partial(ensemble_scores, members, truth)}
    for name in EXACT_ESTIMATORS:
        works[f"scoringrules {name}"] = partial(
            scoringrules.crps_ensemble, truth, last, estimator=name, backend="numba"
        )
    works["properscoring"] = partial(properscoring.crps_ensemble, truth, last)
    works["xskillscore"] = partial(xskillscore.crps_ensemble, labelled[1], labelled[0], dim=[])
    return works


def example(M: int) -> tuple[np.ndarray, np.ndarray]:
    """Return members (M, cells) and truth of temperatures in K."""
    random, cells = np.random.default_rng(M), HALF_DEGREE.shape[0] * HALF_DEGREE.shape[1]
    return random.normal(280, 5, (M, cells)).astype(np.float32), random.normal(280, 5, cells).astype(np.float32)


def kernel_ratios(rounds: int) -> dict[str, float]:
    """Return the ratios of the CRPS alone."""
    ratios = {}
    for M in MEMBER_COUNTS:
        members, truth = example(M)
        BUDGET.limit(1)
        works = ways(members, truth)
        for work in works.values():
            work()  # compiles
        times = best_times(works, rounds)
        for name, seconds in times.items():
            print(f"{M} members, {name:<18} {1000 * seconds:8.2f} ms", flush=True)
        ours = times.pop("ours")
        ratios[f"m{M}_vs_fastest"] = min(times.values()) / ours
    BUDGET.limit(2)
    with_two = best_times({"ours": works["ours"]}, 3 * rounds)["ours"]
    return ratios | {"threads_2_vs_1": ours / with_two}


class Files:
    """Forecasts of 10 members in files of numpy, with the analysis as the last field."""

    task, grid, members = Task("half a degree", ["2t"], ["2t"], [48]), HALF_DEGREE, 10

    def __init__(self, folder: Path, count: int) -> None:
        self.fingerprint, self._folder, self._count = str(folder), folder, count
        self.static, self.nbytes = torch.zeros(0, *HALF_DEGREE.shape), 4 * 11 * math.prod(HALF_DEGREE.shape)

    def __len__(self) -> int:
        return self._count

    def times(self) -> tuple[torch.Tensor, torch.Tensor]:
        """Return a start every four days and the lead time."""
        return 4 * 86400 * torch.arange(self._count), torch.full((self._count,), 48)

    def __getitem__(self, index: int) -> Sample:
        fields = torch.from_numpy(np.load(self._folder / f"{index % FILES}.npy"))
        mask, times = torch.ones(1, *HALF_DEGREE.shape, dtype=torch.bool), self.times()
        return Sample(fields[:-1, None], mask, self.static, fields[-1:], times[0][index], times[1][index])


def normal(batch: Sample) -> Normal:
    """Return a normal distribution with the moments of the members, as EMOS does."""
    return Normal(batch.ensemble.mean(1), batch.ensemble.std(1))


def score_files(folder: Path, count: int) -> None:
    """Score `count` forecasts with the default scores."""
    files = Files(folder, count)
    models = {"raw": Raw(files.task, files.grid), "emos": normal}
    options = ScoringOptions(written={"emos"}, memory_bytes=MEMORY_BYTES)
    with contextlib.redirect_stdout(None):
        score_models(models, files, region_weights(files.grid), None, options)


def least_work(folder: Path, count: int) -> None:
    """Read the forecasts, and compute one CRPS of the members by sorting and one in closed form."""
    files, weights = Files(folder, count), 2 * np.arange(1, 11, dtype=np.float32) - 11
    for index in range(count):
        sample = files[index]
        members, truth = sample.ensemble[:, 0].numpy(), sample.target[0].numpy()
        # Cells first, because numpy sorts the last axis fastest.
        difference = np.ascontiguousarray((members - truth).reshape(10, -1).T)
        (abs(difference).mean(1) - np.sort(difference, 1) @ weights / 90).mean()
        batch = Sample(*(tensor[None] for tensor in sample))
        normal(batch).crps(batch.target).mean()


def write_archive(folder: Path, count: int) -> None:
    """Write the NetCDF files of `count` forecasts, one a week, and their analyses."""
    starts = np.datetime64("2020-01-01", "ns") + np.arange(count) * np.timedelta64(7, "D")
    rows, columns = HALF_DEGREE.shape
    place = {
        "latitude": ("latitude", np.linspace(90, -90, rows), {"units": "degrees_north"}),
        "longitude": ("longitude", np.arange(columns) * 360 / columns, {"units": "degrees_east"}),
    }
    valid = {"time": starts + np.timedelta64(48, "h"), **place}
    where = {
        "init_time": ("init_time", starts, {"standard_name": "forecast_reference_time"}),
        "lead_time": ("lead_time", [48], {"standard_name": "forecast_period", "units": "hours"}),
        "number": ("number", np.arange(10), {"standard_name": "realization"}), **place,
    }  # fmt: skip
    fields = [example(10) for _ in range(FILES)]
    members, truth = (np.stack([fields[k % FILES][part] for k in range(count)]) for part in (0, 1))
    kelvin = {"units": "K"}
    members = members.reshape(count, 1, 10, rows, columns)
    xr.Dataset({"t2m": (tuple(where), members, kelvin)}, where).to_netcdf(folder / "ensemble.nc")
    analyses = xr.Dataset({"t2m": (["time", *place], truth.reshape(count, rows, columns), kelvin)}, valid)
    analyses.to_netcdf(folder / "analysis.nc")


def run_command(folder: Path) -> None:
    """Evaluate the raw ensemble against itself by the command."""
    options = (
        "data=netcdf", f"path={folder}", "data.split.train=[2018,2018]", "data.split.test=[2020,2022]", "task.name=any",
        "task.inputs=[2t]", "task.targets=[2t]", "task.lead_times=[48]", "references=[raw]",
        f"forecasts={{same: {folder}/ensemble.nc}}", f"run_dir={tempfile.mkdtemp(dir=folder)}",
    )  # fmt: skip
    subprocess.run([sys.executable, "-m", "deepweather", "evaluate", *options], check=True, capture_output=True)


def least_command(folder: Path) -> None:
    """Read the files of `write_archive`, and compute one CRPS of each forecast by sorting."""
    weights = 2 * np.arange(1, 11, dtype=np.float32) - 11
    with Dataset(folder / "ensemble.nc") as ensemble, Dataset(folder / "analysis.nc") as analysis:
        for index in range(len(ensemble["init_time"])):
            difference = np.asarray(ensemble["t2m"][index, 0]) - np.asarray(analysis["t2m"][index])
            cells = np.ascontiguousarray(difference.reshape(10, -1).T)
            (abs(cells).mean(1) - np.sort(cells, 1) @ weights / 90).mean()


def command_ratios(count: int) -> dict[str, float]:
    """Return the ratio of a whole command to its least work."""
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        write_archive(folder, count)
        works = {"evaluate": partial(run_command, folder), "floor": partial(least_command, folder)}
        times = best_times(works, 2)
    for name, seconds in times.items():
        print(f"{count} forecasts from files, {name:<8} {seconds:6.2f} s", flush=True)
    return {"command_vs_floor": times["evaluate"] / times["floor"]}


def evaluation_ratios(rounds: int) -> dict[str, float]:
    """Return the ratios of a whole evaluation."""
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        for number in range(FILES):
            members, truth = example(10)
            np.save(folder / f"{number}.npy", np.vstack([members, truth[None]]).reshape(11, *HALF_DEGREE.shape))
        score_files(folder, 1)  # compiles
        works = {"scoring": partial(score_files, folder, 8), "floor": partial(least_work, folder, 8)}
        times = best_times(works, max(2, rounds // 4))
        for name, seconds in times.items():
            print(f"8 forecasts, {name:<8} {seconds:6.2f} s", flush=True)
        few, some, many = (memory_rise(score_files, folder, count) for count in (8, 32, 64))
    rises = ", ".join(f"{rise / 1e6:.0f}" for rise in (few, some, many))
    print(f"memory rises by {rises} MB for 8, 32 and 64 forecasts", flush=True)
    return {
        "scoring_vs_floor": times["scoring"] / times["floor"],
        "memory_64_vs_32": many / some,
        "memory_vs_budget": many / MEMORY_BYTES,
    }


def main() -> None:
    """Time all ways; print the ratios."""
    parser = command_line(__doc__, rounds=10, forecasts=48)
    parser.add_argument("--evaluation-only", action="store_true", help="leave the CRPS alone out")
    options = parser.parse_args()
    print(f"score on {machine()}", flush=True)
    torch.set_num_threads(BUDGET.total)
    ratios = {} if options.evaluation_only else kernel_ratios(options.rounds)
    ratios |= evaluation_ratios(options.rounds) | command_ratios(options.forecasts)
    report("score", ratios, options.json)


if __name__ == "__main__":
    main()
