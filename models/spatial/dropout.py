"""Dropout whose random numbers belong to the forecast and the place, not to the rank that draws them."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor, nn

from data_pipeline.checks import between
from data_pipeline.grid import Grid
from data_pipeline.sample import Sample
from models.spatial.domain import Domain

_names: list[int] | None = None


@contextmanager
def drawn_for(sample: Sample) -> Iterator[None]:
    """Within this block, masks are those of the forecasts of this batch, by start and lead time."""
    global _names
    before, _names = _names, (sample.init_time * 1_000 + sample.lead_time).tolist()
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
        """(B, C, H, W) to the same shape."""
        if not self.training or not self.share:
            return x
        turn = int(torch.randint(1 << 31, ()))
        shape = (x.shape[1], 1, 1) if self.channels else (x.shape[1], *self.out.shape)
        generator = torch.Generator(x.device)
        masks = []
        for name in _names or range(len(x)):
            generator.manual_seed((turn * 6_364_136_223_846_793_005 + name) % (1 << 63))
            mask = torch.rand(shape, generator=generator, device=x.device) >= self.share
            masks.append(mask if self.channels else self.out.cut(mask))
        return x * torch.stack(masks) / (1 - self.share)
