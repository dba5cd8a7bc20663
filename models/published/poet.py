"""PoET: a U-Net that corrects each member, with attention among the members of a forecast.

Post-processing ensembles with transformers, Ben Bouallègue et al. 2024, doi:10.1175/AIES-D-23-0027.1, arXiv:2303.17195;
the attention is taken from Finn 2021, arXiv:2106.13924.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

import torch
from torch import Tensor, nn

from data_pipeline.common.checks import check_choice, check_integer
from data_pipeline.common.errors import InputError
from data_pipeline.grid import Grid
from data_pipeline.sample import Sample, select_channels
from data_pipeline.task import Task
from models.distribution import Ensemble
from models.layers.convolution import Conv2d, ConvTranspose2d
from models.layers.norms import ChannelNorm, FieldNorm
from models.layers.patches import Patches
from models.layers.resolution import MaxPool2d
from models.networks.head import zero_convolution
from models.parallel.domain import Domain
from models.parallel.exchange import allsum

_WIDTHS = (8, 16, 32, 64)
"""Channels at each resolution, the finest first."""
NORMS = ("field", "channel")
PATCH_SIZE = 3
"""Rows and columns of the patches from which keys and queries are computed; the coarsest grid needs as many."""


class PoET(nn.Module):
    """The network of the paper's ENS-10 experiments, from any number of raw members to as many corrected ones.

    A U-Net runs on each member. The encoder has two convolutions 5 x 5 with ReLU at every resolution and max-pooling
    between resolutions. The decoder has one convolution 3 x 3 and one transposed convolution 2 x 2, each with ReLU, and
    joins the encoder's maps of the finer resolution. At the `attention_resolutions` coarsest resolutions,
    `EnsembleAttention` follows the encoder. As in these experiments, the network reads the fields of the members only:
    no static fields, date or lead time.

    The defaults are the published sizes, `widths` 8, 16, 32, 64 and attention at 3 resolutions: 3.92 million parameters
    on the grid of ENS-10. Of these, 3.63 million belong to `norm: field`, layer normalisation with parameters for every
    cell. `norm: channel`, which the paper does not have, normalises the channels of each cell without such parameters.
    The large network of the paper has widths 16, 32, 64, 128 and attention at 4 resolutions, 16.7 million parameters.

    Differences from the paper:

    - The globe is continued around in longitude and across the poles. The original has zeros beyond the poles.
    - The last of an odd number of rows or columns is pooled with the next cells on the globe: 361 rows to 181, 91, 46.
      The original leaves it out, 361 rows to 180, 90, 45, and adds a row of constants on the way back.
    - Inputs are departures from the mean of the training years in each cell. The original has one mean and one scale
      for the globe.
    - The network's output is added to the member. Its last layer starts at zero, so that the first forecast is the raw
      ensemble, as in all networks here. The original's output is the member.
    """

    tiles = reads_memberships = True

    def __init__(
        self,
        task: Task,
        grid: Grid | Domain,
        widths: Sequence[int] = _WIDTHS,
        heads: int = 8,
        attention_resolutions: int = 3,
        norm: str = "field",
    ) -> None:
        super().__init__()
        if isinstance(widths, str) or not isinstance(widths, Sequence) or not widths:
            raise InputError(f"model.widths must be a list of channels, the finest resolution first, got {widths!r}")
        for width in widths:
            check_integer("model.widths", width, 1)
        check_integer("model.heads", heads, 1)
        check_integer("model.attention_resolutions", attention_resolutions, 0, len(widths))
        check_choice("model.norm", norm, NORMS)
        grids = [Domain.of(grid)]
        for _ in widths[1:]:
            grids.append(grids[-1].coarsen())
        if min(grids[-1].shape) < PATCH_SIZE:
            rows, columns = grids[-1].shape
            raise InputError(
                f"model poet needs {PATCH_SIZE} rows and columns at the coarsest of its {len(widths)} resolutions, and "
                f"{grids[0].grid} has {rows} x {columns} there; take fewer model.widths"
            )
        self._targets, self._deepest = list(task.target_channels), len(widths) - attention_resolutions
        self.down = nn.ModuleList(MaxPool2d(g) for g in grids[:-1])
        self.encoder = nn.ModuleList(
            nn.Sequential(
                Conv2d(g, before, width, 5, parity=() if level else task.parity), nn.ReLU(),
                Conv2d(g, width, width, 5), nn.ReLU(),
            )
            for level, (g, before, width) in enumerate(
                zip(grids, [len(task.channels), *widths[:-1]], widths, strict=True)
            )
        )  # fmt: skip
        self.attention = nn.ModuleList(
            EnsembleAttention(g, width, heads, norm)
            for g, width in list(zip(grids, widths, strict=True))[self._deepest :]
        )
        # At all resolutions but the coarsest, the decoder joins upsampled maps to the encoder's maps.
        inputs = [*(2 * width for width in widths[:-1]), widths[-1]]
        self.decoder = nn.ModuleList(
            nn.Sequential(
                Conv2d(coarse, inputs[level], widths[level]), nn.ReLU(),
                ConvTranspose2d(fine, widths[level], widths[level - 1]), nn.ReLU(),
            )
            for level, (fine, coarse) in enumerate(pairwise(grids), 1)
        )  # fmt: skip
        self.finest = nn.Sequential(Conv2d(grids[0], inputs[0], widths[0]), nn.ReLU())
        self.last = zero_convolution(widths[0], len(task.targets))

    def forward(self, sample: Sample) -> Ensemble:
        """Return the corrected members of a batch."""
        M = sample.ensemble.shape[1]
        x = sample.ensemble.flatten(0, 1)
        levels: list[Tensor] = []
        for level, stage in enumerate(self.encoder):
            x = stage(self.down[level - 1](x) if level else x)
            levels.append(x)
        for level, layer in enumerate(self.attention, self._deepest):
            levels[level] = layer(levels[level], M)
        x = levels[-1]
        for level in reversed(range(len(self.decoder))):
            x = torch.cat([self.decoder[level](x), levels[level]], dim=1)
        output = self.last(self.finest(x)).unflatten(0, (-1, M))
        # Scores are computed in single precision at least.
        output = output.to(torch.promote_types(output.dtype, torch.float32))
        return Ensemble((select_channels(sample.ensemble, self._targets, 2) + output).movedim(1, 0))


class EnsembleAttention(nn.Module):
    """Attention among the members of a forecast, with one M x M matrix of weights per head for the whole field.

    With keys K and queries Q of every patch of `PATCH_SIZE`² cells of the normalised maps, one channel per head, and
    values V of every cell,

        w_ij = softmax over i of <K_i, Q_j> / sqrt(patches),    V_j + sum_i w_ij (V_i - mean of V),

    where <K_i, Q_j> is the sum over all patches of the globe: ranks add up M x M numbers per head and forecast. A
    linear layer, which starts at zero, follows; its output is added to the maps, with ReLU. Members in another order
    give the same results in that order.
    """

    def __init__(self, grid: Grid | Domain, channels: int, heads: int, norm: str) -> None:
        super().__init__()
        self.out = Domain.of(grid)
        self.norm = FieldNorm(grid, channels) if norm == "field" else ChannelNorm(channels)
        self.patches = Patches(grid, PATCH_SIZE)
        self.key, self.query = (nn.Linear(channels * PATCH_SIZE**2, heads, bias=False) for _ in range(2))
        self.value, self.last = nn.Conv2d(channels, heads, 1, bias=False), zero_convolution(heads, channels)

    def forward(self, x: Tensor, M: int) -> Tensor:
        """Map (B M, C, H, W) to the same shape."""
        normal = self.norm(x)
        values = self.value(normal).unflatten(0, (-1, M))
        weights = self.weights(normal, M).to(values)
        mixed = torch.einsum("bcij,bichw->bjchw", weights, values - values.mean(1, keepdim=True))
        return torch.relu(x + self.last((values + mixed).flatten(0, 1)))

    def weights(self, normal: Tensor, M: int) -> Tensor:
        """Return the weight of member i for member j, (B, heads, i, j), from normalised (B M, C, H, W)."""
        patches = self.patches(normal).unflatten(0, (-1, M))
        keys, queries = torch.relu(self.key(patches)), torch.relu(self.query(patches))
        # The softmax does not depend on the mean of the keys. Without the mean, rounding errors are smaller.
        products = torch.einsum("bipc,bjpc->bcij", keys - keys.mean(1, keepdim=True), queries)
        products = allsum(products.to(torch.promote_types(products.dtype, torch.float32)), self.out)
        return torch.softmax(products / self.patches.count**0.5, dim=2)
