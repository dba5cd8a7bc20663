"""The batched minimiser against scipy, one problem at a time."""

import numpy as np
import scipy.optimize
import torch
from torch.func import grad, hessian, vmap

from models.statistical.newton import Expansion, minimise


def expander(objective, *data):
    """Return `expand` for an objective of one problem's parameters and its rows of the data."""
    axes = (0,) * (1 + len(data))

    def expand(parameters, problems):
        rows = [tensor[problems] for tensor in data]
        return Expansion(*(vmap(f(objective), axes)(parameters, *rows) for f in (lambda o: o, grad, hessian)))

    return expand


def rosenbrock(x, a):
    return 1 + ((1 - x[:-1]) ** 2 + a * (x[1:] - x[:-1] ** 2) ** 2).sum()


def logistic_loss(x, features, labels):
    return torch.nn.functional.softplus(-labels * (features @ x)).mean() + 0.01 * x.square().sum()


def test_logistic_regressions_converge_to_those_of_scipy():
    generator = torch.Generator().manual_seed(0)
    features = torch.randn(30, 50, 6, generator=generator, dtype=torch.float64)
    labels = torch.sign(torch.randn(30, 50, generator=generator, dtype=torch.float64))
    found = minimise(expander(logistic_loss, features, labels), torch.zeros(30, 6, dtype=torch.float64))
    assert found.converged.all()
    for k in range(10):

        def peer_loss(x, k=k):
            margin = -labels[k].numpy() * (features[k].numpy() @ x)
            return np.logaddexp(0, margin).mean() + 0.01 * (x**2).sum()

        peer = scipy.optimize.minimize(peer_loss, np.zeros(6), tol=1e-10)
        np.testing.assert_allclose(found.parameters[k], peer.x, atol=1e-4)
        assert float(found.value[k]) <= peer.fun + 1e-12


def test_curved_valleys_are_followed_from_every_initial_value():
    start = torch.randn(40, 3, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    steep = torch.linspace(1, 30, 40, dtype=torch.float64)
    found = minimise(expander(rosenbrock, steep), start)
    assert found.converged.all()
    torch.testing.assert_close(found.parameters, torch.ones_like(start), rtol=0, atol=1e-4)


def test_problems_are_independent():
    start = torch.randn(8, 4, generator=torch.Generator().manual_seed(2), dtype=torch.float64)
    steep = torch.linspace(1, 100, 8, dtype=torch.float64)
    together = minimise(expander(rosenbrock, steep), start)
    for k in range(8):
        alone = minimise(expander(rosenbrock, steep[k : k + 1]), start[k : k + 1])
        torch.testing.assert_close(alone.parameters[0], together.parameters[k], rtol=0, atol=1e-12)


def test_steps_lead_away_from_a_saddle_and_a_maximum():
    def objective(x):
        return 2 + (x[0] ** 2 - 1) ** 2 + (x[1] - 1) ** 2

    start = torch.tensor([[1e-6, 1.0], [-1e-3, 5.0]], dtype=torch.float64)
    found = minimise(expander(objective), start)
    assert found.converged.all()
    torch.testing.assert_close(found.parameters, torch.tensor([[1.0, 1], [-1, 1]], dtype=torch.float64))


def test_units_and_parameters_without_influence_do_not_matter():
    def objective(x, unit):
        return (1e-9 * x[0] / unit - 3).cosh() + (x[1] * unit - 2) ** 2 + 0 * x[2]

    unit = torch.tensor([1.0, 1e6], dtype=torch.float64)
    found = minimise(expander(objective, unit), torch.tensor([[0, 0, 7], [0, 0, 7.0]], dtype=torch.float64))
    assert found.converged.all()
    expected = torch.stack([3e9 * unit, 2 / unit, torch.full_like(unit, 7)], dim=1)
    torch.testing.assert_close(found.parameters, expected, rtol=1e-4, atol=0)


def test_a_problem_with_nan_does_not_change_the_others():
    start = torch.tensor([[0.5, 0.5], [float("nan"), 0.0]], dtype=torch.float64)
    found = minimise(expander(rosenbrock, torch.ones(2, dtype=torch.float64)), start)
    assert found.converged.tolist() == [True, False]
    torch.testing.assert_close(found.parameters[0], torch.ones(2, dtype=torch.float64), rtol=0, atol=1e-5)


def test_an_objective_without_minimum_does_not_converge():
    found = minimise(expander(lambda x: torch.exp(-x[0])), torch.zeros(1, 1, dtype=torch.float64), steps=20)
    assert not found.converged[0]
    assert found.value[0] < 1e-3
