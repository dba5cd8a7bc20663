"""Memory of machine, container and process, from files as Linux writes them; freed memory; checks of numbers."""

import math
import os
import subprocess
import sys

import pytest

from data_pipeline.common import machine_memory
from data_pipeline.common.checks import check_between, check_integer, check_positive, size_in_bytes
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


def test_a_limit_of_the_own_group_or_of_one_above_counts(proc):
    """In version 2, in the root inside a container, and in version 1."""
    assert (total_memory(), free_memory()) == (MACHINE, FREE // 1000 * 1024)
    (proc / "self/cgroup").write_text("0::/slurm/job_7\n")
    limit(proc / "cgroup/slurm/job_7", V2, "max", 100, "inactive_file 5")
    assert total_memory() == MACHINE
    limit(proc / "cgroup/slurm", V2, 500_000, 200_000, "anon 7\ninactive_file 50000\nfile 1")
    assert (total_memory(), free_memory()) == (500_000, 350_000)
    (proc / "self/cgroup").write_text("9:name=systemd:/\n4:memory:/job\n0::/\n")
    limit(proc / "cgroup/memory", V1, 9223372036854771712, 0, "total_inactive_file 0")
    limit(proc / "cgroup/memory/job", V1, 400_000, 300_000, "inactive_file 9\ntotal_inactive_file 20000")
    assert (total_memory(), free_memory()) == (400_000, 120_000)
    (proc / "self/cgroup").write_text("0::/\n")
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


FAULTS = """
import resource, sys
import numpy as np
from data_pipeline.common.machine_memory import keep_freed_memory

count, *options = map(int, sys.argv[2:])
if sys.argv[1] == "keep":
    keep_freed_memory(*options)
for repeated in range(5):
    if repeated == 2:
        before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    several = [np.ones(count) for _ in range(6)]
    del several
print(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
"""


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="only glibc's malloc has these parameters")
def test_the_next_arrays_of_the_same_size_cost_no_new_pages():
    """The operating system counts the memory; six arrays are freed together, as a network frees its arrays.

    16 MB of at most 32, and 40 MB, which is more than glibc keeps by itself.
    """
    given_back, *kept = (
        int(subprocess.run([sys.executable, "-c", FAULTS, *words.split()], capture_output=True, check=True).stdout)
        for words in ("give 5000000", f"keep 2000000 {1 << 25}", "keep 5000000")
    )
    assert max(kept) < 20 < given_back


CHECKS = [
    (check_integer, (1, 10), 1, (0, 11, 2.0, True, "3", None), "a whole number from 1 to 10"),
    (check_positive, (), 1e-300, (0, -1e-9, math.nan, False, "1", None), "a number greater than 0"),
    (check_between, (0, 1), 0, (-0.1, 1, math.inf, math.nan, True, "0"), "a number of at least 0 and less than 1"),
]
"""Function, bounds, a good value, other values, and what the message says."""


@pytest.mark.parametrize(("check", "bounds", "good", "others", "words"), CHECKS)
def test_numbers_outside_their_bounds_are_refused(check, bounds, good, others, words):
    check("depth", good, *bounds)
    for value in others:
        with pytest.raises(InputError, match=f"depth must be {words}, got"):
            check("depth", value, *bounds)
