"""Stream: the whole order in which a run reads its samples, known from the seed before the first one is read."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import torch

from data_pipeline.common.checks import check_integer
from data_pipeline.common.errors import InputError


@dataclass(frozen=True)
class Stream:
    """One permutation of `count` samples per epoch, named by seed and epoch, cut into batches, dealt to `ranks`.

    Batch b of an epoch is positions [bB, (b + 1)B) of its permutation; rank i of N takes the i-th block of
    ceil(size / N) of them. Of a last batch that is too small for all, some get nothing, but take the step with the
    others. An ordered stream (`shuffled=False`) is the same in every epoch.
    """

    count: int
    batch_size: int
    epochs: int = 1
    seed: int = 0
    ranks: int = 1
    shuffled: bool = True

    def __post_init__(self) -> None:
        for name in ("count", "batch_size", "epochs", "ranks"):
            check_integer(name, getattr(self, name), 1)
        check_integer("seed", self.seed, 0)
        size = min(self.batch_size, self.count)
        if (self.ranks - 1) * -(-size // self.ranks) >= size:
            raise InputError(
                f"{self.count} samples in batches of {size} leave some of {self.ranks} processes without work; "
                "make trainer.batch_size a multiple of the number of processes, or use fewer"
            )

    @property
    def steps(self) -> int:
        """Batches of an epoch."""
        return -(-self.count // self.batch_size)

    def order(self, epoch: int) -> np.ndarray:
        """Return the permutation of an epoch."""
        if not self.shuffled:
            return np.arange(self.count)
        generator = torch.Generator().manual_seed(self.seed * 1_000_003 + epoch)
        return torch.randperm(self.count, generator=generator).numpy()

    def dealt(self) -> np.ndarray:
        """Return which rank gets each position of an epoch."""
        positions = np.arange(self.count)
        start = positions - positions % self.batch_size
        size = np.minimum(self.batch_size, self.count - start)
        return (positions - start) // -(-size // self.ranks)

    def blocks(self, rank: int = 0, epoch: int = 0, step: int = 0) -> Iterator[np.ndarray]:
        """Yield the samples of every batch of `rank`, from that step of that epoch to the end of the last epoch."""
        for later in range(epoch, self.epochs):
            order = self.order(later)
            for index in range(step if later == epoch else 0, self.steps):
                batch = order[index * self.batch_size : (index + 1) * self.batch_size]
                share = -(-len(batch) // self.ranks)
                yield batch[rank * share : (rank + 1) * share]
