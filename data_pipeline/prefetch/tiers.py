"""Tiers: a data set that reads each sample from memory, a local disk, another rank or the archive, the fastest first.

Each tier caches the samples that this rank reads most (`order.Placement`), within its budget.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Collection, Sequence
from concurrent.futures import Future
from dataclasses import astuple, replace
from pathlib import Path
from typing import Literal, Protocol, TypeVar, cast

from torch import Tensor
from torch.utils.data import Dataset

from data_pipeline.common.identity import hash_of
from data_pipeline.prefetch.budget import Budget
from data_pipeline.prefetch.disk import SAMPLE_OVERHEAD, DiskTier, decode_sample, encode_sample
from data_pipeline.prefetch.order import SampleOrder, compute_placements
from data_pipeline.prefetch.socket_peers import Peers
from data_pipeline.sample import Sample, forecast_times, latitude_band, select_rows

_Read = TypeVar("_Read")
Storage = Literal["disk", "peer", "archive"]

IN_MEMORY, ON_DISK = 0, 1
BAND_STAGING_BYTES = 2**26
"""Size of the staging buffer while a fit reads a band of rows of all samples."""
PEER_MARGIN = 20
"""A peer is asked for a sample at position p of its fetch order once this rank caches p + PEER_MARGIN samples."""

EXPECTED_RATES: dict[Storage, float] = {"disk": 2e9, "peer": 1e9, "archive": 2e8}
"""Assumed bytes per second until there is a measurement. Memory is not listed: it is always the fastest."""
PAST_WEIGHT = 0.9
"""Weight of the past in the running mean of measured rates."""
RECHECK_INTERVAL = 50
"""A storage that was not chosen this many times is tried once more: a busy archive may be idle by then."""


class Samples(Protocol):
    """A data set that can be cached: its samples have one size and can be read from several threads."""

    fingerprint: str
    """A hash that changes whenever a sample changes."""
    static: Tensor
    """(S, H, W) static fields, the same in all samples."""

    @property
    def nbytes(self) -> int:
        """Bytes of one sample without its static fields."""

    def __len__(self) -> int: ...

    def __getitem__(self, index: int) -> Sample: ...


class ReadRates:
    """Bytes per second of every storage, measured by one thread, so they include contention."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._rates: dict[Storage, float] = {}
        self._passed_over: dict[Storage, int] = {}

    def rate(self, storage: Storage) -> float:
        """Return the measured rate of a storage, or the expected one."""
        return self._rates.get(storage, EXPECTED_RATES[storage])

    def choose(self, storages: Collection[Storage]) -> Storage:
        """Return the fastest of `storages`; remeasure a storage that was not chosen `RECHECK_INTERVAL` times."""
        with self._lock:
            best = max(storages, key=self.rate)
            for storage in storages:
                self._passed_over[storage] = 0 if storage == best else self._passed_over.get(storage, 0) + 1
                if self._passed_over[storage] >= RECHECK_INTERVAL:
                    self._passed_over[storage] = 0
                    return storage
            return best

    def measure(self, storage: Storage, size: int, read: Callable[[], _Read]) -> _Read:
        """Call `read`, which fetches `size` bytes, and update the rate; a result of None is not counted."""
        began = time.perf_counter()
        result = read()
        rate = size / max(time.perf_counter() - began, 1e-9)
        if result is not None:
            with self._lock:
                past = self._rates.get(storage, rate)
                self._rates[storage] = PAST_WEIGHT * past + (1 - PAST_WEIGHT) * rate
        return result


class _Rows(Dataset[Sample]):
    """A band of rows of the samples of `tiers`, taken from its memory if the whole sample is cached there."""

    def __init__(self, tiers: Tiers, rows: slice) -> None:
        dataset = tiers._dataset
        self._tiers, self._rows, self._band = tiers, rows, latitude_band(cast(Dataset[Sample], dataset), rows)
        self.static = dataset.static[:, rows].contiguous()
        self.fingerprint = f"{dataset.fingerprint} rows {rows.start}-{rows.stop}"
        self.nbytes = dataset.nbytes * self.static.shape[1] // dataset.static.shape[1] + SAMPLE_OVERHEAD
        """Bytes of one sample without its static fields."""

    def __len__(self) -> int:
        return len(self._tiers)

    def __getitem__(self, index: int) -> Sample:
        cached = self._tiers._memory.get(index)
        sample = self._band[index] if cached is None else select_rows(cached, self._rows)
        return sample._replace(static=self.static)


