"""The meter of a run, and its counters of energy: files like those of Linux, and a stand-in for NVML."""

import os
import subprocess
import sys
import threading
import time
from types import SimpleNamespace

import numpy as np
import pytest

from data_pipeline.common import cost_meter, energy, run_start
from data_pipeline.common.cost_meter import CostMeter, Usage
from data_pipeline.common.energy import GPUCounter, MeasurementError, processor_zones
from data_pipeline.common.machine_memory import peak_memory


def write_zone(folder, zone, name, value, span=1_000_000_000):
    """Write a counter in µJ, as Linux shows it."""
    (folder / zone).mkdir(exist_ok=True)
    for file, content in (("name", name), ("energy_uj", value), ("max_energy_range_uj", span)):
        (folder / zone / file).write_text(f"{content}\n")


def joules(zones):
    return [zone.joules() for zone in zones]


def test_packages_and_memory_count_and_parts_of_a_package_do_not(tmp_path):
    names = {"intel-rapl:0": "package-0", "intel-rapl:0:0": "core", "intel-rapl:0:1": "dram",
             "intel-rapl:1": "package-1-die-0", "intel-rapl:2": "psys", "intel-rapl-mmio:0": "package-0"}  # fmt: skip
    for zone, name in names.items():
        write_zone(tmp_path, zone, name, 5_000_000)
    zones = processor_zones(tmp_path)
    for number, zone in enumerate(names):
        write_zone(tmp_path, zone, names[zone], 5_000_000 + 10**number)
    assert joules(zones) == [1e-6, 1e-4, 1e-3]
    assert [zone.name.split()[1] for zone in zones] == ["intel-rapl:0", "intel-rapl:0:1", "intel-rapl:1"]


def test_a_counter_starts_again_at_its_largest_value(tmp_path):
    write_zone(tmp_path, "intel-rapl:0", "package-0", 999_000_000)
    zones = processor_zones(tmp_path)
    found = []
    for value in (999_500_000, 2_000_000, 999_000_000, 1_000_000):
        write_zone(tmp_path, "intel-rapl:0", "package-0", value)
        found += joules(zones)
    assert found == [0.5, 3, 1000, 1002]


def test_a_machine_without_counters_or_with_counters_for_root_only_says_so(tmp_path, monkeypatch):
    """Linux lets only root read them, since they can betray secrets of other programs. The tests may run as root."""
    for zone in (None, "psys"):
        if zone:
            write_zone(tmp_path, "intel-rapl:0", zone, 1)
        with pytest.raises(MeasurementError, match=rf"there are no counters of processors in {tmp_path}"):
            processor_zones(tmp_path)
    write_zone(tmp_path, "intel-rapl:0", "package-0", 1)

    def refuse(file):
        raise PermissionError(13, "Permission denied", str(file))

    monkeypatch.setattr(energy, "_number_in", refuse)
    with pytest.raises(MeasurementError, match=r"only root may read .*intel-rapl:0/energy_uj"):
        processor_zones(tmp_path)


@pytest.fixture
def nvml(monkeypatch):
    """A stand-in for pynvml with one GPU, whose `state` the test sets: mJ, mW and % busy."""

    class NVMLError(Exception):
        pass

    class NotSupportedError(NVMLError):
        pass

    state = SimpleNamespace(energy=10_000, power=300_000, busy=50)

    def handle(uuid):
        if uuid != "GPU-1":
            raise NVMLError("Not Found")
        return uuid

    def total(handle):
        if state.energy is None:
            raise NotSupportedError("Not Supported")
        return state.energy

    module = SimpleNamespace(
        NVMLError=NVMLError, NVMLError_NotSupported=NotSupportedError, nvmlInit=lambda: None,
        nvmlDeviceGetHandleByUUID=handle, nvmlDeviceGetTotalEnergyConsumption=total,
        nvmlDeviceGetPowerUsage=lambda handle: state.power,
        nvmlDeviceGetUtilizationRates=lambda handle: SimpleNamespace(gpu=state.busy),
    )  # fmt: skip
    monkeypatch.setitem(sys.modules, "pynvml", module)
    return state


def test_the_energy_of_a_gpu_is_that_since_the_counter_was_made(nvml):
    counter = GPUCounter("GPU-1")
    nvml.energy, nvml.busy = 12_500, 80
    assert counter.read() == (2.5, 0.8)
    nvml.energy = 13_000
    assert counter.read().joules == 3


def test_a_gpu_without_an_energy_counter_has_the_integral_of_its_power(nvml, monkeypatch):
    """100 W rising to 300 W over 10 s, then 300 W for 5 s: 2000 J and 1500 J."""
    now = [50.0]
    monkeypatch.setattr(energy.time, "monotonic", lambda: now[0])
    nvml.energy, nvml.power = None, 100_000
    counter = GPUCounter("GPU-1")
    now[0], nvml.power = 60.0, 300_000
    assert counter.read().joules == pytest.approx(2000)
    now[0] = 65.0
    assert counter.read().joules == pytest.approx(3500)


