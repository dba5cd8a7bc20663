"""Samples filled with their own number, which count how often each is read."""

import threading
import time
from collections import Counter

import pytest
import torch
from torch.utils.data import Dataset

from data_pipeline.sample import Sample


class Numbered(Dataset):
    """Sample k is filled with k. Reading takes `seconds`; reading a `broken` sample raises an error."""

    def __init__(self, count, seconds=0.0, cells=64, broken=(), fingerprint="numbered"):
        self.count, self.seconds, self.cells, self.broken, self.fingerprint = count, seconds, cells, broken, fingerprint
        self.static = torch.arange(2.0 * cells).reshape(2, 1, cells)
        self.reads = Counter()
        self._lock = threading.Lock()

    @property
    def nbytes(self):
        return 2 * 4 * self.cells + self.cells + 4 * self.cells + 16

    def __len__(self):
        return self.count

    def __getitem__(self, index):
        assert isinstance(index, int)
        with self._lock:
            self.reads[index] += 1
        if self.seconds:
            time.sleep(self.seconds)
        if index in self.broken:
            raise OSError(f"sample {index} cannot be read")
        return Sample(
            ensemble=torch.full((2, 1, 1, self.cells), float(index)),
            mask=torch.arange(self.cells).reshape(1, 1, -1) % (index + 2) > 0,
            static=self.static,
            target=torch.full((1, 1, self.cells), -float(index)),
            init_time=torch.tensor(10_000_000_000 + index),
            lead_time=torch.tensor(24),
        )


@pytest.fixture(scope="session")
def numbered():
    return Numbered


def equal(ours, theirs):
    """Whether two samples have equal values, shapes and types."""
    return all(
        a.dtype == b.dtype and a.shape == b.shape and torch.equal(a, b) for a, b in zip(ours, theirs, strict=True)
    )


@pytest.fixture(scope="session")
def same():
    return equal
