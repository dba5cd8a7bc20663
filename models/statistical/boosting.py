"""Boosted EMOS: EMOS that chooses for itself among many predictors, cell by cell.

Other variables than the target's own mean and spread may tell something of its error, but a regression on all of
them follows noise. Non-homogeneous boosting (Messner, Mayr & Zeileis 2017, doi:10.1175/MWR-D-16-0088.1) takes many
small steps, each along the one predictor of μ or of log σ that lowers the score most, and stops where cases that
were held out gain no more. `fit_boosted` and `predict_boosted` work on bare arrays, `BoostedEMOS` is the model.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import combinations_with_replacement
from typing import NamedTuple

import torch
from torch import Tensor, nn

from data_pipeline.common.checks import check_between, check_boolean, check_integer
from data_pipeline.common.errors import InputError
from data_pipeline.grid import Grid
from data_pipeline.protocols import ALL
from data_pipeline.sample import Sample
from data_pipeline.task import Task
from models.distribution import FAMILIES, LocationScale
from models.parallel.domain import Domain
from models.parallel.exchange import allsum, assemble
from models.statistical.cases import (
    Passes,
    Report,
    covers_year,
    gather,
    lead_index,
    not_seasonal,
    sharing_cells,
    sharing_note,
)
from models.statistical.predictors import SMALLEST_SPREAD, annual_harmonics, spread
from models.statistical.regression import EXACT, Regression, cell_blocks

logger = logging.getLogger(__name__)

Start = tuple[int, int]
"""Indices of two predictors, the ensemble's mean and the logarithm of its spread, to which EMOS is fitted first."""


@dataclass(frozen=True)
class Boosting:
    """What is boosted, a `regression` of log σ, and how: by steps of `rate` times the way to the nearest minimum.

    The number of steps, at most `steps`, is learnt from cases that are held out: `folds` successive stretches of time,
    each predicted by what was fitted to the others. All cells take the same number, that of the smallest score.
    """

    regression: Regression
    rate: float = 0.3
    steps: int = 200
    folds: int = 4

    def __post_init__(self) -> None:
        if self.regression.scale != "log":
            raise InputError(f"boosting takes scale=log, got {self.regression.scale}")
        check_between("rate", self.rate, 0.001, 1)
        check_integer("steps", self.steps, 1)
        check_integer("folds", self.folds, 2)


def products(terms: Sequence[Tensor]) -> list[Tensor]:
    """Return the products of any two of the terms, squares too; terms that vary around zero make better ones.

    >>> [int(product) for product in products([torch.tensor(2), torch.tensor(3)])]
    [4, 6, 9]
    """
    return [a * b for a, b in combinations_with_replacement(terms, 2)]


def fit_boosted(
    boosting: Boosting,
    predictors: Sequence[Tensor],
    truth: Tensor,
    start: Start = (0, 1),
    *,
    lower: Tensor | None = None,
    shared: bool = False,
    weight: Tensor | None = None,
) -> Tensor:
    """Return coefficients (2 + 2P, K), float64, of K cells from N cases, in order of time, of P predictors.

    Each predictor is (N, K) or (N, 1), truth (N, K). The first half of the rows makes μ, the second log σ; the first
    row of either is the constant. `lower`, `shared` and `weight` are those of `fit_emos`; so is what a NaN means.
    """
    boosting.regression.check_lower(lower)
    weight = torch.ones(truth.shape[1], dtype=torch.float64) if weight is None else weight.double()
    maps = [x.expand_as(truth) for x in predictors]

    def blocks() -> Iterator[_Block]:
        return _blocks(boosting, lambda cells: [x[:, cells] for x in maps], truth, lower, weight, shared)

    curve = torch.cat([block.held_out(boosting, start) for block in blocks()])
    steps = best_step(total_score(curve, weight[:1] if shared else weight), boosting)
    return torch.cat([block.fitted(boosting, start, steps) for block in blocks()], dim=1)


