"""The meter of a run: peak memory against a known allocation, counters of several ranks, the printed line."""

import os
import subprocess
import sys
import threading
import time

import numpy as np
import pytest
from energy_counters import write_zone

from data_pipeline.common import cost_meter, run_start
from data_pipeline.common.cost_meter import CostMeter, Usage, peak_memory


def test_peak_memory_is_that_of_this_process_alone():
    """`getrusage` counts the 300 MB of the process that starts the other one, which has 100 MB itself."""
    large = np.ones(300_000_000, np.uint8)
    code = (
        "import os, numpy as np; from data_pipeline.common.cost_meter import peak_memory\n"
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
