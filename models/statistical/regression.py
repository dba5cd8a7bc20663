"""Distributional regression: location and scale of a distribution as functions of predictors.

The common core of EMOS, boosted EMOS and climatology. All cells of a grid are fitted at once, each with coefficients of
its own, by minimum CRPS or maximum likelihood.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import NamedTuple

import torch
from torch import Tensor

from data_pipeline.common.errors import InputError
from models.distribution import FAMILIES, GAMMA, CensoredShiftedGamma, Distribution
from models.distribution.location_scale import Bounded
from models.statistical.newton import Expansion, Minimum, minimise

SCALES, SCORES = ("quadratic", "log"), ("crps", "likelihood")
CASES_AT_ONCE = 2**17
"""Cells times cases that are processed at once: arrays of 1 MB in float64, about forty of them."""
NEGLIGIBLE_ERROR = 1e-7
"""Errors smaller than this fraction of the values are rounding errors of float32."""
SMALLEST_FACTOR = 1e-3
"""Smallest initial γ of a fit with `Prior`."""
GREATEST_SHIFT, GREATEST_FACTOR = 100.0, 1000.0
"""Limits in the training cases of a fit: μ differs from least squares by at most so many standard deviations σ₀ of its
errors, and σ from σ₀ by at most this factor. Fits beyond them describe cases without information, such as dry ones."""


def cell_blocks(cells: int, cases: int, cost: int = 1) -> list[slice]:
    """Return slices of the cells of a grid with about `CASES_AT_ONCE` cases each; a case may count `cost` times."""
    size = max(1, CASES_AT_ONCE // max(1, cost * cases))
    return [slice(first, first + size) for first in range(0, cells, size)]


class Fit(NamedTuple):
    """Coefficients of K cells."""

    coefficients: Tensor
    """(P, K), NaN without a fit."""
    penalised: Tensor
    """(K,) True where the cases alone do not determine the coefficients, and a penalty or a simpler regression does."""


@dataclass(frozen=True)
class Regression:
    """How location and scale of a `family` depend on their predictors, and the `score` that coefficients minimise.

    Location: μ = Σ β_k x_k. Scale: `quadratic`, σ² = Σ γ_k² z_k², which is never negative (Gneiting et al. 2005,
    doi:10.1175/MWR2904.1), or `log`, log σ = Σ γ_k z_k (Messner et al. 2014, doi:10.1175/MWR-D-13-00355.1). The first
    predictor of both is the constant. The family `censored_shifted_gamma` has a third number, the same for all cases of
    a cell: log δ, where δ is the distance from the start of its support to the lower bound (`of_location`).
    """

    family: str = "normal"
    scale: str = "quadratic"
    score: str = "crps"

    def __post_init__(self) -> None:
        for name, choices in (("family", (*FAMILIES, GAMMA)), ("scale", SCALES), ("score", SCORES)):
            if (value := getattr(self, name)) not in choices:
                raise InputError(f"{name}={value} is unknown; choose one of {', '.join(choices)}")

    @property
    def bounded(self) -> bool:
        """Whether the family is censored or truncated at a lower bound."""
        return self.has_shift or issubclass(FAMILIES[self.family], Bounded)

    @property
    def has_shift(self) -> bool:
        """Whether the family has the third number log δ."""
        return self.family == GAMMA

    @property
    def unit_std(self) -> float:
        """Standard deviation for σ = 1, far from a bound."""
        return 1.0 if self.has_shift else FAMILIES[self.family].standard.std

    @property
    def cost(self) -> int:
        """Memory of a case relative to a case of a normal distribution."""
        return 64 if self.has_shift else 1

    def check_lower(self, lower: object) -> None:
        """Raise `InputError` for a bounded family without `lower`, and for an unbounded one with it."""
        if self.bounded and lower is None:
            raise InputError(
                f"family={self.family} needs lower, the lower bound of the target; set for example lower=0"
            )
        if not self.bounded and lower is not None:
            raise InputError(
                f"family={self.family} has no lower; remove lower, or choose family=censored_{self.family}"
            )

    def predict(
        self, coefficients: Tensor, location: Sequence[Tensor], scale: Sequence[Tensor], lower: Tensor | None = None
    ) -> Distribution:
        """Return the distribution (*S) for coefficients (P, *S): β, γ and perhaps log δ, and predictors (*S)."""
        mu, second = self.numbers(coefficients, location, scale)
        return self.distribution(mu, second, lower, coefficients[-1] if self.has_shift else None)

    def numbers(
        self, coefficients: Tensor, location: Sequence[Tensor], scale: Sequence[Tensor]
    ) -> tuple[Tensor, Tensor]:
        """Return μ, and log σ or σ² (see `scale`)."""
        p, q = len(location), len(scale)
        return _sum(coefficients[:p], location), _sum(self._factors(coefficients[p : p + q]), self._terms(scale))

    def fit(
        self,
        location: Sequence[Tensor],
        scale: Sequence[Tensor],
        truth: Tensor,
        weight: Tensor,
        lower: Tensor | None = None,
        prior: Prior | None = None,
    ) -> Fit:
        """Return coefficients (P, K), float64, of K cells, from N cases of predictors and truth, (K, N) each.

        Predictors and the lower bound may also be (1, N) or (K, 1); a truth below the bound is raised to it. Cases of
        zero `weight` (K, N) do not count, but must be finite. All cells are processed at once: pass one of the
        `cell_blocks`.

        In some cells the score has no minimum, or one at extreme coefficients: σ = 0 fits dry cases best, and μ → -∞ a
        censored cell that is always dry. There, each case has the penalty ((μ - μ₀) / σ₀)² + (log σ - log σ₀)², and for
        log δ likewise, where μ₀ and σ₀ come from least squares. All penalties together have the weight of one case.
        Coefficients are NaN for a cell with fewer than two cases per coefficient, for a cell whose predictors give the
        truth exactly, and for a cell without a minimum in spite of the penalty.

        With a `prior`, its penalty replaces this one, and one case is enough. Coefficients are the centre of the prior
        for a cell without cases or without a minimum.
        """
        count = len(location) + len(scale) + self.has_shift
        coefficients = torch.full((count, len(truth)), torch.nan, dtype=torch.float64, device=truth.device)
        penalised = torch.zeros(len(truth), dtype=torch.bool, device=truth.device)
        if prior is not None:
            coefficients = prior.centre.expand_as(coefficients).clone()
        cells = ((weight > 0).sum(1) >= (2 * count if prior is None else 1)).nonzero()[:, 0]
        if len(cells) == 0:
            return Fit(coefficients, penalised)

        def select(values: Tensor) -> Tensor:
            return values.expand_as(truth)[cells]

        # This method needs gradients, even if its caller has switched them off.
        with torch.inference_mode(False), torch.enable_grad():
            cases = _Cases(
                [select(x) for x in location],
                [select(z) for z in self._terms(scale)],
                select(truth),
                select(weight),
                None if lower is None else select(lower),
                centre_scale=self.scale == "log",
                size=max(1, CASES_AT_ONCE // (self.cost * len(cells))),
            )
            if prior is not None:
                minimum = self._minimise(cases, prior.at(cells, len(truth)))
                found = cases.centring(minimum.parameters, -1).T
                good = found.isfinite().all(0)
                coefficients[:, cells[good]] = found[:, good]
                return Fit(coefficients, penalised)
            start, errors, exact = self._least_squares(cases)
            found, weak = start.masked_fill(exact[:, None], torch.nan), torch.zeros_like(exact)
            rows = (~exact).nonzero()[:, 0]
            for weak_prior in (None, _WeakPrior.of(self, cases, start, errors)):
                expand = partial(self._expand, cases, rows=rows, prior=weak_prior)
                minimum = minimise(expand, start[rows])
                good = minimum.converged & self._is_plausible(cases, minimum.parameters, rows, start, errors)
                found[rows] = minimum.parameters.masked_fill(~good[:, None], torch.nan)
                weak[rows] = good & (weak_prior is not None)
                if not len(rows := rows[~good]):
                    break
        coefficients[:, cells], penalised[cells] = cases.centring(found, -1).T, weak
        return Fit(coefficients, penalised)

    def distribution(
        self, mu: Tensor, second: Tensor, lower: Tensor | None = None, log_delta: Tensor | None = None
    ) -> Distribution:
        """Return the distribution for μ, `second`, which is log σ or σ² (see `scale`), and perhaps log δ."""
        sigma = second.exp() if self.scale == "log" else second.sqrt()
        if self.has_shift:
            assert lower is not None
            assert log_delta is not None
            return CensoredShiftedGamma.of_location(mu, sigma, log_delta.exp(), lower)
        family = FAMILIES[self.family]
        if issubclass(family, Bounded) and lower is not None:
            return family(mu, sigma, lower)
        return family(mu, sigma)

    def loss(self, distribution: Distribution, truth: Tensor) -> Tensor:
        """Return the score of each case, which coefficients minimise on average."""
        return distribution.crps(truth) if self.score == "crps" else -distribution.log_prob(truth)

    def _minimise(self, cases: _Cases, prior: Prior) -> Minimum:
        """Return the minimum of score and penalty for the cells of `cases`, for centred predictors."""
        p, q = len(cases.location), len(cases.scale)
        count = (cases.weight > 0).sum(1)[:, None, None]
        centre, start = (cases.centring(values.T) for values in (prior.centre, prior.start))
        factors = centre.clone()
        factors[:, p : p + q] = self._factors(centre[:, p : p + q])
        weight = None if prior.weight is None else prior.weight / count[:, 0, 0]
        penalty = _Quadratic(factors, prior.precision / count, weight, prior.least)
        if self.scale == "quadratic":
            # A coefficient of zero is a stationary point of its square.
            start[:, p : p + q] = start[:, p : p + q].abs().clamp(min=SMALLEST_FACTOR)
        expand = partial(self._expand, cases, rows=torch.arange(len(start), device=start.device), prior=penalty)
        return minimise(expand, start) if prior.steps is None else minimise(expand, start, 1e-5, prior.steps)

    def _factors(self, gamma: Tensor) -> Tensor:
        """Return the factors of the scale's terms, γ or γ²."""
        return gamma if self.scale == "log" else gamma.square()

    def _terms(self, scale: Sequence[Tensor]) -> list[Tensor]:
        """Return the terms z or z² whose sum, times the factors, is log σ or σ²."""
        return list(scale) if self.scale == "log" else [z.square() for z in scale]

    def _is_plausible(self, cases: _Cases, theta: Tensor, rows: Tensor, start: Tensor, errors: Tensor) -> Tensor:
        """Return whether (k,) coefficients keep μ and σ of all cases of the cells `rows` within the limits of a fit."""
        p, q = len(cases.location), len(cases.scale)
        sigma = errors[rows, None]
        good = theta.isfinite().all(1)
        for b in cases.blocks(rows):
            shift = _times(b.x.mT, theta[:, :p] - start[rows, :p]).abs()
            second = _times(b.z.mT, self._factors(theta[:, p : p + q]))
            log_sigma = second if self.scale == "log" else second.log() / 2
            near = (shift <= GREATEST_SHIFT * sigma) & ((log_sigma - sigma.log()).abs() <= math.log(GREATEST_FACTOR))
            good &= (near | (b.weight == 0)).all(1)
        return good

    def _least_squares(self, cases: _Cases) -> tuple[Tensor, Tensor, Tensor]:
        """Return initial coefficients (K, P), σ₀ (K,) of the errors, and whether (K,) the fit of a cell is exact.

        β is the least-squares solution. The variance of its errors is divided equally among the terms of the scale, and
        δ is half its root.
        """
        K, p, q = len(cases.truth), len(cases.location), len(cases.scale)
        shapes = (K, p, p), (K, p), (K, q), (K,), (K,)
        xx, xy, zz, yy, errors = (cases.weight.new_zeros(shape) for shape in shapes)
        for b in cases.blocks():
            wx = b.weight[:, None] * b.x
            xx += wx @ b.x.mT
            xy += _times(wx, b.y)
            zz += _times(b.z, b.weight)
            yy += (b.weight * b.y.square()).sum(1)
        # The pseudo-inverse gives a predictor that never varies the coefficient 0.
        beta = _times(torch.linalg.pinv(xx, hermitian=True), xy)
        for b in cases.blocks():
            errors += (b.weight * (b.y - _times(b.x.mT, beta)).square()).sum(1)
        variance = (errors / self.unit_std**2)[:, None]
        if self.scale == "log":
            gamma = torch.cat([variance.log() / 2, zz.new_zeros(K, q - 1)], dim=1)
        else:
            gamma = torch.where(zz > 0, variance / (q * zz), 0).sqrt()
        shift = [variance.log() / 2 - math.log(2)] if self.has_shift else []
        exact = errors <= NEGLIGIBLE_ERROR**2 * yy
        return torch.cat([beta, gamma, *shift], dim=1), variance[:, 0].sqrt(), exact

    def _expand(
        self, cases: _Cases, theta: Tensor, chosen: Tensor, *, rows: Tensor, prior: _WeakPrior | _Quadratic | None
    ) -> Expansion:
        """Expand the mean score of the `chosen` among the cells `rows`, with the penalty of a prior, to second order.

        The score of a case depends on two numbers only, μ and log σ (or σ²), or on three with log δ. The chain rule
        gives the derivatives by the coefficients as matrix products.
        """
        p, q, rows = len(cases.location), len(cases.scale), rows[chosen]
        beta, gamma, shift = theta[:, :p], theta[:, p : p + q], theta[:, p + q :]
        value, gradient = theta.new_zeros(len(rows)), torch.zeros_like(theta)
        hessian = theta.new_zeros(*theta.shape, theta.shape[1])
        for b in cases.blocks(rows):
            mu, second = _times(b.x.mT, beta), _times(b.z.mT, self._factors(gamma))
            numbers, designs = [mu, second], [b.x, b.z]
            if self.has_shift:
                numbers, designs = [*numbers, shift.expand_as(mu).clone()], [*designs, torch.ones_like(mu)[:, None]]
            score, slopes, curvatures = self._derivatives(numbers, b, rows, prior)
            value += (b.weight * score).sum(1)
            starts = [0, p, p + q]
            for i, slope in enumerate(slopes):
                rows_i = slice(starts[i], starts[i] + designs[i].shape[1])
                gradient[:, rows_i] += _times(designs[i], b.weight * slope)
                for j, curvature in enumerate(curvatures[i], i):
                    rows_j = slice(starts[j], starts[j] + designs[j].shape[1])
                    block = ((b.weight * curvature)[:, None] * designs[i]) @ designs[j].mT
                    hessian[:, rows_i, rows_j] += block
                    if i < j:
                        hessian[:, rows_j, rows_i] += block.mT
        if isinstance(prior, _Quadratic):
            departure = torch.cat([beta, self._factors(gamma), shift], dim=1) - prior.centre[rows]
            slope, precision = _times(prior.precision[rows], departure), prior.precision[rows]
            value += (departure * slope).sum(1) / 2
            gradient += slope
            hessian += precision
        if self.scale == "quadratic":  # from derivatives by γ² to derivatives by γ
            inner = torch.cat([torch.ones_like(beta), 2 * gamma, torch.ones_like(shift)], dim=1)
            hessian *= inner[:, :, None] * inner[:, None, :]
            hessian.diagonal(dim1=1, dim2=2)[:, p : p + q] += 2 * gradient[:, p : p + q]
            gradient *= inner
        return Expansion(value, gradient, hessian)

    def _derivatives(
        self, numbers: list[Tensor], b: _Block, rows: Tensor, prior: _WeakPrior | _Quadratic | None
    ) -> tuple[Tensor, Sequence[Tensor], Sequence[Sequence[Tensor]]]:
        """Return score and penalty (k, n) of the cases, their slopes by the numbers, and the curvatures [i][j - i].

        Formulas give the derivatives of the CRPS of most families, automatic differentiation all others.
        """
        quadratic = prior if isinstance(prior, _Quadratic) and prior.weight is not None else None
        if self.score == "crps" and not self.has_shift and not isinstance(prior, _WeakPrior):
            law = self.distribution(numbers[0], numbers[1], b.lower)
            if (found := law.crps_slopes(b.y)) is not None:
                score, slope, curvature = law.crps(b.y), found.log_sigma, found.log_sigma_twice
                if quadratic is not None:
                    weight, departure = quadratic.departure(self, numbers[1], b.z, rows)
                    score, slope = score + weight / 2 * departure.square(), slope + weight * departure
                    curvature = curvature + weight
                mixed = found.mu_log_sigma
                if self.scale == "quadratic":  # from derivatives by log σ to derivatives by σ²
                    inner = 0.5 / numbers[1]
                    mixed, slope, curvature = mixed * inner, slope * inner, (curvature - 2 * slope) * inner.square()
                return score, [found.mu, slope], [[found.mu_mu, mixed], [curvature]]
        for number in numbers:
            number.requires_grad_()
        log_delta = numbers[2] if self.has_shift else None
        score = self.loss(self.distribution(numbers[0], numbers[1], b.lower, log_delta), b.y)
        if isinstance(prior, _WeakPrior):
            score = score + prior.penalty(self, numbers, _times(b.x.mT, prior.start[rows, : b.x.shape[1]]), rows)
        elif quadratic is not None:
            weight, departure = quadratic.departure(self, numbers[1], b.z, rows)
            score = score + weight / 2 * departure.square()
        slopes = torch.autograd.grad(score.sum(), numbers, create_graph=True)
        curvatures = [
            torch.autograd.grad(slope.sum(), numbers[i:], retain_graph=True) for i, slope in enumerate(slopes)
        ]
        return score.detach(), [slope.detach() for slope in slopes], curvatures


