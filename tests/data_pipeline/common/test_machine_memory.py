"""Memory of machine, container and process, from files as Linux writes them; amounts of memory in words."""

import os
import subprocess
import sys

import pytest

from data_pipeline.common import machine_memory
from data_pipeline.common.checks import size_in_bytes
from data_pipeline.common.errors import InputError
from data_pipeline.common.machine_memory import free_memory, process_memory, total_memory

MACHINE = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
FREE = 10**9


@pytest.fixture
def proc(tmp_path, monkeypatch):
    """Folders in place of `/proc/self` and `/sys/fs/cgroup`, of a process without limits."""
    (tmp_path / "self").mkdir()
    (tmp_path / "self/cgroup").write_text("0::/\n")
    (tmp_path / "meminfo").write_text(f"MemTotal: 16000000 kB\nMemFree:  5 kB\nMemAvailable: {FREE // 1000} kB\n")
    for name, value in (("PROCESS", "self"), ("CGROUPS", "cgroup"), ("MEMINFO", "meminfo")):
        monkeypatch.setattr(machine_memory, name, tmp_path / value)
    return tmp_path


def limit(folder, names, limit, used, cached):
    folder.mkdir(parents=True, exist_ok=True)
    for name, text in zip((*names, "memory.stat"), (limit, used, cached), strict=True):
        (folder / name).write_text(f"{text}\n")


V1, V2 = ("memory.limit_in_bytes", "memory.usage_in_bytes"), ("memory.max", "memory.current")


def test_without_a_limit_it_is_the_memory_of_the_machine(proc):
    assert total_memory() == MACHINE
    assert free_memory() == FREE // 1000 * 1024


def test_a_limit_of_version_2_of_the_own_group_or_of_one_above_counts(proc):
    (proc / "self/cgroup").write_text("0::/slurm/job_7\n")
    limit(proc / "cgroup/slurm/job_7", V2, "max", 100, "inactive_file 5")
    assert total_memory() == MACHINE
    limit(proc / "cgroup/slurm", V2, 500_000, 200_000, "anon 7\ninactive_file 50000\nfile 1")
    assert (total_memory(), free_memory()) == (500_000, 350_000)


def test_a_limit_of_version_1_counts(proc):
    (proc / "self/cgroup").write_text("9:name=systemd:/\n4:memory:/job\n0::/\n")
    limit(proc / "cgroup/memory", V1, 9223372036854771712, 0, "total_inactive_file 0")
    limit(proc / "cgroup/memory/job", V1, 400_000, 300_000, "inactive_file 9\ntotal_inactive_file 20000")
    assert (total_memory(), free_memory()) == (400_000, 120_000)


def test_a_limit_inside_a_container_stands_in_the_root(proc):
    limit(proc / "cgroup", V2, 12345678, 99999999, "inactive_file 0")
    assert (total_memory(), free_memory()) == (12345678, 0)


def test_a_process_knows_its_memory():
    code = (
        "import sys\nfrom data_pipeline.common.machine_memory import process_memory\n"
        "before = process_memory()\nkept = b'x' * 300_000_000\nsys.exit(not 2.9e8 < process_memory() - before < 3.2e8)"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
    assert process_memory() > 10**7


def test_amounts_of_memory():
    sizes = {"8GB": 8e9, "8 G": 8e9, "1.5 GiB": 3 * 2**29, "500mb": 5e8, "2048": 2048, 123: 123, " 1 TB ": 1e12}
    assert {value: size_in_bytes("memory", value) for value in sizes} == sizes
    for value in ("8 X", "GB", "-1GB", "0", "", 0, -5, 1.5, True, "8GB free"):
        with pytest.raises(InputError, match="must be a size such as 4GB or 16GiB"):
            size_in_bytes("trainer.memory", value)
