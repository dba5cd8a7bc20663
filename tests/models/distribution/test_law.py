"""The law: what holds for every distribution, as it is, as a power, patched with another one, and averaged.

A class that `models.distribution` exports and that has no example here fails. Numbers come by other ways than those of
the classes: integrals of the distribution function, finite differences, single elements.
"""

import functools
import json
import math
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from predictions import raw_forecast

import models.distribution
from data_pipeline.common.errors import InputError
from data_pipeline.grid import Grid
from data_pipeline.sample import Sample
from data_pipeline.task import Task, Variable
from data_pipeline.variables.parameters import PARAMETERS, UNBOUNDED
from models.distribution import (
    Bernstein,
    Bounded,
    ByTarget,
    CensoredLogistic,
    CensoredNormal,
    CensoredShiftedGamma,
    Distribution,
    Empirical,
    Ensemble,
    LocationScale,
    Logistic,
    Normal,
    Patched,
    PowerTransformed,
    Quantiles,
    TruncatedNormal,
    average,
    by_target,
    map_fields,
    power_transformed,
    threshold_weighted_crps,
)
from models.engines.families import KINDS
from models.engines.onnx_engine import _check_structure, _family
from models.engines.onnx_export import _named
from models.engines.torch_engine import TorchPrediction
from models.members.conformal import ConformalLayer, interval_levels, normal_scores
from models.members.members import corrected_members
from models.members.options import MEMBER_METHODS, CorrectionOptions
from models.normalizer import Normalizer
from models.parallel.domain import Domain
from models.provenance.noise import Noise
from training.optimization import loss as loss_module

CELLS = 5
MU = (-3.0, -0.2, 0.7, 2.0, 4.0), (-2.0, 0.6, 1.5, 1.2, 3.0)
SIGMA = (0.6, 0.9, 0.6, 0.2, 1.5), (0.5, 0.6, 0.9, 0.3, 1.0)
"""Location and spread of two forecasts in `CELLS` cells, the first of which are dry."""
SURELY_DRY, SURE = (-60.0, -1e4, 1.0, 0.0, 1e4), (0.5, 1.0, 0.0, 0.0, 1e-3)
"""Cells whose probability above 0 underflows, and cells without spread."""
STEPS = torch.tensor([-1.3, -0.8, -0.3, 0.0, 0.2, 0.7, 1.5], dtype=torch.float64)
LEVELS = torch.tensor([0.02, 0.3, 0.5, 0.9, 0.99], dtype=torch.float64)
ONE_CELL_IN_TWO = torch.tensor([True, False, True, False, True])


def around(mu, sigma):
    """Members or quantiles that are at least 0, from the lowest to the highest."""
    return (mu + STEPS.view(-1, *[1] * mu.ndim) * sigma).clamp(min=0)


def at_least_0(family):
    """A family of options; its bound, if it has one, is 0."""
    return (lambda mu, sigma: family(mu, sigma, 0 * mu)) if issubclass(family, Bounded) else family


FAMILIES = {family: at_least_0(family) for family in models.distribution.FAMILIES.values()} | {
    CensoredShiftedGamma: lambda mu, sigma: CensoredShiftedGamma.of_location(mu, sigma, sigma, 0 * mu),
    Ensemble: lambda mu, sigma: Ensemble(around(mu, sigma)),
    Empirical: lambda mu, sigma: Empirical(around(mu, sigma)),
    Quantiles: lambda mu, sigma: Quantiles(around(mu, sigma), torch.linspace(0.05, 0.9, 7, dtype=mu.dtype)),
    Bernstein: lambda mu, sigma: Bernstein(mu + STEPS.view(-1, *[1] * mu.ndim) * sigma),
    PowerTransformed: lambda mu, sigma: PowerTransformed(CensoredNormal(mu, sigma, 0 * mu), 0.4, 0 * mu),
    Patched: lambda mu, sigma: Patched(ONE_CELL_IN_TWO, Normal(mu, sigma), Ensemble(around(mu, sigma))),
}
"""An example of each class for location and spread (..., `CELLS`)."""


def squared(part):
    return power_transformed(part, 0.5, torch.zeros_like(part.mean))


def patched(part):
    return Patched(ONE_CELL_IN_TWO, part, Ensemble(around(part.mean, 1.0)))


