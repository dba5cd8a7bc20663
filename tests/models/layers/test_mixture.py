"""Mixtures and blends of experts against loops over cells and experts, finite differences and the rules of the paper.

Gates against closed forms of spherical harmonics, on several grids and tiles.
"""

import numpy as np
import pytest
import torch
from scipy.special import sph_harm_y
from torch import nn
from torch.nn import functional

from data_pipeline.common.errors import InputError
from data_pipeline.grid import Grid
from models.layers.convolution import Conv2d
from models.layers.gate import LatentGate, SphereGate
from models.layers.loss_term import loss_terms
from models.layers.mixture import Mixing, Routing, SpatialBlend, SpatialMixture
from models.layers.padding import pad
from models.parallel.domain import Domain

GRID = Grid.regular(5, 8)
B, INPUTS, K, E = 3, 2, 2, 5


def layer(seed=0, grid=GRID, **options):
    torch.manual_seed(seed)
    return SpatialMixture(grid, INPUTS, K, E, **options).double()


def field(seed=9, channels=INPUTS):
    return torch.randn(B, channels, *GRID.shape, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


def ranked(wanted):
    """The K experts with the largest gate values of a cell, the largest first."""
    return sorted(range(E), key=lambda e: -wanted[e])[:K]


@pytest.mark.parametrize("scale_by_gate", [False, True])
def test_each_cell_gets_the_experts_with_the_largest_gate_values(scale_by_gate):
    mixture, x = layer(scale_by_gate=scale_by_gate), field()
    wide, kernels = pad(x, GRID, 1, 1, 1, 1), mixture.experts.weight
    y = mixture(x).detach()
    assert y.shape == (B, K, *GRID.shape)
    for b, i, j in np.ndindex(B, *GRID.shape):
        wanted = mixture.gate.weight[:, i, j].tolist()
        for rank, expert in enumerate(ranked(wanted)):
            value = float((kernels[expert].detach() * wide[b, :, i : i + 3, j : j + 3]).sum())
            assert float(y[b, rank, i, j]) == pytest.approx(value * (wanted[expert] if scale_by_gate else 1), abs=1e-12)


def test_a_gate_may_be_computed_from_the_input():
    gate = nn.Sequential(Conv2d(GRID, INPUTS, 4), nn.GELU(), nn.Conv2d(4, E, 1))
    mixture, x = layer(gate=gate, routing=None), field()
    y, wanted, expert_outputs = mixture(x), gate(x), mixture.experts(x)
    for b, i, j in np.ndindex(B, *GRID.shape):
        assert y[b, :, i, j].tolist() == expert_outputs[b, ranked(wanted[b, :, i, j].tolist()), i, j].tolist()


@pytest.mark.parametrize("computed", [False, True])
def test_scaling_gates_have_exact_derivatives(computed):
    gate = nn.Sequential(nn.Conv2d(INPUTS, 4, 1), nn.Tanh(), nn.Conv2d(4, E, 1)) if computed else None
    mixture = layer(grid=Grid.regular(3, 4), gate=gate, scale_by_gate=True, routing=None)
    names = [name for name, _ in mixture.named_parameters()]

    def function(x, *parameters):
        return torch.func.functional_call(mixture, dict(zip(names, parameters, strict=True)), x)

    inputs = [tensor.detach().requires_grad_() for tensor in (field()[:2, :, :3, :4], *mixture.parameters())]
    assert torch.autograd.gradcheck(function, inputs)


def test_choosing_gates_learn_straight_through():
    mixture, x, g = layer(routing=None), field().requires_grad_(), field(3, K)
    mixture(x).backward(g)
    expected = np.zeros((E, *GRID.shape))
    for b, i, j in np.ndindex(B, *GRID.shape):
        for rank, expert in enumerate(ranked(mixture.gate.weight[:, i, j].tolist())):
            expected[expert, i, j] += g[b, rank, i, j]
    np.testing.assert_allclose(mixture.gate.weight.grad, expected, atol=1e-14)
    expert_outputs = functional.conv2d(pad(x, GRID, 1, 1, 1, 1), mixture.experts.weight)
    chosen = expert_outputs.gather(1, mixture.gate.weight.topk(K, 0).indices.expand(B, -1, -1, -1))
    for found, expected in zip(
        (x.grad, mixture.experts.weight.grad), torch.autograd.grad(chosen, (x, mixture.experts.weight), g), strict=True
    ):
        torch.testing.assert_close(found, expected, rtol=1e-13, atol=1e-13)


def gradients_by_loops(mixture, x, error):
    """Return the gradients of experts and gate for a mean squared error, by the paper's rules.

    Errors are |prediction - target|. The loops are over forecasts, cells and choices.
    """
    rules, wanted = mixture.routing, mixture.gate.weight.detach()
    expert_outputs = functional.conv2d(pad(x, GRID, 1, 1, 1, 1), mixture.experts.weight).detach()
    to_experts, to_gate = np.zeros(expert_outputs.shape), np.zeros(wanted.shape)
    g = 2 * error / error.size
    for b in range(B):
        signal = np.zeros((K, *GRID.shape))
        for i, j in np.ndindex(*GRID.shape):
            for rank, expert in enumerate(ranked(wanted[:, i, j].tolist())):
                signal[rank, i, j] = abs(
                    error[b, rank, i, j] * (expert_outputs[b, expert, i, j] if mixture.scale_by_gate else 1)
                )
        limit = np.quantile(signal, rules.quantile)
        for i, j in np.ndindex(*GRID.shape):
            choices = ranked(wanted[:, i, j].tolist())
            wrong = [signal[rank, i, j] > limit + 1e-5 for rank in range(K)]
            for expert in range(E):
                label = sum(wrong) / (E - K) if expert not in choices else float(not wrong[choices.index(expert)])
                # The derivative of the mean cross-entropy over all forecasts, experts and cells.
                to_gate[expert, i, j] += (torch.sigmoid(wanted[expert, i, j]) - label) / (B * E * 40)
            for rank, expert in enumerate(choices):
                factor = rules.damping if signal[rank, i, j] > limit + 1e-3 else 1
                factor *= float(wanted[expert, i, j]) if mixture.scale_by_gate else 1
                to_experts[b, expert, i, j] = g[b, rank, i, j] * factor
    return torch.from_numpy(to_experts), to_gate


@pytest.mark.parametrize("scale_by_gate", [False, True])
@pytest.mark.parametrize("rules", [Routing(), Routing(0.7, 0.25)], ids=str)
def test_routing_follows_the_rules_of_the_paper(scale_by_gate, rules):
    mixture, x, target = layer(scale_by_gate=scale_by_gate, routing=rules), field().requires_grad_(), field(3, K)
    y = mixture(x)
    loss = (y - target).square().mean() + loss_terms(mixture) / B
    loss.backward()
    to_experts, to_gate = gradients_by_loops(mixture, x.detach(), (y - target).detach().numpy())
    np.testing.assert_allclose(mixture.gate.weight.grad, to_gate, rtol=1e-12, atol=1e-16)
    expert_outputs = functional.conv2d(pad(x, GRID, 1, 1, 1, 1), mixture.experts.weight)
    expected = torch.autograd.grad(expert_outputs, (x, mixture.experts.weight), to_experts)
    torch.testing.assert_close(x.grad, expected[0], rtol=1e-12, atol=1e-15)
    torch.testing.assert_close(mixture.experts.weight.grad, expected[1], rtol=1e-12, atol=1e-15)


def test_experts_may_be_damped_while_gates_learn_straight_through():
    straight, damped = (layer(routing=rules) for rules in (None, Routing(classify=False)))
    for mixture in (straight, damped):
        y = mixture(field())
        (y.square().mean() + loss_terms(mixture) / B).backward()
    torch.testing.assert_close(damped.gate.weight.grad, straight.gate.weight.grad)
    assert damped.experts.weight.grad.norm() < 0.99 * straight.experts.weight.grad.norm()


def test_routing_does_not_depend_on_the_scale_of_the_loss():
    """Neither the loss scale of mixed precision nor the number of ranks changes the result."""
    gradients = []
    for scale in (1, 4096):
        mixture = layer()
        y = mixture(field())
        (scale * (y.square().mean() + loss_terms(mixture) / B)).backward()
        gradients.append([parameter.grad / scale for parameter in mixture.parameters()])
    torch.testing.assert_close(*gradients)


def test_a_loss_without_routing_is_refused():
    with pytest.raises(
        RuntimeError, match=r"the loss lacks the routing of a mixture of experts; add loss_terms\(model\)"
    ):
        layer()(field()).square().mean().backward()


def test_there_is_no_routing_in_evaluation():
    mixture, straight, x = layer().eval(), layer(routing=None), field()
    mixture(x).sum().backward()
    straight(x).sum().backward()
    assert float(loss_terms(mixture)) == 0
    torch.testing.assert_close(mixture.experts.weight.grad, straight.experts.weight.grad)


def test_mixtures_work_in_half_precision():
    mixture = layer(scale_by_gate=True).float()
    with torch.autocast("cpu", torch.bfloat16):
        y = mixture(field().float())
        loss = y.float().square().mean() + loss_terms(mixture) / B
    loss.backward()
    assert y.dtype is torch.bfloat16
    assert all(p.grad.dtype is torch.float32 and p.grad.isfinite().all() for p in mixture.parameters())


def test_wrong_mixtures_are_refused():
    for build, message in (
        (lambda: layer(gate=None) and SpatialMixture(GRID, 2, 3, 3), "model.experts must be .* at least 4, got 3"),
        (lambda: SpatialMixture(GRID, 2, 3, 2, routing=None), "model.experts must be .* at least 3, got 2"),
        (lambda: Routing(1.0), "model.routing.quantile must be a number of at least 0 and less than 1, got 1.0"),
        (lambda: Routing(damping=1.5), "model.routing.damping must be a number from 0 to 1, got 1.5"),
        (lambda: Routing(damping=1.0, classify=False), "does nothing; set model.routing to null"),
        (lambda: SphereGate(GRID, 1, 2, -1), "model.degree must be a whole number of at least 0, got -1"),
        (
            lambda: Mixing(E, "latent", blend=True, routing_quantile=0.3),
            "routing_quantile is for chosen experts; set it",
        ),
    ):
        with pytest.raises(InputError, match=message):
            build()


def test_a_gate_of_another_shape_is_refused():
    with pytest.raises(ValueError, match=r"the gate returned \(3, 4, 5, 8\) for experts of \(3, 5, 5, 8\)"):
        layer(gate=nn.Conv2d(INPUTS, E - 1, 1))(field())


def blend(gate, **options):
    torch.manual_seed(0)
    layer = Mixing(E, gate, blend=True, **options)(GRID, INPUTS, K).double()
    with torch.no_grad():
        for parameter in layer.gate.parameters():
            parameter.normal_(std=0.5)
    return layer


@pytest.mark.parametrize(("gate", "options"), [("latent", {}), ("sphere", {"degree": 3}), ("computed", {})])
def test_each_cell_gets_the_weighted_mean_of_experts(gate, options):
    layer, x = blend(gate, **options), field()
    wide, wanted = pad(x, GRID, 1, 1, 1, 1), layer.gate(x).expand(B, -1, -1, -1).detach().numpy()
    kernels = layer.experts.weight.detach().unflatten(0, (E, K))
    biases = layer.experts.bias.detach().unflatten(0, (E, K))
    y = layer(x).detach()
    for b, i, j in np.ndindex(B, *GRID.shape):
        weights = np.exp(wanted[b, :, i, j])
        outputs = (kernels * wide[b, :, i : i + 3, j : j + 3]).sum((2, 3, 4)) + biases
        np.testing.assert_allclose(
            y[b, :, i, j], (weights[:, None] * outputs.numpy()).sum(0) / weights.sum(), rtol=1e-12
        )


DEGREE = 5


def fields(grid):
    """The field of each harmonic, ((degree + 1)², H, W)."""
    gate = SphereGate(grid, 1, (DEGREE + 1) ** 2, DEGREE).double()
    gate.weight.data.copy_(torch.eye(len(gate.weight)))
    return gate(None)[0].detach().numpy()


def test_gates_prefer_no_expert_before_training():
    torch.manual_seed(0)
    weight = LatentGate(Grid.regular(91, 180), 1, 3).weight.detach()
    assert weight.abs().max() == pytest.approx(3, abs=1e-2)
    assert weight.argmax(0).unique(return_counts=True)[1].tolist() == pytest.approx([5460] * 3, rel=0.03)
    torch.manual_seed(0)
    layer = Mixing(E, "latent", blend=True)(GRID, INPUTS, K)
    assert isinstance(layer, SpatialBlend)
    say = layer.gate(field()).softmax(1)
    assert 0 < float((say - 1 / E).abs().max().detach()) < 0.02


def test_harmonics_have_the_signs_and_sizes_of_scipys():
    """Coefficients then have the meaning of scipy's."""
    grid = Grid.regular(7, 12)
    colatitude, longitude = np.radians(90 - np.array(grid.latitudes))[:, None], np.radians(grid.longitudes)[None]
    found = iter(fields(grid))
    for degree in range(DEGREE + 1):
        for order in range(-degree, degree + 1):
            whole = np.sqrt(4 * np.pi) * sph_harm_y(degree, abs(order), colatitude, longitude)
            part = whole.real if order == 0 else np.sqrt(2) * (whole.imag if order < 0 else whole.real)
            np.testing.assert_allclose(next(found), part, rtol=0, atol=1e-12)


def test_a_sphere_gate_does_not_depend_on_grid_and_tile():
    torch.manual_seed(3)
    fine = SphereGate(Grid.regular(13, 16), 2, 4, DEGREE)
    coarse = SphereGate(Grid.regular(7, 8), 2, 4, DEGREE)
    coarse.load_state_dict(fine.state_dict())
    torch.testing.assert_close(coarse(None), fine(None)[..., ::2, ::2])
    domain = Domain.split(Grid.regular(13, 16), 2, 3, 4)
    tile = SphereGate(domain, 2, 4, DEGREE)
    tile.load_state_dict(fine.state_dict())
    torch.testing.assert_close(tile(None), domain.cut(fine(None)))


def test_initial_variances_of_sphere_and_latent_gate_are_equal():
    torch.manual_seed(4)
    field = SphereGate(Grid.regular(19, 36), 2, 600, 8)(None).detach()
    assert field.std() == pytest.approx((600 / 2) ** 0.5, rel=0.03)
    for row in (0, 9):
        assert field[:, :, row].std() == pytest.approx((600 / 2) ** 0.5, rel=0.1), (
            "the variance is equal at the pole and at the equator"
        )
