"""Dropout whose random numbers belong to the forecast and the place, not to the rank that draws them."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager

import torch
from torch import Tensor, nn

from data_pipeline.checks import between
from data_pipeline.grid import Grid
from data_pipeline.sample import Sample
from models.spatial.domain import Domain

BAND = 16
"""Rows whose masks are drawn together: a rank draws those that its tile has a part in, not the globe's."""

_names: list[int] | None = None


def drawn_for(sample: Sample) -> AbstractContextManager[None]:
    """Within this block, masks are those of the forecasts of this batch, by start and lead time."""
    return _named((sample.init_time * 1_000 + sample.lead_time).tolist())


def drawn_again() -> AbstractContextManager[None]:
    """Within this block, whenever it is entered, masks are those of the forecasts of now."""
    return _named(_names)


@contextmanager
def _named(names: list[int] | None) -> Iterator[None]:
    global _names
    before, _names = _names, names
    try:
        yield
    finally:
        _names = before


class Dropout(nn.Module):
    """Dropout of single values or, with `channels`, of whole channels (Srivastava et al. 2014).

    A mask is named by PyTorch's seed, by the layer's turn since it was set, and by the forecast. So ranks that share
    the seed cut their tiles from the same mask, whichever forecasts and cells they have; one rank draws what many
    draw together.
    """

    def __init__(self, grid: Grid | Domain, share: float, channels: bool = False) -> None:
        super().__init__()
        between("model.dropout", share, 0, 1)
        self.out, self.share, self.channels = Domain.of(grid), share, channels

    def forward(self, x: Tensor) -> Tensor:
        """(B, C, H, W) to the same shape, or (B M, C, H, W): all members of a forecast have its mask."""
        if not self.training or not self.share:
            return x
        turn = int(torch.randint(1 << 31, ()))
        names = _names or range(len(x))
        masks = torch.stack([self._kept(x, turn * 6_364_136_223_846_793_005 + name) for name in names])
        return x * masks.repeat_interleave(len(x) // len(masks), 0) / (1 - self.share)

    def _kept(self, x: Tensor, name: int) -> Tensor:
        """Return which channels, or which cells of the own tile, of the forecast of this name are kept."""
        C = x.shape[1]
        if self.channels:
            return self._drawn(x, name, C, 1, 1)
        (rows, columns), W = self.out.tile, self.out.shape[1]
        first, last = rows.start // BAND, -(-rows.stop // BAND)
        bands = [
            self._drawn(x, name * 1_442_695_040_888_963_407 + band, C, BAND, W)[..., columns]
            for band in range(first, last)
        ]
        return torch.cat(bands, -2)[..., rows.start - first * BAND : rows.stop - first * BAND, :]

    def _drawn(self, x: Tensor, name: int, *shape: int) -> Tensor:
        generator = torch.Generator(x.device).manual_seed(name % (1 << 63))
        return torch.rand(shape, generator=generator, device=x.device) >= self.share
