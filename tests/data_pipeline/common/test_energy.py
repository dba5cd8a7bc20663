"""Energy counters, in folders like those of Linux and with a stand-in for NVML."""

import sys
from types import SimpleNamespace

import pytest
from energy_counters import write_zone

from data_pipeline.common import energy
from data_pipeline.common.energy import GPUCounter, MeasurementError, processor_zones


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


def test_a_machine_without_counters_says_so(tmp_path):
    with pytest.raises(MeasurementError, match=r"there are no counters of processors in .*test_a_machine"):
        processor_zones(tmp_path)
    write_zone(tmp_path, "intel-rapl:0", "psys", 1)
    with pytest.raises(MeasurementError, match="there are no counters"):
        processor_zones(tmp_path)


def test_counters_for_root_only_are_named(tmp_path, monkeypatch):
    """Linux lets only root read them, since they can betray secrets of other programs. The tests may run as root."""
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


def test_a_gpu_that_nvml_does_not_know_is_named(nvml):
    with pytest.raises(MeasurementError, match="the energy of GPU GPU-2 cannot be read: Not Found"):
        GPUCounter("GPU-2")


def test_a_missing_package_is_named(monkeypatch):
    monkeypatch.setitem(sys.modules, "pynvml", None)
    with pytest.raises(MeasurementError, match="needs the package nvidia-ml-py"):
        GPUCounter("GPU-1")
