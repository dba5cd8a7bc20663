"""Time, memory and disk space of the first correction, which matter in containers and serverless functions.

`first_message_s` is the time from the start of the process until the first corrected message is in the output file: one
start and lead time with 51 members on 361 x 720, an EMOS corrector in ONNX Runtime. The command for two members on a
grid of 10 degrees is all start-up: `command_s` is its time, `command_cpu_s` its CPU time, which depends less on other
programs, and `memory_mb` its peak memory. Numbers whose names begin with `torch` are for the same corrector in PyTorch.
Files are in the page cache, as in a container that has started before. Each number is the median of all rounds.

`packages` and `size_mb` count the packages that `pip install deepweather` brings, and the bytes of their files in this
environment, with compiled bytecode.

    python -m benchmarks.cold_start [--json] [--rounds 5]
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from importlib.metadata import distribution
from pathlib import Path
from statistics import median
from typing import NamedTuple

import torch
from packaging.requirements import Requirement

from benchmarks.common import HALF_DEGREE, TEN_DEGREES, command_line, machine, report
from benchmarks.correct import write_forecast
from data_pipeline.grid import Grid
from data_pipeline.task import Task
from models.corrector import Corrector
from models.engines.onnx_export import export

EMOS = {"_target_": "models.statistical.emos.EMOS", "seasonal": False}


def write_correctors(folder: Path, grid: Grid) -> tuple[Path, Path]:
    """Write an EMOS corrector, whose speed does not depend on its coefficients, and export it."""
    corrector = Corrector(Task("t2m", ["2t"], ["2t"], [24]), grid, EMOS, torch.zeros(3, *grid.shape))
    corrector.normalizer.location.fill_(270)
    corrector.normalizer.scale.fill_(20)
    corrector.normalizer.always.fill_(1)
    name = "x".join(map(str, grid.shape))
    paths = folder / f"{name}.safetensors", folder / f"{name}.onnx"
    corrector.save(paths[0])
    export(*paths)
    return paths


class StartCost(NamedTuple):
    """Seconds to the first message in the output, seconds in all, CPU seconds, and peak memory in MB."""

    first: float
    wall: float
    cpu: float
    memory: float


def run(corrector: Path, forecast: Path) -> StartCost:
    """Run `correct`, and watch its output."""
    output = forecast.with_name("out.grib")
    script = Path(__file__).parents[1] / "scripts" / "deepweather.py"
    arguments = [sys.executable, script, "correct", f"corrector={corrector}", f"input={forecast}", f"output={output}"]
    began, first = time.perf_counter(), 0.0
    process, ended, memory = subprocess.Popen(arguments, stdout=subprocess.DEVNULL), 0, 0.0
    while not ended:
        if not first and any(path.stat().st_size for path in forecast.parent.glob(".out.grib.*")):
            first = time.perf_counter() - began
        # `usage` would also count the peak memory of this process before it became the command.
        peak = re.search(r"VmHWM:\s*(\d+)", Path(f"/proc/{process.pid}/status").read_text())
        memory = max(memory, int(peak[1]) / 1024 if peak else 0)
        time.sleep(0.002)
        ended, status, usage = os.wait4(process.pid, os.WNOHANG)
    total = time.perf_counter() - began
    if status:
        raise SystemExit(f"the command failed: {' '.join(map(str, arguments))}")
    output.unlink()
    return StartCost(first or total, total, usage.ru_utime + usage.ru_stime, memory)


def installed_size() -> tuple[int, float]:
    """Return the number and the MB of this package and all packages that it requires without its extras."""
    names, wanted = set[str](), ["deepweather"]
    size = 0
    while wanted:
        name = wanted.pop().lower().replace("_", "-")
        if name in names:
            continue
        names.add(name)
        found = distribution(name)
        requirements = [Requirement(text) for text in found.requires or []]
        wanted += [each.name for each in requirements if not each.marker or each.marker.evaluate({"extra": ""})]
        files = [Path(str(file.locate())) for file in found.files or []]
        size += sum(file.stat().st_size for file in files if file.is_file())
    return len(names), size / 1e6


def main(arguments: Sequence[str] | None = None) -> None:
    """Measure and report."""
    options = command_line(__doc__, rounds=5).parse_args(arguments)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        small, large = folder / "small", folder / "large"
        costs: dict[str, list[float]] = {}
        correctors = {}
        for place, grid, members in ((small, TEN_DEGREES, 2), (large, HALF_DEGREE, 51)):
            place.mkdir()
            write_forecast(place / "in.grib", grid, members, [24], "grid_simple", 2)
            correctors[place] = write_correctors(place, grid)
        for round_number in range(options.rounds + 1):
            for prefix, which in (("", 1), ("torch_", 0)):
                first = run(correctors[large][which], large / "in.grib").first
                cost = run(correctors[small][which], small / "in.grib")
                if round_number:  # the first round fills the page cache
                    measured = {"first_message_s": first, "command_s": cost.wall, "command_cpu_s": cost.cpu}
                    for key, value in (measured | {"memory_mb": cost.memory}).items():
                        costs.setdefault(prefix + key, []).append(value)
    packages, size = installed_size()
    print(machine())
    found = {key: median(values) for key, values in costs.items()} | {"packages": packages, "size_mb": size}
    report("cold_start", found, options.json)


if __name__ == "__main__":
    main()
