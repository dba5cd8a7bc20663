"""Prefetcher: yields the batches of an epoch, read ahead through the tiers; its position can be saved and restored."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from typing import Any

from data_pipeline.common.errors import InputError
from data_pipeline.prefetch.order import SampleOrder
from data_pipeline.prefetch.staging import ClosedError, Staging
from data_pipeline.prefetch.tiers import Tiers
from data_pipeline.sample import Sample


class Prefetcher:
    """Yields one epoch of `order` per iteration; the threads do not affect the order of the batches.

    Only the latest iteration gets batches; an earlier iteration that was abandoned does not affect it. Reading ahead
    continues across the end of an epoch. `state_dict` and `load_state_dict` follow Lightning's protocol of stateful
    data loaders: an interrupted epoch continues with its remaining batches.

    Set `pin` before the first batch to get batches in pinned memory, from which a GPU copies them while it computes.
    """

    def __init__(self, tiers: Tiers, order: SampleOrder, rank: int = 0) -> None:
        budget = tiers.budget
        if order.count != len(tiers):
            raise ValueError(f"the order is for {order.count} samples, the data set has {len(tiers)}")
        if budget.staging_bytes < tiers.nbytes:
            raise InputError(
                f"data.cache.staging_bytes gives {budget.staging_bytes} bytes to a data set whose samples have "
                f"{tiers.nbytes} bytes each; set it to several times that"
            )
        self._tiers, self._order, self._rank = tiers, order, rank
        self.pin = False
        self.waited = 0.0
        """Seconds that callers have waited for batches."""
        self._slots, self._threads = budget.staging_bytes // tiers.nbytes, budget.threads
        self._epoch = self._step = 0
        self._staging: Staging | None = None
        self._next = (0, 0)
        self._iterations = 0

    def set_epoch(self, epoch: int) -> None:
        """Set the epoch of the next iteration."""
        if not self._order.shuffle:
            epoch = 0
        if epoch >= self._order.epochs:
            raise ValueError(f"epoch {epoch} is not below the {self._order.epochs} epochs of the order")
        if epoch != self._epoch:
            self._epoch, self._step = epoch, 0

    def __len__(self) -> int:
        return self._order.steps

    @property
    def bytes_to_come(self) -> int:
        """Bytes by which the caches and the staging buffer may still grow."""
        return self._tiers.bytes_to_come

    def __iter__(self) -> Iterator[Sample]:
        # Reading starts when the first batch is requested, because Lightning sets the epoch after making the iterator.
        if self._step >= len(self):
            self._step = 0
        step, epoch = self._step, self._epoch
        staging = self._staging_at(epoch, step)
        self._iterations = mine = self._iterations + 1
        try:
            while step < len(self):
                if self._iterations != mine:
                    raise ClosedError("there are no more batches: a later iteration reads on from here")
                since = time.monotonic()
                batch = staging.batch()
                self.waited += time.monotonic() - since
                step += 1
                self._step = step
                self._next = (epoch, step) if step < len(self) else (epoch + 1, 0)
                yield batch
                del batch
        finally:
            if step < len(self) and self._iterations == mine:
                staging.close()

    def _staging_at(self, epoch: int, step: int) -> Staging:
        """Return the running staging if its next batch is this step of the epoch, else start a new one."""
        if self._staging is not None and self._next == (epoch, step) and not self._staging.closed:
            return self._staging
        self.close()
        self._next = (epoch, step)
        indices = self._order.batch_indices(self._rank, epoch, step)
        self._staging = Staging(self._tiers, indices, self._slots, self._threads, self.pin)
        return self._staging

    def state_dict(self) -> dict[str, Any]:
        """Return the position of the training; batches read ahead do not count."""
        return {"epoch": self._epoch, "step": self._step, **self._identity()}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue from a saved position, on any number of ranks; it must have been saved with the same order."""
        for name, value in self._identity().items():
            if state.get(name) != value:
                raise InputError(
                    f"the checkpoint was made with {name} {state.get(name)}, this run has {value}; "
                    "choose another run_dir, or use the options of the checkpoint"
                )
        self._epoch, self._step = state["epoch"], state["step"]

    def _identity(self) -> dict[str, int]:
        order = self._order
        return {"seed": order.seed, "count": order.count, "batch_size": order.batch_size}

    def close(self) -> None:
        """Stop reading ahead."""
        if self._staging is not None:
            self._staging.close()
            self._staging = None

    def __enter__(self) -> Prefetcher:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()
