"""Collator: samples become a batch, in memory that is reused for later batches."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from data_pipeline.sample import Sample
from data_pipeline.sample_reader import Buffers

KEPT_BATCHES = 3
"""Unused batches whose memory is kept: one is in use, one is finished, and one is being made."""


class Collator:
    """Stacks samples to a batch, as torch's `default_collate` does; with `pin` in pinned memory.

    Fresh memory, which the operating system clears page by page, would take longer than copying the samples. PyTorch
    itself reuses pinned memory. The batch never shares memory with a sample, which may be cached.
    """

    def __init__(self, pin: bool = False) -> None:
        self._pin = pin
        self._buffers = {name: Buffers(KEPT_BATCHES) for name in Sample._fields}

    def __call__(self, samples: Sequence[Sample]) -> Sample:
        """Return a batch (B, ...) of samples of one shape."""
        columns = zip(Sample._fields, zip(*samples, strict=True), strict=True)
        return Sample(*(self._stack(name, tensors) for name, tensors in columns))

    def _stack(self, name: str, tensors: tuple[Tensor, ...]) -> Tensor:
        shape, dtype = (len(tensors), *tensors[0].shape), tensors[0].dtype
        if self._pin:
            return torch.stack(tensors, out=torch.empty(shape, dtype=dtype, pin_memory=True))
        if dtype != torch.float32:
            return torch.stack(tensors)
        return torch.stack(tensors, out=torch.from_numpy(self._buffers[name].empty(shape)))
