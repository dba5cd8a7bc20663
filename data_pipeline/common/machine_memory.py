"""Memory of this machine, of its container or batch job, and of this process; amounts of memory in words."""

from __future__ import annotations

import os
import re
import resource
import sys
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

from data_pipeline.common.errors import InputError

CGROUPS = Path("/sys/fs/cgroup")
"""Folder of control groups, by which containers and batch systems limit memory."""
PROCESS = Path("/proc/self")
MEMINFO = Path("/proc/meminfo")
_VERSIONS = (
    ("0::", ".", "memory.max", "memory.current", "inactive_file"),
    (":memory:", "memory", "memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file"),
)
"""Mark in `/proc/self/cgroup`, folder, files of limit and usage, and file pages that can be freed: versions 2 and 1."""
UNITS = {"B": 1, "KB": 10**3, "MB": 10**6, "GB": 10**9, "TB": 10**12}
UNITS |= {"KIB": 2**10, "MIB": 2**20, "GIB": 2**30, "TIB": 2**40}


def total_memory() -> int:
    """Return the memory of the machine, or of the container or batch job if that is less, in bytes."""
    machine = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    return min([machine, *(limit for limit, _ in _limits())])


def free_memory() -> int:
    """Return the bytes that this process can still take; pages that only cache files count as free."""
    found = [total_memory()]
    with suppress(OSError, AttributeError):
        found.append(1024 * int(re.search(r"^MemAvailable:\s+(\d+)", MEMINFO.read_text(), re.M)[1]))  # type: ignore[index]
    found += [max(limit - used, 0) for limit, used in _limits()]
    return min(found)


def process_memory() -> int:
    """Return the bytes of memory that this process has."""
    with suppress(OSError, AttributeError):
        return 1024 * int(re.search(r"^VmRSS:\s+(\d+)", (PROCESS / "status").read_text(), re.M)[1])  # type: ignore[index]
    # Without /proc, as on macOS, the largest memory so far; macOS counts it in bytes.
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024)


def parse_memory(name: str, value: object) -> int:
    """Return the bytes of an option `name` such as "8GB", "500 MB", "16GiB", or a number of bytes.

    >>> parse_memory("trainer.memory", "1.5 GB")
    1500000000
    """
    found = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*([A-Za-z]*)\s*", value) if isinstance(value, str) else None
    if found and (unit := UNITS.get(found[2].upper() or "B")):
        nbytes = int(float(found[1]) * unit)
    else:
        nbytes = value if type(value) is int else 0
    if nbytes <= 0:
        raise InputError(f'{name} must be an amount of memory such as "8GB" or "16GiB", or null, got {value!r}')
    return nbytes


def in_words(nbytes: float) -> str:
    """Return an amount of memory for people.

    >>> in_words(7_260_000_000), in_words(12_345_678), in_words(800)
    ('7.3 GB', '12 MB', '0.8 KB')
    """
    for unit in ("TB", "GB", "MB"):
        if nbytes >= UNITS[unit]:
            amount = nbytes / UNITS[unit]
            return f"{amount:.1f} {unit}" if amount < 10 else f"{amount:.0f} {unit}"
    return f"{nbytes / 1000:.1f} KB"


def _limits() -> Iterator[tuple[int, int]]:
    """Yield limit and usage of each control group that holds this process and has a limit."""
    own = ""
    with suppress(OSError):
        own = (PROCESS / "cgroup").read_text()
    for mark, folder, limit_file, usage_file, cache_key in _VERSIONS:
        root = CGROUPS / folder
        paths = [line.partition(mark)[2].strip("/") for line in own.splitlines() if mark in line] or [""]
        # The limit of every group above applies too. Inside a container the own group is often the root.
        groups = [root, *((root / part) for part in _with_parents(paths[0]))]
        for group in groups:
            with suppress(OSError, ValueError):
                limit, usage = int((group / limit_file).read_text()), 0
                with suppress(OSError, ValueError):
                    usage = int((group / usage_file).read_text())
                    freed = re.search(rf"^{cache_key} (\d+)", (group / "memory.stat").read_text(), re.M)
                    usage -= int(freed[1]) if freed else 0
                yield limit, usage


def _with_parents(path: str) -> Iterator[str]:
    parts = path.split("/") if path else []
    return ("/".join(parts[: count + 1]) for count in range(len(parts)))