VARIANTS = {"plain": lambda part: part, "squared": squared, "patched": patched}
VARIED = {
    "squared": {Normal, Logistic, TruncatedNormal, Ensemble, Quantiles, Bernstein},
    "patched": {Normal, CensoredNormal, Quantiles, Bernstein},
}
"""Classes of each variant: those that a power treats differently, and a few for a join of two, which treats none so."""
WEIGHTS = torch.tensor([0.8, 0.2], dtype=torch.float64)


def make(family, variant="plain", forecast=0, shape=(CELLS,), mu=None, sigma=None):
    """Return the example of a class, in one of the variants or as an average, with elements (*shape)."""
    if variant == "averaged":
        return average([make(family, "plain", each, shape) for each in (0, 1)], WEIGHTS)
    mu, sigma = (
        torch.as_tensor(values, dtype=torch.float64).expand(shape)
        for values in (MU[forecast] if mu is None else mu, SIGMA[forecast] if sigma is None else sigma)
    )
    return VARIANTS[variant](FAMILIES[family](mu, sigma))


def named(family, variant, *values):
    return pytest.param(*values, id=f"{family.__name__}-{variant}")


PAIRS = [(family, variant) for family in FAMILIES for variant in VARIANTS if family in VARIED.get(variant, FAMILIES)]
AVERAGED = [(family, "averaged") for family in FAMILIES]
every = pytest.mark.parametrize("law", [named(*pair, functools.partial(make, *pair)) for pair in PAIRS + AVERAGED])
every_variant = pytest.mark.parametrize(("family", "variant"), [named(*pair, *pair) for pair in PAIRS])
every_family = pytest.mark.parametrize("family", FAMILIES)


def test_every_distribution_has_an_example():
    exported = [getattr(models.distribution, name) for name in models.distribution.__all__]
    classes = {one for one in exported if isinstance(one, type) and issubclass(one, Distribution)}
    bases = {base for one in classes for base in one.__mro__[1:]}
    assert {*FAMILIES, ByTarget} == classes - bases  # for `ByTarget`, see below
    assert {family.__name__ for family in FAMILIES if family.exported} | {"PowerTransformed"} == set(KINDS)


def of_part(distribution, function):
    """Return a number of the part that each cell has."""
    return distribution.scored(lambda part: torch.full((CELLS,), float(function(part)), dtype=torch.float64))


def known_everywhere(distribution):
    """Where the score is the integral of the distribution function, which `Empirical` and `Quantiles` interpolate."""
    return of_part(distribution, lambda part: part.resolved_levels == (0, 1)) == 1


def smooth(distribution):
    """Where there is a density; that of members and quantiles is defined as the one of a normal distribution."""
    return known_everywhere(distribution) & (of_part(distribution, lambda part: part.atoms is None) == 1)


@every_family
def test_a_further_error_adds_to_the_variance_and_leaves_the_bound(family):
    one, error = make(family), torch.tensor([0.7, 0.1, 2.0, 0.4, 1.0], dtype=torch.float64)
    same, wide = (one.map(lambda part, scale=scale: part.widened(scale * error)) for scale in (0, 1))
    torch.testing.assert_close(same.quantile(LEVELS), one.quantile(LEVELS))
    lowest = torch.tensor([1e-9, 0.02], dtype=torch.float64)
    for part, wider in ((one.core, wide.core), (one, wide)):
        assert (part.bound is None) == (wider.bound is None)
        assert part.bound is None or (wider.quantile(lowest) >= part.bound).all()
    free = of_part(one, lambda part: part.bound is None) == 1
    before, after = one.std, wide.std
    expected = torch.where(before > 0, torch.hypot(before, error), 0)
    torch.testing.assert_close(after[free], expected[free])
    torch.testing.assert_close(wide.mean[free], one.mean[free])
    varied = ~free & (before > 1e-3)
    assert (after[varied] > before[varied]).all()
    if family is PowerTransformed:
        torch.testing.assert_close(after[varied], expected[varied], rtol=0.01, atol=0)


@every
def test_the_distribution_function_is_monotone_and_inverts_the_quantiles(law):
    one = law()
    quantiles = one.quantile(LEVELS)
    assert quantiles.shape == (len(LEVELS), CELLS)
    assert quantiles.isfinite().all()
    assert (quantiles.diff(dim=0) >= -1e-9).all()
    members = of_part(one, lambda part: 0 if part.as_members is None else 1 / len(STEPS))
    lowest, highest = (of_part(one, lambda part, end=end: part.resolved_levels[end]) for end in (0, 1))
    for level, value in zip(LEVELS, quantiles, strict=True):
        at, below = one.cdf(value + 1e-7), one.cdf(value - 1e-7)
        wanted = torch.minimum(torch.maximum(level, lowest), highest)
        assert (at >= wanted - members - 1e-5).all()
        assert (below <= wanted + members + 1e-5).all()
    grid = torch.linspace(-8, 40, 200, dtype=torch.float64)
    found = law(shape=(200, CELLS)).cdf(grid[:, None].expand(-1, CELLS))
    assert ((found >= 0) & (found <= 1)).all()
    assert (found.diff(dim=0) >= -1e-9).all()


