"""What prefetching gains on a cluster: `python -m benchmarks.prefetch_simulator.simulate` prints a table.

The time model is that of NoPFS (Dryden et al. 2021, doi:10.1145/3458817.3476181). With samples of s bytes, p threads
and a compute rate c, a worker has finished with its f-th sample at

    t_f = max(available_f, t_{f-1}) + s/c,    available_f = sum_{k <= f} (fetch_k + write) / p

docs/prefetch.md says which of the assumptions are ours.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from math import ceil, comb

import numpy as np

from benchmarks.prefetch_simulator.policies import POLICIES, SHARED, Case
from data_pipeline.prefetch.order import Reads, SampleOrder


@dataclass(frozen=True)
class Cluster:
    """ReadRates in MB/s; the defaults are the set-up that the paper simulates."""

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
    """Of the shared file system, by how many workers read it, all together."""

    def fetch(self, readers: float) -> np.ndarray:
        """Seconds per MB for one thread, by source, when so many workers read the shared file system."""
        readers = max(readers, 1.0)
        # The threads of a worker share what the worker gets of the file system.
        share = float(np.interp(readers, self.readers, self.shared)) / readers / self.staging_threads
        memory, disk = self.memory / self.memory_threads, self.disk / self.disk_threads
        return 1 / np.array([share, memory, disk, min(self.network, memory), min(self.network, disk)])

    @property
    def write(self) -> float:
        """Seconds per MB for one thread to preprocess and to put into the staging buffer."""
        return max(1 / self.preprocess, self.staging_threads / self.staging)


def run_time(policy: str, case: Case, cluster: Cluster) -> float | None:
    """Seconds of the whole run under a policy, None where it refuses the data set."""
    compute = case.size / cluster.compute
    reads = sum(len(samples) for samples in case.mine())
    if policy == "Perfect":
        return reads * compute
    if policy == "Naive":
        # One thread fetches, prepares and computes in turn.
        alone = cluster.fetch(case.workers)[SHARED] / cluster.staging_threads
        return reads * (case.size * (alone + 1 / cluster.preprocess) + compute)
    if (epochs := POLICIES[policy](case)) is None:
        return None
    available = end = 0.0
    for number, sources in enumerate(epochs):
        fetch = cluster.fetch(case.workers * float((sources == SHARED).mean()))[sources]
        ready = available + np.cumsum(case.size * (fetch + cluster.write)) / cluster.staging_threads
        available = float(ready[-1])
        if policy == "ParallelStaging" and number == 0:
            end = available  # copying comes before computing
            continue
        steps = np.arange(1, len(ready) + 1) * compute
        # t_f - f s/c is the running maximum of what it was before and of available_f - (f - 1) s/c.
        end = max(end, float((ready - (steps - compute)).max())) + float(steps[-1])
    return end


def often_read(samples: int, workers: int, epochs: int, excess: float) -> float:
    """Return how many samples a worker is expected to read at least (1 + excess) times as often as the mean."""
    least = ceil((1 + excess) * epochs / workers)
    ways = sum(comb(epochs, k) * (workers - 1) ** (epochs - k) for k in range(least, epochs + 1))
    return samples * (ways / workers**epochs)


def count_often_read(stream: SampleOrder, excess: float) -> float:
    """Count the same in a real stream, mean over the workers."""
    counts = Reads.from_order(stream).counts
    return float((counts >= ceil((1 + excess) * stream.epochs / stream.ranks)).sum(1).mean())


REGIMES = {
    "60 GB: fits one memory": 60_000,
    "500 GB: fits one worker": 500_000,
    "2 TB: fits all workers": 2_000_000,
    "6 TB: fits nowhere": 6_000_000,
}
"""Sizes of data sets in MB, for four workers of 120 GB memory and 900 GB disk each."""


def main() -> None:
    """Print run times in units of the run time without any reading."""
    case = Case(samples=40_000, size=1.0, epochs=10)
    for compute in (64, 1_000):
        cluster = Cluster(compute=compute)
        print(f"run time over that without reading; 4 workers, {case.epochs} epochs, compute {compute} MB/s each")
        print(f"{'':17}" + "".join(f"{name:>25}" for name in REGIMES))
        for policy in ("Perfect", "Naive", *POLICIES):
            cells = []
            for size in REGIMES.values():
                sized = replace(case, size=size / case.samples)
                time, least = run_time(policy, sized, cluster), run_time("Perfect", sized, cluster)
                cells.append(f"{time / least:25.2f}" if time and least else f"{'refused':>25}")
            print(f"{policy:17}" + "".join(cells))
        print()
    figure = often_read(1_281_167, 16, 90, 0.8)
    print(f"1,281,167 samples, 16 workers, 90 epochs: one reads {figure:,.0f} of them more than 1.8 times the mean;")
    counted = count_often_read(SampleOrder(1_281_167, 4096, 90, ranks=16), 0.8)
    print(f"counted in a stream of this package: {counted:,.0f}")


if __name__ == "__main__":
    main()
