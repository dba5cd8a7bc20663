"""Time and memory of the command `correct`, compared with the least work that it must do.

The input has 51 members and 5 lead times of the temperature at 2 m on 361 x 720; the corrector is the U-Net of
`conf/model/unet.yaml`. The command runs in a process of its own, from its start to its end.

`time_vs_floor` divides the seconds of the command, less its start-up, by the seconds of the floor, the least work:
ecCodes decodes and encodes the same messages in two threads, and the network's bare forward pass corrects the five
forecasts. `cpu_vs_floor` is the same for CPU seconds, which depend less on other programs. `cold_start_s` is the
start-up: the seconds of the same command for two members and one lead time on a grid of 10 degrees. `memory_forecasts`
is the peak memory of the command above the peak of the floor, which holds one forecast in single precision and the
network's intermediate results. `memory_by_member` is the same for a file in which all lead times of one member come
before the next member. Both are in units of a forecast, 51 fields in double precision. Floor and command run in turn;
each number is the median of all rounds.

    python -m benchmarks.correct [--json] [--rounds 5] [--packing grid_simple] [--edition 2]
"""

from __future__ import annotations

import os
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from statistics import median
from typing import NamedTuple

import eccodes
import numpy as np
import torch

from benchmarks.common import HALF_DEGREE, TEN_DEGREES, command_line, machine, report
from data_pipeline.formats.grib.scan import scan_messages
from data_pipeline.grid import Grid
from data_pipeline.sample import Sample
from data_pipeline.task import Task
from data_pipeline.writing import Encoder
from models.corrector import Corrector

MEMBERS, LEADS, THREADS = 51, (24, 48, 72, 96, 120), 2
UNET = {"_target_": "models.networks.unet.UNet", "width": 16, "depth": 2, "dropout": 0.1}
FORECAST_BYTES = MEMBERS * 8 * HALF_DEGREE.shape[0] * HALF_DEGREE.shape[1]


class Cost(NamedTuple):
    """Cost of a process: wall-clock seconds, CPU seconds of all its threads, and peak memory in bytes."""

    wall: float
    cpu: float
    memory: float


def write_forecast(
    path: Path, grid: Grid, members: int, leads: Sequence[int], packing: str, edition: int, by_member: bool = False
) -> None:
    """Write one start in 16 bits: smooth fields and noise, lead time by lead time, or with `by_member` by member."""
    random = np.random.default_rng(0)
    waves = np.cos(np.radians(np.array(grid.latitudes)))[:, None] * np.cos(2 * np.radians(np.array(grid.longitudes)))
    keys: dict[str, object] = {"centre": "ecmf", "setLocalDefinition": 1, "localDefinitionNumber": 1}
    keys |= {"productDefinitionTemplateNumber": 1} if edition == 2 else {"typeOfLevel": "surface"}
    encoder = Encoder(grid, edition=edition, **keys, type="pf", stream="enfo", shortName="2t", bitsPerValue=16)
    places = [(number, lead) for lead in leads for number in range(members)]
    with path.open("wb") as file:
        for number, lead in sorted(places) if by_member else places:
            field = 250 + 40 * np.roll(waves, number, 1) + random.normal(0, 2, grid.shape)
            message = encoder.encode(
                field, dataDate=20200101, endStep=lead, perturbationNumber=number, numberOfForecastsInEnsemble=members
            )
            file.write(message if packing == "grid_simple" else repacked(message, packing))


def repacked(message: bytes, packing: str) -> bytes:
    """Return the message in another packing."""
    handle = eccodes.codes_new_from_message(message)
    eccodes.codes_set(handle, "packingType", packing)
    try:
        return eccodes.codes_get_message(handle)
    finally:
        eccodes.codes_release(handle)


def write_corrector(path: Path, grid: Grid, leads: Sequence[int]) -> None:
    """Write a U-Net with random weights: its speed does not depend on training."""
    torch.manual_seed(0)
    corrector = Corrector(Task("t2m", ["2t"], ["2t"], leads), grid, UNET, torch.zeros(3, *grid.shape))
    corrector.normalizer.location.fill_(270)
    corrector.normalizer.scale.fill_(20)
    for name in ("always", "known"):
        getattr(corrector.normalizer, name).fill_(1)
    for parameter in corrector.model.parameters():
        parameter.data.add_(0.01 * torch.randn_like(parameter))
    corrector.save(path)


