"""Prefetcher: the batches of an epoch, read ahead through the tiers; knows where it is and can go on from there."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from data_pipeline.common.errors import InputError
from data_pipeline.prefetch.staging import Staging
from data_pipeline.prefetch.stream import Stream
from data_pipeline.prefetch.tiers import Tiers
from data_pipeline.sample import Sample


class Prefetcher:
    """Yields one epoch of a stream per iteration, in its order, whatever the threads do.

    Reading goes on across the end of an epoch. `state_dict` and `load_state_dict` are the protocol of stateful data
    loaders that Lightning knows: an epoch that was left half-way goes on with the batches that remain.

    With `pin`, to be set before the first batch, batches lie in pinned memory, from which a GPU copies them while it
    computes.
    """

    def __init__(self, tiers: Tiers, stream: Stream, rank: int = 0) -> None:
        budget = tiers.budget
        if stream.count != len(tiers):
            raise ValueError(f"a stream of {stream.count} samples for a data set of {len(tiers)}")
        if budget.staging < tiers.sample_bytes:
            raise InputError(
                f"data.cache.staging leaves {budget.staging} bytes to a data set whose samples have "
                f"{tiers.sample_bytes} each; give it several times that"
            )
        self._tiers, self._stream, self._rank = tiers, stream, rank
        self.pin = False
        self._slots, self._threads = budget.staging // tiers.sample_bytes, budget.threads
        self._epoch = self._step = 0
        self._staging: Staging | None = None
        self._next = (0, 0)

    def set_epoch(self, epoch: int) -> None:
        """Say which epoch the next iteration is of."""
        if not self._stream.shuffled:
            epoch = 0
        if epoch >= self._stream.epochs:
            raise ValueError(f"epoch {epoch} of a stream of {self._stream.epochs}")
        if epoch != self._epoch:
            self._epoch, self._step = epoch, 0

    def __len__(self) -> int:
        return self._stream.steps

    def __iter__(self) -> Iterator[Sample]:
        # Nothing happens before the first batch is asked for: Lightning makes an iterator, then says the epoch.
        if self._step >= len(self):
            self._step = 0
        step, epoch = self._step, self._epoch
        staging = self._staging_at(epoch, step)
        try:
            while step < len(self):
                batch = staging.batch()
                step += 1
                self._step = step
                self._next = (epoch, step) if step < len(self) else (epoch + 1, 0)
                yield batch
                del batch
        finally:
            if step < len(self):
                staging.close()

    def _staging_at(self, epoch: int, step: int) -> Staging:
        """Return the threads that are at that step already, or new ones."""
        if self._staging is not None and self._next == (epoch, step) and not self._staging.closed:
            return self._staging
        self.close()
        self._next = (epoch, step)
        blocks = self._stream.blocks(self._rank, epoch, step)
        self._staging = Staging(self._tiers, blocks, self._slots, self._threads, self.pin)
        return self._staging

    def state_dict(self) -> dict[str, Any]:
        """Return where the training is: batches read ahead do not count."""
        return {"epoch": self._epoch, "step": self._step, **self._identity()}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on from there, on any number of ranks; a state of another stream is refused."""
        for name, value in self._identity().items():
            if state.get(name) != value:
                raise InputError(
                    f"the checkpoint was made with {name} {state.get(name)}, this run has {value}; "
                    "choose another run_dir or go back to the options it was made with"
                )
        self._epoch, self._step = state["epoch"], state["step"]

    def _identity(self) -> dict[str, int]:
        stream = self._stream
        return {"seed": stream.seed, "count": stream.count, "batch_size": stream.batch_size}

    def close(self) -> None:
        """Stop reading ahead."""
        if self._staging is not None:
            self._staging.close()
            self._staging = None

    def __enter__(self) -> Prefetcher:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()