def _blocks(
    boosting: Boosting,
    predictors: Callable[[slice], Sequence[Tensor]],
    truth: Tensor,
    lower: Tensor | None,
    weight: Tensor,
    shared: bool,
) -> Iterator[_Block]:
    """Yield the cases of `fit_boosted` in blocks of cells; `predictors` gives those of some cells."""
    N, K = truth.shape
    fold = (torch.arange(N) * boosting.folds // N)[:, None]
    for cells in [slice(None)] if shared else cell_blocks(K, N):
        y = truth[:, cells]

        def arranged(values: Tensor, y: Tensor = y) -> Tensor:
            values = values.to(y.device).expand_as(y)
            return values.reshape(1, -1) if shared else values.T

        bound = None if lower is None else arranged(lower[cells])
        x = [arranged(x) for x in predictors(cells)]
        yield _Block.of(x, arranged(y), arranged(weight[cells]), arranged(fold), bound)


def predict_boosted(
    regression: Regression, coefficients: Tensor, predictors: Sequence[Tensor], lower: Tensor | None = None
) -> LocationScale:
    """Return the distribution (*S) for coefficients (2 + 2P, *S) and predictors (*S)."""
    mu, log_sigma = _linear(coefficients, predictors)
    return regression.distribution(mu, log_sigma, lower)


def _linear(coefficients: Tensor, predictors: Sequence[Tensor]) -> Tensor:
    """Return μ and log σ, (2, *S)."""
    constant, *slopes = coefficients.unflatten(0, (2, -1)).unbind(1)
    for slope, x in zip(slopes, predictors, strict=True):
        constant = constant + slope * x
    return constant


def total_score(curve: Tensor, weight: Tensor) -> Tensor:
    """Return the weighted sum (steps + 1,) of scores (K, steps + 1) over the cells that have any; weight (K,)."""
    known = curve[:, 0].isfinite()
    return (curve[known].nan_to_num(nan=torch.inf) * weight[known, None]).sum(0)


def best_step(total: Tensor, boosting: Boosting) -> int:
    """Return the number of steps with the smallest of the scores (steps + 1,), the first of several."""
    steps = int((total == total.min()).nonzero()[0])
    if steps == boosting.steps:
        logger.info("after %d steps boosting still gains on held-out cases; more may be better", steps)
    return steps


class _Block(NamedTuple):
    """N cases of k cells in float64: standardised predictors (k, 1 + P, N), the constant first; others (k, 1, N)."""

    x: Tensor
    truth: Tensor
    weight: Tensor
    fold: Tensor
    lower: Tensor | None
    location: Tensor
    """(k, P)"""
    scale: Tensor
    """(k, P)"""

    @classmethod
    def of(
        cls, predictors: Sequence[Tensor], truth: Tensor, weight: Tensor, fold: Tensor, lower: Tensor | None
    ) -> _Block:
        """Make a block of fields (k, N) in any precision; cases with a NaN get no weight."""
        x, truth = torch.stack([x.double() for x in predictors], dim=1), truth.double()
        valid = truth.isfinite() & x.isfinite().all(1)
        x, truth = torch.where(valid[:, None], x, 0), torch.where(valid, truth, 0)
        weight = weight * valid
        share = (weight / weight.sum(1, keepdim=True))[:, None]
        location = (share * x).sum(2)
        departure = x - location[:, :, None]
        scale = (share * departure.square()).sum(2).sqrt()
        # What never varies tells nothing: it has neither departure nor coefficient.
        idle = ~(scale > EXACT * (share * x.square()).sum(2).sqrt())
        scale = torch.where(idle, 1, scale)
        x = torch.where(idle[:, :, None], 0, departure / scale[:, :, None])
        if lower is not None:
            lower = lower.double()
            truth, lower = torch.maximum(truth, lower), lower[:, None]
        x = torch.cat([torch.ones_like(x[:, :1]), x], dim=1)
        return cls(x, truth[:, None], weight[:, None], fold[:, None], lower, location, scale)

    def held_out(self, boosting: Boosting, start: Start) -> Tensor:
        """Return the mean score (k, steps + 1) of cases that were held out, after 0, 1, 2, ... steps."""
        out = self.fold == torch.arange(boosting.folds, device=self.fold.device)[:, None]
        share = self.weight * out / self.weight.sum(2, keepdim=True)
        walk = self._walk(boosting, start, self.weight * ~out, boosting.steps)
        return torch.stack([(share * score).sum((1, 2)) for _, score in walk], dim=1)

    def fitted(self, boosting: Boosting, start: Start, steps: int) -> Tensor:
        """Return the coefficients (2 + 2P, k) of the predictors that were given, after so many steps."""
        for theta, _ in self._walk(boosting, start, self.weight, steps):
            last = theta[:, 0]
        slopes = last[:, :, 1:] / self.scale[:, None]
        constant = last[:, :, :1] - (slopes * self.location[:, None]).sum(2, keepdim=True)
        return torch.cat([constant, slopes], dim=2).flatten(1).T

    def _walk(self, boosting: Boosting, start: Start, weight: Tensor, steps: int) -> Iterator[tuple[Tensor, Tensor]]:
        """Yield coefficients (k, F, 2, 1 + P) and the score (k, F, N) of each case, at the start and after each step.

        The cases are fitted F times, with a `weight` (k, F, N) each. Predictors of variance one have the curvature of
        the constant, about. So the way to the minimum along one is slope over curvature, and promises a decrease of
        half the slope's square over the curvature: the largest promise is chosen.
        """
        regression = boosting.regression
        theta = self._start(regression, start, weight)
        weight = weight / weight.sum(2, keepdim=True)
        eta = [theta[:, :, i] @ self.x for i in range(2)]
        score, slopes, curvature = self._derivatives(regression, eta, weight)
        yield theta, score
        for _ in range(steps):
            slope = torch.stack([(weight * each) @ self.x.mT for each in slopes], dim=2)
            best = (slope.square() / curvature).flatten(2).argmax(2, keepdim=True)
            move = -boosting.rate * (slope / curvature).flatten(2).gather(2, best)
            theta.flatten(2).scatter_add_(2, best, move)
            which, row = best // self.x.shape[1], best % self.x.shape[1]
            change = move * self.x.gather(1, row.expand(-1, -1, self.x.shape[2]))
            eta = [each + torch.where(which == i, change, 0) for i, each in enumerate(eta)]
            score, slopes, curvature = self._derivatives(regression, eta, weight, curvature)
            yield theta, score

    def _derivatives(
        self, regression: Regression, eta: list[Tensor], weight: Tensor, curvature: Tensor | None = None
    ) -> tuple[Tensor, list[Tensor], Tensor]:
        """Return scores (k, F, N), their slopes by μ and log σ, and their mean `curvature` (k, F, 2, 1) if not known.

        It is nearly the same after any number of steps. Where a case lies far out it may be negative; size counts.
        """
        with torch.inference_mode(False), torch.enable_grad():
            mu, log_sigma = (each.clone().requires_grad_() for each in eta)
            score = regression.loss(regression.distribution(mu, log_sigma, self.lower), self.truth)
            slopes = torch.autograd.grad(score.sum(), (mu, log_sigma), create_graph=curvature is None)
            if curvature is None:
                seconds = [
                    torch.autograd.grad(slope.sum(), each, retain_graph=True)[0]
                    for slope, each in zip(slopes, (mu, log_sigma), strict=True)
                ]
                curvature = (weight * torch.stack(seconds).abs()).sum(3).permute(1, 2, 0)[..., None]
        return score.detach(), [slope.detach() for slope in slopes], curvature

    def _start(self, regression: Regression, start: Start, weight: Tensor) -> Tensor:
        """Return the coefficients (k, F, 2, 1 + P) of EMOS."""
        k, F, N = weight.shape
        chosen = [(i, [0, 1 + index]) for i, index in enumerate(start)]

        def repeated(values: Tensor) -> Tensor:
            return values.expand(k, F, N).flatten(0, 1)

        location, scale = ([repeated(self.x[:, row, None]) for row in rows] for _, rows in chosen)
        lower = None if self.lower is None else repeated(self.lower)
        found = regression.fit(location, scale, repeated(self.truth), weight.flatten(0, 1), lower).T.view(k, F, 2, 2)
        theta = self.x.new_zeros(k, F, 2, self.x.shape[1])
        for i, rows in chosen:
            theta[:, :, i, rows] = found[:, :, i]
        return theta.masked_fill(found[:, :, :1, :1].isnan(), torch.nan)


class _Part(NamedTuple):
    """The cases of some rows for one lead time and target, of which `blocks` makes those of some cells."""

    rows: slice
    lead: int
    target: int
    start: Start
    blocks: Callable[[], Iterator[_Block]]
    area: Tensor
    """(K,) of the cells, or of one for all."""
    known: Tensor
    """(K,) 1 for cells with truth, or one for all."""


class BoostedEMOS(nn.Module):
    """EMOS with as many predictors as the task has inputs, and more, of which each cell takes those that help.

    Predictors are mean and log spread of every input and cosine and sine of the season; with `products` those of
    any two of means and season's terms too, so that a bias may depend on the season, or on the flow. With `shared`
    coefficients, one set for the whole globe, static fields too. Unfitted, and at cells without truth, it has the
    ensemble's own mean and standard deviation. `family`, `score` and `lower` are those of EMOS, `rate`, `steps` and
    `folds` those of `Boosting`.
    """

    moments_only = any_grid = tiles = True
    coefficients: Tensor
    lower: Tensor | None

    def __init__(
        self,
        task: Task,
        grid: Grid | Domain,
        family: str = "normal",
        score: str = "crps",
        rate: float = 0.3,
        steps: int = 50,
        folds: int = 4,
        products: bool = False,
        shared: bool = False,
        lower: float | None = None,
    ) -> None:
        super().__init__()
        check_boolean("model.products", products)
        check_boolean("model.shared", shared)
        self.report = Report()
        self.boosting = Boosting(Regression(family, "log", score), rate, steps, folds)
        self.boosting.regression.check_lower(lower)
        self.products, self.shared, self._task, self._lower = products, shared, task, lower
        self._domain, self._targets = Domain.of(grid), list(task.target_channels)
        C, S = len(task.channels), len(task.static_names) if shared else 0
        self.count = 2 * C + 2 + S + products * ((C + 2) * (C + 3) // 2)
        # The raw ensemble: its own mean and log spread with coefficient one.
        raw = torch.zeros(len(task.lead_times), 2 + 2 * self.count, len(task.targets))
        for t, c in enumerate(self._targets):
            raw[:, 1 + c, t] = 1
            raw[:, 2 + self.count + C + c, t] = 1
        raw[:, 1 + self.count] = -math.log(FAMILIES[family].standard.std)
        cells = (1, 1) if shared else grid.shape
        self.register_buffer("coefficients", raw[..., None, None].expand(*raw.shape, *cells).clone())
        bound = None if lower is None else torch.full((len(task.targets), *grid.shape), float(lower))
        self.register_buffer("lower", bound)
        weights = torch.tensor(self._domain.grid.weights)
        self._area = weights[:, None].expand(grid.shape).flatten()

    def forward(self, sample: Sample) -> LocationScale:
        """Return the corrected distribution over (B, T, H, W)."""
        table, lead = self._here(self.coefficients), lead_index(sample.lead_time, self._task)
        maps, when = self._maps(sample), annual_harmonics(sample.init_time, sample.lead_time).to(sample.ensemble)
        # One by one: a batch of coefficients would be many times larger than the batch itself.
        eta = [
            _linear(table.index_select(0, i)[0].to(maps), self._predictors(here.unbind(), now.unbind(), static))
            for i, here, now, static in zip(lead.split(1), maps, when[..., None, None], sample.static, strict=True)
        ]
        mu, log_sigma = torch.stack(eta, dim=1)
        lower = None if self.lower is None else self._domain.cut(self.lower)
        return self.boosting.regression.distribution(mu, log_sigma, lower)

    def normalise(self, location: Tensor, scale: Tensor) -> None:
        """Put the bound into the units (x - location)/scale, in which samples will come."""
        if self.lower is not None and self._lower is not None:
            self.lower.copy_(assemble((self._lower - location) / scale, self._domain))

    @torch.no_grad()
    def fit(self, batches: Iterable[Sample]) -> None:
        """Fit all cells to the training samples, some rows at a time, so that their cases fit into memory.

        The rows are gone through twice: the number of steps is one for all cells. Coefficients that all cells share are
        fitted to the cells of `sharing_cells`. Where the cases of a lead time do not cover the year the season is no
        predictor. `report` says both, and how many cells could not be fitted; raises `TooFewCasesError` where none
        could.
        """
        passes, leads, T = Passes.of(batches), self._task.lead_times, len(self._targets)
        passes.check_leads(self._task)
        width = self._domain.own_shape[1]
        row_bytes = len(passes.init_time) * width * 4 * (2 * len(self._task.channels) + T)
        rows_at_once = [ALL] if self.shared else passes.blocks(row_bytes)
        covered = [covers_year(passes.days(lead)) for lead in leads]
        every: Iterable[_Part] = self._parts(passes, rows_at_once, covered)
        if len(rows_at_once) == 1:
            every = list(every)  # read once
        total = torch.zeros(len(leads), T, self.boosting.steps + 1, dtype=torch.float64)
        for part in every:
            curve = torch.cat([block.held_out(self.boosting, part.start) for block in part.blocks()])
            total[part.lead, part.target] += total_score(curve, part.area)
        # With shared coefficients every rank has worked out all.
        total = total if self.shared else allsum(total, self._domain)
        shape = (*self.coefficients.shape[:3], *self._here(self.coefficients).shape[3:])
        found, known = self.coefficients.new_zeros(shape), torch.zeros(len(leads), T, *shape[3:])
        for part in every if isinstance(every, list) else self._parts(passes, rows_at_once, covered):
            lead, t = part.lead, part.target
            steps = best_step(total[lead, t], self.boosting)
            fits = [block.fitted(self.boosting, part.start, steps) for block in part.blocks()]
            place = found[lead, :, t, part.rows]
            place.copy_(torch.cat(fits, dim=1).view(place.shape))
            known[lead, t, part.rows] = part.known.view(known[lead, t, part.rows].shape)
        if not self.shared:
            found, known = assemble(found, self._domain), assemble(known, self._domain)
        sharing = sharing_note(self._sharing(passes), self._domain.grid.shape)
        self.report = Report([note for note in [sharing, not_seasonal(self._task, covered)] if note])
        for lead, hours in enumerate(leads):
            for t in range(T):
                self.report.count(~found[lead, 0, t].isnan(), known[lead, t] > 0, hours, "boosted EMOS", 8)
        self.coefficients.copy_(torch.where(found.isnan(), self.coefficients, found))

    def _parts(self, passes: Passes, rows_at_once: Iterable[slice], covered: Sequence[bool]) -> Iterator[_Part]:
        """Read the cases of some rows after the others; yield them for each lead time and target."""
        static, cells = torch.empty(0), self._sharing(passes)

        def case(sample: Sample) -> tuple[Tensor, ...]:
            nonlocal static
            static = sample.static[0]
            maps, truth = self._maps(sample), sample.target.masked_fill(~sample.mask[:, self._targets], torch.nan)
            if cells is not None:
                # All cells in one regression: every rank has to see them.
                maps, truth = (assemble(values, self._domain).flatten(-2)[..., cells] for values in (maps, truth))
            return sample.init_time, annual_harmonics(sample.init_time, sample.lead_time), maps, truth

        for rows in rows_at_once:
            for lead, (time, *fields) in enumerate(gather(passes, self._task, case, rows)):
                when, maps, truth = (tensor[time.argsort(stable=True)] for tensor in fields)
                # A predictor that never varies gets no coefficient.
                when = when * covered[lead]
                here, area = static, self._area.view(self._domain.shape)
                if cells is not None:
                    here = assemble(static, self._domain).flatten(1)[:, cells]
                    area = area.flatten()[cells]
                else:
                    area = self._domain.cut(area)[rows]
                columns = partial(self._columns, maps.flatten(2), when, here.flatten(1))
                for t, c in enumerate(self._targets):
                    y = truth[:, t].flatten(1)
                    lower = None if self.lower is None else self._here(self.lower)[t, rows].flatten()
                    if cells is not None and lower is not None:
                        lower = lower[cells]
                    weight = area.flatten() if self.shared else torch.ones_like(y[0])
                    seen = y.isfinite().any(0)
                    yield _Part(
                        rows, lead, t, (c, c + maps.shape[1] // 2),
                        partial(_blocks, self.boosting, columns, y, lower, weight, self.shared),
                        area.flatten()[:1] if self.shared else area.flatten(),
                        (seen.any() if self.shared else seen).float(),
                    )  # fmt: skip

    def _sharing(self, passes: Passes) -> Tensor | None:
        """Return the cells to which shared coefficients are fitted: fewer, the more inputs there are to keep."""
        if not self.shared:
            return None
        return sharing_cells(len(passes.init_time) * len(self._task.channels), self._domain.grid.shape)

    def _here(self, field: Tensor) -> Tensor:
        """Return the part of what is fitted together: the own tile, unless all cells share their coefficients."""
        return field if self.shared else self._domain.cut(field)

    def _maps(self, sample: Sample) -> Tensor:
        """Return mean and log spread of each input, (B, 2C, H, W)."""
        small = torch.as_tensor(10 * SMALLEST_SPREAD).to(sample.ensemble)
        return torch.cat([sample.ensemble.mean(1), torch.hypot(spread(sample.ensemble), small).log()], dim=1)

    def _columns(self, maps: Tensor, when: Tensor, static: Tensor, cells: slice) -> list[Tensor]:
        """Return all predictors of some cells: maps (N, 2C, K), season (N, 2), static (S, K)."""
        return self._predictors(maps[:, :, cells].unbind(1), when[:, :, None].unbind(1), static[:, cells])

    def _predictors(self, maps: Sequence[Tensor], when: Sequence[Tensor], static: Iterable[Tensor]) -> list[Tensor]:
        """Return all predictors, in the order of the coefficients."""
        found = [*maps, *when, *(static if self.shared else ())]
        return found + products([*maps[: len(maps) // 2], *when]) if self.products else found