def test_an_unknown_gpu_and_a_missing_package_are_named(nvml, monkeypatch):
    with pytest.raises(MeasurementError, match="the energy of GPU GPU-2 cannot be read: Not Found"):
        GPUCounter("GPU-2")
    monkeypatch.setitem(sys.modules, "pynvml", None)
    with pytest.raises(MeasurementError, match="needs the package nvidia-ml-py"):
        GPUCounter("GPU-1")


def test_peak_memory_is_that_of_this_process_alone():
    """`getrusage` counts the 300 MB of the process that starts the other one, which has 100 MB itself."""
    large = np.ones(300_000_000, np.uint8)
    code = (
        "import os, numpy as np; from data_pipeline.common.machine_memory import peak_memory\n"
        "before = peak_memory(); x = np.ones(100_000_000, np.uint8); del x; print(before, peak_memory())"
    )
    process = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    before, after = map(int, process.stdout.split())
    assert before < 200_000_000
    # The kernel counts pages of each thread in groups of up to 64.
    assert 95_000_000 <= after - before < 110_000_000
    assert peak_memory() > large.nbytes


def test_energy_of_processors_and_time(tmp_path):
    """A counter that vanishes keeps its last value."""
    write_zone(tmp_path, "intel-rapl:0", "package-0", 0, 10**10)
    now = [100.0]
    meter = CostMeter(tmp_path, lambda: now[0])
    now[0] = 160.0
    write_zone(tmp_path, "intel-rapl:0", "package-0", 7_200_000_000, 10**10)
    found = meter.usage()
    assert (found.seconds, found.kwh) == (60, pytest.approx(0.002))
    assert (found.source, found.why) == ("RAPL", "")
    assert found.line().startswith("done in 1:00, at most ")
    assert found.line().endswith(" of memory, 0.002 kWh (RAPL)")
    (tmp_path / "intel-rapl:0/energy_uj").unlink()
    found = meter.usage()
    assert found.kwh == pytest.approx(0.002)
    assert "cannot be read any more" in found.why


def test_ranks_that_read_the_same_counter_count_it_once():
    """Two ranks of node a, with a GPU each, and one of node b: 5 + 7 + 1 + 2 + 4 J."""
    ranks = [
        Usage(10.0, 100, 7, 0.5, {"RAPL a 0": 5.0, "NVML 1": 1.0}),
        Usage(9.0, 300, 9, 0.9, {"RAPL a 0": 4.9, "NVML 2": 2.0}),
        Usage(9.5, 200, None, None, {"RAPL b 0": 7.0, "NVML 3": 4.0}, ("no driver",)),
    ]
    found = Usage.of_ranks(ranks)
    assert found.kwh == pytest.approx(19 / 3.6e6)
    assert (found.seconds, found.peak_memory_bytes, found.peak_gpu_memory_bytes) == (10.0, 300, 9)
    assert found.gpu_utilisation == pytest.approx(0.7)
    assert found.source == "NVML, RAPL"
    assert found.line().endswith("GPU busy 70 % of the time, 5.28e-06 kWh (NVML, RAPL), not counted: no driver")


class StubGPU:
    """A GPU that has used 2 J at each further reading, and is busy every other time."""

    name = "GPU-1"

    def __init__(self):
        self.readings = 0

    def read(self):
        self.readings += 1
        return 2.0 * self.readings, self.readings % 2


def test_a_thread_reads_the_gpu_and_reports(tmp_path, monkeypatch):
    monkeypatch.setattr(cost_meter, "GPUCounter", lambda uuid: StubGPU())
    monkeypatch.setattr(cost_meter, "SECONDS_BETWEEN_GPU_STATES", 0.001)
    monkeypatch.setattr(cost_meter, "SECONDS_BETWEEN_REPORTS", 0.0)
    reported = threading.Event()

    def report():
        reported.set()
        raise OSError("full disk")

    meter = CostMeter(tmp_path)
    meter.watch_gpu("GPU-1", lambda: 42)
    meter.report = report
    with meter:
        assert reported.wait(60)
        # The thread outlives the error of a report.
        reported.clear()
        assert reported.wait(60)
    assert "cost" not in {thread.name for thread in threading.enumerate()}
    found = meter.usage()
    assert found.gpu_utilisation == pytest.approx(0.5, abs=0.2)
    assert found.joules["NVML GPU-1"] >= 4
    assert found.peak_gpu_memory_bytes == 42


def test_a_run_begins_with_its_command_or_launcher_and_the_next_one_of_the_process_later(monkeypatch):
    run_start.mark_begin()
    marked = time.monotonic()
    time.sleep(0.02)
    assert run_start.take_begin() <= marked
    began = run_start.take_begin()
    assert began > marked
    for name, value in run_start.variables_of_ranks().items():
        monkeypatch.setenv(name, value)
    assert run_start.take_begin() == began
    assert run_start.VARIABLE not in os.environ
