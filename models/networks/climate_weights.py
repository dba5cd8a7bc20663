"""Weights of the climate baseline: how far past errors are trusted, from forecasts of years that were left out."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from itertools import combinations
from typing import NamedTuple

import torch
from torch import Tensor

from data_pipeline.sample import Sample

QUIET = 0.03
"""Size of errors, in units of the typical departure, below which a cell hardly counts for the weights of the variance.

A relative error is weighted alike in all cells. Without this limit, cells without any error, such as deserts without
rain, would decide."""
RAW_WEIGHTS = (0.0, 0.0, 1.0, 0.0, 0.0)
"""λ, κ, α, β and γ of the raw ensemble."""


class LeftOutCase(NamedTuple):
    """Errors of a batch, and its climates from a fit without its years, (B, T, H, W) each, in normalised units."""

    error: Tensor
    """Truth minus ensemble mean, NaN where one of them is missing."""
    bias: Tensor
    """Mean error b of the other years."""
    departure: Tensor
    """Ensemble mean minus its climate k in the other years."""
    spread: Tensor
    size: Tensor
    """Size R of the errors that remained in the other years."""


def fit_weights(
    batches: Iterable[Sample],
    case: Callable[[Sample], LeftOutCase],
    area: Tensor,
    lead: Callable[[Sample], Tensor],
    leads: int,
    total: Callable[[Tensor], Tensor],
) -> Tensor:
    """Return λ, κ, α, β and γ for each lead time and target, (5, L, T); all cells share them.

    The corrected mean is m + λ b - κ (m - k). κ comes from a regression of b - e, where e - b is the error left by the
    bias, on m - k. Then λ comes from a regression of e + κ (m - k) on b. Both are cut to [0, 1]. A joint regression
    would be useless for truth with a mean of zero in every cell, such as standardised truth: there b of the other years
    always has the opposite sign of the left-out error. The corrected variance is α s² + β R² + γ with α, β, γ >= 0,
    which minimise its squared difference from the squared error, in units of R². Cells are weighted by `area` (H, W).
    These are stacked regressions (Breiman 1996, doi:10.1007/BF00117832): b, k and R come from years without the case.
    `total` adds up the sums of all ranks. Without cases the weights are `RAW_WEIGHTS`.
    """
    products, variances = torch.zeros(()), torch.zeros(())
    for batch in batches:
        one = LeftOutCase(*(x.double() for x in case(batch)))
        known = one.error.isfinite()
        z = torch.stack([one.error, one.bias, one.departure]).where(known, 0)
        v = torch.stack([one.spread.square(), one.size.square(), torch.ones_like(one.size)]).where(known, 0)
        relative = area / (one.size.square() + QUIET**2).square()
        # Products of e, b and m - k for the mean, and weighted by s², R² and 1 for the variance.
        weights = torch.cat([area.expand_as(v[:1]), relative * v])
        own = torch.einsum("wbthx,ibthx,jbthx->btwij", weights, z, z)
        squares = torch.einsum("bthx,ibthx,jbthx->btij", relative, v, v)
        if products.ndim == 0:
            products, variances = (x.new_zeros(leads, *x.shape[1:]) for x in (own, squares))
        products.index_add_(0, place := lead(batch), own)
        variances.index_add_(0, place, squares)
    products, variances = total(products), total(variances)
    (ee, eb, ed), (_, bb, bd), (_, _, dd) = (row.unbind(-1) for row in products[..., 0, :, :].unbind(-2))
    kappa = _ratio(bd - ed, dd).clamp(0, 1)
    lam = _ratio(eb + kappa * bd, bb).clamp(0, 1)
    residual = torch.stack([torch.ones_like(lam), -lam, kappa], dim=-1)
    moments = torch.einsum("...i,...wij,...j->...w", residual, products[..., 1:, :, :], residual)
    scales = least_squares(variances, moments)
    weights = torch.cat([torch.stack([lam, kappa], dim=-1), scales], dim=-1)
    raw = weights.new_tensor(RAW_WEIGHTS)
    return torch.where((ee > 0)[..., None], weights, raw).movedim(-1, 0)


def least_squares(matrix: Tensor, vector: Tensor) -> Tensor:
    """Return x >= 0, (..., N), with the least x·Ax - 2 b·x for a positive semidefinite A (..., N, N).

    Some minimum x solves Ax = b for its entries that are not zero, and their columns are independent (Lawson and Hanson
    1974, chapter 23). So the best solution over all sets of columns is exact. There are few sets, because N is three.

    >>> least_squares(torch.tensor([[2.0, 0.0], [0.0, 2.0]]), torch.tensor([1.0, -3.0]))
    tensor([0.5000, 0.0000])
    """
    count, units = vector.shape[-1], matrix.diagonal(dim1=-2, dim2=-1).sqrt()
    units = units.where(units > 0, 1)
    a, b = matrix / (units[..., None] * units[..., None, :]), vector / units
    best, least = torch.zeros_like(b), b.new_zeros(b.shape[:-1])
    for columns in (c for size in range(1, count + 1) for c in combinations(range(count), size)):
        part = list(columns)
        x = torch.zeros_like(b)
        x[..., part] = torch.linalg.solve_ex(a[..., part, :][..., part], b[..., part]).result
        value = torch.einsum("...i,...ij,...j->...", x, a, x) - 2 * (b * x).sum(-1)
        # For a singular part of A, x is not finite, or lower than `least` by a rounding error only.
        better = (x >= 0).all(-1) & (value < least * (1 + 1e-12))
        best, least = x.where(better[..., None], best), value.where(better, least)
    return best / units


def _ratio(x: Tensor, y: Tensor) -> Tensor:
    """Return x/y, and 0 where y is not positive."""
    return (x / y.where(y > 0, 1)).where(y > 0, 0)
