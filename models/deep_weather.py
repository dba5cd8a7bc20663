"""Deep Weather (Grönquist et al. 2021, doi:10.1098/rsta.2020.0092): a network for the bias, one for the uncertainty."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import torch
from torch import Tensor, nn

from data_pipeline.checks import between, whole
from data_pipeline.errors import InputError
from data_pipeline.grid import Grid
from data_pipeline.sample import Sample
from data_pipeline.task import Task
from models.distribution import Normal
from models.ens10 import Bilinear, Layer, idle
from models.features import SMALLEST_SPREAD, spread
from models.local_area import LocalStandardization
from models.spatial.convolution import Conv2d, reach
from models.spatial.domain import Domain
from models.spatial.local import LocallyConnected
from models.spatial.normalization import BatchNorm2d
from models.spatial.resolution import MaxPool2d
from models.spatial.window import Window

KERNELS = (3, 5, 7)
"""Cells that the wide branches of an inception block see."""


class BiasNet(nn.Module):
    """U-Net of `depth` halvings, `width` and twice as many channels at the finest level, twice that at each coarser.

    The original has a third dimension of size one, and kernels 3 x 3 x 3, of which two thirds only ever meet the zeros
    around it. Here they are 3 x 3; all other shapes are the published ones. `parity` is that of the inputs (`Window`).
    """

    def __init__(
        self,
        grid: Grid | Domain,
        inputs: int,
        outputs: int,
        width: int = 32,
        depth: int = 2,
        parity: Sequence[int] = (),
    ) -> None:
        super().__init__()
        fine = Domain.of(grid)
        if min(fine.shape) <= 2**depth:
            raise InputError(
                f"model.bias_depth={depth} needs {2**depth + 1} rows and columns, and got {fine.grid}; "
                "take a smaller depth"
            )
        grids = [fine]
        for _ in range(depth):
            grids.append(grids[-1].coarsen())
        widths = [2 * width * 2**level for level in range(depth + 1)]
        self.encoder = nn.ModuleList(
            nn.Sequential(Layer(g, before, w // 2, () if level else parity), Layer(g, w // 2, w))
            for level, (g, before, w) in enumerate(zip(grids, [inputs, *widths], widths, strict=False))
        )
        self.down = nn.ModuleList(MaxPool2d(g) for g in grids[:-1])
        self.up = nn.ModuleList(Rise(g, coarse) for g, coarse in zip(grids, widths[1:], strict=False))
        # Without coarser levels four layers follow one another.
        self.decoder = nn.ModuleList(
            nn.Sequential(Layer(g, w + coarse, w), Layer(g, w, w))
            for g, w, coarse in zip(grids, widths, widths[1:] or [0], strict=False)
        )
        self.last = nn.Conv2d(2 * width, outputs, 1)

    def forward(self, x: Tensor) -> Tensor:
        """(B, inputs, H, W) to (B, outputs, H, W)."""
        levels = [x := self.encoder[0](x)]
        for down, block in zip(self.down, self.encoder[1:], strict=True):
            levels.append(x := block(down(x)))
        for level in reversed(range(len(self.decoder))):
            risen = [self.up[level](x)] if self.up else []
            x = self.decoder[level](torch.cat([levels[level], *risen], dim=1))
        return self.last(x)


class Rise(nn.Module):
    """Twice the resolution, then a convolution, whose bias the next normalisation takes away; see `Layer`."""

    def __init__(self, out: Grid | Domain, channels: int) -> None:
        super().__init__()
        self.bilinear, self.convolution = Bilinear(out), Conv2d(out, channels, channels)
        self.convolution.register_parameter("bias", None)
        self.bias = nn.Parameter(torch.zeros(channels))

    def forward(self, x: Tensor) -> Tensor:
        """(B, channels, ceil(H/2), ceil(W/2)) to (B, channels, H, W)."""
        x = self.convolution(self.bilinear(x))
        return x + idle(self.bias).to(x)[:, None, None]


class Inception(nn.Module):
    """Four ways to look at the neighbourhood, a quarter of the `outputs` each (Szegedy et al. 2015, arXiv:1409.4842).

    What sees 3, 5 and 7 cells is normalised and rectified, what sees the cell alone is not. All look through one
    window, so that ranks talk once.
    """

    def __init__(self, grid: Grid | Domain, inputs: int, outputs: int) -> None:
        super().__init__()
        domain, quarter = Domain.of(grid), outputs // 4
        rows, columns = (reach(cuts, KERNELS[-1], 1) for cuts in (domain.row_cuts, domain.column_cuts))
        self.window = Window(domain, rows, columns)
        self.wide = nn.ModuleList(nn.Conv2d(inputs, quarter, kernel, bias=False) for kernel in KERNELS)
        self.bias, self.norm = nn.Parameter(torch.zeros(3 * quarter)), BatchNorm2d(grid, 3 * quarter)
        self.own = nn.Conv2d(inputs, quarter, 1)

    def forward(self, x: Tensor) -> Tensor:
        """(B, inputs, H, W) to (B, outputs, H, W)."""
        seen = self.window(x)
        h, w = seen.shape[-2:]
        rims = ((KERNELS[-1] - kernel) // 2 for kernel in KERNELS)
        parts = [look(seen[..., k : h - k, k : w - k]) for look, k in zip(self.wide, rims, strict=True)]
        wide = torch.cat(parts, dim=1)
        wide = torch.relu(self.norm(wide + idle(self.bias).to(wide)[:, None, None]))
        return torch.cat([wide, self.own(x)], dim=1)


class UncertaintyNet(nn.Module):
    """σ = |a spread + network| at full resolution: two layers, six inception blocks of 4 to 7 times `width` channels.

    The spread of the targets comes in again before the first block and before the last layer, which starts with
    a = 1 and a network that says nothing: σ is the spread. `parity` is that of the inputs (`Window`).
    """

    def __init__(
        self, grid: Grid | Domain, inputs: int, outputs: int, width: int = 32, parity: Sequence[int] = ()
    ) -> None:
        super().__init__()
        self.stem = nn.Sequential(Layer(grid, inputs, 2 * width, parity), Layer(grid, 2 * width, 3 * width))
        before, widths = 3 * width + outputs, [factor * width for factor in (4, 5, 7, 7, 5, 4)]
        self.blocks = nn.ModuleList(Inception(grid, n, w) for n, w in zip([before, *widths], widths, strict=False))
        self.last = nn.Conv2d(outputs + widths[-1], outputs, 1)
        nn.init.zeros_(self.last.bias)  # type: ignore[arg-type]
        nn.init.eye_(self.last.weight[..., 0, 0])

    def forward(self, x: Tensor, spread_of_targets: Tensor) -> Tensor:
        """(B, inputs, H, W) and (B, outputs, H, W) to σ of the latter shape."""
        x = torch.cat([spread_of_targets, self.stem(x)], dim=1)
        for block in self.blocks:
            x = block(x)
        return self.last(torch.cat([spread_of_targets, x], dim=1)).abs()


class DeepWeather(nn.Module):
    """Normal(μ, σ): μ is what the bias network makes of the ensemble mean, σ what the other makes of the spread.

    `bias_width` 32 with `bias_depth` 0, 1, 2 or 3 and `uncertainty_width` 32 are the published networks. A locally
    connected layer says in every cell what the bias is; it starts at zero, so that the start is the raw Gaussian
    ensemble, and `roughness` keeps its weights alike between neighbours (published: 1). What cannot be had here, or is
    a defect, differs:

    - Both networks see mean and spread of all inputs at the lead time, the mean standardised by local area. In the
      original the one sees the analysis at the start and the mean, both standardised by two numbers of the globe, the
      other spread and first member at three lead times.
    - Inputs come as departures from the cell's mean: the geography that window and smoothing leave over is gone.
    - Both learn at the same time. With `loss=apart` each from what it does in the original, the one from the squared
      error, the other from the CRPS of what that leaves; but there the one has learnt before the other begins.
    - The original has one lead time. Here all share the networks, and each has maps of its own.
    - The globe goes round and on across the poles; nothing is cropped, and rows and columns may be odd in number.
    """

    moments_only = any_grid = tiles = True

    def __init__(
        self,
        task: Task,
        grid: Grid | Domain,
        bias_width: int = 8,
        bias_depth: int = 1,
        uncertainty_width: int = 4,
        roughness: float = 0.0,
    ) -> None:
        super().__init__()
        whole("model.bias_width", bias_width, 1)
        whole("model.bias_depth", bias_depth, 0)
        whole("model.uncertainty_width", uncertainty_width, 4)
        if uncertainty_width % 4:
            raise InputError(f"model.uncertainty_width must be a multiple of 4, got {uncertainty_width}")
        between("model.roughness", roughness, 0, 100)
        C, T = len(task.channels), len(task.targets)
        self._targets = list(task.target_channels)
        self.standardized = LocalStandardization(task, grid)
        parity = (*[1] * C, *task.parity)  # spread, mean
        self.bias_net = BiasNet(grid, 2 * C, C, bias_width, bias_depth, parity)
        self.local = LocallyConnected(grid, C, T, roughness)
        nn.init.zeros_(self.local.weight)
        self.gain = nn.Parameter(torch.ones(T, 1, 1))
        self.uncertainty_net = UncertaintyNet(grid, 2 * C, T, uncertainty_width, parity)

    def fit(self, batches: Iterable[Sample]) -> None:
        """Learn what is usual around each cell; all else is learnt by gradient descent."""
        self.standardized.fit(batches)

    def forward(self, sample: Sample) -> Normal:
        """Return the corrected distribution of a batch."""
        s = torch.sqrt(spread(sample.ensemble).square() + SMALLEST_SPREAD**2)
        x = torch.cat([s, self.standardized(sample)], dim=1)
        correction = self.gain * self.local(self.bias_net(x))
        sigma = self.uncertainty_net(x, s[:, self._targets])
        # Scores are never taken in half precision.
        correction, sigma = (part.to(torch.promote_types(part.dtype, torch.float32)) for part in (correction, sigma))
        return Normal(sample.ensemble[:, :, self._targets].mean(1) + correction, sigma)