class Prior(NamedTuple):
    """What cells with few cases are drawn to: the penalty (φ - φ₀)ᵀ A (φ - φ₀) / 2 on the summed score of a cell.

    φ are the coefficients for predictors with the mean zero in the cell, where γ stands for the factors of the scale's
    terms, and φ₀ are those of the `centre`. With `weight`, the mean of `weight` (log σ - log σ₀)² / 2 over the cases is
    added, where σ₀² is at least `least`. Without it, a cell with a single case would have σ = 0.
    """

    centre: Tensor
    """(P, K) coefficients for the original predictors, or (P, 1)."""
    precision: Tensor
    """(K, P, P) A."""
    start: Tensor
    """(P, K) or (P, 1) coefficients at which the search starts."""
    weight: Tensor | None = None
    """(K,)"""
    least: Tensor | None = None
    """(K,)"""
    steps: int | None = None
    """Number of steps after which the coefficients count although they are not yet at the minimum."""

    def at(self, cells: Tensor, count: int) -> Prior:
        """Return the prior of some of `count` cells, (P, k)."""
        centre, start = (values.double().expand(-1, count)[:, cells] for values in (self.centre, self.start))
        weight, least = (None if v is None else v[cells] for v in (self.weight, self.least))
        return Prior(centre, self.precision[cells], start, weight, least, self.steps)


