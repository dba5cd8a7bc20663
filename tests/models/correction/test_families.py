"""The distributions in NumPy agree with those in PyTorch, which tests compare with a published library."""

import math

import numpy as np
import pytest
import torch

from models.correction.families import (
    BernsteinArrays,
    EnsembleArrays,
    LocationScaleArrays,
    LogisticArrays,
    PowerArrays,
    QuantileArrays,
)
from models.correction.normal_tail import normal_cdf
from models.distribution import (
    Bernstein,
    CensoredLogistic,
    CensoredNormal,
    Ensemble,
    Logistic,
    Normal,
    PowerTransformed,
    Quantiles,
)

SHAPE = 2, 5, 7
draw = np.random.default_rng(1)
MU, SIGMA = draw.normal(0, 2, SHAPE), draw.gamma(2, 1, SHAPE) + 0.05
LOWER = np.zeros(SHAPE)
MANY = np.sort(draw.normal(0, 1, (9, *SHAPE)), axis=0)
LEVELS = np.linspace(0.1, 0.9, 9)
t = torch.from_numpy
PAIRS = {
    "normal": (LocationScaleArrays(MU, SIGMA), Normal(t(MU), t(SIGMA))),
    "logistic": (LogisticArrays(MU, SIGMA), Logistic(t(MU), t(SIGMA))),
    "censored_normal": (LocationScaleArrays(MU, SIGMA, LOWER), CensoredNormal(t(MU), t(SIGMA), t(LOWER))),
    "censored_logistic": (LogisticArrays(MU, SIGMA, LOWER), CensoredLogistic(t(MU), t(SIGMA), t(LOWER))),
    "ensemble": (EnsembleArrays(MANY), Ensemble(t(MANY))),
    "bernstein": (BernsteinArrays(MANY), Bernstein(t(MANY))),
    "quantiles": (QuantileArrays(MANY, LEVELS), Quantiles(t(MANY), t(LEVELS))),
    "power": (
        PowerArrays(LocationScaleArrays(MU, SIGMA), 0.5, LOWER),
        PowerTransformed(Normal(t(MU), t(SIGMA)), 0.5, t(LOWER)),
    ),
    "power_of_censored": (
        PowerArrays(LocationScaleArrays(MU, SIGMA, LOWER), 0.5, LOWER),
        PowerTransformed(CensoredNormal(t(MU), t(SIGMA), t(LOWER)), 0.5, t(LOWER)),
    ),
}


@pytest.fixture(params=PAIRS)
def pair(request):
    return PAIRS[request.param]


def test_moments(pair):
    own, other = pair
    np.testing.assert_allclose(own.mean(), other.mean, rtol=1e-5, atol=1e-9)
    np.testing.assert_allclose(own.std(), other.std, rtol=1e-4, atol=1e-9)


def test_quantiles(pair):
    own, other = pair
    levels = np.array([0.01, 0.1, 0.37, 0.5, 0.999])
    np.testing.assert_allclose(own.quantiles(levels), other.quantile(t(levels)), rtol=1e-9, atol=1e-9)


def test_cdf_of_one_value_and_of_a_field(pair):
    own, other = pair
    for values in (np.full((1, 2, 1, 1), 0.3), draw.normal(0, 2, (3, *SHAPE)), np.full((1, 2, 1, 1), -1.0)):
        expected = [other.cdf(t(np.broadcast_to(value, SHAPE).copy())) for value in values]
        np.testing.assert_allclose(own.cdf(values), np.stack(expected), atol=1e-9)


def test_the_normal_distribution_function_in_both_tails():
    z = np.concatenate([np.linspace(-27, 9, 4001), [-0.0, np.nan, np.inf, -np.inf]])
    expected = np.array([math.erfc(-each / math.sqrt(2)) / 2 for each in z])
    np.testing.assert_allclose(normal_cdf(z), expected, rtol=1e-12)
