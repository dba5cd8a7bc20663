"""The protocol of predictive distributions, and distributions that join others by cell and by target."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, is_dataclass, replace
from typing import Any, ClassVar, NamedTuple, Self, TypeVar

import torch
from torch import Tensor

from data_pipeline.common.errors import InputError

D = TypeVar("D", bound="Distribution")
K = TypeVar("K")


class CRPSSlopes(NamedTuple):
    """First and second derivatives of the CRPS by μ and log σ."""

    mu: Tensor
    log_sigma: Tensor
    mu_mu: Tensor
    mu_log_sigma: Tensor
    log_sigma_twice: Tensor


class Distribution:
    """A univariate distribution for every element of a tensor shape `(*S)`; subclasses are frozen dataclasses.

    A new distribution must have the properties and methods up to `affine`. All others have defaults that suit a
    distribution in closed form without a bound. `tests/models/distribution/test_law.py` checks every subclass that
    `models.distribution` exports.
    """

    exported: ClassVar[bool] = False
    """Whether `models.engines.families` has the same distribution in NumPy, under the name of the class."""

    @property
    def mean(self) -> Tensor:
        """Expectation, (*S)."""
        raise NotImplementedError

    @property
    def std(self) -> Tensor:
        """Standard deviation, (*S)."""
        raise NotImplementedError

    def quantile(self, level: Tensor) -> Tensor:
        """Return the quantiles (K, *S) at the levels (K,), or at levels (K, *S) that differ between elements."""
        raise NotImplementedError

    def cdf(self, value: Tensor) -> Tensor:
        """Return the probability of values up to `value`, (*S); NaN where the value is NaN."""
        raise NotImplementedError

    def log_prob(self, value: Tensor) -> Tensor:
        """Return the log density, or at a point mass its log probability, (*S); NaN where the value is NaN."""
        raise NotImplementedError

    def crps_slopes(self, truth: Tensor) -> CRPSSlopes | None:
        """Return the derivatives of the CRPS; None for a family without closed formulas."""
        return None

    def crps(self, truth: Tensor, fair: float = False) -> Tensor:
        """Return the continuous ranked probability score against `truth`, (*S); NaN where the truth is NaN.

        For an ensemble, `fair` estimates the score with infinitely many members (Ferro 2014, doi:10.1002/qj.2270). A
        number between 0 and 1 gives that share of the fair score and the rest of the plain score. Other distributions
        ignore `fair`.
        """
        raise NotImplementedError

    def affine(self, location: Tensor, scale: Tensor) -> Distribution:
        """Return the distribution of `location + scale * X`, for scale > 0."""
        raise NotImplementedError

    @property
    def name(self) -> str:
        """Name of the distribution in messages."""
        return re.sub(r"(?<!^)(?=[A-Z])", " ", type(self).__name__).lower()

    @property
    def bound(self) -> Tensor | None:
        """Lower bound of the values, (*S): the field `lower` of a family that has one; None without a bound."""
        return vars(self).get("lower")

    @property
    def as_members(self) -> Tensor | None:
        """The members (M, *S) of an ensemble, which are random draws; None for other distributions."""
        return None

    @property
    def has_members(self) -> bool:
        """Whether there are members in any cell, so that the fair CRPS differs from the CRPS."""
        return self.as_members is not None

    @property
    def atoms(self) -> Tensor | None:
        """The equally probable values (K, *S) of a distribution that has only these; None for others."""
        return self.as_members

    @property
    def resolved_levels(self) -> tuple[float, float]:
        """Lowest and highest level of the quantiles that the distribution knows; beyond, `quantile` repeats them."""
        return 0.0, 1.0

    @property
    def mask(self) -> Tensor | None:
        """Where the forecast comes from the model, not from the raw ensemble; None: everywhere."""
        return None

    @property
    def core(self) -> Distribution:
        """The distribution where `mask` is True."""
        return self

    def of_target(self, target: int) -> Distribution:
        """Return a distribution over all targets that is this one for `target`, and of one kind for all of them."""
        return self

    def map(self, function: Callable[[Distribution], Distribution]) -> Distribution:
        """Return `function(distribution)`; for joined distributions, apply it to each part and join the results."""
        return function(self)

    def scored(self, function: Callable[[Distribution], Tensor]) -> Tensor:
        """Return `function(distribution)`, (..., *S); for joined distributions the value of the part of each cell."""
        return function(self)

    def with_bounds(self, function: Callable[[Tensor], Tensor]) -> Distribution:
        """Return the distribution with `function` applied to its bound, or to all values that may lie on a bound."""
        return self if self.bound is None else replace(self, lower=function(self.bound))  # type: ignore[type-var]

    def of_values(self, function: Callable[[Tensor], Tensor]) -> Distribution | None:
        """Return the law of `function(X)` for a non-decreasing function, if X has only a few values, else None."""
        return None

    def raised(self, threshold: Tensor) -> Distribution | None:
        """Return the law of max(X, threshold), if its CRPS has a closed form, else None."""
        return self.of_values(lambda values: torch.maximum(values, threshold))

    def widened(self, error: Tensor) -> Distribution:
        """Return the distribution after an additional, independent error with the standard deviation `error` (*S).

        The distribution is scaled about its mean, so the variances add up. A lower bound stays where it is, and the
        distribution is scaled about it to the old mean, so its variance grows by less.
        """
        std, lower = self.std, self.bound
        factor = torch.where(std > 0, torch.hypot(std, error) / torch.where(std > 0, std, 1), 1)
        moved = self.affine(self.mean * (1 - factor), factor)
        return moved if lower is None else scaled_to_mean(moved.with_bounds(lambda _: lower), [self], None)

    def average(self, others: Sequence[Any], weights: Tensor | None = None) -> Self:
        """Return the average of this and `others` of the same class; see `models.distribution.average`.

        The default takes means of all parameters: this is the mean of the quantile functions if they are linear in the
        parameters.
        """
        return map_fields(lambda *values: weighted_mean(values, weights), self, *others)

    def export_form(self) -> dict[str, Any] | None:
        """Return kind and parameters for NumPy; None if NumPy lacks the functions of this distribution."""
        return {"kind": type(self).__name__, **vars(self)} if self.exported else None


class Composite(Distribution):
    """Base of distributions that join several: a subclass implements `map` and `scored`."""

    @property
    def mean(self) -> Tensor:
        """Expectation."""
        return self.scored(lambda part: part.mean)

    @property
    def std(self) -> Tensor:
        """Standard deviation."""
        return self.scored(lambda part: part.std)

    def quantile(self, level: Tensor) -> Tensor:
        """Quantiles of the part of each cell."""
        return self.scored(lambda part: part.quantile(level))

    def cdf(self, value: Tensor) -> Tensor:
        """Probability of not exceeding `value`."""
        return self.scored(lambda part: part.cdf(value))

    def log_prob(self, value: Tensor) -> Tensor:
        """Logarithm of the density."""
        return self.scored(lambda part: part.log_prob(value))

    def crps(self, truth: Tensor, fair: float = False) -> Tensor:
        """Continuous ranked probability score."""
        return self.scored(lambda part: part.crps(truth, fair))

    def affine(self, location: Tensor, scale: Tensor) -> Distribution:
        """Shift and scale all parts."""
        return self.map(lambda part: part.affine(location, scale))

    def with_bounds(self, function: Callable[[Tensor], Tensor]) -> Distribution:
        """Change the bounds of all parts."""
        return self.map(lambda part: part.with_bounds(function))


@dataclass(frozen=True, eq=False)
class Patched(Composite):
    """The distribution `inner` where the mask `where`, which broadcasts to (*S), is True, and `outer` elsewhere."""

    where: Tensor
    inner: Distribution
    outer: Distribution

    @property
    def as_members(self) -> Tensor | None:
        """The members, if both parts have the same number of them."""
        inner, outer = self.inner.as_members, self.outer.as_members
        if inner is None or outer is None or len(inner) != len(outer):
            return None
        return torch.where(self.where, inner, outer)

    @property
    def has_members(self) -> bool:
        """Whether one of the parts has members."""
        return self.inner.has_members or self.outer.has_members

    @property
    def mask(self) -> Tensor:
        """Where the distribution is `inner`."""
        return self.where

    @property
    def core(self) -> Distribution:
        """The distribution `inner`."""
        return self.inner

    def map(self, function: Callable[[Distribution], Distribution]) -> Patched:
        """Join `function` of both parts."""
        return Patched(self.where, self.inner.map(function), self.outer.map(function))

    def scored(self, function: Callable[[Distribution], Tensor]) -> Tensor:
        """Join the values of both parts."""
        return torch.where(self.where, self.inner.scored(function), self.outer.scored(function))

    def of_target(self, target: int) -> Patched:
        """Return the distribution with parts of one kind."""
        return Patched(self.where, self.inner.of_target(target), self.outer.of_target(target))

    def average(self, others: Sequence[Patched], weights: Tensor | None = None) -> Patched:
        """Join the averages of both parts; the mask is the same in all."""
        inner, outer = (
            average([getattr(one, name) for one in (self, *others)], weights) for name in ("inner", "outer")
        )
        return Patched(self.where, inner, outer)

    def export_form(self) -> dict[str, Any] | None:
        """Return the form of `inner` with the mask; None if `inner` has no form or `outer` is not the raw ensemble."""
        inner = self.inner.export_form()
        if inner is None or self.inner.mask is not None or self.outer.as_members is None:
            return None
        return {"kind": type(self).__name__, "where": self.where.expand(self.inner.mean.shape), "inner": inner}


@dataclass(frozen=True, eq=False)
class ByTarget(Composite):
    """Targets of several kinds over (..., T, H, W): target t has the distribution `parts[index[t]]`.

    Each part covers all targets, so that functions of parts need not select them. `by_target` makes this class.
    """

    parts: tuple[Distribution, ...]
    index: tuple[int, ...]

    @property
    def bound(self) -> Tensor | None:
        """Lower bound, -∞ for targets without one; None if no target has one."""
        if all(part.bound is None for part in self.parts):
            return None
        return self.scored(lambda part: torch.full_like(part.mean, -torch.inf) if part.bound is None else part.bound)

    @property
    def name(self) -> str:
        """Names of the parts."""
        return " or a ".join(part.name for part in self.parts)

    def map(self, function: Callable[[Distribution], Distribution]) -> Distribution:
        """Join `function` of all parts."""
        return _join([part.map(function) for part in self.parts], self.index)

    def scored(self, function: Callable[[Distribution], Tensor]) -> Tensor:
        """Join the values of all parts."""
        values = [part.scored(function) for part in self.parts]
        return torch.stack([values[k].select(-3, t) for t, k in enumerate(self.index)], -3)

    def of_target(self, target: int) -> Distribution:
        """Return the part of the target."""
        return self.parts[self.index[target]]

    def average(self, others: Sequence[ByTarget], weights: Tensor | None = None) -> ByTarget:
        """Join the averages of all parts."""
        if any(other.index != self.index for other in others):
            raise InputError(
                "forecasts with different families of the targets cannot be averaged; combine correctors with equal "
                "model.family, or model.head, and model.power"
            )
        parts = zip(*(one.parts for one in (self, *others)), strict=True)
        return ByTarget(tuple(average(same, weights) for same in parts), self.index)

    def export_form(self) -> dict[str, Any] | None:
        """Return the forms of all parts; None if one of them has none."""
        forms = {f"part{k}": part.export_form() for k, part in enumerate(self.parts)}
        if any(form is None for form in forms.values()):
            return None
        return {"kind": type(self).__name__, "index": list(self.index), **forms}


def by_target(kinds: Sequence[K], make: Callable[[K], Distribution]) -> Distribution:
    """Return the distribution whose target t is that of `make(kinds[t])`; `make` is called once for each kind.

    >>> from models.distribution import Logistic, Normal
    >>> zero, one = torch.zeros(2, 1, 1), torch.ones(2, 1, 1)
    >>> by_target([Normal, Logistic], lambda family: family(zero, one)).std.flatten()
    tensor([1.0000, 1.8138])
    """
    known = list(dict.fromkeys(kinds))
    if len(known) == 1:
        return make(known[0])
    return _join([make(kind) for kind in known], [known.index(kind) for kind in kinds])


def _join(parts: Sequence[Distribution], index: Sequence[int]) -> Distribution:
    """Return the distribution whose target t is the target t of `parts[index[t]]`."""
    own: list[Distribution] = []
    for t, k in enumerate(index):
        part = parts[k]
        own.append(part.parts[part.index[t]] if isinstance(part, ByTarget) else part)
    used = list({id(part): part for part in own}.values())
    if len(used) == 1:
        return used[0]
    return ByTarget(tuple(used), tuple(next(k for k, one in enumerate(used) if one is part) for part in own))


def average(distributions: Sequence[Distribution], weights: Tensor | None = None) -> Distribution:
    """Return the average of distributions of one kind, which lies between them.

    For normal, logistic and Bernstein distributions, and for ensembles of sorted members, this is the mean of the
    quantile functions. Unlike a mixture, it is as sharp as its parts (Schulz & Lerch 2022, arXiv:2204.02291). Members
    of ensembles are not sorted: the k-th members are averaged. Censored distributions and powers are averaged before
    they are censored and transformed, so that each quantile lies between those of the parts. The average of truncated
    and of gamma distributions has the mean of their means (`scaled_to_mean`).

    `weights` (K, ...) of the K distributions have the sum 1 and broadcast to the parameters; None: equal weights. Where
    one of them with a weight is the raw ensemble in place of a model, the average is the raw ensemble. Raises
    `InputError` for distributions of different kinds or powers.
    """
    patched = [(k, one) for k, one in enumerate(distributions) if isinstance(one, Patched)]
    if patched and len(patched) < len(distributions) and all(one.outer.as_members is not None for _, one in patched):
        masks = [one.where if weights is None else one.where | (weights[k] == 0) for k, one in patched]
        inner = average([one.inner if isinstance(one, Patched) else one for one in distributions], weights)
        return Patched(torch.stack(torch.broadcast_tensors(*masks)).all(0), inner, patched[0][1].outer)
    first, *others = distributions
    for other in others:
        if type(other) is not type(first):
            raise InputError(
                f"a {type(first).__name__} and a {type(other).__name__} cannot be averaged; combine correctors with "
                "heads of one kind"
            )
    return first.average(others, weights)


def weighted_mean(values: Sequence[Tensor], weights: Tensor | None = None) -> Tensor:
    """Return the mean of K tensors with weights (K, ...), by default equal ones; equal values stay equal."""
    one, *others = values
    if different := [other.shape for other in others if other.shape != one.shape]:
        raise InputError(
            f"forecasts with {len(one)} and {different[0][0]} parameters of a kind cannot be averaged; combine "
            "correctors with heads of one kind and size"
        )
    # Differences from the first tensor keep equal values equal to the last digit. For equal infinities, inf - inf would
    # be NaN.
    differences = [torch.where(other == one, 0, other - one) for other in others]
    if weights is None:
        return one + sum(differences, 0) / len(values)
    return one + sum((weight * d for weight, d in zip(weights[1:], differences, strict=True)), 0)


def scaled_to_mean(found: Any, parts: Sequence[Any], weights: Tensor | None) -> Any:
    """Return a distribution with a lower bound, scaled about this bound to the weighted mean of the means of `parts`.

    Parameters that are averaged one by one may give a mean far outside of the range of the parts, because the mean is
    not linear in them. Where no probability is left above the bound, and without a bound, nothing is scaled.
    """
    excess = weighted_mean([part.mean - part.bound for part in parts], weights)
    own = found.mean - found.bound
    known = (own > 0) & own.isfinite() & excess.isfinite()
    factor = torch.where(known, excess / torch.where(known, own, 1), 1)
    return found.affine(torch.where(known, found.bound, 0) * (1 - factor), factor)


def map_fields(function: Callable[..., Tensor], first: D, *others: D) -> D:
    """Return the distribution of `function` applied to each tensor of `first` and the same tensor of `others`.

    >>> from models.distribution import Normal
    >>> map_fields(lambda one: one[:1], Normal(torch.tensor([3.0, 4.0]), torch.tensor([1.0, 2.0]))).mean
    tensor([3.])
    """
    found: dict[str, Any] = {}
    for name, value in vars(first).items():
        same = [vars(other)[name] for other in others]
        if isinstance(value, Tensor):
            found[name] = function(value, *same)
        elif is_dataclass(value):
            found[name] = map_fields(function, value, *same)
        elif isinstance(value, tuple) and all(map(is_dataclass, value)):
            found[name] = tuple(map_fields(function, *each) for each in zip(value, *same, strict=True))
        else:
            found[name] = value
    return type(first)(**found)


def in_double(distribution: D) -> D:
    """Return the distribution with all its numbers in double precision."""
    return map_fields(lambda values: values.double() if values.is_floating_point() else values, distribution)


def root(square: Tensor) -> Tensor:
    """Return the square root, whose gradient at 0 is 0 and not infinite; negative numbers count as 0."""
    positive = square > 0
    return torch.where(positive, torch.where(positive, square, 1).sqrt(), torch.where(square.isnan(), square, 0))


def missing_as(value: Tensor, found: Tensor) -> Tensor:
    """Return `found`, and NaN where the value is NaN: comparisons with NaN are false, which looks like a number."""
    return torch.where(value.isnan(), torch.nan, found)


def leading(values: Tensor, like: Tensor) -> Tensor:
    """Return `values` (K,) as (K, 1, ..., 1), which broadcasts with `like` (*S), and values (K, *S) as they are."""
    if values.ndim > 1:
        return values.to(like)
    return values.to(like).view(-1, *[1] * like.ndim)
