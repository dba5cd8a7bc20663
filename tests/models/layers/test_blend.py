"""The blend of experts against loops over cells and experts, and against single convolutions."""

import numpy as np
import pytest
import torch

from data_pipeline.common.errors import InputError
from data_pipeline.grid import Grid
from models.layers.mixture import Mixing, SpatialBlend
from models.layers.padding import pad

GRID = Grid.regular(5, 8)
B, INPUTS, OUTPUTS, E = 2, 3, 2, 4


def blend(gate, **options):
    torch.manual_seed(0)
    layer = Mixing(E, gate, blend=True, **options)(GRID, INPUTS, OUTPUTS).double()
    with torch.no_grad():
        for parameter in layer.gate.parameters():
            parameter.normal_(std=0.5)
    return layer


def field():
    return torch.randn(B, INPUTS, *GRID.shape, generator=torch.Generator().manual_seed(1)).double()


@pytest.mark.parametrize(("gate", "options"), [("latent", {}), ("sphere", {"degree": 3}), ("computed", {})])
def test_each_cell_gets_the_weighted_mean_of_experts(gate, options):
    layer, x = blend(gate, **options), field()
    wide, wanted = pad(x, GRID, 1, 1, 1, 1), layer.gate(x).expand(B, -1, -1, -1).detach().numpy()
    kernels = layer.experts.weight.detach().unflatten(0, (E, OUTPUTS))
    biases = layer.experts.bias.detach().unflatten(0, (E, OUTPUTS))
    y = layer(x).detach()
    for b, i, j in np.ndindex(B, *GRID.shape):
        weights = np.exp(wanted[b, :, i, j])
        outputs = (kernels * wide[b, :, i : i + 3, j : j + 3]).sum((2, 3, 4)) + biases
        np.testing.assert_allclose(
            y[b, :, i, j], (weights[:, None] * outputs.numpy()).sum(0) / weights.sum(), rtol=1e-12
        )


def test_derivatives_are_those_of_finite_differences():
    layer, x = blend("sphere", degree=2), field().requires_grad_()
    weights = (layer.gate.weight, layer.experts.weight)
    parameters = dict(zip(("gate.weight", "experts.weight"), weights, strict=True))

    def f(x, *values):
        return torch.func.functional_call(layer, dict(zip(parameters, values, strict=True)), x)

    assert torch.autograd.gradcheck(f, (x, *weights), fast_mode=True)


def test_initial_weights_are_almost_equal():
    torch.manual_seed(0)
    layer = Mixing(E, "latent", blend=True)(GRID, INPUTS, OUTPUTS)
    assert isinstance(layer, SpatialBlend)
    say = layer.gate(field()).softmax(1)
    assert 0 < float((say - 1 / E).abs().max().detach()) < 0.02


def test_a_blend_refuses_options_of_choices():
    for option in ({"scale_by_gate": True}, {"routing": {}}):
        with pytest.raises(InputError, match="for experts of which some are chosen; leave them out with blend=true"):
            Mixing(E, "latent", blend=True, **option)
