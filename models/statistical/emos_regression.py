"""EMOS on arrays: fit coefficients to training cases, for each cell, for all cells, or in between; predict with them.

Ensemble mean and spread are the predictors of a regression (Gneiting et al. 2005, doi:10.1175/MWR2904.1):
μ = a + b mean [+ Σ e_g (mean_g - mean)] [+ c cos φ + d sin φ] with the means of groups of members and the phase φ of
the year; σ² = γ² + δ² std², or log σ = γ + δ log std.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

import torch
from torch import Tensor

from models.distribution import Distribution
from models.statistical.regression import NEGLIGIBLE_ERROR, Fit, Prior, Regression, cell_blocks

STEEPEST_LOCATION, STEEPEST_SCALE = 10.0, {"quadratic": 100.0, "log": 5.0}
"""Limits of |b|, |e_g| and |δ|. A steeper fit comes from a predictor that hardly varies in training, and would explode
where it varies; it is fitted again without this predictor."""
COARSE_STEPS = 6
"""Newton steps of a fit that starts at the coefficients of a similar one, to compare the two on held-out cases."""
FIXED = 1e9
"""Second moment of a predictor whose coefficient cannot move."""
GREATEST_SPREAD = 4.0
"""With `scale=log`, an std counts at most as this factor times the greatest std of the training cases."""


def coefficient_names(regression: Regression, seasonal: bool, groups: int = 0) -> tuple[str, ...]:
    """Return the names of the coefficients, in the order of a coefficient tensor; `groups` is the number of e_g.

    `log_shift` is the log δ of the gamma family. With `scale=log`, a smaller std than `least` is raised to it, and a
    greater one than `most` is lowered: the smallest std of the cases, and `GREATEST_SPREAD` times the greatest.

    >>> coefficient_names(Regression(), seasonal=True)
    ('a', 'b', 'c', 'd', 'gamma', 'delta')
    """
    shift = ("log_shift",) if regression.has_shift else ()
    season_terms, limits = ("c", "d") if seasonal else (), ("least", "most") if regression.scale == "log" else ()
    of_groups = (f"e{group}" for group in range(groups))
    return ("a", "b", *of_groups, *season_terms, "gamma", "delta", *shift, *limits)


def raw_coefficients(regression: Regression, seasonal: bool, groups: int = 0) -> Tensor:
    """Return the coefficients (P,) whose forecast has the ensemble's own mean and standard deviation."""
    unit = regression.unit_std
    spread = (
        {"gamma": -math.log(unit), "delta": 1.0} if regression.scale == "log" else {"gamma": 0.0, "delta": 1 / unit}
    )
    values = {"b": 1.0, "log_shift": math.log(0.1), "most": 1e30} | spread
    return torch.tensor([values.get(name, 0.0) for name in coefficient_names(regression, seasonal, groups)])


def predict_emos(
    regression: Regression,
    coefficients: Tensor,
    mean: Tensor,
    std: Tensor,
    terms: Sequence[Tensor] = (),
    lower: Tensor | None = None,
) -> Distribution:
    """Return the distribution (*S) for coefficients (P, *S), ensemble mean, std and further terms of the location.

    These are the departures of groups from the mean, and then the harmonics of the year.

    >>> form, mean, std = Regression(), torch.tensor([10.0]), torch.tensor([2.0])
    >>> predict_emos(form, raw_coefficients(form, seasonal=False)[:, None], mean, std).std
    tensor([2.])
    """
    if regression.scale == "log":
        coefficients, least, most = coefficients[:-2], *coefficients[-2:]
        std = std.maximum(least).minimum(most).log()
    location, scale = [torch.ones_like(mean), mean, *terms], [torch.ones_like(std), std]
    return regression.predict(coefficients, location, scale, lower)


class SharedPrior(NamedTuple):
    """Coefficients that cells with few cases are drawn to.

    The penalty counts as much as `cases` cases of the cell whose predictors vary as in the sample of the prior. A
    departure counts in units of σ, so that quiet and restless cells are drawn alike.
    """

    coefficients: Tensor
    """(P, K) or (P, 1)"""
    cases: float | Tensor
    """Weight of the prior as a number of cases, or (K,); infinite: its coefficients are those of the cell."""
    moments: Tensor
    """(S, p, p) second moments of the predictors of S sets of cells in units of σ, without the limits of the spread."""


