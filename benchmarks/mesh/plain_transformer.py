"""The transformer over members written with `torch.nn` alone, without the layers of decision 014.

Every step is a separate operator: rows and columns are padded by `torch.cat`, members attend in one call of
`scaled_dot_product_attention` for 32,768 cells, shared maps are repeated for every member, and fine maps are joined
with the interpolated ones. Features, head, names and shapes of weights are the same as in `Transformer`.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn
from torch.nn import functional

from benchmarks.mesh.plain_unet import PlainBlock
from data_pipeline.grid import Grid
from data_pipeline.sample import Sample
from data_pipeline.task import Task
from models.distribution import Normal
from models.networks.features import Features
from models.networks.head import make_head
from models.statistical.predictors import SMALLEST_SPREAD, spread

CELLS_AT_ONCE = 2**15
"""Cells in one call of attention; CUDA kernels fail at 65,536."""


class ContinuedConvolution(nn.Conv2d):
    """A 3 x 3 convolution of the globe, continued across the poles, where inputs of `parity` -1 change their sign."""

    sign: Tensor

    def __init__(self, inputs: int, outputs: int, parity: Sequence[int] = ()) -> None:
        super().__init__(inputs, outputs, 3)
        self.register_buffer("sign", torch.tensor(parity or [1] * inputs).float()[:, None, None], persistent=False)

    def forward(self, x: Tensor) -> Tensor:
        """(B, C, H, W) to (B, outputs, H, W)."""
        return super().forward(continue_sphere(x, 1, 1, 1, 1, self.sign))


def continue_sphere(x: Tensor, north: int, south: int, west: int, east: int, sign: Tensor | float = 1) -> Tensor:
    """Return `x`, with a row on either pole, and 0 or 1 more rows and columns on its sides."""
    half = x.shape[-1] // 2
    rows = [x[..., 1:2, :].roll(half, -1) * sign] * north + [x] + [x[..., -2:-1, :].roll(half, -1) * sign] * south
    x = torch.cat(rows, dim=-2)
    return torch.cat([x[..., x.shape[-1] - west :], x, x[..., :east]], dim=-1)


def sequential_block(inputs: int, outputs: int, dropout: float, parity: Sequence[int] = ()) -> PlainBlock:
    """Return two convolutions with a residual connection."""
    block = PlainBlock(inputs, outputs, dropout, "sphere")
    block.path[0], block.path[4] = ContinuedConvolution(inputs, outputs, parity), ContinuedConvolution(outputs, outputs)
    return block


class CellsInBatch(nn.Module):
    """Residual self-attention among members, with the cells as the batch."""

    def __init__(self, channels: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.norm, self.mix = nn.LayerNorm(channels), nn.Linear(channels, 3 * channels)
        self.last = nn.Linear(channels, channels)

    def forward(self, x: Tensor, M: int) -> Tensor:
        """(B M, C, H, W) to the same shape."""
        cells = x.unflatten(0, (-1, M)).permute(0, 3, 4, 1, 2)
        mixed = self.mix(self.norm(cells)).unflatten(-1, (3, self.heads, -1))
        parts = mixed.permute(4, 0, 1, 2, 5, 3, 6).flatten(1, 3).split(CELLS_AT_ONCE, 1)
        values = torch.cat([functional.scaled_dot_product_attention(*part) for part in parts])
        return x + self.last(values.transpose(1, 2).flatten(2)).view(cells.shape).permute(0, 3, 4, 1, 2).flatten(0, 1)


class JoinedTrunk(nn.Module):
    """Halves the resolution twice; maps of both resolutions are joined on the way back."""

    def __init__(self, inputs: int, width: int, dropout: float, attention: bool, parity: Sequence[int]) -> None:
        super().__init__()
        one, two, four = width, 2 * width, 4 * width
        self.encoder = nn.ModuleList([
            sequential_block(inputs, one, 0, parity), sequential_block(one, two, dropout),
            sequential_block(two, four, dropout),
        ])  # fmt: skip
        self.attention = nn.ModuleList(CellsInBatch(w, w // width) for w in (one, two, four) if attention)
        self.decoder = nn.ModuleList(
            [sequential_block(one + two, one, dropout), sequential_block(two + four, two, dropout)]
        )

    def forward(self, x: Tensor, M: int = 1) -> Tensor:
        """(B M, inputs, H, W) to (B M, width, H, W)."""
        levels: list[Tensor] = []
        for level, block in enumerate(self.encoder):
            x = block(halve(x) if level else x)
            levels.append(x := self.attention[level](x, M) if self.attention else x)
        for level in (1, 0):
            x = self.decoder[level](torch.cat([levels[level], double(x, levels[level])], dim=1))
        return x


def halve(x: Tensor) -> Tensor:
    """Return every second row and column of `x`, smoothed by [1 2 1]/4."""
    x = continue_sphere(x, 1, x.shape[-2] % 2, 1, x.shape[-1] % 2)
    x = (x[..., :-2:2, :] + 2 * x[..., 1:-1:2, :] + x[..., 2::2, :]) / 4
    return (x[..., :-2:2] + 2 * x[..., 1:-1:2] + x[..., 2::2]) / 4


def double(x: Tensor, like: Tensor) -> Tensor:
    """Return `x`, interpolated to the finer grid of `like`."""
    H, W = like.shape[-2:]
    x = continue_sphere(x, 0, 1 - H % 2, 0, 1 - W % 2)
    return _insert(_insert(x, -2)[..., :H, :], -1)[..., :W]


def _insert(x: Tensor, axis: int) -> Tensor:
    """Return `x` with the mean of each pair of neighbours inserted between them."""
    count = x.shape[axis]
    first, second = x.narrow(axis, 0, count - 1), x.narrow(axis, 1, count - 1)
    pairs = torch.stack([first, (first + second) / 2], dim=axis)
    pairs = pairs.flatten(axis - 1, axis)
    return torch.cat([pairs, x.narrow(axis, count - 1, 1)], dim=axis)


class PlainTransformer(nn.Module):
    """A trunk on shared features and one on every member, with attention; the head `normal`."""

    def __init__(self, task: Task, grid: Grid, width: int = 8, dropout: float = 0.1) -> None:
        super().__init__()
        self.features, self.head = Features(task, grid), make_head("normal", task, grid)
        self.shared = JoinedTrunk(self.features.count, 2 * width, dropout, False, self.features.parity)
        self.members = JoinedTrunk(
            len(task.channels) + 2 * width, width, dropout, True, (*task.parity, *[1] * 2 * width)
        )
        self.last = nn.Conv2d(4 * width, self.head.count, 1)

    def forward(self, sample: Sample) -> Normal:
        """Return the corrected distribution of a batch."""
        x = sample.ensemble
        M, s = x.shape[1], torch.sqrt(spread(x).square() + SMALLEST_SPREAD**2)
        own, shared = (x - x.mean(1, keepdim=True)) / s[:, None], self.shared(self.features(sample))
        x = torch.cat([own, shared[:, None].expand(-1, M, -1, -1, -1)], dim=2)
        x = self.members(x.flatten(0, 1), M).unflatten(0, (-1, M))
        return self.head(self.last(torch.cat([shared, x.mean(1), x.square().mean(1)], dim=1)), sample)
