"""How two numbers of a network per target and cell become a distribution."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from data_pipeline.sample import Sample
from data_pipeline.task import Task
from models.distribution import Normal
from models.features import SMALLEST_SPREAD, spread


class GaussianHead(nn.Module):
    """Two maps per target, o₀ and o₁, correct the ensemble's mean m and spread s: μ = m + s o₀, σ = s exp(o₁).

    Zero output is the raw Gaussian ensemble, where all training starts (ENS-10, Ashkboos et al. 2022).
    """

    def __init__(self, task: Task) -> None:
        super().__init__()
        self._targets = list(task.target_channels)
        self.count = 2 * len(task.targets)

    def forward(self, output: Tensor, sample: Sample) -> Normal:
        """Return the distribution over (B, T, H, W) for network output (B, 2T, H, W)."""
        members = sample.ensemble[:, :, self._targets]
        s = torch.sqrt(spread(members).square() + SMALLEST_SPREAD**2)
        # Scores are never taken in half precision.
        output = output.to(torch.promote_types(output.dtype, torch.float32))
        shift, stretch = output.chunk(2, dim=1)
        return Normal(members.mean(1) + s * shift, s * torch.exp(stretch.clamp(-8, 8)))


def silent(inputs: int, outputs: int) -> nn.Conv2d:
    """Return a network's last layer, cell by cell, that says nothing until it is trained."""
    layer = nn.Conv2d(inputs, outputs, 1)
    layer.weight.data.zero_()
    layer.bias.data.zero_()  # type: ignore[union-attr]
    return layer
