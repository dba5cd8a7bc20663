"""Boosting on arrays: a regression that selects, in each cell, the predictors that lower the score.

Non-homogeneous boosting (Messner, Mayr & Zeileis 2017, doi:10.1175/MWR-D-16-0088.1) takes many small steps, each along
the one predictor of μ or of log σ that lowers the score most, and stops where held-out cases gain no more. A regression
on all predictors at once would fit noise.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import combinations_with_replacement
from typing import NamedTuple

import torch
from torch import Tensor

from data_pipeline.common.checks import check_between, check_integer
from data_pipeline.common.errors import InputError
from models.distribution import Distribution
from models.statistical.regression import NEGLIGIBLE_ERROR, Fit, Regression, cell_blocks

SPREAD_MARGIN = math.log(2)
"""A forecast's log σ leaves the range of the training cases by so much at most. σ is exponential in its predictors: a
predictor beyond its range in training made the mean CRPS of left-out years 13,000 K."""
EMOSIndices = tuple[int, int]
"""Indices of two predictors, ensemble mean and log spread. The fit starts from EMOS with these two."""


@dataclass(frozen=True)
class Boosting:
    """Options of boosting: steps of `learning_rate` times the distance to the nearest minimum.

    The number of steps, at most `max_steps`, is chosen by held-out cases: each of `folds` successive stretches of time
    is predicted by a fit to the others. All cells take the same number, the one with the lowest total score.
    """

    regression: Regression
    learning_rate: float = 0.3
    max_steps: int = 200
    folds: int = 4

    def __post_init__(self) -> None:
        if self.regression.has_shift:
            raise InputError(
                f"boosting has no family {self.regression.family}; set model=emos, or model.family=censored_logistic "
                "with model.power=0.5"
            )
        if self.regression.scale != "log":
            raise InputError(f"boosting needs scale=log, got {self.regression.scale}")
        check_between("learning_rate", self.learning_rate, 0.001, 1)
        check_integer("max_steps", self.max_steps, 1)
        check_integer("folds", self.folds, 2)


def products(terms: Sequence[Tensor]) -> list[Tensor]:
    """Return the products of any two of the terms, squares included; terms should vary around zero.

    >>> [int(product) for product in products([torch.tensor(2), torch.tensor(3)])]
    [4, 6, 9]
    """
    return [a * b for a, b in combinations_with_replacement(terms, 2)]


def fit_boosted(
    boosting: Boosting,
    predictors: Sequence[Tensor],
    truth: Tensor,
    emos: EMOSIndices = (0, 1),
    *,
    lower: Tensor | None = None,
    shared: bool = False,
    weight: Tensor | None = None,
) -> Tensor:
    """Return coefficients (4 + 2P, K), float64, of K cells, from N cases in order of time and P predictors.

    Each predictor is (N, K) or (N, 1), truth (N, K). The first 1 + P coefficients give μ, the next log σ; each begin
    with the constant. The last two are the lowest and highest log σ of a forecast. `lower` (K,) is the lower bound of a
    bounded family. `shared` pools all cells, which count by their `weight` (K,), and returns (4 + 2P, 1). A case with a
    NaN is left out.
    """
    boosting.regression.check_lower(lower)
    weight = torch.ones(truth.shape[1], dtype=torch.float64) if weight is None else weight.double()
    maps = [x.expand_as(truth) for x in predictors]

    def blocks() -> Iterator[CaseBlock]:
        return case_blocks(boosting, lambda cells: [x[:, cells] for x in maps], truth, lower, weight, shared)

    curve = torch.cat([block.held_out_scores(boosting, emos) for block in blocks()])
    steps = best_step(total_score(curve, weight[:1] if shared else weight))
    return torch.cat([block.fit(boosting, emos, steps).coefficients for block in blocks()], dim=1)


def predict_boosted(
    regression: Regression, coefficients: Tensor, predictors: Sequence[Tensor], lower: Tensor | None = None
) -> Distribution:
    """Return the distribution (*S) for coefficients (4 + 2P, *S) and predictors (*S)."""
    mu, log_sigma = linear_predictors(coefficients, predictors)
    return regression.distribution(mu, log_sigma, lower)


def linear_predictors(coefficients: Tensor, predictors: Sequence[Tensor]) -> Tensor:
    """Return μ and log σ, (2, *S), for coefficients (4 + 2P, *S) and predictors (*S)."""
    found, *slopes = coefficients[:-2].unflatten(0, (2, -1)).unbind(1)
    for slope, x in zip(slopes, predictors, strict=True):
        found = found + slope * x
    return torch.stack([found[0], found[1].maximum(coefficients[-2]).minimum(coefficients[-1])])


def total_score(curve: Tensor, weight: Tensor) -> Tensor:
    """Return the sum (steps + 1,) of scores (K, steps + 1) over the cells that have any, with weights (K,)."""
    known = curve[:, 0].isfinite()
    return (curve[known].nan_to_num(nan=torch.inf) * weight[known, None]).sum(0)


def best_step(total: Tensor) -> int:
    """Return the number of steps with the lowest of the scores (steps + 1,); the smallest number if several have it."""
    return int((total == total.min()).nonzero()[0])


def case_blocks(
    boosting: Boosting,
    predictors: Callable[[slice], Sequence[Tensor]],
    truth: Tensor,
    lower: Tensor | None,
    weight: Tensor,
    shared: bool,
) -> Iterator[CaseBlock]:
    """Yield the cases of `fit_boosted` in blocks of cells; `predictors` returns the predictors of some cells."""
    N, K = truth.shape
    fold = (torch.arange(N) * boosting.folds // N)[:, None]
    for cells in [slice(None)] if shared else cell_blocks(K, N):
        y = truth[:, cells]

        def arrange(values: Tensor, y: Tensor = y) -> Tensor:
            """Return one row for each cell, or a single one for all."""
            values = values.to(y.device).expand_as(y)
            return values.reshape(1, -1) if shared else values.T

        bound = None if lower is None else arrange(lower[cells])
        x = [arrange(x) for x in predictors(cells)]
        yield CaseBlock.of(x, arrange(y), arrange(weight[cells]), arrange(fold), bound)


class CaseBlock(NamedTuple):
    """N cases of k cells in float64: standardised predictors (k, 1 + P, N), the constant first; others (k, 1, N)."""

    x: Tensor
    truth: Tensor
    weight: Tensor
    fold: Tensor
    lower: Tensor | None
    location: Tensor
    """(k, P) mean of each predictor."""
    scale: Tensor
    """(k, P) standard deviation of each predictor, 1 for a constant one."""

    @classmethod
    def of(
        cls, predictors: Sequence[Tensor], truth: Tensor, weight: Tensor, fold: Tensor, lower: Tensor | None
    ) -> CaseBlock:
        """Make a block of fields (k, N) in any precision; cases with a NaN get zero weight."""
        x, truth = torch.stack([x.double() for x in predictors], dim=1), truth.double()
        valid = truth.isfinite() & x.isfinite().all(1)
        x, truth = torch.where(valid[:, None], x, 0), torch.where(valid, truth, 0)
        weight = weight * valid
        share = (weight / weight.sum(1, keepdim=True))[:, None]
        location = (share * x).sum(2)
        departure = x - location[:, :, None]
        scale = (share * departure.square()).sum(2).sqrt()
        # A predictor that never varies becomes zero, and so gets no coefficient.
        constant = ~(scale > NEGLIGIBLE_ERROR * (share * x.square()).sum(2).sqrt())
        scale = torch.where(constant, 1, scale)
        x = torch.where(constant[:, :, None], 0, departure / scale[:, :, None])
        if lower is not None:
            lower = lower.double()
            truth, lower = torch.maximum(truth, lower), lower[:, None]
        x = torch.cat([torch.ones_like(x[:, :1]), x], dim=1)
        return cls(x, truth[:, None], weight[:, None], fold[:, None], lower, location, scale)

    def held_out_scores(self, boosting: Boosting, emos: EMOSIndices) -> Tensor:
        """Return the mean score (k, steps + 1) of held-out cases after 0, 1, 2, ... steps."""
        out = self.fold == torch.arange(boosting.folds, device=self.fold.device)[:, None]
        share = self.weight * out / self.weight.sum(2, keepdim=True)
        kept = self.weight * ~out
        steps = self.iterate(boosting, self.fit_emos(boosting.regression, emos, kept)[0], kept, boosting.max_steps)
        return torch.stack([(share * score).sum((1, 2)) for _, score in steps], dim=1)

    def fit(self, boosting: Boosting, emos: EMOSIndices, steps: int) -> Fit:
        """Return the coefficients (4 + 2P, k) of the predictors in their own units, after `steps` steps.

        A cell that the steps leave with a worse score than before keeps the EMOS it started from, as a penalised fit.
        """
        start, penalised = self.fit_emos(boosting.regression, emos, self.weight)
        scores = []
        for theta, score in self.iterate(boosting, start.clone(), self.weight, steps):
            last = theta[:, 0]
            scores.append((self.weight * score).sum((1, 2)))
        worse = ~(scores[-1] <= scores[0]) & ~start[:, 0, 0, 0].isnan()
        last = torch.where(worse[:, None, None], start[:, 0], last)
        slopes = last[:, :, 1:] / self.scale[:, None]
        constant = last[:, :, :1] - (slopes * self.location[:, None]).sum(2, keepdim=True)
        log_sigma, known = (last[:, 1:] @ self.x)[:, 0], self.weight[:, 0] > 0
        limits = [
            torch.where(known, log_sigma, torch.inf).amin(1) - SPREAD_MARGIN,
            torch.where(known, log_sigma, -torch.inf).amax(1) + SPREAD_MARGIN,
        ]
        found = torch.cat([torch.cat([constant, slopes], dim=2).flatten(1).T, torch.stack(limits)])
        return Fit(found.masked_fill(last[:, 0, 0].isnan(), torch.nan), penalised | worse)

    def iterate(self, boosting: Boosting, theta: Tensor, weight: Tensor, steps: int) -> Iterator[tuple[Tensor, Tensor]]:
        """Yield coefficients (k, F, 2, 1 + P), first `theta`, and the score (k, F, N) of each case after each step.

        The cases are fitted F times, with a `weight` (k, F, N) each. Predictors have variance one, so that each of them
        has about the curvature of the constant. The distance to the minimum along a predictor is therefore slope /
        curvature, and the expected decrease slope² / (2 curvature). A step goes along the predictor with the largest
        expected decrease.
        """
        regression = boosting.regression
        weight = weight / weight.sum(2, keepdim=True)
        eta = [theta[:, :, i] @ self.x for i in range(2)]
        score, slopes, curvature = self._derivatives(regression, eta, weight)
        yield theta, score
        for _ in range(steps):
            slope = torch.stack([(weight * each) @ self.x.mT for each in slopes], dim=2)
            best = (slope.square() / curvature).flatten(2).argmax(2, keepdim=True)
            move = -boosting.learning_rate * (slope / curvature).flatten(2).gather(2, best)
            theta.flatten(2).scatter_add_(2, best, move)
            parameter, row = best // self.x.shape[1], best % self.x.shape[1]
            change = move * self.x.gather(1, row.expand(-1, -1, self.x.shape[2]))
            eta = [each + torch.where(parameter == i, change, 0) for i, each in enumerate(eta)]
            score, slopes, curvature = self._derivatives(regression, eta, weight, curvature)
            yield theta, score

    def _derivatives(
        self, regression: Regression, eta: list[Tensor], weight: Tensor, curvature: Tensor | None = None
    ) -> tuple[Tensor, list[Tensor], Tensor]:
        """Return scores (k, F, N), their slopes by μ and log σ, and their mean `curvature` (k, F, 2, 1).

        The curvature hardly changes between steps, so it is computed only if it is not given. A case far out may have
        negative curvature; its absolute value counts.
        """
        with torch.inference_mode(False), torch.enable_grad():
            mu, log_sigma = (each.clone().requires_grad_() for each in eta)
            score = regression.loss(regression.distribution(mu, log_sigma, self.lower), self.truth)
            slopes = torch.autograd.grad(score.sum(), (mu, log_sigma), create_graph=curvature is None)
            if curvature is None:
                second = [
                    torch.autograd.grad(slope.sum(), each, retain_graph=True)[0]
                    for slope, each in zip(slopes, (mu, log_sigma), strict=True)
                ]
                curvature = (weight * torch.stack(second).abs()).sum(3).permute(1, 2, 0)[..., None]
        return score.detach(), [slope.detach() for slope in slopes], curvature

    def fit_emos(self, regression: Regression, emos: EMOSIndices, weight: Tensor) -> tuple[Tensor, Tensor]:
        """Return the coefficients (k, F, 2, 1 + P) of EMOS, zero for others, and whether (k,) the fit is penalised."""
        k, F, N = weight.shape
        rows_of = [(i, [0, 1 + index]) for i, index in enumerate(emos)]

        def repeat(values: Tensor) -> Tensor:
            return values.expand(k, F, N).flatten(0, 1)

        location, scale = ([repeat(self.x[:, row, None]) for row in rows] for _, rows in rows_of)
        lower = None if self.lower is None else repeat(self.lower)
        fit = regression.fit(location, scale, repeat(self.truth), weight.flatten(0, 1), lower)
        found = fit.coefficients.T.view(k, F, 2, 2)
        theta = self.x.new_zeros(k, F, 2, self.x.shape[1])
        for i, rows in rows_of:
            theta[:, :, i, rows] = found[:, :, i]
        return theta.masked_fill(found[:, :, :1, :1].isnan(), torch.nan), fit.penalised.view(k, F)[:, 0]
