"""EMOS on arrays: fit coefficients to training cases, for each cell, for all cells, or in between; predict with them.

Ensemble mean and spread are the predictors of a regression (Gneiting et al. 2005, doi:10.1175/MWR2904.1):
μ = a + b mean [+ c cos φ + d sin φ] with the phase φ of the year; σ² = γ² + δ² std², or log σ = γ + δ log std.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from data_pipeline.common.checks import check_integer
from models.distribution import Distribution
from models.statistical.regression import Fit, Regression, cell_blocks

OWN_FRACTIONS = (0.0, 0.25, 0.5, 0.75, 1.0)
"""Candidates for partly shared coefficients: 0 stands for the shared ones, 1 for the cell's own."""
HELD_OUT_FOLDS = 4
"""Number of successive stretches of time, each held out once, that choose among `OWN_FRACTIONS`."""
STEEPEST_LOCATION, STEEPEST_SCALE = 10.0, {"quadratic": 100.0, "log": 5.0}
"""Limits of |b| and |δ|. A steeper fit comes from a predictor that hardly varies in training, and would explode where
it varies; it is fitted again without this predictor."""
GREATEST_SPREAD = 4.0
"""With `scale=log`, an std counts at most as this factor times the greatest std of the training cases."""


def coefficient_names(regression: Regression, seasonal: bool) -> tuple[str, ...]:
    """Return the names of the coefficients, in the order of a coefficient tensor.

    `log_shift` is the log δ of the gamma family. With `scale=log`, a smaller std than `least` is raised to it, and a
    greater one than `most` is lowered: the smallest std of the cases, and `GREATEST_SPREAD` times the greatest.

    >>> coefficient_names(Regression(), seasonal=True)
    ('a', 'b', 'c', 'd', 'gamma', 'delta')
    """
    shift = ("log_shift",) if regression.has_shift else ()
    season_terms, limits = ("c", "d") if seasonal else (), ("least", "most") if regression.scale == "log" else ()
    return ("a", "b", *season_terms, "gamma", "delta", *shift, *limits)


def raw_coefficients(regression: Regression, seasonal: bool) -> Tensor:
    """Return the coefficients (P,) whose forecast has the ensemble's own mean and standard deviation."""
    unit = regression.unit_std
    spread = (
        {"gamma": -math.log(unit), "delta": 1.0} if regression.scale == "log" else {"gamma": 0.0, "delta": 1 / unit}
    )
    values = {"b": 1.0, "log_shift": math.log(0.1), "most": 1e30} | spread
    return torch.tensor([values.get(name, 0.0) for name in coefficient_names(regression, seasonal)])


def predict_emos(
    regression: Regression,
    coefficients: Tensor,
    mean: Tensor,
    std: Tensor,
    harmonics: Sequence[Tensor] = (),
    lower: Tensor | None = None,
) -> Distribution:
    """Return the distribution (*S) for coefficients (P, *S), ensemble mean, std and the harmonics of the year.

    >>> form, mean, std = Regression(), torch.tensor([10.0]), torch.tensor([2.0])
    >>> predict_emos(form, raw_coefficients(form, seasonal=False)[:, None], mean, std).std
    tensor([2.])
    """
    if regression.scale == "log":
        coefficients, least, most = coefficients[:-2], *coefficients[-2:]
        std = std.maximum(least).minimum(most).log()
    location, scale = [torch.ones_like(mean), mean, *harmonics], [torch.ones_like(std), std]
    return regression.predict(coefficients, location, scale, lower)