def least_work(corrector: Path, forecast: Path) -> Cost:
    """Decode and encode the messages of a file in two threads, and apply the network; imports are not counted."""
    network, shape = Corrector.load(corrector), HALF_DEGREE.shape
    torch.set_num_threads(THREADS)
    batch = Sample(
        torch.full((1, MEMBERS, 1, *shape), 280.0),
        torch.ones(1, 1, *shape, dtype=torch.bool),
        network.static[None],
        torch.zeros(1, 1, *shape),
        torch.zeros(1, dtype=torch.int64),
        torch.full((1,), LEADS[0]),
    )
    batch.ensemble.add_(torch.randn(batch.ensemble.shape))
    places = [(message.offset, message.length) for message in scan_messages(forecast)]
    began, cpu = time.perf_counter(), time.process_time()
    with forecast.open("rb", buffering=0) as file, ThreadPoolExecutor(THREADS) as pool:
        list(pool.map(lambda place: decode_and_encode(os.pread(file.fileno(), place[1], place[0])), places))
    with torch.no_grad():
        for _ in LEADS:
            network(batch)
    wall, cpu = time.perf_counter() - began, time.process_time() - cpu
    return Cost(wall, cpu, 1024 * resource.getrusage(resource.RUSAGE_SELF).ru_maxrss)


def decode_and_encode(message: bytes) -> int:
    """Return the length of a message after its values were decoded and encoded again."""
    handle = eccodes.codes_new_from_message(message)
    try:
        eccodes.codes_set_double_array(handle, "values", eccodes.codes_get_double_array(handle, "values"))
        return len(eccodes.codes_get_message(handle))
    finally:
        eccodes.codes_release(handle)


def command(corrector: Path, forecast: Path, output: Path) -> Cost:
    """Run `correct` in a process of its own."""
    words = [f"corrector={corrector}", f"input={forecast}", f"output={output}", "device=cpu"]
    return run([sys.executable, "-m", "models.correct", *words])


def run(words: Sequence[str]) -> Cost:
    """Run a command to its end; its output is shown if it fails."""
    began = time.perf_counter()
    with tempfile.TemporaryFile() as log:
        threads = {"DEEPWEATHER_THREADS": str(THREADS)}
        process = subprocess.Popen(words, stdout=log, stderr=log, env=os.environ | threads)
        _, status, used = os.wait4(process.pid, 0)
        process.returncode = os.waitstatus_to_exitcode(status)
        log.seek(0)
        if process.returncode:
            raise SystemExit(log.read().decode())
    return Cost(time.perf_counter() - began, used.ru_utime + used.ru_stime, 1024 * used.ru_maxrss)


def middle(costs: Iterable[Cost]) -> Cost:
    """Return the median of each number."""
    return Cost(*map(median, zip(*costs, strict=True)))


def main() -> None:
    """Run floor and command in turn, print the ratios."""
    parser = command_line(__doc__, rounds=5, edition=2)
    parser.add_argument("--packing", default="grid_simple", help="packing of the input, such as grid_ccsds")
    parser.add_argument("--floor", nargs=2, type=Path, help="(used by the program itself)")
    options = parser.parse_args()
    if options.floor:
        print(*least_work(*options.floor))
        return
    print(f"correct on {machine()}: {MEMBERS} members x {len(LEADS)} lead times, {options.packing}", flush=True)
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        whole, by_member, small = folder / "in.grib", folder / "by_member.grib", folder / "small.grib"
        corrector, small_corrector, output = folder / "a.safetensors", folder / "b.safetensors", folder / "out.grib"
        write_forecast(whole, HALF_DEGREE, MEMBERS, LEADS, options.packing, options.edition)
        write_forecast(by_member, HALF_DEGREE, MEMBERS, LEADS, options.packing, options.edition, by_member=True)
        write_forecast(small, TEN_DEGREES, 2, LEADS[:1], "grid_simple", options.edition)
        write_corrector(corrector, HALF_DEGREE, LEADS)
        write_corrector(small_corrector, TEN_DEGREES, LEADS[:1])
        floors, starts, commands, others = [], [], [], []
        for k in range(options.rounds + 1):
            words = [sys.executable, "-m", "benchmarks.correct", "--floor", str(corrector), str(whole)]
            floor = Cost(*map(float, subprocess.check_output(words, text=True).split()))
            rows = [
                (floors, floor),
                (starts, command(small_corrector, small, output)),
                (commands, command(corrector, whole, output)),
                (others, command(corrector, by_member, output)),
            ]
            print(f"round {k}: " + ", ".join(f"{cost.cpu:.2f}" for _, cost in rows) + " CPU s", flush=True)
            for costs, cost in rows if k else []:  # the first round fills the caches of files and of their tables
                costs.append(cost)
    floor, start, all_of_it, other = map(middle, (floors, starts, commands, others))
    for name, cost in {"floor": floor, "start-up": start, "command": all_of_it, "by member": other}.items():
        print(f"{name:<10} {cost.wall:6.2f} s  {cost.cpu:6.2f} CPU s  {cost.memory / 1e6:6.0f} MB", flush=True)
    ratios = {
        "time_vs_floor": (all_of_it.wall - start.wall) / floor.wall,
        "cpu_vs_floor": (all_of_it.cpu - start.cpu) / floor.cpu,
        "cold_start_s": start.wall,
        "memory_forecasts": (all_of_it.memory - floor.memory) / FORECAST_BYTES,
        "memory_by_member": (other.memory - floor.memory) / FORECAST_BYTES,
    }
    report("correct", ratios, options.json)


if __name__ == "__main__":
    main()
