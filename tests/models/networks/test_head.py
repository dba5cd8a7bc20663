"""Heads against closed forms, against each other, and for extreme inputs."""

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from data_pipeline.common.errors import InputError
from data_pipeline.dataset import batches
from data_pipeline.grid import Grid
from data_pipeline.sample import Sample
from data_pipeline.task import Task
from models.corrector import Corrector
from models.distribution import Bernstein, Normal
from models.networks.head import HEADS, BernsteinHead, LocationScaleHead, make_head, normal_coefficients
from models.statistical.predictors import SMALLEST_SPREAD

GRID = Grid.regular(5, 8)
TASK = Task("toy", ["sst", "2t", "tp"], ["tp", "2t"], [24, 48])
BOUNDED = ("censored_normal", "censored_logistic", "truncated_normal", "censored_shifted_gamma")


def sample_of(toy, members=7):
    """A float64 batch in units of its typical departure, with values far above the bound 0."""
    batch = next(batches(toy(TASK, GRID, 3, members), 3))
    return batch._replace(ensemble=(batch.ensemble.double() - 250) / 10)


def moments(sample):
    """Mean and spread of the targets' members, (B, T, H, W)."""
    members = sample.ensemble[:, :, [2, 1]]
    return members.mean(1), torch.sqrt(members.var(1) + SMALLEST_SPREAD**2)


def outputs(head, seed=0, size=0.5):
    generator = torch.Generator().manual_seed(seed)
    return size * torch.randn(3, head.count, *GRID.shape, generator=generator, dtype=torch.float64)


@pytest.mark.parametrize("kind", HEADS)
def test_zero_output_is_the_raw_ensemble(kind, toy):
    sample = sample_of(toy)
    head = make_head(kind, TASK, GRID).double()
    found = head(torch.zeros(3, head.count, *GRID.shape), sample)
    mean, std = moments(sample)
    torch.testing.assert_close(found.mean, mean, rtol=1e-6, atol=1e-6)
    torch.testing.assert_close(found.std, std, rtol=1e-5, atol=0)


def test_location_and_scale_follow_the_formula(toy):
    """μ = m + s o₀; the scale of the logistic distribution is the spread over its standard deviation."""
    sample, head = sample_of(toy), LocationScaleHead(TASK, [Normal])
    output = outputs(head)
    normal, logistic = head(output, sample), make_head("logistic", TASK, GRID)(output, sample)
    censored = make_head("censored_normal", TASK, GRID).double()(output, sample)
    m, s = moments(sample)
    torch.testing.assert_close(normal.mu, m + s * output[:, :2])
    torch.testing.assert_close(normal.sigma, s * output[:, 2:].exp())
    torch.testing.assert_close(logistic.sigma * math.pi / math.sqrt(3), normal.sigma)
    torch.testing.assert_close(logistic.mu, normal.mu)
    torch.testing.assert_close(censored.mu, normal.mu)
    torch.testing.assert_close(censored.sigma, normal.sigma)


