"""Staging: threads fetch samples ahead of the training, in the order of the run, and make batches."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from queue import SimpleQueue
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from data_pipeline.prefetch.tiers import Tiers
from data_pipeline.sample import Sample
from data_pipeline.samples.sample_reader import Buffers

SLOTS_PER_THREAD = 2
"""Slots of the buffer for each thread at the start."""
SAMPLES_PER_SLOT = 4
"""Number of samples that leave the buffer before it gets one more slot."""
JOIN_TIMEOUT = 5.0
"""Most seconds that `close` waits for each thread."""


class _Failure(NamedTuple):
    """The error that stands for a sample or batch that could not be read."""

    error: BaseException


class ClosedError(Exception):
    """Staging was closed while a caller waited for a batch."""


class Staging:
    """A buffer of the next samples, at most `slots`, and one finished batch.

    The buffer starts with a few slots and grows as samples leave it. Each new slot needs new memory: the operating
    system clears 23 MB in 17 to 50 ms of CPU time, while reading into the memory of an earlier sample takes 5 to 10 ms.
    A buffer that was filled at once would therefore delay the first steps.

    While the buffer is full, threads fill the tiers. A sample leaves the buffer when its batch is made. If a sample
    cannot be read, `batch` raises the error, with its traceback, when the batch of this sample is due.
    """

    def __init__(
        self, tiers: Tiers, batch_indices: Iterator[np.ndarray], slots: int, threads: int, pin: bool = False
    ) -> None:
        self._tiers, self._batch_indices, self._slots = tiers, batch_indices, slots
        self._fetching = threads
        self._collator = Collator(pin)
        self._changed = threading.Condition()
        self._upcoming: deque[int] = deque()
        self._sizes: deque[int] = deque()
        self._staged: dict[int, Sample | _Failure] = {}
        self._claimed = self._taken = 0
        # A separate queue, so that the training does not compete with the reader threads for the condition.
        self._ready: SimpleQueue[Sample | _Failure] = SimpleQueue()
        self._requested = threading.Semaphore(1)
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
        """Whether `close` was called."""
        return self._closed

    def batch(self) -> Sample:
        """Return the next batch; wait until it is ready."""
        batch = self._ready.get()
        if isinstance(batch, _Failure):
            self.close()
            raise batch.error
        self._requested.release()
        return batch

    def close(self, error: BaseException | None = None) -> None:
        """Stop the threads after their current reads. A caller waiting in `batch` gets `error`.

        This waits for the threads, because Python crashes at exit if a thread is inside a library; but it waits only
        for a limited time, because a thread may hang.
        """
        with self._changed:
            self._closed = True
            self._staged.clear()
            self._changed.notify_all()
        self._requested.release()
        self._ready.put(_Failure(error or ClosedError("there are no more batches: staging was closed")))
        if threading.current_thread() not in self._threads:
            for thread in self._threads:
                thread.join(JOIN_TIMEOUT)

    def _claim(self) -> tuple[int, int] | None:
        """Return position and number of the next sample to fetch; None if the buffer is full or all are claimed."""
        slots = min(self._slots, SLOTS_PER_THREAD * self._fetching + self._taken // SAMPLES_PER_SLOT)
        if self._claimed - self._taken >= slots:
            return None
        # An empty batch does not mean the end: in this step, this rank has no samples.
        while not self._upcoming and not self._ended:
            indices = next(self._batch_indices, None)
            if indices is None:
                self._ended = True
            else:
                self._upcoming.extend(indices.tolist())
                self._sizes.append(len(indices))
            self._changed.notify_all()
        if not self._upcoming:
            return None
        position, self._claimed = self._claimed, self._claimed + 1
        return position, self._upcoming.popleft()

    def _run(self, work: Callable[[], None]) -> None:
        """Run a thread's work. An unexpected exception is passed to `batch`, which would otherwise wait forever."""
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
                self._fill_tiers()

    def _stage(self, position: int, index: int) -> None:
        item: Sample | _Failure
        try:
            item = self._tiers.fetch(index)
        except BaseException as error:
            item = _Failure(error)
        with self._changed:
            if not self._closed:
                self._staged[position] = item
            self._changed.notify_all()
        if isinstance(item, Sample):
            self._tiers.write_to_disk(index, item)

    def _fill_tiers(self) -> None:
        try:
            more = self._tiers.fill_one()
        except Exception:
            # The error is raised again when the sample is staged, and then reaches `batch`.
            more = False
        if not more:
            with self._changed:
                self._filling = False
                self._changed.notify_all()

    def _collate(self) -> None:
        while self._requested.acquire() and (batch := self._next_batch()) is not None:
            self._ready.put(batch)
            del batch

    def _next_batch(self) -> Sample | _Failure | None:
        with self._changed:
            self._changed.wait_for(lambda: self._sizes or self._ended or self._closed)
            if self._closed or not self._sizes:
                return None
            size = self._sizes.popleft()
        if not size:
            return self._batch_without_truth()
        try:
            return self._collator(self._take(size), size)
        except ClosedError:
            return None
        except BaseException as error:
            return _Failure(error)

    def _take(self, count: int) -> Iterator[Sample]:
        """Yield the next `count` samples without keeping references, so that reader threads can reuse their memory."""
        for _ in range(count):
            with self._changed:
                self._changed.wait_for(lambda: self._taken in self._staged or self._closed)
                if self._closed:
                    raise ClosedError
                item = self._staged.pop(self._taken)
                self._taken += 1
                self._changed.notify_all()
            if isinstance(item, _Failure):
                raise item.error
            yield item
            del item

    def _batch_without_truth(self) -> Sample | _Failure:
        """Return one sample without its truth, for a rank that has no sample in a step that all ranks take.

        An empty batch is not possible, because few layers accept one.
        """
        try:
            sample = self._tiers.fetch(0)
            return self._collator([sample._replace(target=torch.full_like(sample.target, torch.nan))], 1)
        except BaseException as error:
            return _Failure(error)