class Tiers(Dataset[Sample]):
    """The samples of `dataset`, read once and then cached within `budget`.

    `order` determines which samples are read most; without it, the first samples are cached. `name` distinguishes the
    disk folders of the data sets of a run. With `peers`, samples can also come from the caches of other ranks.
    """

    def __init__(
        self,
        dataset: Samples,
        budget: Budget,
        order: SampleOrder | None = None,
        *,
        rank: int = 0,
        peers: Peers | None = None,
        name: str = "samples",
    ) -> None:
        order = order or SampleOrder(len(dataset), 1, shuffle=False)
        self.static, self.budget = dataset.static, budget
        self.nbytes = dataset.nbytes + SAMPLE_OVERHEAD
        """Bytes of one sample in memory, as counted against the budget."""
        self._dataset, self._rank, self._peers = dataset, rank, peers
        capacities = [budget.memory_bytes // self.nbytes, budget.disk_bytes // self.nbytes]
        self._placements = compute_placements(order, capacities)
        self._own = self._placements[rank]
        self._memory: dict[int, Sample] = {}
        self._disk = self._open_disk(budget, name)
        self._rates = ReadRates()
        self._lock = threading.Lock()
        self._pending: dict[int, Future[Sample]] = {}
        self._filled = 0
        if peers is not None:
            peers.serve(self.cached_bytes)

    def _open_disk(self, budget: Budget, name: str) -> DiskTier | None:
        if budget.disk_folder is None:
            return None
        folder, wanted = Path(budget.disk_folder) / f"{name}-{self._rank:04d}", (self._own.tier == ON_DISK).nonzero()[0]
        return DiskTier(folder, self._dataset.fingerprint, wanted, self._dataset.nbytes)

    def __len__(self) -> int:
        return len(self._dataset)

    def __getitem__(self, index: int) -> Sample:
        sample = self.fetch(index)
        self.write_to_disk(index, sample)
        return sample

    def times(self) -> tuple[Tensor, Tensor]:
        """Return start and lead time of all samples, both (N,)."""
        return forecast_times(cast(Dataset[Sample], self._dataset))

    def band(self, rows: slice) -> Tiers:
        """Return the same samples cut to a band of `rows`; they are not cached, and the staging buffer is small."""
        samples = _Rows(self, rows)
        staging = max(min(self.budget.staging_bytes, BAND_STAGING_BYTES), samples.nbytes + SAMPLE_OVERHEAD)
        return Tiers(
            samples, replace(self.budget, staging_bytes=staging, memory_bytes=0, disk_bytes=0, disk_folder=None)
        )

    def fetch(self, index: int) -> Sample:
        """Return a sample from the fastest storage; if several threads need the same sample, one of them reads it."""
        with self._lock:
            if (cached := self._memory.get(index)) is not None:
                return cached
            future = self._pending.get(index)
            reads_it = future is None
            if future is None:
                future = self._pending[index] = Future()
        if not reads_it:
            return future.result()
        try:
            sample = self._read(index)
            with self._lock:
                if self._own.tier[index] == IN_MEMORY and _size(sample) <= self.nbytes:
                    self._memory[index] = sample
            future.set_result(sample)
            return sample
        except BaseException as error:
            future.set_exception(error)
            raise
        finally:
            with self._lock:
                del self._pending[index]

    def write_to_disk(self, index: int, sample: Sample) -> None:
        """Write a fetched sample to the disk tier if it belongs there; not part of `fetch`, for which threads wait."""
        if self._disk is not None and self._own.tier[index] == ON_DISK and index not in self._disk:
            self._disk.put(index, sample)

    def fill_one(self) -> bool:
        """Fetch the next sample that belongs in a tier, in the order of first reads; False if none is left."""
        while True:
            with self._lock:
                if self._filled >= len(self._own.fetch_order):
                    return False
                index = int(self._own.fetch_order[self._filled])
                self._filled += 1
                absent = index not in self._memory and index not in self._pending
            if absent and (self._disk is None or index not in self._disk):
                self[index]
                return True

    @property
    def cached_count(self) -> int:
        """Number of samples that are cached at present."""
        return len(self._memory) + (len(self._disk) if self._disk is not None else 0)

    @property
    def bytes_to_come(self) -> int:
        """Bytes by which the samples in memory and in the staging buffer may still grow."""
        planned = int((self._own.tier == IN_MEMORY).sum())
        # A sample that is cached in memory takes no further memory in the staging buffer.
        staged = min(self.budget.staging_bytes // self.nbytes, len(self) - planned)
        return (max(planned - len(self._memory), 0) + staged) * self.nbytes

    def cached_bytes(self, index: int) -> Sequence[memoryview] | None:
        """Return the encoded bytes of a sample for another rank, or None if it is not cached here."""
        if (sample := self._memory.get(index)) is not None:
            return encode_sample(sample)
        data = self._disk.read_bytes(index) if self._disk is not None else None
        return [memoryview(data)] if data is not None else None

    def _read(self, index: int) -> Sample:
        """Read a sample that is not in memory; if a storage fails, try the next fastest."""
        readers: dict[Storage, Callable[[], Sample | None]] = {"archive": lambda: self._dataset[index]}
        if (disk := self._disk) is not None and index in disk:
            readers["disk"] = lambda: disk.get(index, self.static)
        if (peer := self._peer_with(index)) is not None:
            readers["peer"] = lambda: self._from_peer(peer, index)
        while True:
            storage = self._rates.choose(readers)
            sample = self._rates.measure(storage, self.nbytes, readers.pop(storage))
            if sample is not None:
                return sample

    def _peer_with(self, index: int) -> int | None:
        """Return a rank that probably caches the sample already, preferably in its fastest tier."""
        if self._peers is None:
            return None
        done = self._filled >= len(self._own.fetch_order)
        ready = [
            other
            for other, placement in enumerate(self._placements)
            if other != self._rank
            and placement.position[index] >= 0
            and (done or placement.position[index] + PEER_MARGIN <= self.cached_count)
        ]
        # Among equally fast ranks, the choice rotates with the sample, so that requests are spread evenly.
        return min(
            ready,
            key=lambda other: (self._placements[other].tier[index], (other - index) % len(self._placements)),
            default=None,
        )

    def _from_peer(self, rank: int, index: int) -> Sample | None:
        data = self._peers.fetch(rank, index) if self._peers is not None else None
        return decode_sample(data, self.static) if data is not None else None

    def __enter__(self) -> Tiers:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    def close(self) -> None:
        """Release memory and the disk folder, and stop responding to peers."""
        if self._peers is not None:
            self._peers.close()
        if self._disk is not None:
            self._disk.close()
        with self._lock:
            self._memory.clear()
            self._filled = len(self._own.fetch_order)


def run_key(dataset: Samples, order: SampleOrder) -> str:
    """Return a key of data set and order; ranks exchange samples only if their keys are equal."""
    return hash_of(dataset.fingerprint, astuple(order))


def _size(sample: Sample) -> int:
    return sum(tensor.nbytes for tensor in sample) - sample.static.nbytes
