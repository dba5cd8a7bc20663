"""Budget: how many bytes and threads a run may use to cache samples and read them ahead; a default for this machine."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from data_pipeline.common.checks import check_integer
from data_pipeline.common.errors import InputError
from data_pipeline.common.machine_memory import total_memory
from data_pipeline.common.messages import format_size
from data_pipeline.common.threads import BUDGET, ranks_here

MEMORY_SHARE = 4
"""By default, a rank uses a fourth of its share of the machine's memory to cache samples."""
LEAST_THREADS = 2
"""Least number of reader threads; a single thread would not read while it writes a sample to the disk cache."""


@dataclass(frozen=True)
class Budget:
    """Bytes of the staging buffer, of samples cached in memory and of samples cached on a local disk; reader threads.

    The staging buffer holds the next samples; memory and disk cache samples that will be read again. The batch in use
    and the following batch need additional memory. `disk_folder` is on a local disk; one run uses it at a time.
    """

    staging_bytes: int = 1_000_000_000
    memory_bytes: int = 4_000_000_000
    disk_bytes: int = 0
    disk_folder: str | None = None
    threads: int = 2

    def __post_init__(self) -> None:
        for name, minimum in (("staging_bytes", 1), ("memory_bytes", 0), ("disk_bytes", 0), ("threads", 1)):
            check_integer(f"data.cache.{name}", getattr(self, name), minimum)
        if self.disk_bytes and self.disk_folder is None:
            raise InputError(
                f"data.cache.disk_bytes is {self.disk_bytes} but data.cache.disk_folder is not set; "
                "set it to a folder on a local disk, or set data.cache.disk_bytes=0"
            )
        if self.disk_folder is not None and not self.disk_bytes:
            raise InputError(
                f"data.cache.disk_folder is {self.disk_folder} but data.cache.disk_bytes is 0; "
                "set data.cache.disk_bytes, or leave data.cache.disk_folder out"
            )

    def divide(self, sizes: Sequence[int]) -> list[Budget]:
        """Divide the bytes among data sets of `sizes` bytes: staging evenly, memory and disk in proportion.

        >>> [part.memory_bytes for part in Budget(memory_bytes=100).divide([300, 100])]
        [75, 25]
        """
        parts = []
        for size in sizes:
            memory, disk = (total * size // sum(sizes) for total in (self.memory_bytes, self.disk_bytes))
            staging, folder = max(1, self.staging_bytes // len(sizes)), self.disk_folder if disk else None
            parts.append(replace(self, staging_bytes=staging, memory_bytes=memory, disk_bytes=disk, disk_folder=folder))
        return parts


def machine_budget(
    staging_bytes: int = 1_000_000_000,
    memory_bytes: int | None = None,
    disk_bytes: int = 0,
    disk_folder: str | None = None,
    threads: int | None = None,
) -> Budget:
    """Return the budget of this rank from the options `data.cache`; memory and threads default to a machine's share.

    The default number of threads is the rank's number of processors. The default memory is a fourth of the memory of
    the machine, container or batch job, divided among the ranks on it. It depends on the total memory, not on the free
    memory, so that equal machines choose the same.
    """
    memory = total_memory() // MEMORY_SHARE // ranks_here() if memory_bytes is None else memory_bytes
    count = max(LEAST_THREADS, BUDGET.total) if threads is None else threads
    return Budget(staging_bytes, memory, disk_bytes, disk_folder, count)


def describe_budget(budget: Budget) -> str:
    """Return a line with threads and memory.

    >>> describe_budget(Budget(memory_bytes=6_000_000_000, threads=2))
    'data.cache: 2 threads read ahead, at most 6 GB of samples are cached in memory'
    """
    threads = "1 thread reads" if budget.threads == 1 else f"{budget.threads} threads read"
    return f"data.cache: {threads} ahead, at most {format_size(budget.memory_bytes)} of samples are cached in memory"
