"""Command line, timing, memory measurement, report and test data that several benchmarks share."""

from __future__ import annotations

import argparse
import json
import os
import platform
import time
from collections.abc import Callable, Mapping
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path
from typing import TypeVar

from data_pipeline.grid import Grid

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


def command_line(description: str | None) -> argparse.ArgumentParser:
    """Return a parser with the option `--json`; `description` is the docstring of the benchmark."""
    parser = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", action="store_true", help="print the ratios also as JSON, in the last line")
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


def elapsed(work: Callable[[], object]) -> float:
    """Return the seconds that one call takes."""
    began = time.perf_counter()
    work()
    return time.perf_counter() - began


def best_times(works: Mapping[str, Callable[[], object]], rounds: int) -> dict[str, float]:
    """Return the shortest time of each function; every round calls all of them in turn."""
    times = dict.fromkeys(works, float("inf"))
    for _ in range(rounds):
        for name, work in works.items():
            times[name] = min(times[name], elapsed(work))
    return times


def memory_rise(work: Callable[..., object], *arguments: object) -> int:
    """Call `work` in a new process; return by how many bytes the call raises the peak memory of that process."""
    return in_process(_memory_rise, work, *arguments)


def in_process(work: Callable[..., _Result], *arguments: object) -> _Result:
    """Return the result of `work`, called in a new process."""
    with ProcessPoolExecutor(1, mp_context=get_context("spawn")) as process:
        return process.submit(work, *arguments).result()


def _memory_rise(work: Callable[..., object], *arguments: object) -> int:
    reset_peak_memory()
    before = peak_memory()
    work(*arguments)
    return peak_memory() - before


def reset_peak_memory() -> None:
    """Set the peak memory of this process to its memory now; a process inherits the peak of its parent."""
    Path("/proc/self/clear_refs").write_text("5")


def peak_memory() -> int:
    """Return the peak memory of this process in bytes."""
    return int(Path("/proc/self/status").read_text().partition("VmHWM:")[2].split()[0]) * 1024
