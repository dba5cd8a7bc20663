"""Networks of the heat experiment: exact forecasts with exact weights, and equal results on tiles."""

import numpy as np
import pytest
import torch
import torch.distributed as dist
from ranks import run_on_ranks
from torch.nn import functional

from data_pipeline.dataset import ForecastDataset, batches
from data_pipeline.grid import Grid
from data_pipeline.synthetic.heat import Heat
from data_pipeline.task import Task
from models.corrector import Corrector, build_model
from models.layers.loss_term import loss_terms
from models.parallel.mesh import arrange_mesh

TASK = Task("heat", ["heat"], ["heat"], [1], ["region"])
HEAT = Heat(rows=12, columns=13, first_year=2000, last_year=2003, steps=5)
SPECS = {
    "smoe": {"_target_": "models.published.heat_networks.Mixture", "routing": {"quantile": 0.3}},
    "derivative": {"_target_": "models.published.heat_networks.Mixture", "scale_by_gate": True},
    "cnn": {"_target_": "models.published.heat_networks.CNN"},
    "coord_conv": {"_target_": "models.published.heat_networks.CNN", "coordinates": True},
    "local_kernels": {"_target_": "models.published.heat_networks.LocalKernels"},
    "local_blend": {"_target_": "models.published.heat_networks.LocalBlend"},
    "known_regions": {"_target_": "models.published.heat_networks.KnownRegions"},
}


def model(name, grid=HEAT.grid):
    torch.manual_seed(0)
    return build_model(SPECS[name], TASK, grid)


def batch():
    return next(batches(ForecastDataset(HEAT, TASK, [2000]), 4))


def test_numbers_of_parameters_equal_those_of_the_paper():
    for name, count in (
        ("smoe", 27 + 3 * 64 * 64), ("derivative", 12_315), ("cnn", 80), ("coord_conv", 80 + 2 * 36),
        ("local_kernels", 36_864), ("local_blend", 12_315), ("known_regions", 27),
    ):  # fmt: skip
        assert sum(parameter.numel() for parameter in model(name, Heat().grid).parameters()) == count


def stencils():
    """Return the exact kernel of each region, (3, 1, 3, 3)."""
    kernels = torch.zeros(3, 1, 3, 3)
    for kernel, alpha in zip(kernels, HEAT.diffusivities, strict=True):
        kernel[0] = alpha * torch.tensor([[0.0, 1, 0], [1, 1 / alpha - 4, 1], [0, 1, 0]])
    return kernels


@torch.no_grad()
def set_exact_weights(name, network):
    """Set the weights of a network to the exact solution."""
    own = functional.one_hot(torch.from_numpy(HEAT.region)).movedim(-1, 0).float()
    if name == "local_kernels":
        network.weight.copy_(torch.einsum("rhw,rij->ijhw", own, stencils()[:, 0]))
        return
    (network if name == "known_regions" else network.experts).weight.copy_(stencils())
    if name != "known_regions":
        (network.weight if name == "local_blend" else network.gate.weight).copy_(own)


@pytest.mark.parametrize("name", ["smoe", "derivative", "local_kernels", "local_blend", "known_regions"])
def test_local_networks_with_exact_weights_forecast_the_truth(name):
    made, sample = model(name), batch()
    assert (made(sample).mean - sample.target).abs().max() > 0.1
    set_exact_weights(name, made.network)
    torch.testing.assert_close(made(sample).mean, sample.target, rtol=1e-5, atol=1e-7)
    if name == "smoe":
        np.testing.assert_array_equal(made.chosen_expert, HEAT.region)


@pytest.mark.parametrize("name", ["cnn", "coord_conv"])
def test_only_coordinates_make_a_convolution_depend_on_position(name):
    made, field = model(name).eval(), torch.zeros(1, 1, *HEAT.grid.shape)
    found = []
    for row, column in ((3, 3), (8, 9)):
        field.zero_()[0, 0, row, column] = 1
        found.append(made.network(field)[0, 0, row - 2 : row + 3, column - 2 : column + 3].detach())
    assert found[0].abs().max() > 0.01
    assert torch.allclose(*found, atol=1e-6) == (name == "cnn")


@pytest.mark.parametrize("name", SPECS)
def test_members_are_forecast_independently(name):
    made, sample = model(name).eval(), batch()
    other = sample.ensemble.flip(0)
    both = made(sample._replace(ensemble=torch.cat([sample.ensemble, other], 1))).members
    assert both.shape == (2, 4, 1, *HEAT.grid.shape)
    for found, ensemble in zip(both, (sample.ensemble, other), strict=True):
        torch.testing.assert_close(found, made(sample._replace(ensemble=ensemble)).mean)


def step(domain, name):
    """Return the output and the gradients of the squared error plus routing terms, in double precision."""
    made = model(name, domain).double()
    cut = (lambda x: x) if isinstance(domain, Grid) else domain.cut
    sample = batch()
    sample = sample._replace(ensemble=cut(sample.ensemble).double(), target=cut(sample.target).double())
    sample = sample._replace(static=cut(sample.static))
    out = made(sample).mean
    score = (out - sample.target).square().sum() / (4 * HEAT.region.size)
    (score + loss_terms(made) / 4).backward()
    return out.detach(), [parameter.grad for parameter in made.parameters()]


def on_tiles(rank):
    """Networks are split in rows and in columns by turns: the mesh tests of all layers have both at once."""
    domains = [arrange_mesh(1, *shape).domain(HEAT.grid) for shape in ((2, 1), (1, 2))]
    results = {}
    for turn, name in enumerate(SPECS):
        domain = domains[turn % 2]
        out, gradients = step(domain, name)
        for gradient in gradients:
            dist.all_reduce(gradient)
        results[name] = out, domain.tile, gradients
    return results


def test_outputs_and_gradients_on_tiles_equal_those_on_the_whole_plate():
    expected = {name: step(HEAT.grid, name) for name in SPECS}
    for found in run_on_ranks(2, on_tiles):
        for name, (out, tile, gradients) in found.items():
            torch.testing.assert_close(out, expected[name][0][..., *tile], rtol=1e-12, atol=1e-14)
            for ours, theirs in zip(gradients, expected[name][1], strict=True):
                torch.testing.assert_close(ours, theirs, rtol=1e-11, atol=1e-14)


def test_values_are_not_normalised_after_saving_and_loading(tmp_path):
    data = ForecastDataset(HEAT, TASK, [2001])
    made = Corrector(TASK, HEAT.grid, SPECS["known_regions"], data.static)
    made.fit(data)
    set_exact_weights("known_regions", made.model.network)
    made.save(tmp_path / "corrector.safetensors")
    sample = batch()
    found = Corrector.load(tmp_path / "corrector.safetensors")(sample).mean
    torch.testing.assert_close(found, sample.target, rtol=1e-5, atol=1e-7)
