"""Dropout whose masks are hashed from names: seed and step, forecast, layer, channel, row and column.

    with drawn_for(batch):
        forecast = model(batch)

No generator is asked, so a tile computes its own part of a mask, every device computes the same one, a compiler sees
nothing but integer arithmetic, and a GPU never waits for the host (docs/decisions/029-masks-are-hashed.md).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, replace

import torch
from torch import Tensor, nn

from data_pipeline.common.checks import check_between
from data_pipeline.grid import Grid
from data_pipeline.sample import Sample
from models.parallel.domain import Domain

GOLDEN = 0x9E3779B97F4A7C15 - (1 << 64)
"""The odd step of SplitMix64, from one layer to the next, as a signed number."""
MIX = 0xBF58476D1CE4E5B9 - (1 << 64), 0x94D049BB133111EB - (1 << 64)
"""Factors of SplitMix64."""
ROUNDS = (0x21F0AAAD, 15), (0x735A2D97, 16)
"""Odd factors and shifts for words of 32 bits (the best found by Wellons 2018, https://nullprogram.com/blog/2018/07/31)."""
LEVELS = 1 << 16
"""A share is a whole number of these parts: each number of a mask has 16 bits."""


@dataclass
class _Step:
    """Keys (B,) of the forecasts of a step; each dropout layer whose turn it is adds `GOLDEN`, as SplitMix64 does."""

    keys: Tensor


_step: _Step | None = None


def drawn_for(sample: Sample) -> AbstractContextManager[None]:
    """Within this block, masks are those of a step with the forecasts of this batch, by start and lead time.

    The step is named by a number from PyTorch's CPU generator: ranks that share its seed share the masks.
    """
    # A tensor on the CPU of a single number: arithmetic with tensors on a GPU takes it without a copy or a wait.
    step = torch.randint(1 << 62, ())
    return _within(_Step(mixed(mixed((sample.init_time * 1_000 + sample.lead_time) * GOLDEN) + step)))


def drawn_again() -> AbstractContextManager[None]:
    """Within this block, masks are those that layers would draw now, at the time of the call."""
    return _within(None if _step is None else replace(_step))


@contextmanager
def _within(step: _Step | None) -> Iterator[None]:
    global _step
    before, _step = _step, step
    try:
        yield
    finally:
        _step = before


class Dropout(nn.Module):
    """Dropout of single values or, with `channels`, of whole channels (Srivastava et al. 2014).

    A mask is a function of the step, the layer's turn in it, the forecast and the place on the globe. So ranks that
    share the seed have their tiles of the same mask, whichever forecasts and cells they have. Outside of `drawn_for`
    every row of the batch is a forecast, and its key comes from PyTorch's generator. The share is rounded to a
    multiple of 1/65,536.
    """

    def __init__(self, grid: Grid | Domain, share: float, channels: bool = False) -> None:
        super().__init__()
        check_between("model.dropout", share, 0, 1)
        self.out, self.share, self.channels = Domain.of(grid), share, channels
        self._dropped = min(round(share * LEVELS), LEVELS - 1)

    def forward(self, x: Tensor) -> Tensor:
        """(B, C, H, W) to the same shape, or (B M, C, H, W): all members of a forecast have its mask."""
        if not self.training or not self._dropped:
            return x
        keys, C = _keys(x), x.shape[1]
        if self.channels:
            channel = torch.arange(C, device=x.device)
            values = (mixed(keys[:, None] + mixed(channel)) >> 32)[..., None, None]
        else:
            values = self._values(keys, C)
        kept, members = (values >= (self._dropped - LEVELS // 2) << 16)[:, None], x.unflatten(0, (len(keys), -1))
        stretch = LEVELS / (LEVELS - self._dropped)
        if self.channels:
            return (members * (kept.to(x) * stretch)).flatten(0, 1)
        return torch.where(kept, members * stretch, 0).flatten(0, 1)

    def _values(self, keys: Tensor, C: int) -> Tensor:
        """Return for each cell of the own tile a number of 32 bits, (B, C, H, W); its first 16 bits are random."""
        (rows, columns), H = self.out.tile, self.out.shape[0]
        return _numbers(keys, C, H, [rows.start, rows.stop, columns.start, columns.stop])


# An operator, which compilers pass by: code that PyTorch 2.13 compiles of it for CPUs crashes.
@torch.library.custom_op("deepweather::mask_numbers", mutates_args=())
def _numbers(keys: Tensor, C: int, H: int, tile: Sequence[int]) -> Tensor:
    """Return the numbers (B, C, h, w) of a tile, given as its first and last row and column, of a globe of H rows.

    Each row of each channel has 64 bits, half of which are added to those of the column and half of which multiply.
    A word of 32 bits makes the numbers of two neighbouring columns: half of the work.
    """
    top, bottom, left, right = tile
    first, last = left // 2, -(-right // 2)
    row, column = torch.arange(top, bottom, device=keys.device), torch.arange(first, last, device=keys.device)
    place = torch.arange(C, device=keys.device)[:, None] * H + row
    own = mixed(keys[:, None, None] + mixed(place))[..., None]
    words = own.to(torch.int32) + mixed(column).to(torch.int32)
    factor = (own >> 32).to(torch.int32) | 1
    for multiplier, shift in ROUNDS:
        # Added, not xored: a shift of signed numbers repeats the sign, which would cancel.
        words = words.mul_(multiplier)
        words = words.add_(words >> shift)
        words = words.mul_(factor)
        words = words.add_(words >> 16)
    numbers = torch.stack([words << 16, words], dim=-1).flatten(-2)
    return numbers[..., left - 2 * first : right - 2 * first].contiguous()


@_numbers.register_fake
def _(keys: Tensor, C: int, H: int, tile: Sequence[int]) -> Tensor:
    top, bottom, left, right = tile
    return keys.new_empty((len(keys), C, bottom - top, right - left), dtype=torch.int32)


def _keys(x: Tensor) -> Tensor:
    """Return keys for the masks of the next layer: (B,) of the forecasts of the step, or of each row of `x`."""
    if _step is None:
        return torch.randint(1 << 62, (len(x),), device=x.device)
    _step.keys = _step.keys + GOLDEN
    return _step.keys


def mixed(x: Tensor) -> Tensor:
    """Return 64-bit numbers whose every bit depends on all bits of `x` (SplitMix64, Steele et al. 2014).

    Steele, Lea & Flood, doi:10.1145/2714064.2660195: the finaliser that Vigna's `splitmix64` has. Products and sums
    of int64 wrap around on every device.
    """
    x = (x ^ ((x >> 30) & (1 << 34) - 1)) * MIX[0]
    x = (x ^ ((x >> 27) & (1 << 37) - 1)) * MIX[1]
    return x ^ ((x >> 31) & (1 << 33) - 1)
