"""CostMeter: time, memory, energy and GPU utilisation of a run.

    with CostMeter() as meter:
        ...
        print(meter.usage().line())     # done in 0:48, at most 1.2 GB of memory, 0.0031 kWh (RAPL)

Each rank has a meter, and `Usage.of_ranks` joins their results. Energy counters belong to devices: a counter that
several ranks read is counted once, and it includes the energy of other programs on the device.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

from data_pipeline.common.energy import GPUCounter, MeasurementError, PowercapZone, processor_zones
from data_pipeline.common.machine_memory import peak_memory
from data_pipeline.common.messages import format_duration, format_size, say
from data_pipeline.common.run_start import take_begin

SECONDS_BETWEEN_GPU_STATES = 1.0
"""NVML averages the utilisation over the last second or less."""
SECONDS_BETWEEN_READINGS = 10.0
"""Counters of processors wrap around at 65 kJ or more: at 1000 W, after more than a minute."""
SECONDS_BETWEEN_REPORTS = 60.0
JOULES_PER_KWH = 3.6e6


@dataclass(frozen=True)
class Usage:
    """Time, memory and energy that a process, or all ranks of a run, have used."""

    seconds: float
    peak_memory_bytes: int
    """For several ranks, the largest peak of one rank; a job must request this for each of its tasks."""
    peak_gpu_memory_bytes: int | None = None
    """Peak memory of tensors; None without a GPU."""
    gpu_utilisation: float | None = None
    """Mean share of time in which the GPU was busy, 0 to 1; None if it is not measured."""
    joules: Mapping[str, float] = field(default_factory=dict)
    """Energy (J) by counter; the name of a counter begins with RAPL or NVML."""
    unmeasured: tuple[str, ...] = ()
    """Reasons why energy or utilisation is not measured, or only in part."""

    @classmethod
    def of_ranks(cls, usages: Sequence[Usage]) -> Usage:
        """Return the usage of a run from the usages of its ranks; the first rank comes first."""
        busy = [each.gpu_utilisation for each in usages if each.gpu_utilisation is not None]
        joules: dict[str, float] = {}
        for each in usages:
            for name, value in each.joules.items():
                joules[name] = max(value, joules.get(name, 0.0))
        return cls(
            usages[0].seconds,
            max(each.peak_memory_bytes for each in usages),
            max(
                (each.peak_gpu_memory_bytes for each in usages if each.peak_gpu_memory_bytes is not None), default=None
            ),
            sum(busy) / len(busy) if busy else None,
            joules,
            tuple(dict.fromkeys(why for each in usages for why in each.unmeasured)),
        )

    @property
    def kwh(self) -> float | None:
        """Energy of all counters in kWh; None without a counter."""
        return sum(self.joules.values()) / JOULES_PER_KWH if self.joules else None

    @property
    def source(self) -> str:
        """The kinds of counters, such as `NVML, RAPL`."""
        return ", ".join(sorted({name.split()[0] for name in self.joules}))

    @property
    def why(self) -> str:
        """Why energy is not measured, or only in part."""
        return "; ".join(self.unmeasured)

    def line(self) -> str:
        """Return time, memory and energy as one line."""
        parts = [f"done in {format_duration(self.seconds)}", f"at most {format_size(self.peak_memory_bytes)} of memory"]
        parts += describe_gpu(self.peak_gpu_memory_bytes, self.gpu_utilisation)
        return f"{', '.join(parts)}, {describe_energy(self.kwh, self.source, self.why)}"


def describe_gpu(peak_bytes: int | None, utilisation: float | None) -> list[str]:
    """Return phrases about GPU memory and utilisation for a line of text; none for values that are None."""
    parts = [] if peak_bytes is None else [f"{format_size(peak_bytes)} of GPU memory"]
    return parts if utilisation is None else [*parts, f"GPU busy {100 * utilisation:.0f} % of the time"]


def describe_energy(kwh: float | None, source: str, why: str) -> str:
    """Return a phrase about energy for a line of text: the amount, or why energy is not measured."""
    if kwh is None:
        return f"energy not measured: {why}"
    return f"{kwh:.3g} kWh ({source})" + (f", not counted: {why}" if why else "")


class _GPU(Protocol):
    """The counters of a GPU: `GPUCounter`, or a substitute in tests."""

    name: str

    def read(self) -> tuple[float, float]: ...


class CostMeter:
    """Measures the run from its beginning (`run_start`) to the end of the `with` block.

    A thread reads the counters every few seconds, and calls `report` about once a minute. `folder` is the folder of the
    processors' counters.
    """

    def __init__(self, folder: Path | None = None, clock: Callable[[], float] = time.monotonic) -> None:
        self.clock = clock
        self.began = take_begin() if clock is time.monotonic else clock()
        self.report: Callable[[], None] | None = None
        self._zones: list[PowercapZone] = []
        self._gpu: _GPU | None = None
        self._gpu_peak: Callable[[], int] | None = None
        self._utilisations: list[float] = [0.0, 0.0]
        self._joules: dict[str, float] = {}
        self._unmeasured: list[str] = []
        # Reentrant, because a signal handler may call `usage` while `usage` runs.
        self._lock, self._end = threading.RLock(), threading.Event()
        self._thread: threading.Thread | None = None
        try:
            self._zones = processor_zones(folder)
        except MeasurementError as error:
            self._unmeasured.append(str(error))

    def __enter__(self) -> CostMeter:
        self._thread = threading.Thread(target=self._run, name="cost", daemon=True)
        self._thread.start()
        return self

    def __exit__(self, *exception: object) -> None:
        self._end.set()
        if self._thread is not None:
            self._thread.join(SECONDS_BETWEEN_READINGS)

    def watch_gpu(self, uuid: str, peak_bytes: Callable[[], int]) -> None:
        """Measure this GPU too, if no GPU is measured yet; `peak_bytes` returns the peak of its memory."""
        with self._lock:
            if self._gpu_peak is not None:
                return
            self._gpu_peak = peak_bytes
            try:
                self._gpu = GPUCounter(uuid)
            except MeasurementError as error:
                self._unmeasured.append(str(error))

    def usage(self) -> Usage:
        """Return what this process has used until now."""
        with self._lock:
            self._read()
            total, count = self._utilisations
            return Usage(
                self.clock() - self.began,
                peak_memory(),
                None if self._gpu_peak is None else self._gpu_peak(),
                total / count if count else None,
                dict(self._joules),
                tuple(dict.fromkeys(self._unmeasured)),
            )

    def _read(self) -> None:
        """Read all counters. A counter that fails keeps its last value, and is not read again."""
        for zone in list(self._zones):
            try:
                self._joules[f"RAPL {zone.name}"] = zone.joules()
            except (OSError, ValueError) as error:
                self._zones.remove(zone)
                self._unmeasured.append(f"the counter {zone.name} cannot be read any more ({error})")
        if self._gpu is not None:
            try:
                joules, busy = self._gpu.read()
            except MeasurementError as error:
                self._gpu = None
                self._unmeasured.append(str(error))
                return
            self._joules[f"NVML {self._gpu.name}"] = joules
            self._utilisations = [self._utilisations[0] + busy, self._utilisations[1] + 1]

    def _run(self) -> None:
        reported = self.clock()
        while not self._end.wait(SECONDS_BETWEEN_GPU_STATES if self._gpu is not None else SECONDS_BETWEEN_READINGS):
            with self._lock:
                self._read()
            if self.report is not None and self.clock() - reported >= SECONDS_BETWEEN_REPORTS:
                reported = self.clock()
                # A failed report must not end the run; a full disk is reported when the run writes its own files.
                with suppress(Exception):
                    self.report()


class _Ranks(Protocol):
    """The ranks of a run, or a single process."""

    def gather(self, value: Any) -> list[Any] | None: ...


def gather_usage(meter: CostMeter, ranks: _Ranks) -> Usage:
    """Return the usage of the run on its first rank, and of the calling rank on all others; all ranks call this."""
    own = meter.usage()
    return Usage.of_ranks(ranks.gather(own) or [own])


def print_usage(meter: CostMeter, ranks: _Ranks) -> None:
    """Print one line about the run on its first rank; all ranks call this together."""
    say(gather_usage(meter, ranks).line())
