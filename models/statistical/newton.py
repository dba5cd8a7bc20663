"""Newton's method for thousands of small problems at once, one per grid cell.

Each problem has a few parameters, its own damping and its own end: a converged problem takes no more time.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor


class Expansion(NamedTuple):
    """Second-order Taylor expansions of K objectives."""

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
    """Result of `minimise` for K problems."""

    parameters: Tensor
    """(K, P)"""
    value: Tensor
    """(K,)"""
    converged: Tensor
    """(K,) True at a minimum; otherwise the parameters are the best ones found."""


class _Step(NamedTuple):
    """Damped Newton steps of k problems."""

    move: Tensor
    """(k, P) change of the parameters."""
    expected: Tensor
    """(k,) decrease of the objective by this step, if the expansion is exact."""
    possible: Tensor
    """(k,) decrease of the objective from here to its minimum, if the expansion is exact."""
    convex: Tensor
    """(k,) False near a saddle or a maximum."""


def minimise(
    expand: Callable[[Tensor, Tensor], Expansion], initial: Tensor, tolerance: float = 1e-12, steps: int = 100
) -> Minimum:
    """Minimise K objectives of P parameters each, from `initial` (K, P).

    `expand(parameters, problems)` returns the expansions of the problems with indices (k,) at parameters (k, P). Newton
    steps have the damping of Levenberg and Marquardt; a step that would raise the objective is not taken. A problem has
    converged if no step can lower its objective by `tolerance` of its value.

    >>> def square(x, problems):
    ...     return Expansion((x[:, 0] - 3) ** 2 + 1, 2 * (x - 3), torch.full((len(x), 1, 1), 2.0, dtype=x.dtype))
    >>> minimise(square, torch.zeros(1, 1, dtype=torch.float64)).parameters.round(decimals=4)
    tensor([[3.]], dtype=torch.float64)
    """
    parameters = initial.clone()
    state = expand(parameters, torch.arange(len(initial), device=initial.device))
    damping = torch.full_like(state.value, 1e-3)
    converged, active = torch.zeros_like(state.finite), state.finite
    for _ in range(steps):
        problems = active.nonzero()[:, 0]
        here = state.at(problems)
        step = _damped_step(here, damping[problems])
        arrived = step.convex & (step.possible <= tolerance * here.value.abs())
        # Where damping has grown so far, rounding errors prevent any lower value: this is convergence, too.
        arrived |= damping[problems] > 1e12
        converged[problems[arrived]], active[problems[arrived]] = True, False
        if arrived.all():
            break
        problems, here, step = problems[~arrived], here.at(~arrived), _Step(*(a[~arrived] for a in step))
        trial = parameters[problems] + step.move
        there = expand(trial, problems)
        better = there.finite & (there.value <= here.value)
        parameters[problems[better]] = trial[better]
        for old, new in zip(state, there, strict=True):
            old[problems[better]] = new[better]
        ratio = torch.where(better, (here.value - there.value) / step.expected, -torch.inf)
        # Less damping where the decrease was about as expected, more damping where there was hardly any.
        factor = torch.where(ratio > 0.5, 0.1, torch.where(ratio > 0.1, 1.0, 10.0))
        damping[problems] = (damping[problems] * factor).clamp(min=1e-10)
    return Minimum(parameters, state.value, converged)


def _damped_step(state: Expansion, damping: Tensor) -> _Step:
    """Return the damped Newton step for the Hessian scaled to a unit diagonal.

    The absolute values of the eigenvalues count, so that steps lead away from a saddle (Dauphin et al. 2014,
    arXiv:1406.2572).
    """
    diagonal = state.hessian.diagonal(dim1=1, dim2=2).abs().sqrt()
    # A parameter without influence has neither slope nor curvature; its scale does not matter.
    unit = torch.where(diagonal > 0, diagonal, 1)
    eigenvalues, axes = torch.linalg.eigh(state.hessian / (unit[:, :, None] * unit[:, None, :]))
    slope = (axes.mT @ (state.gradient / unit)[:, :, None])[:, :, 0]
    curvature = eigenvalues.abs()
    damped = curvature + damping[:, None]
    return _Step(
        move=-(axes @ (slope / damped)[:, :, None])[:, :, 0] / unit,
        expected=(slope.square() / damped * (1 - curvature / (2 * damped))).sum(1),
        possible=(slope.square() / curvature.clamp(min=1e-10)).sum(1) / 2,
        convex=(eigenvalues > -1e-6).all(1),
    )
