"""Staging: threads that fetch samples in the order of the stream, ahead of the one who uses them."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Iterator
from queue import SimpleQueue
from typing import NamedTuple

import numpy as np
import torch
from torch.utils.data import default_collate

from data_pipeline.prefetch.tiers import Tiers
from data_pipeline.sample import Sample

PATIENCE = 5.0
"""Seconds that a thread may take to end."""


class _Failure(NamedTuple):
    """Stands in the place of a sample or batch that could not be had."""

    error: BaseException


class ClosedError(Exception):
    """Staging was closed while somebody waited for it."""


class Staging:
    """At most `slots` samples that come next, and one batch made of those before them.

    Threads that find the buffer full use the time to fill the tiers. The buffer gives up a sample when its batch is
    made. What goes wrong while reading is raised by `batch` when its turn comes, as it was.
    """

    def __init__(self, tiers: Tiers, blocks: Iterator[np.ndarray], slots: int, threads: int, pin: bool = False) -> None:
        self._tiers, self._blocks, self._slots, self._pin = tiers, blocks, slots, pin
        self._changed = threading.Condition()
        self._upcoming: deque[int] = deque()
        self._sizes: deque[int] = deque()
        self._staged: dict[int, Sample | _Failure] = {}
        self._claimed = self._taken = 0
        # Apart from what the threads share, so that the one who trains does not queue with them.
        self._ready: SimpleQueue[Sample | _Failure] = SimpleQueue()
        self._wanted = threading.Semaphore(1)
        self._ended = self._closed = False
        self._filling = True
        self._threads = [
            threading.Thread(target=self._run, args=(work,), name="staging", daemon=True)
            for work in (*[self._fetch] * threads, self._collate)
        ]
        for thread in self._threads:
            thread.start()

    @property
    def closed(self) -> bool:
        """Whether the threads have been told to stop."""
        return self._closed

    def batch(self) -> Sample:
        """Return the next batch, as soon as it is there."""
        batch = self._ready.get()
        if isinstance(batch, _Failure):
            self.close()
            raise batch.error
        self._wanted.release()
        return batch

    def close(self, error: BaseException | None = None) -> None:
        """Stop the threads; each ends after the read it is at. Who waits for a batch is told why there is none.

        Waits for them, but not for one that hangs: a thread in the midst of a library when Python ends takes it down.
        """
        with self._changed:
            self._closed = True
            self._staged.clear()
            self._changed.notify_all()
        self._wanted.release()
        self._ready.put(_Failure(error or ClosedError("no batches come from staging that was closed")))
        if threading.current_thread() not in self._threads:
            for thread in self._threads:
                thread.join(PATIENCE)

    def _claim(self) -> tuple[int, int] | None:
        """Return place and number of the next sample to fetch, None if there is no room or nothing left."""
        if self._claimed - self._taken >= self._slots:
            return None
        # An empty block, of a step that this rank but watches, is not the end.
        while not self._upcoming and not self._ended:
            block = next(self._blocks, None)
            if block is None:
                self._ended = True
            else:
                self._upcoming.extend(block.tolist())
                self._sizes.append(len(block))
                self._changed.notify_all()
        if not self._upcoming:
            return None
        place, self._claimed = self._claimed, self._claimed + 1
        return place, self._upcoming.popleft()

    def _run(self, work: Callable[[], None]) -> None:
        """Do the work of a thread; what should never happen is told to the one who waits, so that he does not hang."""
        try:
            work()
        except BaseException as error:
            self.close(error)

    def _fetch(self) -> None:
        while True:
            with self._changed:
                while (claim := self._claim()) is None and not self._filling and not self._closed:
                    if self._ended:
                        return
                    self._changed.wait()
                if self._closed:
                    return
            if claim is not None:
                self._stage(*claim)
            else:
                self._fill()

    def _stage(self, place: int, index: int) -> None:
        item: Sample | _Failure
        try:
            item = self._tiers.fetch(index)
        except BaseException as error:
            item = _Failure(error)
        with self._changed:
            if not self._closed:
                self._staged[place] = item
            self._changed.notify_all()
        if isinstance(item, Sample):
            self._tiers.keep(index, item)

    def _fill(self) -> None:
        try:
            more = self._tiers.fill()
        except Exception:
            # Its turn will come, and then the one who needs it is told.
            more = False
        if not more:
            with self._changed:
                self._filling = False
                self._changed.notify_all()

    def _collate(self) -> None:
        while self._wanted.acquire() and (batch := self._next_batch()) is not None:
            self._ready.put(batch)
            del batch

    def _next_batch(self) -> Sample | _Failure | None:
        with self._changed:
            self._changed.wait_for(lambda: self._sizes or self._ended or self._closed)
            if self._closed or not self._sizes:
                return None
            size = self._sizes.popleft()
        if not size:
            return self._bystander()
        samples = []
        for _ in range(size):
            with self._changed:
                self._changed.wait_for(lambda: self._taken in self._staged or self._closed)
                if self._closed:
                    return None
                item = self._staged.pop(self._taken)
                self._taken += 1
                self._changed.notify_all()
            if isinstance(item, _Failure):
                return item
            samples.append(item)
        try:
            batch: Sample = default_collate(samples)
            return Sample(*(tensor.pin_memory() for tensor in batch)) if self._pin else batch
        except Exception as error:
            return _Failure(error)

    def _bystander(self) -> Sample | _Failure:
        """Return a batch without truth, for a rank that has no sample of its own in a step that all take.

        Not one without samples, which few layers know how to treat.
        """
        try:
            batch = default_collate([self._tiers.fetch(0)])
            batch = batch._replace(target=torch.full_like(batch.target, torch.nan))
            return Sample(*(tensor.pin_memory() for tensor in batch)) if self._pin else batch
        except BaseException as error:
            return _Failure(error)