@pytest.mark.parametrize("family", [family for family in FAMILIES if smooth(make(family)).all()])
@settings(max_examples=60)
@given(ratio=st.floats(-35, 35), size=st.floats(-6, 6), tail=st.floats(0.3, 12), upper=st.booleans())
def test_quantiles_invert_the_distribution_function_for_all_parameters(family, ratio, size, tail, upper):
    """The bound lies up to 35 spreads from the location; levels from 1e-12 to 1 - 1e-12 keep their digits."""
    level = torch.tensor([1 - 10**-tail if upper else 10**-tail], dtype=torch.float64)
    one = make(family, shape=(1,), mu=ratio * 10**size, sigma=10**size)
    value = one.quantile(level)[0]
    found, wanted = one.cdf(value), level
    if one.bound is not None and value == one.bound:
        wanted = torch.maximum(level, found)
    smaller = torch.minimum(wanted, 1 - wanted)
    assert (found - wanted).abs() <= 1e-6 * smaller + 1e-14


@every
def test_quantiles_at_levels_of_their_own_are_those_of_single_elements(law):
    one = law()
    table = one.quantile(LEVELS)
    turned = torch.stack([torch.arange(len(LEVELS)).roll(cell) for cell in range(CELLS)], 1)
    torch.testing.assert_close(one.quantile(LEVELS[turned]), table.gather(0, turned), rtol=1e-12, atol=1e-12)
    torch.testing.assert_close(one.quantile(LEVELS[1]), table[1:2], rtol=1e-12, atol=1e-12)


@every
def test_missing_values_have_no_probability_and_no_score(law):
    missing = torch.full((CELLS,), torch.nan, dtype=torch.float64)
    for one in (law(), law(mu=SURELY_DRY, sigma=SURE)):
        for method in ("cdf", "log_prob", "crps"):
            assert getattr(one, method)(missing).isnan().all(), method


@every
def test_score_and_moments_are_integrals_of_the_distribution_function(law):
    """And so is the threshold-weighted score, from the threshold on; `fair` changes the score of members only."""
    one, threshold = law(), 0.4
    truth = torch.tensor([[-0.7], [1.1]], dtype=torch.float64).expand(2, CELLS)
    grid = torch.linspace(0, 1, 1201, dtype=torch.float64)
    tail = 1 - torch.logspace(-3, -13, 400, dtype=torch.float64)
    ends = torch.cat([one.quantile(torch.cat([grid.clamp(1e-12, 1 - 1e-12), tail])), truth])
    low, high = ends.amin(0) - 1e-3, ends.amax(0) + 1e-3
    even = low + (high - low) * grid[:, None]
    x = torch.cat([ends, ends - 1e-12, even, torch.full((1, CELLS), threshold).double()]).sort(0).values
    middle, step = (x[1:] + x[:-1]) / 2, x.diff(dim=0)
    below, known = law(shape=tuple(middle.shape)).cdf(middle), known_everywhere(one)
    mean, square = ((1 - below) * step).sum(0), (2 * (middle - x[0]) * (1 - below) * step).sum(0)
    torch.testing.assert_close(one.mean[known], (x[0] + mean)[known], rtol=2e-3, atol=2e-4)
    unbiased = of_part(one, lambda part: 1 if part.as_members is None else 7 / 6)
    variance = unbiased * (square - mean.square())
    torch.testing.assert_close(one.std.square()[known], variance[known], rtol=1e-2, atol=1e-4)
    rows, limit = law(shape=(2, CELLS)), torch.full((2, CELLS), threshold, dtype=torch.float64)
    scores, above = rows.crps(truth), threshold_weighted_crps(rows, truth, limit)
    for row, y in enumerate(truth):
        excess = (below - (middle >= y).double()).square() * step
        torch.testing.assert_close(scores[row][known], excess.sum(0)[known], rtol=2e-3, atol=2e-4)
        beyond = (excess * (middle > threshold)).sum(0)
        torch.testing.assert_close(above[row][known], beyond[known], rtol=2e-3, atol=2e-4)
    closed = of_part(one, lambda part: part.as_members is None) == 1
    assert torch.equal(rows.crps(truth, fair=True)[:, closed], scores[:, closed])


