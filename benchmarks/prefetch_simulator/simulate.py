"""Simulated run times of published data loaders on a cluster, as tables in units of the time without reading.

    python -m benchmarks.prefetch_simulator.simulate

The time model is taken from NoPFS (Dryden et al. 2021, doi:10.1145/3458817.3476181). With samples of s bytes, p threads
and a compute rate c, a worker has finished its f-th sample at

    t_f = max(available_f, t_{f-1}) + s/c,    available_f = sum_{k <= f} (fetch_k + write) / p

docs/prefetch.md lists the assumptions that are not from the paper.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from math import ceil

import numpy as np
from scipy.stats import binom

from benchmarks.prefetch_simulator.policies import POLICIES, SHARED, Workload
from data_pipeline.prefetch.order import Reads, SampleOrder


@dataclass(frozen=True)
class ClusterRates:
    """Rates in MB/s; the defaults are the rates that the paper simulates."""

    compute: float = 64
    preprocess: float = 200
    network: float = 24_000
    staging: float = 111_000
    staging_threads: int = 8
    memory: float = 85_000
    memory_threads: int = 4
    disk: float = 4_000
    disk_threads: int = 2
    readers: tuple[int, ...] = (1, 2, 4, 8)
    shared: tuple[float, ...] = (330, 730, 1_540, 2_870)
    """Total rate of the shared file system for each number of workers in `readers`."""

    def fetch(self, readers: float) -> np.ndarray:
        """Return the seconds per MB of one thread for each storage, if `readers` workers read the file system."""
        readers = max(readers, 1.0)
        # The threads of a worker share the worker's part of the file system's rate.
        share = float(np.interp(readers, self.readers, self.shared)) / readers / self.staging_threads
        memory, disk = self.memory / self.memory_threads, self.disk / self.disk_threads
        return 1 / np.array([share, memory, disk, min(self.network, memory), min(self.network, disk)])

    @property
    def write(self) -> float:
        """Seconds per MB for one thread to preprocess a sample and to write it to the staging buffer."""
        return max(1 / self.preprocess, self.staging_threads / self.staging)


def run_time(policy: str, workload: Workload, cluster: ClusterRates) -> float | None:
    """Return the seconds of the whole run under a policy, None if the policy refuses the data set."""
    compute = workload.size / cluster.compute
    reads = sum(len(samples) for samples in workload.first_worker())
    if policy == "Perfect":
        return reads * compute
    if policy == "Naive":
        # One thread fetches, preprocesses and computes in turn.
        fetch_alone = cluster.fetch(workload.workers)[SHARED] / cluster.staging_threads
        return reads * (workload.size * (fetch_alone + 1 / cluster.preprocess) + compute)
    if (epochs := POLICIES[policy](workload)) is None:
        return None
    available = end = 0.0
    for number, storages in enumerate(epochs):
        fetch = cluster.fetch(workload.workers * float((storages == SHARED).mean()))[storages]
        ready = available + np.cumsum(workload.size * (fetch + cluster.write)) / cluster.staging_threads
        available = float(ready[-1])
        if policy == "ParallelStaging" and number == 0:
            end = available  # this policy copies all samples before it computes
            continue
        steps = np.arange(1, len(ready) + 1) * compute
        # t_f - f s/c is the maximum of its previous value and of all available_f - (f - 1) s/c so far.
        end = max(end, float((ready - (steps - compute)).max())) + float(steps[-1])
    return end


def expected_often_read(samples: int, workers: int, epochs: int, excess: float) -> float:
    """Return the expected number of samples that a worker reads at least (1 + excess) times as often as the mean.

    >>> round(expected_often_read(1_281_167, 16, 90, 0.8))
    31635
    """
    minimum = ceil((1 + excess) * epochs / workers)
    return samples * float(binom.sf(minimum - 1, epochs, 1 / workers))


def count_often_read(order: SampleOrder, excess: float) -> float:
    """Return the number of samples of `expected_often_read` in an order of reading, as a mean over workers."""
    counts = Reads.from_order(order).counts
    return float((counts >= ceil((1 + excess) * order.epochs / order.ranks)).sum(1).mean())


DATA_SIZES = {
    "60 GB: fits one memory": 60_000,
    "500 GB: fits one worker": 500_000,
    "2 TB: fits all workers": 2_000_000,
    "6 TB: fits nowhere": 6_000_000,
}
"""Sizes of data sets in MB, for four workers with 120 GB of memory and 900 GB of disk each."""


def main() -> None:
    """Print run times in units of the run time without reading."""
    workload = Workload(samples=40_000, size=1.0, epochs=10)
    for compute in (64, 1_000):
        cluster = ClusterRates(compute=compute)
        print(f"run time over that without reading; 4 workers, {workload.epochs} epochs, compute {compute} MB/s each")
        print(f"{'':17}" + "".join(f"{name:>25}" for name in DATA_SIZES))
        for policy in ("Perfect", "Naive", *POLICIES):
            cells = []
            for size in DATA_SIZES.values():
                sized = replace(workload, size=size / workload.samples)
                time, perfect = run_time(policy, sized, cluster), run_time("Perfect", sized, cluster)
                cells.append(f"{time / perfect:25.2f}" if time and perfect else f"{'refused':>25}")
            print(f"{policy:17}" + "".join(cells))
        print()
    expected = expected_often_read(1_281_167, 16, 90, 0.8)
    print("1,281,167 samples, 16 workers, 90 epochs; samples that a worker reads more than 1.8 times the mean:")
    print(f"expected {expected:,.0f}")
    counted = count_often_read(SampleOrder(1_281_167, 4096, 90, ranks=16), 0.8)
    print(f"counted in an order of this package {counted:,.0f}")


if __name__ == "__main__":
    main()
