"""Weights of the climate baseline, against brute force and samples with a known answer."""

import numpy as np
import pytest
import torch
from scipy.optimize import nnls

from models.networks.climate_weights import LeftOutCase, fit_weights, least_squares

CELLS = 3, 4


def fit(cases, leads=1):
    """Weights of cases whose sample is (LeftOutCase, lead index)."""
    return fit_weights(
        cases, lambda sample: sample[0], torch.ones(cases[0][0].error.shape[-2:]), lambda sample: sample[1], leads,
        lambda sums: sums,
    )  # fmt: skip


def drawn(generator, count, bias=0.0, skill=1.0, alpha=0.5, beta=2.0, gamma=0.3):
    """Cases whose error has this bias, slope 1 - κ = `skill` and variance α s² + β R² + γ, (count, 1, 3, 4)."""
    shape = (count, 1, *CELLS)
    spread, size = 0.2 + torch.rand(shape, generator=generator), 0.3 + torch.rand(shape[1:], generator=generator)
    past, departure = torch.randn(shape, generator=generator), torch.randn(shape, generator=generator)
    noise = torch.randn(shape, generator=generator) * (alpha * spread**2 + beta * size**2 + gamma).sqrt()
    error = bias * past - (1 - skill) * departure + noise
    return LeftOutCase(*(x.double() for x in (error, past, departure, spread, size.expand(shape))))


@pytest.mark.parametrize(("bias", "skill"), [(0.7, 0.9), (0.0, 0.2), (1.0, 1.0)])
def test_weights_are_those_of_the_law_that_made_the_cases(bias, skill):
    found = fit([(drawn(torch.Generator().manual_seed(1), 20000, bias, skill), torch.zeros(20000, dtype=torch.long))])
    lam, kappa, alpha, beta, gamma = found[:, 0, 0].tolist()
    assert lam == pytest.approx(bias, abs=0.02)
    assert kappa == pytest.approx(1 - skill, abs=0.02)
    assert (alpha, beta, gamma) == tuple(pytest.approx(one, abs=0.08) for one in (0.5, 2.0, 0.3))


def test_weights_of_a_lead_time_and_target_come_from_its_own_cases_in_any_batches():
    generator = torch.Generator().manual_seed(2)
    laws = (((0.8, 0.9), (0.3, 0.5)), ((0.1, 0.2), (0.6, 1.0)))
    kinds = [[drawn(generator, 40, bias, skill) for bias, skill in row] for row in laws]
    rows = [LeftOutCase(*(torch.cat(pair, 1) for pair in zip(*row, strict=True))) for row in kinds]
    everything = LeftOutCase(*(torch.cat(pair) for pair in zip(*rows, strict=True)))
    lead = torch.arange(2).repeat_interleave(40)
    order = torch.randperm(80, generator=generator)
    parts = [(LeftOutCase(*(x[some] for x in everything)), lead[some]) for some in order.split(7)]
    found = fit(parts, 2)
    for k, row in enumerate(kinds):
        for target, alone in enumerate(row):
            torch.testing.assert_close(found[:, k, target], fit([(alone, torch.zeros(40, dtype=torch.long))])[:, 0, 0])


def test_missing_cases_have_no_influence_and_without_cases_the_raw_ensemble_stays():
    case, zero = drawn(torch.Generator().manual_seed(3), 30), torch.zeros(30, dtype=torch.long)
    holes = case._replace(error=case.error.clone())
    holes.error[10:] = torch.nan
    torch.testing.assert_close(fit([(holes, zero)]), fit([(LeftOutCase(*(x[:10] for x in case)), zero[:10])]))
    holes.error[:] = torch.nan
    assert fit([(holes, zero)], 2)[:, :, 0].T.tolist() == [[0, 0, 1, 0, 0]] * 2


def test_cells_without_errors_decide_neither_alpha_nor_beta():
    """A desert without rain has size 0, spread 0 and error 0, so no constant variance fits it."""
    case, zero = drawn(torch.Generator().manual_seed(4), 2000, gamma=0.0), torch.zeros(2000, dtype=torch.long)
    desert = LeftOutCase(*(torch.zeros_like(x) for x in case))
    both = LeftOutCase(*(torch.cat([a, b], -1) for a, b in zip(case, desert, strict=True)))
    _, _, alpha, beta, gamma = fit([(both, zero)])[:, 0, 0].tolist()
    assert (alpha, beta) == (pytest.approx(0.5, abs=0.1), pytest.approx(2.0, abs=0.1))
    assert gamma < 1e-3


def test_standardised_truth_leaves_the_slope_as_it_is():
    """Where the mean error is zero in every cell, the bias of the other years is the opposite of the case."""
    generator = torch.Generator().manual_seed(5)
    x, noise = (torch.randn(30, 1, 20, 20, generator=generator, dtype=torch.float64) for _ in range(2))
    error = noise - 0.8 * x
    error, x = (y - y.mean(0) for y in (error, x))
    others = -error / 29
    case = LeftOutCase(error, others, x * 30 / 29, torch.ones_like(x), torch.ones_like(x))
    lam, kappa = fit([(case, torch.zeros(30, dtype=torch.long))])[:2, 0, 0].tolist()
    assert lam == 0
    assert kappa == pytest.approx(float(-(error * x).sum() / x.square().sum()))
    assert kappa == pytest.approx(0.8, abs=0.02)


def test_least_squares_without_negative_numbers_are_those_of_scipy():
    generator = np.random.default_rng(0)
    problems = [(generator.normal(size=(20, 3)) + 1, generator.normal(size=20)) for _ in range(40)]
    matrices = torch.tensor(np.array([terms.T @ terms for terms, _ in problems]))
    vectors = torch.tensor(np.array([terms.T @ truth for terms, truth in problems]))
    expected = [nnls(terms, truth)[0] for terms, truth in problems]
    np.testing.assert_allclose(least_squares(matrices, vectors), expected, atol=1e-9)