@dataclass(frozen=True)
class EMOSCases:
    """N training cases in K cells, to which coefficients are fitted.

    A case with a NaN is left out. Coefficients are NaN for a cell with too few cases, or without forecast errors. All
    coefficients are float64.

    >>> mean = torch.arange(40.0)[:, None]
    >>> truth = mean + torch.tensor([1.0, -1.0]).repeat(20)[:, None]
    >>> EMOSCases(mean, torch.ones(40, 1), truth).fit(Regression()).coefficients.shape
    torch.Size([4, 1])
    """

    mean: Tensor
    """(N, K) ensemble mean."""
    std: Tensor
    """(N, K) standard deviation of the ensemble."""
    truth: Tensor
    """(N, K)"""
    harmonics: Sequence[Tensor] = ()
    """Cosine and sine of the year's phase, (N, 1) each, or nothing."""
    lower: Tensor | None = None
    """(K,) lower bound of a bounded family."""
    weight: Tensor | None = None
    """(K,) weight of each cell in the fit of shared and in the choice of partly shared coefficients."""
    departures: Sequence[Tensor] = ()
    """(N, K) each: the mean of a group of members less the mean of all."""
    one_season: bool = False
    """True: the coefficient b of the ensemble mean is that of the prior, because the cases are of one season. Forecasts
    of another season are far from the mean of the cases, so that a b that is wrong by 0.1 costs more than a degree."""

    @property
    def terms(self) -> list[Tensor]:
        """The predictors of the location beside the mean."""
        return [*self.departures, *self.harmonics]

    def select(self, cases: Tensor) -> EMOSCases:
        """Return the cases where `cases` (N,) is True."""
        found = self._changed(lambda values: values[cases])
        return replace(found, harmonics=[term[cases] for term in self.harmonics])

    @classmethod
    def concat(cls, parts: Sequence[EMOSCases]) -> EMOSCases:
        """Return the cases of all parts, which are of the same cells."""
        harmonics = [torch.cat(terms) for terms in zip(*(part.harmonics for part in parts), strict=True)]
        fields = [part._fields() for part in parts]
        mean, std, truth, *departures = (torch.cat(values) for values in zip(*fields, strict=True))
        return replace(parts[0], mean=mean, std=std, truth=truth, departures=departures, harmonics=harmonics)

    def at(self, cells: Tensor) -> EMOSCases:
        """Return the cases of some cells."""
        lower, weight = (None if values is None else values[cells] for values in (self.lower, self.weight))
        return replace(self._changed(lambda values: values[:, cells]), lower=lower, weight=weight)

    def repeated(self, cases: Tensor) -> EMOSCases:
        """Return S sets of these cells, with the truth only of the cases that are True in a mask (S, N)."""
        S, K = len(cases), self.truth.shape[1]
        found = self._changed(lambda values: values.repeat(1, S))
        truth = torch.where(cases.T.repeat_interleave(K, 1), found.truth, torch.nan)
        lower, weight = (None if values is None else values.repeat(S) for values in (self.lower, self.weight))
        return replace(found, truth=truth, lower=lower, weight=weight)

    def _fields(self) -> list[Tensor]:
        """Return mean, std, truth and departures, (N, K) each."""
        return [values.expand_as(self.truth) for values in (self.mean, self.std, self.truth, *self.departures)]

    def _changed(self, change: Callable[[Tensor], Tensor]) -> EMOSCases:
        """Return these cases with each of the `_fields` changed."""
        mean, std, truth, *departures = map(change, self._fields())
        return replace(self, mean=mean, std=std, truth=truth, departures=departures)

    def score(self, regression: Regression, coefficients: Tensor) -> Tensor:
        """Return the summed score (K,) of each cell's cases, times its weight, for coefficients (P, K) or (P, 1)."""
        found, (N, K) = [], self.truth.shape
        coefficients, area = coefficients.expand(-1, K), torch.ones(K) if self.weight is None else self.weight
        for cells in cell_blocks(K, N, regression.cost):
            mean, std, truth, *departures = (values[:, cells] for values in self._fields())
            lower = None if self.lower is None else self.lower[cells]
            truth = truth if lower is None else truth.maximum(lower)
            terms = [*departures, *self.harmonics]
            forecast = predict_emos(regression, coefficients[:, None, cells], mean, std, terms, lower)
            found.append((regression.loss(forecast, truth) * area[cells]).nansum(0))
        return torch.cat(found)

    def moments(self, regression: Regression, coefficients: Tensor, sets: int = 1) -> Tensor:
        """Return the `SharedPrior.moments` of these cases around coefficients (P, 1) or (P, K)."""
        centre = coefficients.double()
        block = self._block(slice(None))
        scale = block.scale(centre[-2][:, None] if regression.scale == "log" else None)
        centre = centre[:-2] if regression.scale == "log" else centre
        return _moments(regression, block, scale, block.size(regression, centre, scale, shared=False), sets)

    def fit(
        self,
        regression: Regression,
        shared: bool = False,
        prior: SharedPrior | None = None,
        start: Tensor | None = None,
        sets: int = 1,
    ) -> Fit:
        """Return the fit of each cell, or of one regression on the cases of all cells of each of the `sets`.

        With a `prior`, every cell has coefficients; `start` are the coefficients of a similar fit, which need not be
        found exactly.

        Coefficients are NaN if their CRPS on the training cases is greater than the raw ensemble's. This is checked for
        a fit of the CRPS, and for a fit of the likelihood only if it is penalised.
        """
        K = sets if shared else self.truth.shape[1]
        if prior is not None and isinstance(prior.cases, float) and math.isinf(prior.cases):
            return Fit(prior.coefficients.expand(-1, K), torch.zeros(K, dtype=torch.bool))
        fits = []
        for cells, block in self._blocks(regression, shared, sets):
            if prior is None:
                fits.append(_fit_block(regression, block))
            else:
                moments = prior.moments
                if not shared:
                    moments = moments.expand(K, -1, -1) if sets == 1 else moments.repeat_interleave(K // sets, 0)
                    moments = moments[cells]
                own = prior._replace(coefficients=prior.coefficients.expand(-1, K)[:, cells], moments=moments)
                begin = None if start is None else start.expand(-1, K)[:, cells]
                fits.append(_fit_with_prior(regression, block, own, begin, shared, self.one_season))
        return Fit(*(torch.cat(parts, dim=-1) for parts in zip(*fits, strict=True)))

    def _blocks(self, regression: Regression, shared: bool, sets: int) -> Iterator[tuple[slice, _Block]]:
        """Yield the cases of some cells at a time."""
        regression.check_lower(self.lower)
        N, K = self.truth.shape
        for cells in [slice(None)] if shared else cell_blocks(K, N, regression.cost):
            yield cells, self._block(cells, shared, sets)

    def _block(self, cells: slice, shared: bool = False, sets: int = 1) -> _Block:
        """Return the cases of some cells, as those of one cell for each set if `shared`."""

        def arrange(values: Tensor) -> Tensor:
            """Return one row for each cell, or for each set of cells."""
            values = values.to(self.truth.device).expand_as(self.truth)[:, cells]
            return values.unflatten(1, (sets, -1)).movedim(1, 0).flatten(1) if shared else values.T

        fields = list(map(arrange, self._fields()))
        w = arrange(self.weight if shared and self.weight is not None else torch.ones(()))
        valid = torch.stack([values.isfinite() for values in fields]).all(0)
        m, s, y, w, *departures = (torch.where(valid, values, 0) for values in (*fields[:3], w, *fields[3:]))
        bound = None if self.lower is None else arrange(self.lower)
        return _Block(m, s, departures, [arrange(term) for term in self.harmonics], y, w, bound)


class _Block(NamedTuple):
    """N cases of K cells, (K, N) each, without NaN; cases of zero weight do not count."""

    mean: Tensor
    std: Tensor
    departures: list[Tensor]
    harmonics: list[Tensor]
    truth: Tensor
    weight: Tensor
    lower: Tensor | None

    def limits(self) -> tuple[Tensor, Tensor]:
        """Return the smallest std above zero and the greatest that counts, (K, 1) each."""
        least = torch.where(self.std > 0, self.std, torch.inf).amin(1, keepdim=True)
        least = torch.where(least.isfinite(), least, 1)
        return least, GREATEST_SPREAD * self.std.amax(1, keepdim=True).maximum(least)

    def location(self) -> list[Tensor]:
        """Return the predictors of the location, (K, N) or (1, N) each."""
        return [torch.ones_like(self.mean[:1]), self.mean, *self.departures, *self.harmonics]

    def scale(self, least: Tensor | None) -> list[Tensor]:
        """Return the predictors of the scale; `least` is for a scale in logarithms."""
        return [torch.ones_like(self.mean[:1]), self.std if least is None else self.std.maximum(least).log()]

    def size(self, regression: Regression, coefficients: Tensor, scale: Sequence[Tensor], shared: bool) -> Tensor:
        """Return the typical σ (K, 1) of the forecasts of some coefficients; of their errors if `shared`."""
        count = (self.weight > 0).sum(1, keepdim=True).clamp(min=1)
        mu, second = regression.numbers(coefficients[..., None], self.location(), scale)
        variance = (2 * second).exp() if regression.scale == "log" else second
        errors = (self.truth if self.lower is None else self.truth.maximum(self.lower)) - mu
        mean = [torch.where(self.weight > 0, v, 0).sum(1, keepdim=True) / count for v in (variance, errors.square())]
        tiny = (NEGLIGIBLE_ERROR * self.truth.abs().amax()).clamp(min=torch.finfo(torch.float32).tiny)
        return (mean[1] if shared else mean[0].maximum(mean[1] / 100)).sqrt().maximum(tiny)


def _moments(regression: Regression, block: _Block, scale: Sequence[Tensor], size: Tensor, sets: int) -> Tensor:
    """Return the second moments (S, P, P) of predictors with the mean zero in each cell, in units of σ."""
    known = (block.weight > 0).double()
    count = known.sum(1, keepdim=True)

    def total(values: Tensor) -> Tensor:
        return values.expand_as(known).unflatten(0, (sets, -1)).sum((1, 2))

    def centred(values: Tensor) -> Tensor:
        values = values.expand_as(known) * known
        return (values - values.sum(1, keepdim=True) / count.clamp(min=1)) * known

    of_size = [block.mean, *block.departures]
    terms = [torch.zeros_like(known), *(centred(term) / size for term in of_size), *map(centred, block.harmonics)]
    if regression.scale == "log":
        terms += [torch.zeros_like(known), centred(scale[1])]
    else:
        terms += [known / math.sqrt(2), known * (scale[1] / size).square() / math.sqrt(2)]
    p, q = len(terms) - 2, len(terms) - 1 + regression.has_shift
    cases = total(known).clamp(min=1)
    cells = total((count > 0) / known.shape[1])
    free = (cases - cells).clamp(min=1)
    found = torch.zeros(sets, q + 1, q + 1).to(known)
    for part, divisor in ((range(p), free), (range(p, p + 2), free if regression.scale == "log" else cases)):
        for i in part:
            for j in part:
                found[:, i, j] = total(terms[i] * terms[j]) / divisor
    # A predictor that is constant has no variance, but counts once.
    for i in (0, *[p] * (regression.scale == "log"), *[q] * regression.has_shift):
        found[:, i, i] = 1
    # Groups of the same members differ by rounding errors, which a free coefficient would fit.
    for i in range(2, 2 + len(block.departures)):
        found[:, i, i].clamp_(min=STEEPEST_LOCATION**-2)
    return found


def _fit_with_prior(
    regression: Regression, block: _Block, prior: SharedPrior, start: Tensor | None, shared: bool, one_season: bool
) -> Fit:
    """Return the fit of K cells that are drawn to a prior; cells without cases get its coefficients."""
    log, K = regression.scale == "log", len(block.truth)
    centre = prior.coefficients.double().expand(-1, K)
    limits: list[Tensor] = []
    if log:
        centre, theirs = centre[:-2], centre[-2:, :, None]
        # A few cases hardly show how much the spread varies.
        few = (block.weight > 0).sum(1, keepdim=True) < 2 * len(centre)
        least, most = block.limits()
        limits = [torch.where(few, theirs[0].minimum(least), least), torch.where(few, theirs[1].maximum(most), most)]
    scale = block.scale(limits[0] if log else None)
    size = block.size(regression, centre, scale, shared)
    moments = _moments(regression, block, scale, size, len(block.truth)) if shared else prior.moments
    if one_season:
        moments = moments.clone()
        moments[:, 1, 1] = FIXED
    # Coefficients of means have no unit, those of the constant, the season and of γ² have one.
    units = [size, *[torch.ones_like(size)] * (1 + len(block.departures)), *[size] * len(block.harmonics)]
    units += [torch.ones_like(size)] * 2 if log else [size.square(), torch.ones_like(size)]
    unit = torch.cat([*units, *[torch.ones_like(size)] * regression.has_shift], dim=1)
    # The curvature of a good normal forecast's score by μ/σ.
    curvature = size / math.sqrt(math.pi) if regression.score == "crps" else torch.ones_like(size)
    weight = torch.as_tensor(prior.cases, dtype=torch.float64).expand(K)
    precision = weight[:, None, None] * curvature[..., None] * moments / (unit[:, :, None] * unit[:, None, :])
    begin = centre if start is None else start[: len(centre)]
    fitted = regression.fit(
        block.location(), scale, block.truth, block.weight, block.lower,
        Prior(
            centre, precision, begin,
            None if shared else weight * curvature[:, 0],
            None if shared else size[:, 0].square() / 100,
            None if start is None else COARSE_STEPS,
        ),
    )  # fmt: skip
    found, k = fitted.coefficients, len(block.departures) + len(block.harmonics)
    if not log:
        found[k + 2 : k + 4].abs_()  # only their squares count
    return Fit(torch.cat([found, *(limit.T.to(found) for limit in limits)]), fitted.penalised)


def _fit_block(regression: Regression, block: _Block) -> Fit:
    """Return the fit of K cells, each to its own cases only."""
    mean, std, departures, harmonics, truth, weight, lower = block
    log, k, terms = regression.scale == "log", len(departures) + len(harmonics), [*departures, *harmonics]
    limits = list(block.limits()) if log else []
    spread = std.maximum(limits[0]).log() if log else std
    one = torch.ones_like(mean[:1])

    def fit(rows: Tensor, s: Tensor, m: Tensor, *parts: Tensor) -> Fit:
        """Return the fit of the cells `rows` with their spreads, means and departures."""
        own = [term.expand_as(mean)[rows] for term in harmonics]
        bound = None if lower is None else lower.expand_as(mean)[rows]
        return regression.fit([one, m, *parts, *own], [one, s], truth[rows], weight[rows], bound)

    varying = [spread, mean, *departures]
    found, penalised = fit(torch.arange(len(mean), device=mean.device), *varying)
    slopes = found[[3 + k, *range(1, 2 + len(departures))]]
    limit_of = torch.full_like(slopes[:, :1], STEEPEST_LOCATION)
    limit_of[0] = STEEPEST_SCALE[regression.scale]
    steep = slopes.abs() > limit_of
    if len(rows := steep.any(0).nonzero()[:, 0]):
        flat = (torch.where(which[rows, None], 0, x[rows]) for which, x in zip(steep, varying, strict=True))
        found[:, rows], penalised[rows] = fit(rows, *flat).coefficients, True
    if not log:
        found[k + 2 : k + 4].abs_()  # only their squares count
    found = torch.cat([found, *(limit.T.to(found) for limit in limits)])
    doubtful = penalised | (regression.score == "crps")  # the best likelihood may have a greater CRPS
    if doubtful.any():
        lost = _is_worse_than_raw(regression, found, mean, std, terms, len(departures), truth, weight, lower)
        lost &= doubtful
        found[:, lost] = torch.nan
    found[:, found[0].isnan()] = torch.nan
    return Fit(found, penalised & ~found[0].isnan())


def _is_worse_than_raw(
    regression: Regression, coefficients: Tensor, mean: Tensor, std: Tensor, terms: Sequence[Tensor], groups: int,
    truth: Tensor, weight: Tensor, lower: Tensor | None,
) -> Tensor:  # fmt: skip
    """Return where (K,) the raw ensemble has a lower CRPS, the mean of the cases (K, N), than coefficients (P, K).

    The likelihood cannot compare the two: it is infinite for a raw ensemble that is dry with certainty.
    """
    truth = truth if lower is None else truth.maximum(lower)
    raw = raw_coefficients(regression, len(terms) > groups, groups).to(coefficients)[:, None].repeat(1, len(mean))
    if regression.scale == "log":
        raw[-2] = coefficients[-2]
    own, theirs = (
        (predict_emos(regression, c[..., None], mean, std, terms, lower).crps(truth) * weight).sum(1)
        for c in (coefficients, raw)
    )
    return ~(own <= theirs)
