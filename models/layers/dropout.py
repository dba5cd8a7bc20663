"""Dropout whose masks are hashes of seed and step, forecast, layer, channel, row and column.

    with masks_for(batch):
        forecast = model(batch)

No random generator is used. So a tile computes its own part of a mask, all devices compute the same mask, a compiler
sees integer arithmetic only, and a GPU does not wait for the host (docs/decisions/014-layers.md).
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
from models.layers.kernels.choice import usable
from models.parallel.domain import Domain

_GOLDEN = 0x9E3779B97F4A7C15 - (1 << 64)
"""The odd increment of SplitMix64, added for each dropout layer, as a signed number."""
_MIX = 0xBF58476D1CE4E5B9 - (1 << 64), 0x94D049BB133111EB - (1 << 64)
"""Factors of SplitMix64."""
_HASH_ROUNDS = (0x21F0AAAD, 15), (0x735A2D97, 16)
"""Odd factors and shifts for words of 32 bits (the best found by Wellons 2018, https://nullprogram.com/blog/2018/07/31)."""
_MASK_LEVELS = 1 << 16
"""The dropped share is a multiple of 1/`_MASK_LEVELS`: each number of a mask has 16 bits."""


@dataclass
class _Step:
    """Keys (B,) of the forecasts of a step; each dropout layer in turn adds `_GOLDEN`, as SplitMix64 does."""

    keys: Tensor


_step: _Step | None = None


def draw_step_key() -> Tensor:
    """Return a key of a step for `masks_for`, from PyTorch's CPU generator: ranks with equal seeds have equal keys."""
    # A scalar tensor on the CPU can be added to tensors on a GPU without a wait.
    return torch.randint(1 << 62, ())


def masks_for(sample: Sample, step: Tensor | None = None) -> AbstractContextManager[None]:
    """Inside the block, dropout masks depend on the step, and on start and lead time of the forecasts of this batch.

    `step` is a key from `draw_step_key`; by default it is drawn. With the same key, parts of a batch have the masks of
    the whole batch.
    """
    step = draw_step_key() if step is None else step
    return _within(_Step(mix_bits(mix_bits((sample.init_time * 1_000 + sample.lead_time) * _GOLDEN) + step)))


def same_masks() -> AbstractContextManager[None]:
    """Inside the block, the next layers get the masks that they would have got at the time of this call."""
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

    A mask depends on the step, the position of the layer in it, the forecast and the cell. So ranks with equal seeds
    have their tiles of the same mask, whichever forecasts they have. Outside `masks_for` every row of the batch is a
    forecast with a key from PyTorch's generator. The dropped share is rounded to a multiple of 1/65,536.
    """

    def __init__(self, grid: Grid | Domain, share: float, channels: bool = False) -> None:
        super().__init__()
        check_between("model.dropout", share, 0, 1)
        self.out, self.share, self.channels = Domain.of(grid), share, channels
        self._dropped = min(round(share * _MASK_LEVELS), _MASK_LEVELS - 1)
        self.first_channel = 0
        """Number of the first channel of the input in a mask of whole channels."""

    def forward(self, x: Tensor) -> Tensor:
        """Map (B, C, H, W) or (B M, C, H, W) to the same shape; all members of a forecast have one mask."""
        if self.channels:
            factors = self.channel_factors(x, x.shape[1])
            return x if factors is None else x * factors
        if not self.training or not self._dropped:
            return x
        keys = _keys(x)
        kept, members = self._kept(self._values(keys, x.shape[1])), x.unflatten(0, (len(keys), -1))
        return torch.where(kept[:, None], members * self._stretch, 0).flatten(0, 1)

    def channel_factors(self, x: Tensor, C: int) -> Tensor | None:
        """Return factors (B M, C, 1, 1) of whole channels of maps in the type of `x`, (B M, ...); None if all are 1."""
        if not self.training or not self._dropped:
            return None
        keys = _keys(x)
        if usable(x):
            from models.layers.kernels.channel_mask import channel_factors

            return channel_factors(keys, len(x), C, self.first_channel, self._least, self._stretch, x)[..., None, None]
        channel = torch.arange(self.first_channel, self.first_channel + C, device=x.device)
        kept = self._kept(mix_bits(keys[:, None] + mix_bits(channel)) >> 32)
        return (kept.to(x) * self._stretch).repeat_interleave(len(x) // len(keys), 0)[..., None, None]

    def _kept(self, values: Tensor) -> Tensor:
        """Return whether each value, whose high 16 of 32 bits are random, is kept."""
        return values >= self._least

    @property
    def _least(self) -> int:
        return (self._dropped - _MASK_LEVELS // 2) << 16

    @property
    def _stretch(self) -> float:
        return _MASK_LEVELS / (_MASK_LEVELS - self._dropped)

    def _values(self, keys: Tensor, C: int) -> Tensor:
        """Return a number of 32 bits for each cell of this rank's tile, (B, C, H, W); its high 16 bits are random."""
        (rows, columns), H = self.out.tile, self.out.shape[0]
        return _numbers(keys, C, H, [rows.start, rows.stop, columns.start, columns.stop])


# An operator, because compiled code of this function crashes on CPUs (PyTorch 2.13).
@torch.library.custom_op("deepweather::mask_numbers", mutates_args=())
def _numbers(keys: Tensor, C: int, H: int, tile: Sequence[int]) -> Tensor:
    """Return the numbers (B, C, h, w) of a tile, given as its first and last row and column, of a globe of H rows.

    Each row of each channel has 64 bits: half are added to the bits of the column, half are a factor. One word of 32
    bits gives the numbers of two neighbouring columns, which halves the work.
    """
    top, bottom, left, right = tile
    first, last = left // 2, -(-right // 2)
    row, column = torch.arange(top, bottom, device=keys.device), torch.arange(first, last, device=keys.device)
    place = torch.arange(C, device=keys.device)[:, None] * H + row
    own = mix_bits(keys[:, None, None] + mix_bits(place))[..., None]
    words = own.to(torch.int32) + mix_bits(column).to(torch.int32)
    factor = (own >> 32).to(torch.int32) | 1
    for multiplier, shift in _HASH_ROUNDS:
        # Addition in place of xor: the shift of a signed number repeats the sign, which xor would cancel.
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
    """Return the keys of the next layer's masks: (B,) for the forecasts of the step, or one for each row of `x`."""
    if _step is None:
        return torch.randint(1 << 62, (len(x),), device=x.device)
    _step.keys = _step.keys + _GOLDEN
    return _step.keys


def mix_bits(x: Tensor) -> Tensor:
    """Return 64-bit hashes of `x`, each bit of which depends on all bits of `x` (SplitMix64, Steele et al. 2014).

    Steele, Lea & Flood, doi:10.1145/2714064.2660195: the finaliser of Vigna's `splitmix64`. Products and sums
    of int64 wrap around on every device.
    """
    x = (x ^ ((x >> 30) & (1 << 34) - 1)) * _MIX[0]
    x = (x ^ ((x >> 27) & (1 << 37) - 1)) * _MIX[1]
    return x ^ ((x >> 31) & (1 << 33) - 1)
