"""Speed of scoring: CRPS kernels compared with other libraries.

The members are 10 and 50 fields of 361 x 720 in single precision. Each library gets its fastest layout and computes one
form of the CRPS per call; ours computes the plain and the fair form in one call. Of scoringrules, all exact estimators
are timed with the numba backend. `m10_vs_fastest` and `m50_vs_fastest` are the shortest time of all libraries divided
by ours, on one core. `threads_2_vs_1` is the gain from a second thread with 50 members.

    OMP_NUM_THREADS=1 python -m benchmarks.score [--json] [--rounds 10]
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import numpy as np
import properscoring
import scoringrules
import xarray as xr
import xskillscore

from benchmarks.common import HALF_DEGREE, best_times, command_line, machine, report
from data_pipeline.common.threads import BUDGET
from evaluation.kernels.ensemble_scores import ensemble_crps

EXACT_ESTIMATORS = ("nrg", "fair", "pwm", "qd", "int")
MEMBER_COUNTS = (10, 50)


def ways(members: np.ndarray, truth: np.ndarray) -> dict[str, Callable[[], object]]:
    """Return the functions that score `members` (M, cells), by name; the first is ours."""
    last = np.ascontiguousarray(members.T)
    labelled = xr.DataArray(last, dims=("cell", "member")), xr.DataArray(truth, dims="cell")
    works: dict[str, Callable[[], object]] = {"ours": partial(ensemble_crps, members, truth)}
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


def main() -> None:
    """Time all ways; print the ratios."""
    parser = command_line(__doc__)
    parser.add_argument("--rounds", type=int, default=10, help="times that each way is timed")
    options = parser.parse_args()
    print(f"score on {machine()}", flush=True)
    report("score", kernel_ratios(options.rounds), options.json)


if __name__ == "__main__":
    main()