def test_the_gamma_has_the_mean_and_spread_of_the_formula(toy):
    """Far above the bound, also in the nearly normal limit; of a dry ensemble, it is exponential before training."""
    sample, head = sample_of(toy), make_head("censored_shifted_gamma", TASK, GRID).double()
    head.bound.value.fill_(-2)
    output = outputs(head)
    found = head(output, sample)
    m, s = moments(sample)
    amount, stretch, shift = output.chunk(3, 1)
    mean, above = found.shift + found.shape * found.scale, m + 2 + s
    torch.testing.assert_close(mean, above * torch.exp(amount * s / above) - 2 - s * shift.exp())
    torch.testing.assert_close(found.shape.sqrt() * found.scale, s * stretch.exp())
    narrow = head(output - 6 * (torch.arange(6).view(1, 6, 1, 1) // 2 == 1), sample)
    assert float(narrow.shape.max()) == pytest.approx(head.MAX_RATIO**2)
    torch.testing.assert_close(narrow.shift + narrow.shape * narrow.scale, mean)
    head = make_head("censored_shifted_gamma", Task("rain", ["tp"], ["tp"], [24]), Grid((0.0,), (0.0,)))
    found = head.distribution(torch.zeros(1), torch.ones(1), *torch.zeros(3, 1))
    assert [float(v) for v in (found.shape, found.scale, found.shift, found.lower)] == [1, 1, -1, 0]
    assert float(found.cdf(torch.zeros(1))) == pytest.approx(1 - math.exp(-1))


@pytest.mark.parametrize("kind", BOUNDED)
def test_there_is_no_probability_below_the_physical_bound(kind, toy):
    """Rain of a fitted corrector, in physical units, for random network outputs."""
    torch.manual_seed(0)
    task = Task("rain", ["tp"], ["tp"], [24, 48])
    data = toy(task, GRID, 20)
    for sample in data.samples:
        sample.ensemble.sub_(280).clamp_(min=0)
        sample.target.sub_(280).clamp_(min=0)
    spec = {"_target_": "models.networks.mlp.MLP", "head": kind}
    corrector = Corrector(task, GRID, spec, data.static)
    corrector.fit(data)
    torch.nn.init.normal_(corrector.model.network[-1].weight, std=0.5)
    with torch.no_grad():
        found = corrector(next(batches(data, 4)))
    torch.testing.assert_close(found.lower, torch.zeros_like(found.lower), rtol=0, atol=1e-5)
    assert (found.quantile(torch.tensor([0.001, 0.5])) >= -1e-5).all()
    assert not found.cdf(found.lower - 0.1).any()
    assert float(found.cdf(found.lower + 0.1).max()) > 0.9
    dry = corrector.normalizer(next(batches(data, 20)))
    truth = dry.target == corrector.model.head.bound()
    assert truth.any(), "a dry truth lies on the bound to the last bit"


def test_censored_heads_need_a_bound():
    task = Task("flow", ["z@500"], ["z@500"], [24])
    for kind in BOUNDED:
        with pytest.raises(InputError, match="z@500 has no lower bound to be censored at; take head=normal"):
            make_head(kind, task, GRID)


@pytest.mark.parametrize("degree", [1, 2, 3, 4, 8, 12, 24])
def test_untrained_bernstein_quantiles_are_near_normal(degree):
    coefficients = torch.tensor(normal_coefficients(degree), dtype=torch.float64)
    assert (coefficients.diff() > 0).all()
    first = Bernstein(coefficients[:, None])
    assert float(first.mean) == pytest.approx(0, abs=1e-12)
    assert float(first.std) == pytest.approx(1, abs=1e-12)
    normal = Normal(torch.zeros(()).double(), torch.ones(()).double())
    level = (torch.arange(20_000, dtype=torch.float64) + 0.5) / 20_000
    truth = normal.quantile(level)
    loss = float(first.crps(truth).mean() / normal.crps(truth).mean()) - 1
    assert 0 < loss < {1: 0.03, 2: 0.02, 3: 0.01, 4: 0.004}.get(degree, 0.001)


def test_quantiles_do_not_cross_and_their_mean_is_the_location(toy):
    sample, head = sample_of(toy), BernsteinHead(TASK, 6).double()
    output = outputs(head, size=3.0)
    found = head(output, sample)
    assert (found.coefficients.diff(dim=0) > 0).all()
    m, s = moments(sample)
    torch.testing.assert_close(found.mean, m + s * output[:, :2], rtol=1e-5, atol=1e-5)
    steps = found.coefficients.diff(dim=0) / s
    torch.testing.assert_close(steps[2], output[:, 6:8].clamp(-8, 8).exp() * head.steps[2], rtol=1e-5, atol=0)


@pytest.mark.parametrize("kind", HEADS)
@settings(max_examples=15)
@given(
    size=st.sampled_from([0.0, 1e-20, 1e-6, 1.0, 1e3]),
    reach=st.sampled_from([0.0, 1.0, 1e6]),
    magnitude=st.sampled_from([0.0, 1.0, 10.0, 1e4]),
    half=st.booleans(),
    seed=st.integers(0, 99),
)
def test_score_and_gradients_are_finite_at_the_limits(kind, size, reach, magnitude, half, seed):
    """Ensembles without spread, truths 10⁶ spreads away, and small or huge network outputs, also in bf16."""
    task = Task("rain", ["tp"], ["tp"], [24])
    head, generator = make_head(kind, task, GRID), torch.Generator().manual_seed(seed)
    members = 1 + size * torch.randn(2, 3, 1, *GRID.shape, generator=generator)
    sample = _bare(members.clamp(min=0))
    output = magnitude * torch.randn(2, head.count, *GRID.shape, generator=generator)
    output = output.to(torch.bfloat16 if half else torch.float32).requires_grad_()
    truth = (1 + max(size, SMALLEST_SPREAD) * reach * torch.randn(2, 1, *GRID.shape, generator=generator)).clamp(min=0)
    truth[0, 0, 0] = 0
    score = head(output, sample).crps(truth)
    assert score.dtype == torch.float32
    assert score.isfinite().all()
    (gradient,) = torch.autograd.grad(score.sum(), output)
    assert gradient.dtype == output.dtype
    assert gradient.isfinite().all()


def _bare(members):
    """A batch of a single variable, without truth."""
    B, _, C, H, W = members.shape
    return Sample(
        members, torch.ones(B, C, H, W, dtype=torch.bool), torch.zeros(B, 3, H, W), torch.zeros(B, 1, H, W),
        torch.zeros(B, dtype=torch.int64), torch.full((B,), 24),
    )  # fmt: skip
