"""Training from a slow archive: samples per second against torch's DataLoader, steps per second against no reading.

The archive is a file behind a token bucket that all readers share, as a busy file system would be. Both loaders read
the same samples in the same order with the same number of workers (processes for DataLoader, which it needs; threads
here). The first epoch, in which nothing can be cached, counts.
"""

from __future__ import annotations

import multiprocessing
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

import numpy as np
import torch
from torch.utils.data import DataLoader, Dataset, Sampler

from benchmarks.common import command_line, report
from data_pipeline.prefetch.budget import Budget
from data_pipeline.prefetch.disk import SAMPLE_OVERHEAD
from data_pipeline.prefetch.loader import Prefetcher
from data_pipeline.prefetch.order import SampleOrder
from data_pipeline.prefetch.tiers import Tiers
from data_pipeline.sample import Sample

COUNT, BATCH, EPOCHS, WORKERS = 128, 8, 6, 2
SHAPE = (2, 7, 91, 180)  # mean and spread of seven fields on a 2 degree grid
RATE = 60e6
MEMORY, DISK = 0.3, 0.75
ROUNDS = 2


class Throttled(Dataset[Sample]):
    """Samples in a file that gives RATE bytes per second to all its readers, threads and processes, together."""

    def __init__(self, folder: Path, count: int = COUNT) -> None:
        self.fingerprint = "throttled"
        self.static = torch.zeros(3, *SHAPE[2:])
        self._count, self._path = count, folder / "archive"
        if not self._path.exists():
            generator = np.random.default_rng(0)
            with self._path.open("wb") as file:
                for _ in range(COUNT):
                    file.write(generator.standard_normal(SHAPE, np.float32).tobytes())
        self._free_at = multiprocessing.Value("d", 0.0)

    @property
    def nbytes(self) -> int:
        """Bytes of one sample without its static fields."""
        cells = SHAPE[2] * SHAPE[3]
        return 4 * int(np.prod(SHAPE)) + SHAPE[1] * cells + 4 * cells + 16

    def __len__(self) -> int:
        return self._count

    def __getitem__(self, index: int) -> Sample:
        size = 4 * int(np.prod(SHAPE))
        with self._free_at.get_lock():
            now = time.monotonic()
            self._free_at.value = mine = max(self._free_at.value, now) + size / RATE
        ensemble = np.fromfile(self._path, np.float32, size // 4, offset=index * size).reshape(SHAPE)
        time.sleep(max(0.0, mine - time.monotonic()))
        return Sample(
            ensemble=torch.from_numpy(ensemble),
            mask=torch.ones(SHAPE[1:], dtype=torch.bool),
            static=self.static,
            target=torch.zeros(1, *SHAPE[2:]),
            init_time=torch.tensor(index),
            lead_time=torch.tensor(48),
        )


class InStreamOrder(Sampler[int]):
    """The same order for DataLoader."""

    def __init__(self, stream: SampleOrder) -> None:
        self.stream, self.epoch = stream, 0

    def __len__(self) -> int:
        return self.stream.count

    def __iter__(self) -> Iterator[int]:
        return iter(self.stream.permutation(self.epoch).tolist())


def with_dataloader(data: Throttled, stream: SampleOrder, use: Callable[[Iterable[Sample]], None]) -> None:
    """Train for all epochs as people do."""
    sampler = InStreamOrder(stream)
    loader = DataLoader(data, BATCH, sampler=sampler, num_workers=WORKERS, persistent_workers=True, prefetch_factor=2)
    for sampler.epoch in range(stream.epochs):
        use(loader)


def with_prefetcher(data: Throttled, stream: SampleOrder, use: Callable[[Iterable[Sample]], None]) -> None:
    """Train for all epochs through tiers that begin empty."""
    one = data.nbytes + SAMPLE_OVERHEAD
    with tempfile.TemporaryDirectory() as folder:
        budget = Budget(
            staging_bytes=4 * BATCH * one,
            memory_bytes=int(MEMORY * len(data)) * one,
            disk_bytes=int(DISK * len(data)) * one,
            disk_folder=folder,
            threads=WORKERS,
        )
        with Tiers(data, budget, stream) as tiers, Prefetcher(tiers, stream) as loader:
            for epoch in range(stream.epochs):
                loader.set_epoch(epoch)
                use(loader)


def seconds(run: Callable[[], None]) -> float:
    """Time one call."""
    began = time.perf_counter()
    run()
    return time.perf_counter() - began


def drain(batches: Iterable[Sample]) -> None:
    """Use batches at once."""
    for _ in batches:
        pass


def main() -> None:
    """Measure and print."""
    parser = command_line(__doc__)
    as_json = parser.parse_args().json
    with tempfile.TemporaryDirectory() as folder:
        data = Throttled(Path(folder))
        stream = SampleOrder(COUNT, BATCH, EPOCHS, seed=0)
        total = COUNT * data.nbytes
        print(
            f"{COUNT} samples of {data.nbytes / 1e6:.1f} MB = {total / 1e6:.0f} MB, batches of {BATCH}, "
            f"{EPOCHS} epochs, archive of {RATE / 1e6:.0f} MB/s, {WORKERS} workers; tiers begin empty: "
            f"memory {MEMORY:.0%} of the data, local disk {DISK:.0%}, staging {4 * BATCH} samples"
        )
        theirs, ours = [], []
        for _ in range(ROUNDS):
            theirs.append(seconds(lambda: with_dataloader(data, stream, drain)))
            ours.append(seconds(lambda: with_prefetcher(data, stream, drain)))
        for name, times in (("DataLoader", theirs), ("Prefetcher", ours)):
            print(f"{name}: {COUNT * EPOCHS / min(times):6.1f} samples/s over all epochs (best of {ROUNDS})")

        # Compute that takes longer than reading: one step sleeps, as a CPU does that waits for its GPU.
        step = 1.5 * BATCH * 4 * np.prod(SHAPE) / RATE
        batch = torch.utils.data.default_collate([data[k] for k in range(BATCH)])

        def train(batches: Iterable[Sample]) -> None:
            for _ in batches:
                time.sleep(step)

        steps = stream.steps * stream.epochs
        free, read = [], []
        for _ in range(ROUNDS):
            free.append(seconds(lambda: train([batch] * steps)))
            read.append(seconds(lambda: with_prefetcher(data, stream, train)))
        print(
            f"{steps} steps of {1e3 * step:.0f} ms (reading a batch takes {1e3 * step / 1.5:.0f} ms): "
            f"{steps / min(free):.2f} steps/s without reading, {steps / min(read):.2f} with the Prefetcher"
        )
    ratios = {
        "throughput_vs_dataloader": min(theirs) / min(ours),
        "step_rate_vs_no_io": min(free) / min(read),
    }
    report("prefetch", ratios, as_json)


if __name__ == "__main__":
    main()
