"""Gates of mixtures of experts that depend on the place only: one learnt field per expert.

A gate is any module from the layer's input (B, C, H, W) to one value per expert, (B or 1, E, H, W). The experts with
the largest values are chosen. A gate that computes its values from the input is made of ordinary layers, such as
`Conv2d`.
"""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor, nn

from data_pipeline.common.checks import check_integer
from data_pipeline.grid import Grid
from data_pipeline.grids.legendre import legendre
from models.parallel.domain import Domain


class LatentGate(nn.Module):
    """One learnt number for each expert in each cell of the globe.

    Every rank has the numbers of the whole globe and uses those of its tile. Initial values are uniform in ±√(3E/k) for
    E experts of which k are chosen, as in Dryden & Hoefler (2022, arXiv:2211.13491).
    """

    def __init__(self, grid: Grid | Domain, outputs: int, experts: int) -> None:
        super().__init__()
        self.out = Domain.of(grid)
        limit = (3 * experts / outputs) ** 0.5
        self.weight = nn.Parameter(torch.empty(experts, *self.out.shape).uniform_(-limit, limit))

    def forward(self, x: Tensor) -> Tensor:
        """Map any input to (1, E, H, W)."""
        return self.out.cut(self.weight)[None]


class SphereGate(nn.Module):
    """One smooth field on the sphere for each expert, evaluated at the cells: its parameters do not depend on the grid.

    The field is a sum of real spherical harmonics up to `degree`, (degree + 1)² numbers for each expert.
    """

    _legendre: Tensor
    _waves: Tensor
    _index: Tensor

    def __init__(self, grid: Grid | Domain, outputs: int, experts: int, degree: int) -> None:
        super().__init__()
        check_integer("model.degree", degree, 0)
        self.out, terms = Domain.of(grid), (degree + 1) ** 2
        # The squares of all harmonics sum to their number at every point, so the variance is the same as for a latent
        # gate.
        self.weight = nn.Parameter(torch.empty(experts, terms).normal_(std=(experts / outputs / terms) ** 0.5))
        latitude = np.radians(self.out.grid.latitudes)
        longitude = np.radians(np.array(self.out.grid.longitudes))
        order = np.arange(-degree, degree + 1)
        # Y_lm = P_lm cos(mλ), and P_l|m| sin(|m|λ) for m < 0, with mean square 1 and the usual factor (-1)^m.
        scale = (-1.0) ** order * np.where(order == 0, np.sqrt(2), 2)
        functions = legendre(degree, np.sin(latitude), np.cos(latitude) ** 2).transpose(2, 0, 1)
        table = functions[:, np.abs(order)] * scale[:, None]
        waves = np.where(order[:, None] < 0, np.sin(-order[:, None] * longitude), np.cos(order[:, None] * longitude))
        exists = np.abs(order) <= np.arange(degree + 1)[:, None]
        # Buffers move with the module but are not saved. Every rank has the values of the whole globe.
        for name, values in (("_legendre", table), ("_waves", waves), ("_index", np.flatnonzero(exists))):
            self.register_buffer(name, torch.from_numpy(values), persistent=False)

    def forward(self, x: Tensor) -> Tensor:
        """Map any input to (1, E, H, W)."""
        weight, (rows, columns) = self.weight, self.out.tile
        legendre, waves = self._legendre[..., rows].to(weight), self._waves[:, columns].to(weight)
        table = weight.new_zeros(len(weight), legendre.shape[0] * legendre.shape[1])
        table = table.index_copy(1, self._index, weight).view(len(weight), *legendre.shape[:2])
        return torch.einsum("elm,lmh,mw->ehw", table, legendre, waves)[None]
