"""Memory of this machine, of its container or batch job, and of this process."""

from __future__ import annotations

import ctypes
import os
import re
import resource
import sys
from collections.abc import Iterator
from contextlib import suppress
from itertools import product
from pathlib import Path

CGROUPS = Path("/sys/fs/cgroup")
"""Folder of the control groups with which containers and batch systems limit memory."""
PROCESS = Path("/proc/self")
MEMINFO = Path("/proc/meminfo")
_VERSIONS = (
    ("memory.max", "memory.current", "inactive_file"),
    ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file"),
)
"""Control groups of versions 2 and 1: the files with limit and usage, and the key of file pages that can be freed."""


def total_memory() -> int:
    """Return the memory of the machine, or of the container or batch job if that is less, in bytes."""
    machine = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    return min([machine, *(limit for limit, _ in _limits())])


def free_memory() -> int:
    """Return the bytes that this process can still allocate; pages of the file cache count as free."""
    found = [total_memory()]
    with suppress(OSError, AttributeError):
        found.append(1024 * int(re.search(r"^MemAvailable:\s+(\d+)", MEMINFO.read_text(), re.M)[1]))  # type: ignore[index]
    found += [max(limit - used, 0) for limit, used in _limits()]
    return min(found)


def process_memory() -> int:
    """Return the bytes of memory (resident set) that this process uses."""
    return _resident("VmRSS")


def peak_memory() -> int:
    """Return the largest memory (resident set) that this process has had, in bytes."""
    return _resident("VmHWM")


def _resident(key: str) -> int:
    with suppress(OSError, AttributeError):
        return 1024 * int(re.search(rf"^{key}:\s+(\d+)", (PROCESS / "status").read_text(), re.M)[1])  # type: ignore[index]
    # Without /proc, as on macOS, return the peak, which macOS gives in bytes. Linux adds that of the starting process.
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024)


def _limits() -> Iterator[tuple[int, int]]:
    """Yield limit and usage of each control group that holds this process and has a limit."""
    for group, (limit_file, usage_file, cache_key) in product(control_groups("memory"), _VERSIONS):
        with suppress(OSError, ValueError):
            limit, usage = int((group / limit_file).read_text()), 0
            with suppress(OSError, ValueError):
                usage = int((group / usage_file).read_text())
                freed = re.search(rf"^{cache_key} (\d+)", (group / "memory.stat").read_text(), re.M)
                usage -= int(freed[1]) if freed else 0
            yield limit, usage


def control_groups(controller: str) -> Iterator[Path]:
    """Yield the folders of this process's control groups for `memory` or `cpu`, and of all above, which limit it too.

    Version 1 has a tree of groups for each controller, version 2 has one for all.
    """
    with suppress(OSError, ValueError):
        for line in (PROCESS / "cgroup").read_text().splitlines():
            _, controllers, name = line.split(":", 2)
            if not controllers or controller in controllers.split(","):
                root = CGROUPS / controller if controllers else CGROUPS
                group = root / name.lstrip("/")
                yield from (folder for folder in (group, *group.parents) if folder.is_relative_to(root))


MEDIUM_ARRAYS = 1 << 25
"""32 MB: a field of 361 x 720 with 33 channels. Some versions of the C library refuse a larger limit."""
KEPT_BYTES = 1 << 28
"""If there is a limit: free bytes at the end of the heap above which memory is returned to the system."""
_TRIM_THRESHOLD, _MMAP_THRESHOLD, _MMAP_MAX = -1, -3, -4
"""Numbers of the parameters of `mallopt` in glibc's malloc.h."""


def keep_freed_memory(largest: int | None = None) -> None:
    """Keep the memory of freed arrays of up to `largest` bytes, by default of any size; does nothing without glibc.

    Call this for work that allocates the same arrays again and again. The C library returns a large freed array to the
    system, which then clears the next array of the same size page by page. This takes longer than computing it: half of
    the CPU time of a network on 361 x 720 (`benchmarks/correct.py`), 44 % of a training step of the transformer
    (`benchmarks/step.py`). Without a limit the process keeps its peak memory until its end.
    """
    with suppress(OSError, AttributeError):
        mallopt = ctypes.CDLL(None).mallopt
        if largest is None:
            # A high _MMAP_THRESHOLD does not work: glibc before 2.35 refuses more than 32 MB, and then keeps nothing.
            mallopt(_MMAP_MAX, 0)
            mallopt(_TRIM_THRESHOLD, -1)
        else:
            mallopt(_MMAP_THRESHOLD, largest)
            mallopt(_TRIM_THRESHOLD, KEPT_BYTES)
