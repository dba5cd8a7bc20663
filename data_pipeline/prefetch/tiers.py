"""Tiers: a data set whose samples come from memory, a local disk, another rank or the archive, whichever is fastest.

The tiers are filled with what this rank will read most (`placement`), never beyond their budgets.
"""

from __future__ import annotations

import hashlib
import json
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from dataclasses import astuple, replace
from pathlib import Path
from typing import Protocol, cast

from torch import Tensor
from torch.utils.data import Dataset

from data_pipeline.bands import band, rows_of, times
from data_pipeline.prefetch.budget import Budget
from data_pipeline.prefetch.codec import OVERHEAD, decode, encode
from data_pipeline.prefetch.disk import DiskTier
from data_pipeline.prefetch.peers import Peers
from data_pipeline.prefetch.performance import Rates, Source
from data_pipeline.prefetch.placement import placements
from data_pipeline.prefetch.stream import Stream
from data_pipeline.sample import Sample

IN_MEMORY, ON_DISK = 0, 1
BAND_STAGING = 2**26
"""Bytes that are read ahead of a fit that goes through some rows of all samples."""
LEAD = 20
"""A peer is asked for a sample when this rank is so many samples further in its own list than the sample in theirs."""


class Samples(Protocol):
    """What can be cached: samples of one size by their number, safe to read from several threads."""

    fingerprint: str
    """Changes whenever a sample changes."""
    static: Tensor
    """(S, H, W) the static fields, the same in all samples."""

    @property
    def nbytes(self) -> int:
        """Bytes of one sample without its static fields."""

    def __len__(self) -> int: ...

    def __getitem__(self, index: int) -> Sample: ...


class _Rows(Dataset[Sample]):
    """Some rows of the samples of `tiers`: from its memory where it has them there, else read."""

    def __init__(self, tiers: Tiers, rows: slice) -> None:
        source = tiers._dataset
        self._tiers, self._rows, self._source = tiers, rows, band(cast(Dataset[Sample], source), rows)
        self.static = source.static[:, rows].contiguous()
        self.fingerprint = f"{source.fingerprint} rows {rows.start}-{rows.stop}"
        self.nbytes = source.nbytes * self.static.shape[1] // source.static.shape[1] + OVERHEAD
        """Bytes of one sample without its static fields."""

    def __len__(self) -> int:
        return len(self._tiers)

    def __getitem__(self, index: int) -> Sample:
        held = self._tiers._memory.get(index)
        sample = self._source[index] if held is None else rows_of(held, self._rows)
        return sample._replace(static=self.static)