class _Quadratic(NamedTuple):
    """A prior for centred predictors, in units of the mean score."""

    centre: Tensor
    """(K, P)"""
    precision: Tensor
    """(K, P, P)"""
    weight: Tensor | None
    least: Tensor | None

    def departure(self, regression: Regression, second: Tensor, z: Tensor, rows: Tensor) -> tuple[Tensor, Tensor]:
        """Return the weight (k, 1), and log σ - log σ₀ (k, n) of the cases of the cells `rows`."""
        assert self.weight is not None
        assert self.least is not None
        q, log, least = z.shape[1], regression.scale == "log", self.least[rows, None]
        first = self.centre.shape[1] - q - regression.has_shift
        theirs = _times(z.mT, self.centre[rows, first : first + q])
        theirs = theirs.maximum(least.log() / 2) if log else theirs.maximum(least).log() / 2
        return self.weight[rows, None], (second if log else second.log() / 2) - theirs


class _WeakPrior(NamedTuple):
    """Penalty on coefficients of K cells that their cases do not determine."""

    start: Tensor
    """(K, P) coefficients of least squares."""
    sigma: Tensor
    """(K,) σ₀, standard deviation of their errors in units of σ."""
    weight: Tensor
    """(K,) weight of the penalty of each case, in units of the score."""

    @classmethod
    def of(cls, regression: Regression, cases: _Cases, start: Tensor, errors: Tensor) -> _WeakPrior:
        """Return the prior with the weight of one case; the CRPS of a good normal forecast is σ/√π on average."""
        unit = errors / math.sqrt(math.pi) if regression.score == "crps" else torch.ones_like(errors)
        return cls(start, errors, unit / (cases.weight > 0).sum(1))

    def penalty(self, regression: Regression, numbers: Sequence[Tensor], mu: Tensor, rows: Tensor) -> Tensor:
        """Return the penalty (k, n) of the cases of the cells `rows`: of μ, log σ or σ² and log δ; `mu` is μ₀."""
        sigma = self.sigma[rows, None]
        log_sigma = numbers[1] if regression.scale == "log" else numbers[1].log() / 2
        squares = ((numbers[0] - mu) / sigma).square() + (log_sigma - sigma.log()).square()
        for log_delta in numbers[2:]:
            squares = squares + (log_delta - self.start[rows, -1:]).square()
        return self.weight[rows, None] * squares


