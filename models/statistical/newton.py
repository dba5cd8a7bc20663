"""Newton's method for thousands of small problems at once, one per grid cell.

Each problem has a few parameters of its own, its own damping and its own end: those that have arrived cost
nothing more.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor


class Expansion(NamedTuple):
    """Objectives of K problems around the parameters of each, to second order."""

    value: Tensor
    """(K,)"""
    gradient: Tensor
    """(K, P)"""
    hessian: Tensor
    """(K, P, P)"""

    def at(self, problems: Tensor) -> Expansion:
        """Return the expansion of some of the problems."""
        return Expansion(*(tensor[problems] for tensor in self))

    @property
    def finite(self) -> Tensor:
        """(K,) True where all numbers are finite."""
        return self.value.isfinite() & self.gradient.isfinite().all(1) & self.hessian.isfinite().all((1, 2))


class Minimum(NamedTuple):
    """Where the problems ended."""

    parameters: Tensor
    """(K, P)"""
    value: Tensor
    """(K,)"""
    converged: Tensor
    """(K,) True at a minimum; elsewhere the parameters are the best that were met."""


class _Step(NamedTuple):
    """What the expansion of k problems advises."""

    step: Tensor
    """(k, P)"""
    promised: Tensor
    """(k,) decrease that the step brings if the expansion is exact."""
    possible: Tensor
    """(k,) decrease that is left in all."""
    convex: Tensor
    """(k,) False near a saddle or a maximum."""


def minimise(
    expand: Callable[[Tensor, Tensor], Expansion], start: Tensor, tolerance: float = 1e-12, steps: int = 100
) -> Minimum:
    """Minimise K objectives of P parameters each, from `start` (K, P).

    `expand(parameters, problems)` returns the expansion of the problems of those indices (k,) at parameters
    (k, P). The steps are Newton's with the damping of Levenberg and Marquardt; one that does not lower the
    objective is not taken. A problem ends where no further step can lower it by `tolerance` of its value.
    """
    parameters = start.clone()
    state = expand(parameters, torch.arange(len(start), device=start.device))
    damping = torch.full_like(state.value, 1e-3)
    converged, active = torch.zeros_like(state.finite), state.finite
    for _ in range(steps):
        problems = active.nonzero()[:, 0]
        here = state.at(problems)
        advice = _advise(here, damping[problems])
        arrived = advice.convex & (advice.possible <= tolerance * here.value.abs())
        # Where damping has grown without end, rounding errors allow no lower value: this is arrival as well.
        arrived |= damping[problems] > 1e12
        converged[problems[arrived]], active[problems[arrived]] = True, False
        if arrived.all():
            break
        problems, here, advice = problems[~arrived], here.at(~arrived), _Step(*(a[~arrived] for a in advice))
        trial = parameters[problems] + advice.step
        there = expand(trial, problems)
        better = there.finite & (there.value <= here.value)
        parameters[problems[better]] = trial[better]
        for old, new in zip(state, there, strict=True):
            old[problems[better]] = new[better]
        kept = torch.where(better, (here.value - there.value) / advice.promised, -torch.inf)
        # Trust what kept its promise; mistrust what brought next to nothing.
        factor = torch.where(kept > 0.5, 0.1, torch.where(kept > 0.1, 1.0, 10.0))
        damping[problems] = (damping[problems] * factor).clamp(min=1e-10)
    return Minimum(parameters, state.value, converged)


def _advise(state: Expansion, damping: Tensor) -> _Step:
    """Return the damped Newton step for the Hessian scaled to a unit diagonal.

    Eigenvalues count by their absolute value, so that a saddle repels (Dauphin et al. 2014, arXiv:1406.2572).
    """
    diagonal = state.hessian.diagonal(dim1=1, dim2=2).abs().sqrt()
    # A parameter without influence has neither slope nor curvature; any scale will do.
    unit = torch.where(diagonal > 0, diagonal, 1)
    eigenvalues, axes = torch.linalg.eigh(state.hessian / (unit[:, :, None] * unit[:, None, :]))
    slope = (axes.mT @ (state.gradient / unit)[:, :, None])[:, :, 0]
    curvature = eigenvalues.abs()
    damped = curvature + damping[:, None]
    return _Step(
        step=-(axes @ (slope / damped)[:, :, None])[:, :, 0] / unit,
        promised=(slope.square() / damped * (1 - curvature / (2 * damped))).sum(1),
        possible=(slope.square() / curvature.clamp(min=1e-10)).sum(1) / 2,
        convex=(eigenvalues > -1e-6).all(1),
    )