@every
def test_the_density_is_the_slope_of_the_distribution_function(law):
    one, step = law(), 1e-5
    where = smooth(one)
    value = one.quantile(torch.tensor([0.93], dtype=torch.float64))[0]
    value = torch.where(value > 1e-2, value, 0.3)
    slope = (one.cdf(value + step) - one.cdf(value - step)) / (2 * step)
    torch.testing.assert_close(one.log_prob(value).exp()[where], slope[where], rtol=1e-4, atol=1e-7)
    bound = torch.zeros_like(value)
    mass = one.cdf(bound) - one.cdf(bound - 1e-9)
    at_bound = where & (mass > 1e-6)
    torch.testing.assert_close(one.log_prob(bound).exp()[at_bound], mass[at_bound], rtol=1e-6, atol=0)


@every
def test_a_bound_is_kept(law):
    one = law()
    parts = [part for part in (one, one.core) if part.bound is not None]
    for part in parts:
        assert (part.bound == 0).all()
        assert (part.quantile(torch.tensor([1e-12, 0.5]).double()) >= 0).all()
        assert (part.cdf(part.bound - 1e-9) == 0).all()
        moved = part.affine(torch.tensor(3.0).double(), torch.tensor(2.0).double())
        assert (moved.bound == 3).all()
        assert (moved.with_bounds(lambda bound: bound + 1).bound == 4).all()
    words = {"censored", "truncated", "power"}
    assert bool(parts) == bool(words & {*one.core.name.split()})


@every
def test_other_units_change_the_units_only(law):
    one, shift, stretch = law(), torch.tensor(-2.0).double(), torch.tensor(3.0).double()
    moved, y = one.affine(shift, stretch), torch.full((CELLS,), 0.8, dtype=torch.float64)
    there, numerical = shift + stretch * y, "power" in one.core.name
    close = {"rtol": 1e-5, "atol": 1e-8} if numerical else {"rtol": 1e-9, "atol": 1e-9}
    torch.testing.assert_close(moved.mean, shift + stretch * one.mean, **close)
    torch.testing.assert_close(moved.std, stretch * one.std, **close)
    torch.testing.assert_close(moved.quantile(LEVELS), shift + stretch * one.quantile(LEVELS), **close)
    torch.testing.assert_close(moved.crps(there), stretch * one.crps(y), **close)
    torch.testing.assert_close(moved.cdf(there), one.cdf(y), **close)
    where = smooth(one)
    torch.testing.assert_close(moved.log_prob(there)[where], (one.log_prob(y) - stretch.log())[where], **close)


def parameters(shape, dtype=torch.float64):
    """Return locations and spreads (2, *shape) that need gradients: usual ones, and those without spread."""
    return [
        torch.stack([torch.tensor(values, dtype=dtype).expand(shape) for values in both]).requires_grad_()
        for both in ((MU[0], SURELY_DRY), (SIGMA[0], SURE))
    ]


@every_variant
def test_everything_and_its_gradients_stay_finite(family, variant):
    """Dry cells, cells without spread, truths at the bound and far in both tails."""
    # Powers are computed in double precision in any case.
    for dtype in (torch.float32, torch.float64) if variant == "plain" else (torch.float32,):
        truth = torch.tensor([-1e4, 0.0, 0.8, 1e4], dtype=dtype)[:, None].expand(2, 4, CELLS)
        some = parameters((4, CELLS), dtype)
        check_finite(VARIANTS[variant](FAMILIES[family](*some)), truth, some)


def check_finite(one, truth, some):
    """Check that numbers of a distribution and their gradients by `some` tensors are finite."""
    low, high = one.quantile(torch.tensor([0.2, 0.99]).to(truth))
    # A truth outside of the support has the log density minus infinity.
    density = one.log_prob(high.detach()).clamp(min=-1e6)
    scores = [one.mean, one.std, low, high, one.crps(truth), one.cdf(truth), density]
    assert all(score.isfinite().all() for score in scores)
    gradients = torch.autograd.grad(sum(score.sum() for score in scores), some)
    assert all(gradient.isfinite().all() for gradient in gradients)


FAR, SIZES = (-1e6, -1.0, 0.0, 1e-9, 1.0, 1e6), (0.0, 1e-40, 1e-20, 1e-6, 1.0, 1e6)
PARAMETRIC = [family for family in FAMILIES if issubclass(family, LocationScale | CensoredShiftedGamma)]


