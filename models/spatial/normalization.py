"""Normalisation of channels: by cell, which needs nobody, or over the whole globe, which all ranks sum up."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional

from data_pipeline.grid import Grid
from models.spatial.domain import Domain
from models.spatial.exchange import allsum


class ChannelNorm(nn.Module):
    """Layer normalisation over the channels of each cell: no cell asks another, whatever the grid."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(channels))
        self.bias = nn.Parameter(torch.zeros(channels))

    def forward(self, x: Tensor) -> Tensor:
        """(B, C, H, W) to the same shape."""
        return functional.layer_norm(x.movedim(1, -1), self.weight.shape, self.weight, self.bias).movedim(-1, 1)


class GroupNorm(nn.GroupNorm):
    """Group normalisation (Wu & He 2018, arXiv:1803.08494) over the whole globe."""

    def __init__(self, grid: Grid | Domain, groups: int, channels: int) -> None:
        super().__init__(groups, channels)
        self.out = Domain.of(grid)

    def forward(self, x: Tensor) -> Tensor:
        """(B, C, H, W) to the same shape."""
        if self.out.ranks == 1:
            return super().forward(x)
        mean, variance = _moments(x.unflatten(1, (self.num_groups, -1)).flatten(2), -1, self.out)
        each = x.shape[1] // self.num_groups
        stretch = torch.rsqrt(variance + self.eps).to(x).repeat_interleave(each, 1) * self.weight
        shift = self.bias - mean.to(x).repeat_interleave(each, 1) * stretch
        return x * stretch[..., None, None] + shift[..., None, None]


def _moments(x: Tensor, axis: int, domain: Domain) -> tuple[Tensor, Tensor]:
    """Return mean and variance along `axis` over all ranks, in float64: squares of large means lose all digits else."""
    x = x.double()
    count = allsum(x.new_tensor(float(x.shape[axis])), domain)
    total = allsum(torch.stack([x.sum(axis), x.square().sum(axis)]), domain) / count
    return total[0], total[1] - total[0].square()
