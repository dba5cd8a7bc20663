"""Energy counters of processors (RAPL, Linux) and of NVIDIA GPUs (NVML).

A counter counts for its whole device, so it includes the energy of other programs on that device.
"""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import Any, NamedTuple

POWERCAP = Path("/sys/class/powercap")
"""Folder of the energy counters of processors under Linux."""


class MeasurementError(Exception):
    """The machine lacks a counter, or does not let this user read it; the message gives the reason."""


class PowercapZone:
    """The energy counter of a processor package, or of its memory, in microjoules; it wraps around to 0.

    Between two calls of `joules` the counter may wrap around once at most: at 250 W, after about four minutes.
    """

    def __init__(self, folder: Path, name: str) -> None:
        self.name = name
        self._file = folder / "energy_uj"
        self._range = _number_in(folder / "max_energy_range_uj")
        self._last, self._total = _number_in(self._file), 0

    def joules(self) -> float:
        """Return the energy since the object was made."""
        now = _number_in(self._file)
        self._total += now - self._last if now >= self._last else now - self._last + self._range
        self._last = now
        return self._total / 1e6


def processor_zones(folder: Path | None = None) -> list[PowercapZone]:
    """Return the counters of all processor packages of this machine and of their memory.

    Other zones are left out: they are parts of a package (`core`, `uncore`) or contain it (`psys`). Raises
    `MeasurementError` if there is no counter, or if a counter cannot be read.
    """
    folder = POWERCAP if folder is None else folder
    zones, host = [], os.uname().nodename
    for path in sorted(folder.glob("intel-rapl:*")):
        try:
            kind = (path / "name").read_text().strip()
            if kind.startswith("package") or kind == "dram":
                zones.append(PowercapZone(path, f"{host} {path.name}"))
        except PermissionError:
            raise MeasurementError(f"only root may read the energy of the processors, {path}/energy_uj") from None
        except (OSError, ValueError) as error:
            raise MeasurementError(f"the energy counter of the processors {path} cannot be read ({error})") from None
    if not zones:
        raise MeasurementError(f"there are no counters of processors in {folder}")
    return zones


class GPUState(NamedTuple):
    """Energy of a GPU in J since its `GPUCounter` was made, and the share of the last second in which it was busy."""

    joules: float
    utilisation: float


class GPUCounter:
    """The counters of one GPU, by its UUID. Raises `MeasurementError` if the driver does not provide them.

    GPUs before Volta have no energy counter; their power is integrated between the calls of `read`.
    """

    def __init__(self, uuid: str) -> None:
        self.name = uuid
        try:
            import pynvml
        except ImportError:
            raise MeasurementError("the energy of GPUs needs the package nvidia-ml-py") from None
        self._nvml: Any = pynvml
        try:
            pynvml.nvmlInit()
            self._handle = pynvml.nvmlDeviceGetHandleByUUID(uuid)
            self._start = self._counter()
            self._power = None if self._start is not None else self._watts()
        except pynvml.NVMLError as error:
            raise MeasurementError(f"the energy of GPU {uuid} cannot be read: {error}") from None
        self._then, self._integral = time.monotonic(), 0.0

    def read(self) -> GPUState:
        """Return energy and utilisation; raise `MeasurementError` if the driver does not answer."""
        try:
            if self._start is not None:
                self._integral = (self._counter() or self._start) - self._start
            else:
                now, watts = time.monotonic(), self._watts()
                self._integral += (now - self._then) * (watts + (self._power or 0.0)) / 2
                self._then, self._power = now, watts
            return GPUState(self._integral, self._nvml.nvmlDeviceGetUtilizationRates(self._handle).gpu / 100)
        except self._nvml.NVMLError as error:
            raise MeasurementError(f"GPU {self.name} does not answer any more: {error}") from None

    def _counter(self) -> float | None:
        """Return the energy in J since the driver was loaded; None if the GPU does not count it."""
        try:
            return float(self._nvml.nvmlDeviceGetTotalEnergyConsumption(self._handle)) / 1000
        except self._nvml.NVMLError_NotSupported:
            return None

    def _watts(self) -> float:
        return float(self._nvml.nvmlDeviceGetPowerUsage(self._handle)) / 1000


def _number_in(file: Path) -> int:
    return int(file.read_text())
