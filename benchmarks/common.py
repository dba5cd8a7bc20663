"""Command line, timing, memory measurement, report and test data that several benchmarks share."""

from __future__ import annotations

import argparse
import json
import os
import platform
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path
from typing import TypeVar

import numpy as np

from data_pipeline.common.cost_meter import peak_memory
from data_pipeline.formats.open import ensemble_fields
from data_pipeline.grid import Grid
from data_pipeline.task import Variable

_Result = TypeVar("_Result")

HALF_DEGREE = Grid.regular(361, 720)
"""The grid of ENS-10."""
TEN_DEGREES = Grid.regular(19, 36)
"""A small grid, for costs per message."""
PRESSURE_LEVELS = (1000, 925, 850, 700, 500, 400, 300, 200, 100, 50, 10)
LEAD_HOURS = (0, 24, 48)
MEMBER_COUNT = 10
REFORECAST_YEARS = range(1998, 2018)
ECMWF_KEYS = {"centre": "ecmf", "setLocalDefinition": 1, "localDefinitionNumber": 26}
"""GRIB1 keys of ECMWF's ensemble."""


def command_line(description: str | None, **numbers: int) -> argparse.ArgumentParser:
    """Return a parser with the option `--json`, and with options that are `numbers`, given with their defaults.

    `description` is the docstring of the benchmark, which shows its options.
    """
    parser = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", action="store_true", help="print the ratios also as JSON, in the last line")
    for name, default in numbers.items():
        parser.add_argument(f"--{name}", type=int, default=default, help=f"a number (default {default})")
    return parser


def machine() -> str:
    """Describe this machine in one line."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30
    return f"{platform.machine()}, {cores} cores, {memory:.0f} GiB, Python {platform.python_version()}"


def report(name: str, ratios: Mapping[str, float], as_json: bool) -> None:
    """Print the ratios, with `as_json` also as JSON in the last line."""
    for ratio, value in ratios.items():
        print(f"{ratio:<24} {value:8.2f}")
    if as_json:
        print(json.dumps({"benchmark": name, "ratios": dict(ratios), "machine": machine()}))


def elapsed(work: Callable[[], object], clock: Callable[[], float] = time.perf_counter) -> float:
    """Return the seconds that one call takes."""
    began = clock()
    work()
    return clock() - began


def best_times(
    works: Mapping[str, Callable[[], object]], rounds: int, clock: Callable[[], float] = time.perf_counter
) -> dict[str, float]:
    """Return the shortest time of each function; every round calls all of them in turn."""
    times = dict.fromkeys(works, float("inf"))
    for _ in range(rounds):
        for name, work in works.items():
            times[name] = min(times[name], elapsed(work, clock))
    return times


def filling(path: Path, variables: Sequence[Variable], leads: Sequence[int], out: np.ndarray) -> Callable[[], None]:
    """Return a function that fills `out` (L, M, C, H, W) with forecasts of one start in a file, with this project."""
    fields = ensemble_fields(path, variables, leads)

    def read() -> None:
        for lead in range(len(leads)):
            fields.read(fields.cells[0, lead], out[lead])

    return read


def memory_rise(work: Callable[..., object], *arguments: object) -> int:
    """Call `work` in a new process; return by how many bytes the call raises the peak memory of that process."""
    return in_process(rise_here, work, *arguments)


def in_process(work: Callable[..., _Result], *arguments: object) -> _Result:
    """Return the result of `work`, called in a new process."""
    with ProcessPoolExecutor(1, mp_context=get_context("spawn")) as process:
        return process.submit(work, *arguments).result()


def rise_here(work: Callable[..., object], *arguments: object) -> int:
    """Call `work`; return by how many bytes the call raises the peak memory of this process."""
    Path("/proc/self/clear_refs").write_text("5")  # the peak, which a process inherits, is its memory now
    before = peak_memory()
    work(*arguments)
    return peak_memory() - before