class Tiers(Dataset[Sample]):
    """The samples of `dataset`, read once and then kept as `budget` allows.

    `stream` tells which are read most; without it the first ones are kept. `name` tells the disk folders of several
    data sets of a run apart. With `peers`, what other ranks keep is asked of them.
    """

    def __init__(
        self,
        dataset: Samples,
        budget: Budget,
        stream: Stream | None = None,
        *,
        rank: int = 0,
        peers: Peers | None = None,
        name: str = "samples",
    ) -> None:
        stream = stream or Stream(len(dataset), 1, shuffled=False)
        self.static, self.budget = dataset.static, budget
        self.sample_bytes = dataset.nbytes + OVERHEAD
        """What one sample takes of a budget."""
        self._dataset, self._rank, self._peers = dataset, rank, peers
        self._everyone = placements(stream, [budget.memory // self.sample_bytes, budget.disk // self.sample_bytes])
        self._mine = self._everyone[rank]
        self._memory: dict[int, Sample] = {}
        self._disk = self._open_disk(budget, name)
        self._rates = Rates()
        self._lock = threading.Lock()
        self._pending: dict[int, Future[Sample]] = {}
        self._filled = 0
        if peers is not None:
            peers.start(self.lend)

    def _open_disk(self, budget: Budget, name: str) -> DiskTier | None:
        if budget.folder is None:
            return None
        folder, wanted = Path(budget.folder) / f"{name}-{self._rank:04d}", (self._mine.tier == ON_DISK).nonzero()[0]
        return DiskTier(folder, self._dataset.fingerprint, wanted, self._dataset.nbytes)

    def __len__(self) -> int:
        return len(self._dataset)

    def __getitem__(self, index: int) -> Sample:
        sample = self.fetch(index)
        self.keep(index, sample)
        return sample

    def times(self) -> tuple[Tensor, Tensor]:
        """Return start and lead time (N,) of all samples."""
        return times(cast(Dataset[Sample], self._dataset))

    def band(self, rows: slice) -> Tiers:
        """Return some `rows` of the same samples; nothing new is kept, and little is read ahead."""
        samples = _Rows(self, rows)
        staging = max(min(self.budget.staging, BAND_STAGING), samples.nbytes + OVERHEAD)
        return Tiers(samples, replace(self.budget, staging=staging, memory=0, disk=0, folder=None))

    def fetch(self, index: int) -> Sample:
        """Return a sample from wherever it is fastest; two threads that want the same one read it once."""
        with self._lock:
            if (held := self._memory.get(index)) is not None:
                return held
            future = self._pending.get(index)
            mine = future is None
            if future is None:
                future = self._pending[index] = Future()
        if not mine:
            return future.result()
        try:
            sample = self._read(index)
            with self._lock:
                if self._mine.tier[index] == IN_MEMORY and _size(sample) <= self.sample_bytes:
                    self._memory[index] = sample
            future.set_result(sample)
            return sample
        except BaseException as error:
            future.set_exception(error)
            raise
        finally:
            with self._lock:
                del self._pending[index]

    def keep(self, index: int, sample: Sample) -> None:
        """Write a fetched sample to the disk tier if that is its place: apart from fetching, so that none waits."""
        if self._disk is not None and self._mine.tier[index] == ON_DISK and index not in self._disk:
            self._disk.put(index, sample)

    def fill(self) -> bool:
        """Fetch one more sample that shall be kept, in the order of first reads; False when there is none left."""
        while True:
            with self._lock:
                if self._filled >= len(self._mine.order):
                    return False
                index = int(self._mine.order[self._filled])
                self._filled += 1
                absent = index not in self._memory and index not in self._pending
            if absent and (self._disk is None or index not in self._disk):
                self[index]
                return True

    @property
    def held(self) -> int:
        """How many samples are kept by now."""
        return len(self._memory) + (len(self._disk) if self._disk is not None else 0)

    def lend(self, index: int) -> Sequence[memoryview] | None:
        """Return the bytes of a sample for another rank if it is kept here."""
        if (sample := self._memory.get(index)) is not None:
            return encode(sample)
        data = self._disk.read(index) if self._disk is not None else None
        return [memoryview(data)] if data is not None else None

    def _read(self, index: int) -> Sample:
        """Read a sample that is not in memory; a source that fails is followed by the next best."""
        ways: dict[Source, Callable[[], Sample | None]] = {"archive": lambda: self._dataset[index]}
        if (disk := self._disk) is not None and index in disk:
            ways["disk"] = lambda: disk.get(index, self.static)
        if (peer := self._peer_with(index)) is not None:
            ways["peer"] = lambda: self._from_peer(peer, index)
        while True:
            source = self._rates.choose(ways)
            sample = self._rates.timed(source, self.sample_bytes, ways.pop(source))
            if sample is not None:
                return sample

    def _peer_with(self, index: int) -> int | None:
        """Return a rank that keeps the sample, probably has it by now and has it in its fastest tier."""
        if self._peers is None:
            return None
        done = self._filled >= len(self._mine.order)
        ready = [
            other
            for other, placement in enumerate(self._everyone)
            if other != self._rank
            and placement.place[index] >= 0
            and (done or placement.place[index] + LEAD <= self.held)
        ]
        # Of equals another one for every sample, so that no rank is asked for all.
        return min(
            ready,
            key=lambda other: (self._everyone[other].tier[index], (other - index) % len(self._everyone)),
            default=None,
        )

    def _from_peer(self, rank: int, index: int) -> Sample | None:
        data = self._peers.ask(rank, index) if self._peers is not None else None
        return decode(data, self.static) if data is not None else None

    def __enter__(self) -> Tiers:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    def close(self) -> None:
        """Forget what is in memory, give the disk folder back, leave the peers."""
        if self._peers is not None:
            self._peers.close()
        if self._disk is not None:
            self._disk.close()
        with self._lock:
            self._memory.clear()
            self._filled = len(self._mine.order)


def run_key(dataset: Samples, stream: Stream) -> str:
    """Return what ranks that share samples must have in common."""
    return hashlib.sha256(json.dumps([dataset.fingerprint, *astuple(stream)]).encode()).hexdigest()


def _size(sample: Sample) -> int:
    return sum(tensor.nbytes for tensor in sample) - sample.static.nbytes