@pytest.mark.parametrize("family", PARAMETRIC)
def test_extreme_parameters_give_finite_numbers(family):
    """Spreads from none to huge, locations and truths far on both sides of the bound; without spread, errors count."""
    for dtype in (torch.float32, torch.float64):
        mu, sigma, truth = torch.cartesian_prod(*(torch.tensor(each, dtype=dtype) for each in (FAR, SIZES, FAR))).T
        some = [mu.clone().requires_grad_(), sigma.clone().requires_grad_()]
        one = FAMILIES[family](*some)
        check_finite(one, truth, some)
        score, error = one.crps(truth), (truth - one.mean).abs()
        torch.testing.assert_close(score[sigma == 0], error[sigma == 0], rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("family", PARAMETRIC)
def test_log_densities_and_their_gradients_stay_finite(family):
    """In single precision, up to 10⁶ spreads from the bound and from the location."""
    far = torch.tensor([-1e6, -30, -1, 0, 1, 30, 1e6])
    for size in (1e-12, 1.0, 1e6):
        mu, value = (size * torch.cartesian_prod(far, far)).T
        some = [mu.clone().requires_grad_(), torch.full_like(mu, size, requires_grad=True)]
        one = FAMILIES[family](*some)
        bound = one.quantile(torch.tensor([0.0]))[0].detach()
        score = one.log_prob(torch.maximum(value, bound))
        assert score.isfinite().all()
        assert all(each.isfinite().all() for each in torch.autograd.grad(score.sum(), some))


@every_family
def test_gradients_are_those_of_finite_differences(family):
    """First derivatives of all, and second ones, which fits use, of the scores of families with a density."""
    some = [torch.tensor(values).double().requires_grad_() for values in (MU[1], SIGMA[1])]
    one, levels = FAMILIES[family](*some), torch.tensor([0.6, 0.95]).double()
    truth = one.quantile(torch.tensor([0.37, 0.9]).double()).detach()

    def compute(name, *values):
        one = FAMILIES[family](*(each.expand(2, CELLS) for each in values))
        found = getattr(one, name)
        return found if name in ("mean", "std") else found(levels if name == "quantile" else truth)

    close = {"rtol": 1e-3, "atol": 1e-5}
    names = ("mean", "std", "crps", "quantile", "cdf", "log_prob") if smooth(one).all() else ("mean", "std", "quantile")
    for name in names:
        assert torch.autograd.gradcheck(functools.partial(compute, name), some, **close)
    if family in PARAMETRIC:
        for name in ("crps", "log_prob"):
            assert torch.autograd.gradgradcheck(functools.partial(compute, name), some, fast_mode=True, **close)


@every_variant
def test_an_average_lies_between_its_parts(family, variant):
    """With and without weights; equal parts give the part, and so does a part with all the weight."""
    parts = [make(family, variant, forecast) for forecast in (0, 1)]
    low, high = (torch.stack([part.quantile(LEVELS) for part in parts]).aminmax(dim=0)[k] for k in (0, 1))
    means = torch.stack([part.mean for part in parts])
    for weights in (None, WEIGHTS, WEIGHTS[:, None]):
        found = average(parts, weights)
        # Families that are scaled to the mean average the quantiles of unlike shapes approximately.
        scaled = "gamma" in found.core.name or "truncated" in found.core.name
        slack = 0.06 * high.abs() if scaled else 0
        assert (found.quantile(LEVELS) >= low - slack - 1e-9).all()
        assert (found.quantile(LEVELS) <= high + slack + 1e-9).all()
        assert (found.mean >= means.amin(0) - 1e-6).all()
        assert (found.mean <= means.amax(0) + 1e-6).all()
    equal = average([parts[0]] * 3, torch.tensor([0.2, 0.3, 0.5]).double())
    torch.testing.assert_close(equal.quantile(LEVELS), parts[0].quantile(LEVELS), rtol=1e-9, atol=1e-12)
    torch.testing.assert_close(equal.mean, parts[0].mean, rtol=1e-9, atol=1e-12)
    first = average(parts, torch.tensor([1.0, 0.0]).double())
    torch.testing.assert_close(first.quantile(LEVELS), parts[0].quantile(LEVELS), rtol=1e-9, atol=1e-12)


@every_family
def test_an_average_with_a_forecast_of_extreme_parameters_lies_between(family):
    """Such as those of a regression of log σ far from its training: a location of -4·10⁷ and a spread of 10⁴."""
    mu, sigma = torch.tensor([-4e7, -3e3, -2e5, 0.0, 300.0]), torch.tensor([1e4, 1e3, 1e3, 1e6, 1e-6])
    parts = [make(family, mu=mu, sigma=sigma), make(family, mu=2.5, sigma=1.0)]
    means = torch.stack([part.mean for part in parts])
    found = average(parts)
    assert found.mean.isfinite().all()
    assert (found.mean <= means.amax(0) * (1 + 1e-6) + 1e-9).all()
    mean_of_means = found.core.name in ("truncated normal", "censored shifted gamma")
    if mean_of_means:
        torch.testing.assert_close(found.mean, means.mean(0), rtol=1e-6, atol=1e-9)
    else:
        low, high = (torch.stack([part.quantile(LEVELS) for part in parts]).aminmax(dim=0)[k] for k in (0, 1))
        assert (found.quantile(LEVELS) >= low * (1 - 1e-9) - 1e-6).all()
        assert (found.quantile(LEVELS) <= high * (1 + 1e-9) + 1e-6).all()


@every_variant
def test_weights_of_an_average_have_finite_gradients(family, variant):
    """Where a truth is dry, too: the derivative of a root at 0 is infinite."""
    parts = [make(family, variant, forecast, (2, CELLS)) for forecast in (0, 1)]
    logits = torch.zeros(2, dtype=torch.float64, requires_grad=True)
    truth = torch.tensor([[0.0], [0.8]], dtype=torch.float64).expand(2, CELLS)
    average(parts, logits.softmax(0)).crps(truth).sum().backward()
    assert logits.grad.isfinite().all()


def test_distributions_of_unlike_kinds_are_not_averaged():
    mu, unlike = torch.ones(1, 3, 1, CELLS), ([Normal, Normal, Logistic], [Normal, Logistic, Logistic])
    for parts, sentence in (
        ([make(Normal), make(Logistic)], "a Normal and a Logistic cannot be averaged; combine"),
        ([make(Bernstein), Bernstein(make(Bernstein).coefficients[:4])], "with 7 and 4 parameters of a kind cannot be"),
        ([make(Normal, "squared"), squared(make(Logistic))], "a Normal and a Logistic cannot"),
        ([squared(make(Normal)), make(PowerTransformed)], r"forecasts with model\.power 0\.4 and 0\.5 cannot be"),
        ([make(Quantiles), Quantiles(make(Quantiles).values, STEPS.sigmoid())], "quantiles at different levels cannot"),
        ([by_target(kinds, lambda kind: kind(mu, mu)) for kinds in unlike], "different families of the targets cannot"),
    ):
        with pytest.raises(InputError, match=sentence):
            average(parts)


def outcome_of(compute):
    """Return a result and no refusal, or no result and the sentence of the refusal."""
    try:
        return compute(), ""
    except InputError as error:
        return None, str(error)


LOSSES = [
    one
    for one in vars(loss_module).values()
    if isinstance(one, type) and issubclass(one, loss_module.Loss) and one is not loss_module.Loss
]
RAIN, GRID = Task("rain", ["tp"], ["tp"], [24]), Grid.regular(3, CELLS)


@every_family
@pytest.mark.parametrize("kind", LOSSES)
def test_every_loss_is_finite_with_finite_gradients_or_refuses_by_name(family, kind):
    """In dry cells, in cells without spread, and where the truth lies on the bound."""
    loss = kind(threshold=0.2) if kind is loss_module.ThresholdWeightedCRPS else kind()
    made = Normalizer(RAIN, GRID).double()
    some = parameters((1, 3, CELLS))
    truth = torch.tensor([0.0, 0.1, 3.0]).double()[:, None].expand(2, 1, 3, CELLS)
    sample = Sample(*[torch.zeros(2)] * 3, truth, *[torch.zeros(2)] * 2)
    forecast = FAMILIES[family](*some)
    value, refusal = outcome_of(lambda: loss(forecast, sample, made))
    if refusal:
        assert forecast.name in refusal
        assert "loss=crps" in refusal
        return
    assert value.shape == truth.shape
    assert value.isfinite().all()
    assert all(
        gradient.isfinite().all()
        for gradient in torch.autograd.grad(value.sum(), some, allow_unused=True)
        if gradient is not None
    )


TARGET = Variable.parse("tp")
SHAPE = (1, 1, 3, CELLS)
"""Of a forecast of one target, with the batch."""


def raw_members(M=6):
    """Members of rain in `CELLS` cells, some of them equal."""
    return raw_forecast(np.random.default_rng(0).normal(0.5, 1, (M, *SHAPE[1:])).clip(min=0))


def members_of(prediction, method, raw, target=TARGET):
    past = SimpleNamespace(
        starts=lambda *_: np.zeros(len(raw.raw), "datetime64[s]"), lead_times=(24,),
        similar_starts=lambda *_: np.zeros(len(raw.raw), "datetime64[s]"),
        read_analyses=lambda *_: iter(raw.raw[::-1]), error_root=lambda *_: np.ones((1, 1, *SHAPE[1:])),
    )  # fmt: skip
    options = CorrectionOptions(members=method)
    noise = Noise(np.zeros((1, 1, *GRID.shape), np.int8), ((str(target), 24),), (0,), as_many=1.0, more=1.0)
    return corrected_members(
        prediction, raw, (target,), raw.mask, Domain.of(GRID), options, past, past, lambda _: 0 * raw.raw, noise
    )


@every_family
@pytest.mark.parametrize("method", MEMBER_METHODS)
def test_members_of_every_method_lie_within_the_bounds_in_their_order(family, method):
    raw, prediction = raw_members(), TorchPrediction(make(family, shape=SHAPE))
    members = members_of(prediction, method, raw)
    assert members.shape == raw.raw.shape
    assert np.isfinite(members).all()
    assert (members >= 0).all()
    own = raw.mask if prediction.unchanged is None else ~prediction.unchanged
    if method == "quantiles":
        assert (np.diff(members, axis=0)[:, own] >= 0).all()
        return
    if method == "gca":
        return  # its template is random
    template = (raw.raw[::-1] if method in ("schaake", "simschaake") else raw.raw)[:, own]
    apart = np.sign(template[:, None] - template[None])
    assert (np.sign(members[:, own][:, None] - members[:, own][None]) * apart >= 0).all()


NAMES_BY_BOUNDS = {known.bounds: name for name, known in PARAMETERS.items() if known.bounds != UNBOUNDED}


@pytest.mark.parametrize("method", MEMBER_METHODS)
@pytest.mark.parametrize("name", NAMES_BY_BOUNDS.values())
def test_members_of_every_variable_lie_within_its_physical_bounds(name, method):
    """A normal distribution around each bound has much probability beyond it."""
    low, high = (0 if bound is None else bound for bound in Variable(name).bounds)
    mu = torch.linspace(low - 1, high + 1, math.prod(SHAPE), dtype=torch.float64).view(SHAPE)
    raw, prediction = raw_members(), TorchPrediction(Normal(mu, torch.ones_like(mu)))
    found = members_of(prediction, method, raw, Variable(name))
    assert (found >= low).all()
    assert Variable(name).bounds[1] is None or (found <= high).all()


def kinds(mu, sigma, variant=lambda part: part):
    """Three targets: a normal one, a square, and a normal one again."""
    rain = variant(squared(CensoredLogistic(mu, 1.2 * sigma, 0 * mu)))
    parts = {"normal": variant(Normal(mu, sigma)), "rain": rain}
    return by_target(["normal", "rain", "normal"], parts.__getitem__), [parts["normal"], rain, parts["normal"]]


@pytest.mark.parametrize("variant", ["plain", "patched", "averaged", "moved"])
def test_each_target_has_the_distribution_of_its_part(variant):
    mu, sigma = (torch.tensor(values, dtype=torch.float64).expand(2, 3, 1, CELLS) for values in (MU[0], SIGMA[0]))
    joined, parts = kinds(mu, sigma)
    if variant == "patched":
        joined, parts = patched(joined), [patched(part) for part in parts]
    if variant == "averaged":
        other, others = kinds(mu + 1, 2 * sigma)
        joined = average([joined, other], WEIGHTS)
        parts = [average([one, two], WEIGHTS) for one, two in zip(parts, others, strict=True)]
    if variant == "moved":
        joined, parts = joined.affine(mu * 0 + 1, sigma), [part.affine(mu * 0 + 1, sigma) for part in parts]
    truth = torch.linspace(0, 5, mu.numel(), dtype=torch.float64).view(mu.shape)
    numbers = {
        "mean": lambda law: law.mean, "std": lambda law: law.std, "cdf": lambda law: law.cdf(truth),
        "crps": lambda law: law.crps(truth), "log_prob": lambda law: law.log_prob(truth),
        "quantile": lambda law: law.quantile(LEVELS), "at levels": lambda law: law.quantile(law.cdf(truth)[None]),
        "extreme": lambda law: threshold_weighted_crps(law, truth, 0 * mu + 1),
    }  # fmt: skip
    for name, number in numbers.items():
        for t, part in enumerate(parts):
            torch.testing.assert_close(number(joined).select(-3, t), number(part).select(-3, t), msg=f"{name} {t}")
            torch.testing.assert_close(
                number(joined.of_target(t)).select(-3, t), number(part).select(-3, t), msg=f"{name} {t}"
            )


def test_each_target_has_its_distribution_in_numpy_too():
    mu, sigma = (torch.tensor(values, dtype=torch.float64).expand(1, 3, 1, CELLS) for values in (MU[0], SIGMA[0]))
    joined, _ = kinds(mu, sigma)
    outputs = {}
    structure = json.loads(json.dumps(_named(joined.export_form(), outputs)))
    _check_structure(structure, [*outputs])
    family = _family(structure, {name: value.numpy() for name, value in outputs.items()}, mu.shape[1:])
    np.testing.assert_allclose(family.quantiles(LEVELS.numpy()), joined.quantile(LEVELS)[:, 0].numpy(), rtol=1e-6)
    np.testing.assert_allclose(family.mean(), joined.mean[0].numpy(), rtol=1e-4)
    np.testing.assert_allclose(family.std(), joined.std[0].numpy(), rtol=1e-3)
    values = np.full((1, *mu.shape[1:]), 0.7)
    np.testing.assert_allclose(family.cdf(values)[0], joined.cdf(torch.tensor(0.7))[0].numpy(), atol=1e-6)


@every_family
def test_the_conformal_layer_keeps_quantiles_in_order_and_the_bound(family):
    """Scores that are not moved change nothing at the levels of the layer."""
    prediction, nominal = TorchPrediction(make(family, shape=SHAPE)), normal_scores(interval_levels(0.8))
    shares = {"all": np.ones(SHAPE[2:])}
    for moved in (nominal, 1.2 * nominal + 0.3):
        layer = ConformalLayer("0", 0.8, 0.05, {(name, 24): {"all": moved} for name in ("tp", TARGET)}, {("tp", 24): 9})
        applied, refusal = outcome_of(lambda layer=layer: layer.apply(prediction, [TARGET], 24, shares))
        if refusal:
            assert "tp" in refusal
            continue
        found = applied.quantiles(interval_levels(0.9))
        assert np.isfinite(found).all()
        assert (np.diff(found, axis=0) >= 0).all()
        if moved is nominal and prediction.members is None:
            levels = interval_levels(0.8)
            near = 0.15 * np.asarray(prediction.std()) + 1e-9
            assert (abs(applied.quantiles(levels).clip(0) - prediction.quantiles(levels).clip(0)) <= near).all()


@every
def test_the_export_form_gives_the_same_numbers_in_numpy(law):
    one = law(shape=SHAPE)
    form, kind = one.export_form(), type(one.core)
    powers = (Normal, Logistic, CensoredNormal, CensoredLogistic)
    known = type(one.core.inner) in powers if kind is PowerTransformed else kind.__name__ in KINDS
    assert (form is not None) == known
    if form is None:
        return
    form = form if one.mask is None else form["inner"]
    outputs = {}
    family = _family(_named(form, outputs), {name: values.numpy() for name, values in outputs.items()}, SHAPE[1:])
    np.testing.assert_allclose(family.quantiles(LEVELS.numpy()), one.core.quantile(LEVELS)[:, 0], rtol=1e-9, atol=1e-9)
    np.testing.assert_allclose(family.mean(), one.core.mean[0], rtol=1e-5, atol=1e-9)
    np.testing.assert_allclose(family.std(), one.core.std[0], rtol=1e-4, atol=1e-9)
    for value in (-1.0, 0.0, 0.8):
        expected = one.core.cdf(torch.full(SHAPE, value, dtype=torch.float64))
        for values in (np.full((1, 1, 1, 1), value), np.full(SHAPE, value)):  # of all cells, and of each
            np.testing.assert_allclose(family.cdf(values), expected, rtol=1e-6, atol=1e-9)


@every
def test_parts_of_a_forecast_are_its_elements(law):
    """`map_fields`, as the fit of a committee's weights selects cells."""
    one = law()
    if one.core.name == "quantiles" or one.mask is not None:
        return
    some = map_fields(lambda values: values[..., 1:3], one)
    torch.testing.assert_close(some.quantile(LEVELS), one.quantile(LEVELS)[:, 1:3], rtol=0, atol=0)