@dataclass(frozen=True)
class EMOSCases:
    """N training cases in K cells, to which coefficients are fitted.

    A case with a NaN is left out. Coefficients are NaN for a cell with too few cases, or without forecast errors. All
    coefficients are float64.

    >>> mean = torch.arange(40.0)[:, None]
    >>> truth = mean + torch.tensor([1.0, -1.0]).repeat(20)[:, None]
    >>> EMOSCases(mean, torch.ones(40, 1), truth).fit_cells(Regression()).shape
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

    def fit_cells(self, regression: Regression) -> Tensor:
        """Return the coefficients (P, K) of each cell."""
        return self.fit(regression).coefficients

    def fit_shared(self, regression: Regression) -> Tensor:
        """Return the coefficients (P, 1) of one regression on the cases of all cells."""
        return self.fit(regression, shared=True).coefficients

    def fit_partly_shared(self, regression: Regression) -> Tensor:
        """Return coefficients (P, K) between the shared ones and those of each cell, for few cases.

        θ_k = θ + w (θ_k' - θ) with one of `OWN_FRACTIONS` as w, the same in all cells. The chosen w has the best score
        on held-out stretches of time; the N cases must be in order of time. A cell with too few cases for coefficients
        of its own gets the shared ones.
        """
        shared = self.fit_shared_folds(regression)
        own, scores = self.fit_and_score_cells(regression, shared)
        return choose_between(shared[-1], own.coefficients, scores)

    def fit_shared_folds(self, regression: Regression) -> Tensor:
        """Return shared coefficients (`HELD_OUT_FOLDS` + 1, P, 1): without each stretch of time, and of all cases."""
        return torch.stack([self.select(kept).fit_shared(regression) for kept, _ in self._folds()])

    def fit_and_score_cells(self, regression: Regression, shared_folds: Tensor) -> tuple[Fit, Tensor]:
        """Return the fit of each cell, and the summed scores of held-out cases (`OWN_FRACTIONS`,).

        `shared_folds` are from `fit_shared_folds`; they replace the coefficients of cells with too few cases. Scores
        of disjoint sets of cells add up to the score of their union.
        """
        K = self.truth.shape[1]
        area = torch.ones(K) if self.weight is None else self.weight
        scores = self.truth.new_zeros(len(OWN_FRACTIONS), dtype=torch.float64)
        own, penalised = shared_folds[-1].expand(-1, K), torch.zeros(K, dtype=torch.bool)
        for shared, (kept, out) in zip(shared_folds, self._folds(), strict=True):
            own, penalised = self.select(kept).fit(regression)
            own = torch.where(own.isnan(), shared, own)
            if not out.any():
                continue
            held_out = self.select(out)
            for cells in cell_blocks(K, len(held_out.truth)):
                mean, std, truth = (values[:, cells] for values in (held_out.mean, held_out.std, held_out.truth))
                lower = None if self.lower is None else self.lower[cells]
                truth = truth if lower is None else truth.maximum(lower)
                for i, fraction in enumerate(OWN_FRACTIONS):
                    coefficients = shared.lerp(own[:, cells], fraction)[:, None]
                    forecast = predict_emos(regression, coefficients, mean, std, held_out.harmonics, lower)
                    scores[i] += (regression.loss(forecast, truth) * area[cells]).nansum()
        return Fit(own, penalised), scores

    def fit_trailing(self, regression: Regression, length: int, *, delay: int = 1) -> Tensor:
        """Return coefficients (P, N, K) for each of N successive cases, fitted to `length` cases before it.

        The last of these cases is `delay` cases before the predicted one, because later truths are not yet known. This
        is the training of Gneiting et al. 2005, which follows changes of the forecast model. Coefficients of the first
        cases, which have too few before them, are NaN. There are no harmonics of the year.
        """
        check_integer("length", length, 1)
        check_integer("delay", delay, 1)
        first = length + delay - 1
        count = len(self.truth) - first
        names = coefficient_names(regression, seasonal=False)
        found = torch.full((len(names), *self.truth.shape), torch.nan, dtype=torch.float64)
        if count > 0:
            # Each window is a cell of one large fit.
            mean, std, truth = (
                values.expand_as(self.truth).unfold(0, length, 1)[:count].flatten(0, 1).T
                for values in (self.mean, self.std, self.truth)
            )
            lower = None if self.lower is None else self.lower.repeat(count)
            windows = EMOSCases(mean, std, truth, lower=lower)
            found[:, first:] = windows.fit_cells(regression).unflatten(1, (count, -1))
        return found

    def select(self, cases: Tensor) -> EMOSCases:
        """Return the cases where `cases` (N,) is True."""
        mean, std, truth = (values.expand_as(self.truth)[cases] for values in (self.mean, self.std, self.truth))
        return EMOSCases(mean, std, truth, [term[cases] for term in self.harmonics], self.lower, self.weight)

    def _folds(self) -> Iterator[tuple[Tensor, Tensor]]:
        """Yield which cases (N,) are kept and which are held out: for each stretch of time, then for all cases."""
        N, device = len(self.truth), self.truth.device
        fold = torch.arange(N, device=device) * HELD_OUT_FOLDS // max(N, 1)
        for k in range(HELD_OUT_FOLDS + 1):
            yield fold != k, fold == k

    def fit(self, regression: Regression, shared: bool = False) -> Fit:
        """Return the fit of each cell, or of one regression on the cases of all cells.

        Coefficients are NaN if their CRPS on the training cases is greater than the raw ensemble's. This is checked for
        a fit of the CRPS, and for a fit of the likelihood only if it is penalised.
        """
        regression.check_lower(self.lower)

        def arrange(values: Tensor) -> Tensor:
            """Return one column for each cell, or a single one for all."""
            values = values.to(self.truth.device).expand_as(self.truth)
            return values.reshape(-1, 1) if shared else values

        mean, std, truth = arrange(self.mean), arrange(self.std), arrange(self.truth)
        weight = arrange(self.weight if shared and self.weight is not None else torch.ones(()))
        harmonics = [arrange(term) for term in self.harmonics]
        lower = None if self.lower is None else arrange(self.lower)
        fits = []
        for cells in cell_blocks(truth.shape[1], len(truth), regression.cost):
            m, s, y, w, *terms = (values[:, cells].T for values in (mean, std, truth, weight, *harmonics))
            bound = None if lower is None else lower[:, cells].T
            valid = m.isfinite() & s.isfinite() & y.isfinite()
            m, s, y, w = (torch.where(valid, values, 0) for values in (m, s, y, w))
            fits.append(_fit_block(regression, m, s, terms, y, w, bound))
        return Fit(*(torch.cat(parts, dim=-1) for parts in zip(*fits, strict=True)))


def _fit_block(
    regression: Regression, mean: Tensor, std: Tensor, harmonics: Sequence[Tensor], truth: Tensor, weight: Tensor,
    lower: Tensor | None,
) -> Fit:  # fmt: skip
    """Return the fit of K cells to N cases, (K, N) each, without NaN; cases of zero weight do not count."""
    log, k = regression.scale == "log", len(harmonics)
    limits, spread = [], std
    if log:
        least = torch.where(std > 0, std, torch.inf).amin(1, keepdim=True)
        least = torch.where(least.isfinite(), least, 1)
        limits = [least, GREATEST_SPREAD * std.amax(1, keepdim=True).maximum(least)]
        spread = std.maximum(least).log()
    one = torch.ones_like(mean[:1])

    def fit(rows: Tensor, *varying: Tensor) -> Fit:
        """Return the fit of the cells `rows`; `varying` are means and spreads."""
        m, s = (values[rows] for values in varying)
        own = [term.expand_as(mean)[rows] for term in harmonics]
        bound = None if lower is None else lower.expand_as(mean)[rows]
        return regression.fit([one, m, *own], [one, s], truth[rows], weight[rows], bound)

    found, penalised = fit(torch.arange(len(mean), device=mean.device), mean, spread)
    steep = found[1].abs() > STEEPEST_LOCATION, found[3 + k].abs() > STEEPEST_SCALE[regression.scale]
    if len(rows := (steep[0] | steep[1]).nonzero()[:, 0]):
        flat = (torch.where(which[:, None], 0, x) for which, x in zip(steep, (mean, spread), strict=True))
        found[:, rows], penalised[rows] = fit(rows, *flat).coefficients, True
    if not log:
        found[k + 2 : k + 4].abs_()  # only their squares count
    found = torch.cat([found, *(limit.T.to(found) for limit in limits)])
    doubtful = penalised | (regression.score == "crps")  # the best likelihood may have a greater CRPS
    if doubtful.any():
        lost = _is_worse_than_raw(regression, found, mean, std, harmonics, truth, weight, lower) & doubtful
        found[:, lost] = torch.nan
    found[:, found[0].isnan()] = torch.nan
    return Fit(found, penalised & ~found[0].isnan())


def _is_worse_than_raw(
    regression: Regression, coefficients: Tensor, mean: Tensor, std: Tensor, harmonics: Sequence[Tensor],
    truth: Tensor, weight: Tensor, lower: Tensor | None,
) -> Tensor:  # fmt: skip
    """Return where (K,) the raw ensemble has a lower CRPS, the mean of the cases (K, N), than coefficients (P, K).

    The likelihood cannot compare the two: it is infinite for a raw ensemble that is dry with certainty.
    """
    truth = truth if lower is None else truth.maximum(lower)
    raw = raw_coefficients(regression, bool(harmonics)).to(coefficients)[:, None].repeat(1, len(mean))
    if regression.scale == "log":
        raw[-2] = coefficients[-2]
    own, theirs = (
        (predict_emos(regression, c[..., None], mean, std, harmonics, lower).crps(truth) * weight).sum(1)
        for c in (coefficients, raw)
    )
    return ~(own <= theirs)


def choose_between(shared: Tensor, own: Tensor, scores: Tensor) -> Tensor:
    """Return the coefficients between `shared` (P, 1) and `own` (P, K) with the lowest of `scores` (`OWN_FRACTIONS`,).

    >>> choose_between(torch.zeros(1, 1), torch.ones(1, 2), torch.tensor([5.0, 3, 4, 5, 6]))
    tensor([[0.2500, 0.2500]])
    """
    return shared.lerp(own, OWN_FRACTIONS[int(scores.argmin())])
