"""Deep Weather (Grönquist et al. 2021, doi:10.1098/rsta.2020.0092): a network for the bias, one for uncertainty."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import torch
from torch import Tensor, nn

from data_pipeline.common.checks import check_between, check_choice, check_integer
from data_pipeline.common.errors import InputError
from data_pipeline.grid import Grid
from data_pipeline.sample import Sample, select_channels
from data_pipeline.task import Task
from models.distribution import Normal
from models.layers.convolution import Conv2d, input_intervals
from models.layers.locally_connected import LocallyConnected
from models.layers.norms import BatchNorm2d
from models.layers.padding import HaloPad
from models.layers.resolution import BilinearUpsample, MaxPool2d
from models.parallel.domain import Domain
from models.published.ens10 import ConvNormReLU, add_fixed_bias
from models.published.local_standardization import LocalStandardization
from models.statistical.predictors import SMALLEST_SPREAD, spread

KERNELS = (3, 5, 7)
"""Kernel sizes of the parallel convolutions in a block."""
SQUEEZED = 3
"""Channels into which `ResNet2d` compresses the fields."""


class BiasNet(nn.Module):
    """U-Net of `depth` halvings: layers of `width` and 2 `width` channels at the finest level, doubled at each coarser.

    The original has a third dimension of size one and kernels 3 x 3 x 3, of which two thirds only see zero padding.
    Kernels here are 3 x 3; all other shapes are the published ones. `parity` is the parity of the inputs (`HaloPad`).
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
            nn.Sequential(ConvNormReLU(g, before, w // 2, () if level else parity), ConvNormReLU(g, w // 2, w))
            for level, (g, before, w) in enumerate(zip(grids, [inputs, *widths], widths, strict=False))
        )
        self.down = nn.ModuleList(MaxPool2d(g) for g in grids[:-1])
        self.up = nn.ModuleList(UpConvolution(g, coarse) for g, coarse in zip(grids, widths[1:], strict=False))
        # Without coarser levels four layers follow one another.
        self.decoder = nn.ModuleList(
            nn.Sequential(ConvNormReLU(g, w + coarse, w), ConvNormReLU(g, w, w))
            for g, w, coarse in zip(grids, widths, widths[1:] or [0], strict=False)
        )
        self.last = nn.Conv2d(2 * width, outputs, 1)

    def forward(self, x: Tensor) -> Tensor:
        """Map (B, inputs, H, W) to (B, outputs, H, W)."""
        levels = [x := self.encoder[0](x)]
        for down, block in zip(self.down, self.encoder[1:], strict=True):
            levels.append(x := block(down(x)))
        for level in reversed(range(len(self.decoder))):
            risen = [self.up[level](x)] if self.up else []
            x = self.decoder[level](torch.cat([levels[level], *risen], dim=1))
        return self.last(x)


class UpConvolution(nn.Module):
    """Double the resolution, then convolve. The next normalisation removes the bias, see `ConvNormReLU`."""

    def __init__(self, out: Grid | Domain, channels: int) -> None:
        super().__init__()
        self.bilinear, self.convolution = BilinearUpsample(out), Conv2d(out, channels, channels)
        self.convolution.register_parameter("bias", None)
        self.bias = nn.Parameter(torch.zeros(channels))

    def forward(self, x: Tensor) -> Tensor:
        """Map (B, channels, ceil(H/2), ceil(W/2)) to (B, channels, H, W)."""
        x = self.convolution(self.bilinear(x))
        return add_fixed_bias(x, self.bias)


class ParallelKernels(nn.Module):
    """Parallel convolutions 3 x 3, 5 x 5 and 7 x 7 with `each` outputs, then batch normalisation and ReLU.

    All three read the same window, so that ranks exchange one halo.
    """

    def __init__(self, grid: Grid | Domain, inputs: int, each: int) -> None:
        super().__init__()
        domain = Domain.of(grid)
        rows, columns = (input_intervals(cuts, KERNELS[-1]) for cuts in (domain.row_cuts, domain.column_cuts))
        self.window = HaloPad(domain, rows, columns)
        self.wide = nn.ModuleList(nn.Conv2d(inputs, each, kernel, bias=False) for kernel in KERNELS)
        self.bias, self.norm = nn.Parameter(torch.zeros(3 * each)), BatchNorm2d(grid, 3 * each)

    def convolve(self, x: Tensor) -> Tensor:
        """Map (B, inputs, H, W) to (B, 3 each, H, W)."""
        seen = self.window(x)
        h, w = seen.shape[-2:]
        rims = ((KERNELS[-1] - kernel) // 2 for kernel in KERNELS)
        parts = [layer(seen[..., k : h - k, k : w - k]) for layer, k in zip(self.wide, rims, strict=True)]
        wide = torch.cat(parts, dim=1)
        return torch.relu_(self.norm(add_fixed_bias(wide, self.bias)))


class Inception(ParallelKernels):
    """Makes a quarter of the `outputs` by each of the `ParallelKernels`, the last quarter by a convolution 1 x 1.

    The last quarter is neither normalised nor rectified (Szegedy et al. 2015, arXiv:1409.4842).
    """

    def __init__(self, grid: Grid | Domain, inputs: int, outputs: int) -> None:
        super().__init__(grid, inputs, outputs // 4)
        self.own = nn.Conv2d(inputs, outputs // 4, 1)

    def forward(self, x: Tensor) -> Tensor:
        """Map (B, inputs, H, W) to (B, outputs, H, W)."""
        return torch.cat([self.convolve(x), self.own(x)], dim=1)


class Bottleneck(ParallelKernels):
    """Joins the input and `width` outputs of each of the `ParallelKernels`, and mixes them into `width` channels."""

    def __init__(self, grid: Grid | Domain, inputs: int, width: int) -> None:
        super().__init__(grid, inputs, width)
        self.mix = nn.Conv2d(3 * width + inputs, width, 1)

    def forward(self, x: Tensor) -> Tensor:
        """Map (B, inputs, H, W) to (B, width, H, W)."""
        return self.mix(torch.cat([self.convolve(x), x], dim=1))


class ResNet2dSimple(nn.Module):
    """σ = |a spread + network| at full resolution: two layers, six inception blocks of 4 to 7 times `width` channels.

    The spread of the targets is joined to the maps before the first block and before the last layer. The last layer
    starts with a = 1 and zero weights for the network, so that σ starts as the spread. `parity` is the parity of the
    inputs (`HaloPad`).
    """

    def __init__(
        self, grid: Grid | Domain, inputs: int, outputs: int, width: int = 32, parity: Sequence[int] = ()
    ) -> None:
        super().__init__()
        self.stem = nn.Sequential(
            ConvNormReLU(grid, inputs, 2 * width, parity), ConvNormReLU(grid, 2 * width, 3 * width)
        )
        before, widths = 3 * width + outputs, [factor * width for factor in (4, 5, 7, 7, 5, 4)]
        self.blocks = nn.ModuleList(Inception(grid, n, w) for n, w in zip([before, *widths], widths, strict=False))
        self.last = nn.Conv2d(outputs + widths[-1], outputs, 1)
        nn.init.zeros_(self.last.bias)  # type: ignore[arg-type]
        nn.init.eye_(self.last.weight[..., 0, 0])

    def forward(self, x: Tensor, spread_of_targets: Tensor) -> Tensor:
        """Return σ (B, outputs, H, W) for inputs (B, inputs, H, W) and target spreads (B, outputs, H, W)."""
        x = torch.cat([spread_of_targets, self.stem(x)], dim=1)
        for block in self.blocks:
            x = block(x)
        return self.last(torch.cat([spread_of_targets, x], dim=1)).abs()


class ResNet2d(nn.Module):
    """σ = |a spread + network| at full resolution, with ten blocks of `width` to 1.56 `width` channels.

    The second half of the inputs, the fields, is compressed into three channels. The first convolution and every block
    read these channels and the first half of the inputs, the spreads. The output of the first convolution is joined
    again before the last two layers. The spread of the targets is joined before the last layer, which starts as in
    `ResNet2dSimple`. `parity` is the parity of the inputs. Compression mixes winds with other fields, so its three
    channels have no parity.
    """

    def __init__(
        self, grid: Grid | Domain, inputs: int, outputs: int, width: int = 64, parity: Sequence[int] = ()
    ) -> None:
        super().__init__()
        self._spreads = inputs // 2
        seen = SQUEEZED + self._spreads
        self.squeeze = ConvNormReLU(grid, inputs - self._spreads, SQUEEZED, kernel=1)
        self.first = ConvNormReLU(grid, seen, width, parity and (*[1] * SQUEEZED, *parity[: self._spreads]))
        widths = [width * (16 + number) // 16 for number in range(10)]
        self.blocks = nn.ModuleList(
            Bottleneck(grid, before + seen, w) for before, w in zip([width, *widths], widths, strict=False)
        )
        self.tail = nn.Sequential(ConvNormReLU(grid, widths[-1] + width, 8), nn.Conv2d(8, 4, 1))
        self.last = nn.Conv2d(outputs + 4, outputs, 1)
        nn.init.zeros_(self.last.bias)  # type: ignore[arg-type]
        nn.init.eye_(self.last.weight[..., 0, 0])

    def forward(self, x: Tensor, spread_of_targets: Tensor) -> Tensor:
        """Return σ (B, outputs, H, W) for inputs (B, inputs, H, W) and target spreads (B, outputs, H, W)."""
        spreads, fields = x[:, : self._spreads], x[:, self._spreads :]
        seen = torch.cat([self.squeeze(fields), spreads], dim=1)
        x = first = self.first(seen)
        for block in self.blocks:
            x = block(torch.cat([x, seen], dim=1))
        x = self.tail(torch.cat([x, first], dim=1))
        return self.last(torch.cat([spread_of_targets, x], dim=1)).abs()


UNCERTAINTY = {"resnet2d_simple": ResNet2dSimple, "resnet2d": ResNet2d}
"""The networks for σ, by value of the option `uncertainty`."""
TRAINED_NETWORKS = ("both", "bias", "uncertainty")


class DeepWeather(nn.Module):
    """Normal(μ, σ): μ is the ensemble mean plus the bias network's correction, σ comes from the uncertainty network.

    The bias network reads the ensemble mean of the inputs at the lead time and `Task.analysis`, the analysis at the
    start. A locally connected layer, with weights of its own in every cell, turns its maps into the correction. This
    layer starts at zero, so that the first forecast is the raw Gaussian ensemble. `smoothness_penalty` times the mean
    difference of weights in neighbouring cells is added to the loss (published: 1). The uncertainty network reads the
    spread and the locally standardised first member, of the inputs at the lead time and of `Task.other_leads`.

    The published options are `bias_width` 32 with `bias_depth` 0, 1, 2 or 3, and `uncertainty` resnet2d with
    `uncertainty_width` 64 (7.40 million parameters for one target from 7 variables at 3 lead times) or resnet2d_simple
    with 32 (3.76 million). The two networks are trained in two runs. The first has `trained_networks=bias` and
    loss=squared_error; its σ is the spread of the raw ensemble. The second has `trained_networks=uncertainty`,
    loss=crps and the first corrector as `initial_weights`; the bias network stays as it is. `trained_networks=both`,
    which is ours, trains them together. Other differences from the publication:

    - A task without `analysis` gives the bias network the spread of the inputs instead. A task without `other_leads`
      gives the uncertainty network the lead time of the target only.
    - Inputs are departures from the cell's mean over the training years, in units of the typical departure. The paper
      has one mean and one standard deviation of the whole globe per variable, with the test years included.
    - The local standardisation uses mean and spread of all training years together. The paper averages mean and spread
      of single years.
    - resnet2d reads all spreads. The published network for temperature reads the spread of temperature twice, in
      place of that of geopotential.
    - The uncertainty networks were first trained for the structural similarity of their output with the spread of the
      10 members. Here they start from the spread of the members and are trained by the CRPS only.
    - All lead times of a task share the networks; the local standardisation has one set of maps per lead time.
    - The globe is continued around in longitude and across the poles. Nothing is cropped, and numbers of rows and
      columns may be odd.
    """

    first_member = any_grid = tiles = True

    def __init__(
        self,
        task: Task,
        grid: Grid | Domain,
        bias_width: int = 8,
        bias_depth: int = 1,
        uncertainty: str = "resnet2d_simple",
        uncertainty_width: int = 4,
        smoothness_penalty: float = 0.0,
        trained_networks: str = "both",
    ) -> None:
        super().__init__()
        check_integer("model.bias_width", bias_width, 1)
        check_integer("model.bias_depth", bias_depth, 0)
        check_choice("model.uncertainty", uncertainty, tuple(UNCERTAINTY))
        check_integer("model.uncertainty_width", uncertainty_width, 4)
        if uncertainty_width % 4:
            raise InputError(f"model.uncertainty_width must be a multiple of 4, got {uncertainty_width}")
        check_between("model.smoothness_penalty", smoothness_penalty, 0, 100)
        check_choice("model.trained_networks", trained_networks, TRAINED_NETWORKS)
        C, A, T = len(task.inputs), len(task.analysis), len(task.targets)
        forecasts = len(task.channels) - A
        self._targets, self._inputs, self._forecasts = list(task.target_channels), C, forecasts
        self._analysis = list(range(forecasts, forecasts + A))
        self.standardization = LocalStandardization(task, grid)
        beside = task.parity[forecasts:] or (1,) * C
        self.bias_net = BiasNet(grid, len(beside) + C, C, bias_width, bias_depth, parity=(*beside, *task.parity[:C]))
        self.local = LocallyConnected(grid, C, T, smoothness_penalty)
        nn.init.zeros_(self.local.weight)
        self.gain = nn.Parameter(torch.ones(T, 1, 1))
        parity = (*[1] * forecasts, *task.parity[:forecasts])
        self.uncertainty_net = UNCERTAINTY[uncertainty](grid, 2 * forecasts, T, uncertainty_width, parity)
        self._trained = trained_networks
        sigma_parameters = {id(parameter) for parameter in self.uncertainty_net.parameters()}
        for parameter in self.parameters():
            parameter.requires_grad = trained_networks in (
                "both",
                "uncertainty" if id(parameter) in sigma_parameters else "bias",
            )
        self.train()  # Lightning keeps the modes that parts of a model have

    def train(self, mode: bool = True) -> DeepWeather:
        """Set the training mode; batch normalisation of a network that is not trained keeps its statistics."""
        super().train(mode)
        if self._trained == "uncertainty":
            for part in (self.bias_net, self.local):
                part.eval()
        return self

    def fit(self, batches: Iterable[Sample]) -> None:
        """Fit the local standardisation; gradient descent trains all other parameters."""
        self.standardization.fit(batches)

    def forward(self, sample: Sample) -> Normal:
        """Return the corrected distribution of a batch."""
        forecasts = sample.ensemble[:, :, : self._forecasts]
        mean = forecasts[:, :, : self._inputs].mean(1)
        s = torch.sqrt(spread(forecasts).square() + SMALLEST_SPREAD**2)
        beside = select_channels(sample.ensemble[:, 0], self._analysis, 1) if self._analysis else s[:, : self._inputs]
        correction = self.gain * self.local(self.bias_net(torch.cat([beside, mean], dim=1)))
        sigma = select_channels(s, self._targets, 1)
        if self._trained != "bias":
            sigma = self.uncertainty_net(torch.cat([s, self.standardization(sample)], dim=1), sigma)
        # Scores are computed in single precision at least.
        correction, sigma = (part.to(torch.promote_types(part.dtype, torch.float32)) for part in (correction, sigma))
        return Normal(select_channels(mean, self._targets, 1) + correction, sigma)