class _Block(NamedTuple):
    """n cases of k cells in float64: predictors (k, p, n) and (k, q, n), all others (k, n)."""

    x: Tensor
    z: Tensor
    y: Tensor
    weight: Tensor
    lower: Tensor | None


class _Cases:
    """All cases of some cells, (K, N); predictors are centred, so that none is nearly collinear with the constant."""

    def __init__(
        self,
        location: list[Tensor],
        scale: list[Tensor],
        truth: Tensor,
        weight: Tensor,
        lower: Tensor | None,
        centre_scale: bool,
        size: int,
    ) -> None:
        self._size = size
        self.location, self.scale, self.truth, self.lower = location, scale, truth, lower
        self.weight = weight / weight.sum(1, keepdim=True, dtype=torch.float64)
        self._x_mean = self._means(location)
        self._z_mean = self._means(scale) if centre_scale else self._means(scale[:1]).expand(-1, len(scale))

    def blocks(self, rows: Tensor | None = None) -> Iterator[_Block]:
        """Yield the cases of the cells `rows` (default: all cells) in blocks of at most `size` per cell."""
        rows = torch.arange(len(self.truth), device=self.truth.device) if rows is None else rows
        for first in range(0, self.truth.shape[1], self._size):
            piece = slice(first, first + self._size)
            truth = self.truth[rows, piece].double()
            lower = None if self.lower is None else self.lower[rows, piece].double()
            yield _Block(
                torch.stack([x[rows, piece] for x in self.location], 1) - self._x_mean[rows, :, None],
                torch.stack([z[rows, piece] for z in self.scale], 1) - self._z_mean[rows, :, None],
                truth if lower is None else torch.maximum(truth, lower),
                self.weight[rows, piece],
                lower,
            )

    def centring(self, theta: Tensor, sign: int = 1) -> Tensor:
        """Return the coefficients (K, P) for the centred predictors from those for the original ones; -1: back."""
        p, q, theta = len(self.location), len(self.scale), theta.clone()
        theta[:, 0] += sign * (theta[:, :p] * self._x_mean).sum(1)
        theta[:, p] += sign * (theta[:, p : p + q] * self._z_mean).sum(1)
        return theta

    def _means(self, predictors: list[Tensor]) -> Tensor:
        """Return the mean (K, p) of each predictor, and zero for the constant, which is not centred."""
        constant = torch.zeros_like(self.weight[:, 0])
        return torch.stack([constant] + [(self.weight * x).sum(1) for x in predictors[1:]], dim=1)


def _sum(factors: Tensor, terms: Sequence[Tensor]) -> Tensor:
    """Return the sum of factors (P, *S) times terms, which broadcast."""
    first, *others = (factor * term for factor, term in zip(factors, terms, strict=True))
    return sum(others, first)


def _times(matrices: Tensor, vectors: Tensor) -> Tensor:
    """Return the products (k, i) of matrices (k, i, j) and vectors (k, j)."""
    return (matrices @ vectors[:, :, None])[:, :, 0]
