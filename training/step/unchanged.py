"""A block at whose end nothing has changed that a trial of a step may change."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from torch import nn


@contextmanager
def unchanged_buffers(module: nn.Module) -> Iterator[None]:
    """Restore the buffers of `module`, such as running means of batch normalisation, at the end of the block."""
    before = {name: buffer.clone() for name, buffer in module.named_buffers()}
    try:
        yield
    finally:
        for name, buffer in module.named_buffers():
            buffer.copy_(before[name])
