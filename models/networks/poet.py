"""PoET: corrects each member by a U-Net in which the members of a forecast attend to one another.

Post-processing ensembles with transformers, Ben Bouallègue et al. 2024, doi:10.1175/AIES-D-23-0027.1, arXiv:2303.17195;
the attention is that of Finn 2021, arXiv:2106.13924.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

import torch
from torch import Tensor, nn

from data_pipeline.common.checks import check_choice, check_integer
from data_pipeline.common.errors import InputError
from data_pipeline.grid import Grid
from data_pipeline.sample import Sample
from data_pipeline.task import Task
from models.distribution import Ensemble
from models.layers.convolution import Conv2d, ConvTranspose2d
from models.layers.norms import ChannelNorm, FieldNorm
from models.layers.patches import Patches
from models.layers.resolution import MaxPool2d
from models.networks.head import silent
from models.parallel.domain import Domain
from models.parallel.exchange import allsum

WIDTHS = (8, 16, 32, 64)
"""Channels at each resolution, the finest first."""
NORMS = ("field", "channel")
SMALLEST = 3
"""Rows and columns of the patches that keys and queries are made of, so also the fewest that a resolution may have."""


class PoET(nn.Module):
    """The network of the paper's ENS-10 experiments: corrected members from raw ones, as many as there are.

    A U-Net runs on each member: at every resolution two convolutions 5 x 5 with ReLU, max-pooling between them; back
    up one convolution 3 x 3 and one transposed convolution 2 x 2, each with ReLU, beside the encoder's maps of the
    finer resolution. At the `attention` coarsest resolutions `EnsembleAttention` stands between encoder and decoder.
    It reads the fields of the members only: no static fields, date or lead time, as in these experiments.

    The published sizes are the defaults, `widths` 8, 16, 32, 64 and attention at 3 resolutions: 3.92 million parameters
    on the grid of ENS-10, of which 3.63 million belong to `norm: field`, layer normalisation with numbers for every
    cell. The large network of the paper has widths 16, 32, 64, 128 and attention at 4 resolutions, 16.7 million.
    `norm: channel`, which the paper does not have, normalises the channels of each cell and needs none of these.

    What differs from the paper:

    - The globe goes round and on across the poles; the original has zeros beyond the poles.
    - Rows and columns that are odd in number are pooled with what follows them on the globe, 361 rows to 181, 91, 46.
      The original leaves out the last one, 361 rows to 180, 90, 45, and adds a row of constants when it comes back.
    - Inputs are departures from the mean of the training years in each cell. The original takes one mean and one
      scale for the globe.
    - The network's output is added to the member, and its last layer starts at zero, the raw ensemble, as in all
      networks here. The original's output is the member.
    """

    tiles = True

    def __init__(
        self,
        task: Task,
        grid: Grid | Domain,
        widths: Sequence[int] = WIDTHS,
        heads: int = 8,
        attention: int = 3,
        norm: str = "field",
    ) -> None:
        super().__init__()
        if isinstance(widths, str) or not isinstance(widths, Sequence) or not widths:
            raise InputError(f"model.widths must be a list of channels, the finest resolution first, got {widths!r}")
        for width in widths:
            check_integer("model.widths", width, 1)
        check_integer("model.heads", heads, 1)
        check_integer("model.attention", attention, 0, len(widths))
        check_choice("model.norm", norm, NORMS)
        grids = [Domain.of(grid)]
        for _ in widths[1:]:
            grids.append(grids[-1].coarsen())
        if min(grids[-1].shape) < SMALLEST:
            rows, columns = grids[-1].shape
            raise InputError(
                f"model poet needs {SMALLEST} rows and columns at the coarsest of its {len(widths)} resolutions, and "
                f"{grids[0].grid} leave {rows} x {columns} there; take fewer model.widths"
            )
        self._targets, self._deepest = list(task.target_channels), len(widths) - attention
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
        # All resolutions but the coarsest take what comes up beside what the encoder has there.
        inputs = [*(2 * width for width in widths[:-1]), widths[-1]]
        self.decoder = nn.ModuleList(
            nn.Sequential(
                Conv2d(coarse, inputs[level], widths[level]), nn.ReLU(),
                ConvTranspose2d(fine, widths[level], widths[level - 1]), nn.ReLU(),
            )
            for level, (fine, coarse) in enumerate(pairwise(grids), 1)
        )  # fmt: skip
        self.finest = nn.Sequential(Conv2d(grids[0], inputs[0], widths[0]), nn.ReLU())
        self.last = silent(widths[0], len(task.targets))

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
        # Scores are never taken in half precision.
        output = output.to(torch.promote_types(output.dtype, torch.float32))
        return Ensemble((sample.ensemble[:, :, self._targets] + output).movedim(1, 0))


class EnsembleAttention(nn.Module):
    """Attention among the members of a forecast, whose weights are one M x M matrix per head for the whole field.

    With keys K and queries Q of every `SMALLEST` x `SMALLEST` patch of the normalised maps, one channel per head, and
    values V of every cell,

        w_ij = softmax over i of <K_i, Q_j> / sqrt(patches),    V_j + sum_i w_ij (V_i - mean of V),

    where <K_i, Q_j> is the sum over all patches of the globe: ranks add up M x M numbers per head and forecast. The
    result goes through a linear layer, which starts at zero, and is added to the maps, with ReLU. Another order of the
    members gives the same in that order.
    """

    def __init__(self, grid: Grid | Domain, channels: int, heads: int, norm: str) -> None:
        super().__init__()
        self.out = Domain.of(grid)
        self.norm = FieldNorm(grid, channels) if norm == "field" else ChannelNorm(channels)
        self.patches = Patches(grid, SMALLEST)
        self.key, self.query = (nn.Linear(channels * SMALLEST**2, heads, bias=False) for _ in range(2))
        self.value, self.last = nn.Conv2d(channels, heads, 1, bias=False), silent(heads, channels)

    def forward(self, x: Tensor, M: int) -> Tensor:
        """(B M, C, H, W) to the same shape."""
        normal = self.norm(x)
        values = self.value(normal).unflatten(0, (-1, M))
        weights = self.weights(normal, M).to(values)
        heard = torch.einsum("bcij,bichw->bjchw", weights, values - values.mean(1, keepdim=True))
        return torch.relu(x + self.last((values + heard).flatten(0, 1)))

    def weights(self, normal: Tensor, M: int) -> Tensor:
        """Return how much member j takes from member i, (B, heads, i, j), from the normalised maps (B M, C, H, W)."""
        patches = self.patches(normal).unflatten(0, (-1, M))
        keys, queries = torch.relu(self.key(patches)), torch.relu(self.query(patches))
        # The softmax does not depend on what all keys share; without it, rounding is relative to the differences.
        products = torch.einsum("bipc,bjpc->bcij", keys - keys.mean(1, keepdim=True), queries)
        products = allsum(products.to(torch.promote_types(products.dtype, torch.float32)), self.out)
        return torch.softmax(products / self.patches.count**0.5, dim=2)