KEPT_BATCHES = 3
"""Batches whose memory is reused: one is in use, one is finished, and one is being made."""


class Collator:
    """Stacks samples into a batch, as torch's `default_collate` does; with `pin` in pinned memory.

    Memory is reused, because the operating system clears new memory page by page, which takes longer than copying the
    samples. PyTorch itself reuses pinned memory. The batch never shares memory with a sample, which may be cached.
    """

    def __init__(self, pin: bool = False) -> None:
        self._pin = pin
        self._buffers = {name: Buffers(KEPT_BATCHES) for name in Sample._fields}

    def __call__(self, samples: Iterable[Sample], count: int) -> Sample:
        """Return a batch (B, ...) of the next `count` samples, which must have one shape.

        Each sample is released before the next one is taken, so that its memory can be reused.
        """
        rest = iter(samples)
        sample = next(rest)
        batch = Sample(*(self._empty(name, count, one) for name, one in zip(Sample._fields, sample, strict=True)))
        for k in range(count):
            if k:
                sample = next(rest)
            for many, one in zip(batch, sample, strict=True):
                if one.shape != many.shape[1:]:
                    raise ValueError(f"a sample has a field {tuple(one.shape)}, the batch has {tuple(many.shape)}")
                # NumPy copies in this thread. PyTorch starts threads that wait for each other while the readers use the
                # processors: on two busy cores, copying 23 MB took 8 ms of CPU time with PyTorch, 2 ms with NumPy.
                np.copyto(many[k].numpy(), one.numpy())
            del sample
        return batch

    def _empty(self, name: str, count: int, one: Tensor) -> Tensor:
        """Return uninitialised memory for the tensor `name` of `count` samples; `one` is this tensor of one sample."""
        shape = (count, *one.shape)
        if self._pin or one.dtype != torch.float32:
            return torch.empty(shape, dtype=one.dtype, pin_memory=self._pin)
        return torch.from_numpy(self._buffers[name].empty(shape))
