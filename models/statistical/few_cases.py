"""Distributions of cells with few cases, which borrow their spread and shape from all cells."""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
from torch import Tensor

from models.distribution import empirical_quantiles

ENOUGH_CASES = 20
"""Number of cases that give quantiles of a cell alone; a normal distribution with two harmonics needs as many."""
SHAPE_VALUES = 2**20
"""Most values that the shape of all cells is taken from."""


class FewCases(NamedTuple):
    """What all cells have in common at one lead time; cells with few cases are drawn to it."""

    variance: Tensor
    """(T,) variance of a typical cell about its mean and annual cycle."""
    weight: Tensor
    """(T,) weight of this variance as a number of degrees of freedom; infinite if cells do not differ."""
    mean: Tensor
    """(Q,) mean of all cells above the lower bound."""
    shape: Tensor
    """(V, Q) values above the lower bound in units of the mean of their cell, sorted, NaN last."""

    @classmethod
    def of(cls, terms: Tensor, truth: Tensor, amounts: Tensor, zero: Tensor) -> FewCases:
        """Return the properties of a sample of cells.

        `terms` (N, p) are the constant and harmonics of the cases, `truth` (N, T, S) has a normal distribution and
        `amounts` (N, Q, S) are above the lower bound `zero` (Q, S).
        """
        _, variance, freedom, _ = _least_squares(terms, truth)
        weights = [_prior(*pair) for pair in zip(variance.double(), freedom, strict=True)]
        typical, weight = torch.tensor(weights, dtype=torch.float64).view(-1, 2).T
        if not amounts.shape[1]:
            return cls(typical, weight, torch.empty(0), torch.empty(0, 0))
        above = (amounts - zero).clamp(min=0)
        mean = above.nanmean((0, 2))
        shape = (above / _cell_mean(above, mean)).movedim(1, 2).flatten(0, 1)
        return cls(typical, weight, mean, shape[:: max(1, math.ceil(len(shape) / SHAPE_VALUES))].sort(dim=0).values)

    def normal(self, terms: Tensor, truth: Tensor) -> Tensor:
        """Return location and log-scale coefficients (2p, T, h, w) of cells with cases (N, T, h, w).

        The variance is the posterior mean of its empirical Bayes estimate (Smyth 2004, doi:10.2202/1544-6115.1027),
        times 1 + p/n for the unknown location.
        """
        location, variance, freedom, count = _least_squares(terms, truth.flatten(2))
        own, weight = torch.nan_to_num(variance.double()) * freedom, self.weight[:, None]
        drawn = (own + weight * self.variance[:, None]) / (freedom + weight)
        drawn = torch.where(weight.isinf(), self.variance[:, None], drawn)
        parameters = count - freedom
        scale = torch.zeros_like(location)
        scale[0] = (drawn * (1 + parameters / count)).log() / 2
        return torch.cat([location, scale]).unflatten(-1, truth.shape[2:])

    def quantiles(self, amounts: Tensor, zero: Tensor, number: int) -> Tensor:
        """Return quantiles (K, Q, h, w) of cells with fewer than `ENOUGH_CASES` cases (N, Q, h, w)."""
        count = amounts.isfinite().sum(0)
        above = (amounts - zero).clamp(min=0)
        mean = _cell_mean(above.flatten(2), self.mean).view(count.shape)
        found = amounts.new_full((number, *count.shape), torch.nan)
        for cases in count.unique().tolist():
            if not 0 < cases < ENOUGH_CASES:
                continue
            shape = empirical_quantiles(self.shape, ENOUGH_CASES - cases)[..., None, None]
            filled = torch.cat([above, shape * mean])
            found = torch.where(count == cases, empirical_quantiles(filled, number) + zero, found)
        return found


def _cell_mean(above: Tensor, mean: Tensor) -> Tensor:
    """Return the mean (Q, S) of values (N, Q, S), to which the `mean` of all cells (Q,) adds one case."""
    count = above.isfinite().sum(0)
    total = (above.nansum(0) + mean[:, None]) / (count + 1)
    return total.clamp(min=torch.finfo(above.dtype).tiny)


def _least_squares(terms: Tensor, truth: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Return location (p, T, S), variance of the errors, degrees of freedom and number of cases, (T, S) each.

    There are as many harmonics as leave a degree of freedom for each coefficient, and the others are zero. Everything
    is NaN for a cell with fewer than two cases.
    """
    valid = truth.isfinite()
    count, x, y = valid.sum(0), terms.double(), torch.where(valid, truth, 0).double()
    location = y.new_full((terms.shape[1], *count.shape), torch.nan)
    variance, freedom = torch.full_like(location[0], torch.nan), torch.zeros_like(location[0])
    weight = valid.double()
    for p in range(1, terms.shape[1] + 1, 2):
        own = x[:, :p]
        xx = torch.einsum("nts,ni,nj->tsij", weight, own, own)
        xy = torch.einsum("nts,ni->tsi", y, own)
        beta = (torch.linalg.pinv(xx, rtol=1e-3, hermitian=True) @ xy[..., None])[..., 0]
        errors = (weight * (y - torch.einsum("ni,tsi->nts", own, beta))).square().sum(0)
        enough = count >= 2 * p
        location[:p] = torch.where(enough, beta.movedim(-1, 0), location[:p])
        location[p:] = torch.where(enough, 0, location[p:])
        variance = torch.where(enough, errors / (count - p).clamp(min=1), variance)
        freedom = torch.where(enough, (count - p).double(), freedom)
    return location, variance, freedom, count


def _prior(variance: Tensor, freedom: Tensor) -> tuple[float, float]:
    """Return variance and weight of the prior of variances (S,) with some degrees of freedom (Smyth 2004, section 6).

    log s² has the variance ψ'(d/2) of a cell's sample, and ψ'(d₀/2) of the cells.
    """
    known = (freedom > 0) & (variance > 0)
    if not known.any():
        return 0.0, 0.0
    half = freedom[known] / 2
    logs = variance[known].log() - torch.digamma(half) + half.log()
    between = float(logs.var(correction=1) - torch.polygamma(1, half).mean()) if known.sum() > 1 else 0.0
    if not between > 0:
        return float(logs.mean().exp()), math.inf
    low, high = 1e-3, 1e4  # ψ' falls from a million to 0.0001
    for _ in range(60):
        middle = math.sqrt(low * high)
        low, high = (middle, high) if float(torch.polygamma(1, torch.tensor(middle))) > between else (low, middle)
    return float((logs.mean() + torch.digamma(torch.tensor(low)) - math.log(low)).exp()), 2 * low
