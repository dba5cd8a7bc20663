"""Gates: which expert of a mixture each place asks first, learnt for the place itself.

A gate is any module that takes the layer's input (B, C, H, W) and returns how much each expert is wanted,
(B or 1, E, H, W). One that computes it from the input is ordinary layers, such as two convolutions.
"""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor, nn

from data_pipeline.common.checks import check_integer
from data_pipeline.grid import Grid
from data_pipeline.legendre import legendre
from models.parallel.domain import Domain


class LatentGate(nn.Module):
    """A number for each expert in each cell of the globe.

    They are kept for the whole globe on every rank and read where the own tile lies. At first they are drawn from
    ±√(3E/k) for E experts of which k are asked, as Dryden & Hoefler (2022, arXiv:2211.13491) do.
    """

    def __init__(self, grid: Grid | Domain, outputs: int, experts: int) -> None:
        super().__init__()
        self.out = Domain.of(grid)
        limit = (3 * experts / outputs) ** 0.5
        self.weight = nn.Parameter(torch.empty(experts, *self.out.shape).uniform_(-limit, limit))

    def forward(self, x: Tensor) -> Tensor:
        """Any input to (1, E, H, W)."""
        return self.out.cut(self.weight)[None]


class SphereGate(nn.Module):
    """A field on the sphere for each expert, read where the cells of the grid lie: learnt on one grid, it fits all.

    It is made of real spherical harmonics up to `degree`, (degree + 1)² numbers for each expert.
    """

    _legendre: Tensor
    _waves: Tensor
    _place: Tensor

    def __init__(self, grid: Grid | Domain, outputs: int, experts: int, degree: int) -> None:
        super().__init__()
        check_integer("model.degree", degree, 0)
        self.out, terms = Domain.of(grid), (degree + 1) ** 2
        # In every place the squares of all harmonics add up to their number: the field varies as a latent gate does.
        self.weight = nn.Parameter(torch.randn(experts, terms) * (experts / outputs / terms) ** 0.5)
        latitude = np.radians(self.out.grid.latitudes)
        longitude = np.radians(np.array(self.out.grid.longitudes))
        order = np.arange(-degree, degree + 1)
        # Y_lm = P_lm cos(mλ), and P_l|m| sin(|m|λ) for m < 0, with mean square 1 and the usual factor (-1)^m.
        scale = (-1.0) ** order * np.where(order == 0, np.sqrt(2), 2)
        functions = legendre(degree, np.sin(latitude), np.cos(latitude) ** 2).transpose(2, 0, 1)
        table = functions[:, np.abs(order)] * scale[:, None]
        waves = np.where(order[:, None] < 0, np.sin(-order[:, None] * longitude), np.cos(order[:, None] * longitude))
        exists = np.abs(order) <= np.arange(degree + 1)[:, None]
        # They move with the module and are not saved. Every rank has those of the whole globe.
        for name, values in (("_legendre", table), ("_waves", waves), ("_place", np.flatnonzero(exists))):
            self.register_buffer(name, torch.from_numpy(values), persistent=False)

    def forward(self, x: Tensor) -> Tensor:
        """Any input to (1, E, H, W)."""
        weight, (rows, columns) = self.weight, self.out.tile
        legendre, waves = self._legendre[..., rows].to(weight), self._waves[:, columns].to(weight)
        table = weight.new_zeros(len(weight), legendre.shape[0] * legendre.shape[1])
        table = table.index_copy(1, self._place, weight).view(len(weight), *legendre.shape[:2])
        return torch.einsum("elm,lmh,mw->ehw", table, legendre, waves)[None]
