"""Training from a slow archive: samples per second compared with torch's DataLoader, steps per second without reading.

The archive is a file with a limited rate that all readers share, as on a busy file system. Both loaders read the same
samples in the same order with the same number of workers (processes for DataLoader, threads for this project). Times
include the first epoch, in which nothing is cached yet.

    python -m benchmarks.prefetch_speed [--json]
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

from benchmarks.common import command_line, elapsed, report
from data_pipeline.prefetch.budget import Budget
from data_pipeline.prefetch.disk import SAMPLE_OVERHEAD
from data_pipeline.prefetch.loader import Prefetcher
from data_pipeline.prefetch.order import SampleOrder
from data_pipeline.prefetch.tiers import Tiers
from data_pipeline.sample import Sample

SAMPLE_COUNT, BATCH_SIZE, EPOCH_COUNT, WORKERS = 128, 8, 6, 2
SAMPLE_SHAPE = (2, 7, 91, 180)  # mean and spread of seven fields on a 2 degree grid
ARCHIVE_RATE = 60e6
"""Bytes per second."""
MEMORY_SHARE, DISK_SHARE = 0.3, 0.75
"""Shares of the samples that fit into memory and on the local disk."""
TIMINGS = 2


class Throttled(Dataset[Sample]):
    """Samples in a file whose readers, threads and processes, share `ARCHIVE_RATE` bytes per second."""

    def __init__(self, folder: Path, count: int = SAMPLE_COUNT) -> None:
        self.fingerprint = "throttled"
        self.static = torch.zeros(3, *SAMPLE_SHAPE[2:])
        self._count, self._path = count, folder / "archive"
        if not self._path.exists():
            generator = np.random.default_rng(0)
            with self._path.open("wb") as file:
                for _ in range(SAMPLE_COUNT):
                    file.write(generator.standard_normal(SAMPLE_SHAPE, np.float32).tobytes())
        self._free_at = multiprocessing.Value("d", 0.0)

    @property
    def nbytes(self) -> int:
        """Bytes of one sample without its static fields."""
        cells = SAMPLE_SHAPE[2] * SAMPLE_SHAPE[3]
        return 4 * int(np.prod(SAMPLE_SHAPE)) + SAMPLE_SHAPE[1] * cells + 4 * cells + 16

    def __len__(self) -> int:
        return self._count

    def __getitem__(self, index: int) -> Sample:
        size = 4 * int(np.prod(SAMPLE_SHAPE))
        with self._free_at.get_lock():
            now = time.monotonic()
            self._free_at.value = mine = max(self._free_at.value, now) + size / ARCHIVE_RATE
        ensemble = np.fromfile(self._path, np.float32, size // 4, offset=index * size).reshape(SAMPLE_SHAPE)
        time.sleep(max(0.0, mine - time.monotonic()))
        return Sample(
            ensemble=torch.from_numpy(ensemble),
            mask=torch.ones(SAMPLE_SHAPE[1:], dtype=torch.bool),
            static=self.static,
            target=torch.zeros(1, *SAMPLE_SHAPE[2:]),
            init_time=torch.tensor(index),
            lead_time=torch.tensor(48),
        )


class OrderedSampler(Sampler[int]):
    """Gives the same order to DataLoader."""

    def __init__(self, order: SampleOrder) -> None:
        self.order, self.epoch = order, 0

    def __len__(self) -> int:
        return self.order.count

    def __iter__(self) -> Iterator[int]:
        return iter(self.order.permutation(self.epoch).tolist())


def with_dataloader(data: Throttled, order: SampleOrder, train: Callable[[Iterable[Sample]], None]) -> None:
    """Read all epochs with DataLoader."""
    sampler = OrderedSampler(order)
    loader = DataLoader(
        data, BATCH_SIZE, sampler=sampler, num_workers=WORKERS, persistent_workers=True, prefetch_factor=2
    )
    for sampler.epoch in range(order.epochs):
        train(loader)


def with_prefetcher(data: Throttled, order: SampleOrder, train: Callable[[Iterable[Sample]], None]) -> None:
    """Read all epochs through tiers that are empty at the start."""
    sample_bytes = data.nbytes + SAMPLE_OVERHEAD
    with tempfile.TemporaryDirectory() as folder:
        budget = Budget(
            staging_bytes=4 * BATCH_SIZE * sample_bytes,
            memory_bytes=int(MEMORY_SHARE * len(data)) * sample_bytes,
            disk_bytes=int(DISK_SHARE * len(data)) * sample_bytes,
            disk_folder=folder,
            threads=WORKERS,
        )
        with Tiers(data, budget, order) as tiers, Prefetcher(tiers, order) as loader:
            for epoch in range(order.epochs):
                loader.set_epoch(epoch)
                train(loader)


def drain(batches: Iterable[Sample]) -> None:
    """Discard the batches."""
    for _ in batches:
        pass


def main() -> None:
    """Time both loaders, print the ratios."""
    parser = command_line(__doc__)
    as_json = parser.parse_args().json
    with tempfile.TemporaryDirectory() as folder:
        data = Throttled(Path(folder))
        order = SampleOrder(SAMPLE_COUNT, BATCH_SIZE, EPOCH_COUNT, seed=0)
        total = SAMPLE_COUNT * data.nbytes
        print(
            f"{SAMPLE_COUNT} samples of {data.nbytes / 1e6:.1f} MB = {total / 1e6:.0f} MB, batches of {BATCH_SIZE}, "
            f"{EPOCH_COUNT} epochs, archive of {ARCHIVE_RATE / 1e6:.0f} MB/s, {WORKERS} workers; tiers begin empty: "
            f"memory {MEMORY_SHARE:.0%} of the data, local disk {DISK_SHARE:.0%}, staging {4 * BATCH_SIZE} samples"
        )
        theirs, ours = [], []
        for _ in range(TIMINGS):
            theirs.append(elapsed(lambda: with_dataloader(data, order, drain)))
            ours.append(elapsed(lambda: with_prefetcher(data, order, drain)))
        for name, times in (("DataLoader", theirs), ("Prefetcher", ours)):
            print(
                f"{name}: {SAMPLE_COUNT * EPOCH_COUNT / min(times):6.1f} samples/s over all epochs (best of {TIMINGS})"
            )

        # Computing takes longer than reading. A step sleeps, as a CPU that waits for its GPU.
        step = 1.5 * BATCH_SIZE * 4 * np.prod(SAMPLE_SHAPE) / ARCHIVE_RATE
        batch = torch.utils.data.default_collate([data[k] for k in range(BATCH_SIZE)])

        def train(batches: Iterable[Sample]) -> None:
            for _ in batches:
                time.sleep(step)

        steps = order.steps * order.epochs
        free, read = [], []
        for _ in range(TIMINGS):
            free.append(elapsed(lambda: train([batch] * steps)))
            read.append(elapsed(lambda: with_prefetcher(data, order, train)))
        print(
            f"{steps} steps of {1e3 * step:.0f} ms (reading a batch takes {1e3 * step / 1.5:.0f} ms): "
            f"{steps / min(free):.2f} steps/s without reading, {steps / min(read):.2f} with the Prefetcher"
        )
    ratios = {"throughput_vs_dataloader": min(theirs) / min(ours), "step_rate_vs_no_io": min(free) / min(read)}
    report("prefetch_speed", ratios, as_json)


if __name__ == "__main__":
    main()
