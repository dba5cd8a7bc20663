"""The transformer over members, with and without attention."""

import numpy as np
import pytest
import torch
from torch.nn import functional

from data_pipeline.dataset import batches
from data_pipeline.grid import Grid
from data_pipeline.sample import Sample
from data_pipeline.task import Task
from models.layers.attention import MemberAttention
from models.layers.dropout import masks_for
from models.networks.transformer import Transformer

TASK = Task("toy", ["sst", "2t", "msl"], ["2t"], [48], ["lsm"])
GRID = Grid.regular(13, 16)
WINDOWS = {
    "head": "members", "attention_window": 2, "depth": 1, "dropout": 0.0,
    "mixture": {"gate": "computed", "blend": True},
}  # fmt: skip
VARIANTS = [{"stem_width": 3, "cell_width": 5}, {"head": "members", "stem_width": 3, "cell_width": 5}, WINDOWS]
"""Other networks than those of conf/model, which `test_contract.py` tests."""


@pytest.fixture(params=VARIANTS, ids=str)
def options(request):
    return request.param


def random_network(options, grid=GRID, task=TASK):
    """A network in double precision with random weights in all layers."""
    torch.manual_seed(0)
    model = Transformer(task, grid, **options).double().eval()
    for parameter in model.parameters():
        torch.nn.init.normal_(parameter, std=0.2)
    return model


def batch(toy, grid=GRID, members=5, count=2):
    """Normalised forecasts."""
    sample = next(batches(toy(TASK, grid, count, members, seed=7), count))
    names = ("ensemble", "static", "target")
    ensemble, static, target = (getattr(sample, name).double() for name in names)
    return sample._replace(ensemble=(ensemble - 280) / 10, static=static, target=(target - 280) / 10)


def numbers(distribution):
    return torch.stack([distribution.mean, distribution.std])


def test_attention_is_the_softmax_of_scaled_products_in_each_cell():
    torch.manual_seed(0)
    layer = MemberAttention(6, heads=2).double()
    for parameter in layer.parameters():
        torch.nn.init.normal_(parameter)
    x = torch.randn(2 * 4, 6, 3, 5, dtype=torch.float64)
    with torch.no_grad():
        found = layer(x, 4).view(2, 4, 6, 3, 5).numpy()
    mix, bias, last = layer.mix.weight.detach().numpy(), layer.mix.bias.detach().numpy(), layer.last
    for b, i, j in np.ndindex(2, 3, 5):
        cell = x.view(2, 4, 6, 3, 5)[b, :, :, i, j]
        normal = functional.layer_norm(cell, (6,), layer.norm.weight, layer.norm.bias).detach().numpy()
        q, k, v = np.split(normal @ mix.T + bias, 3, axis=1)
        heard = np.zeros((4, 6))
        for head in (slice(0, 3), slice(3, 6)):
            for m in range(4):
                weights = np.exp([q[m, head] @ k[n, head] / np.sqrt(3) for n in range(4)])
                heard[m, head] = sum(w * v[n, head] for n, w in enumerate(weights / weights.sum()))
        expected = cell.numpy() + heard @ last.weight.detach().numpy().T + last.bias.detach().numpy()
        np.testing.assert_allclose(found[b, :, :, i, j], expected, rtol=1e-10, atol=1e-12)


def test_permuted_members_give_permuted_results(options, toy):
    model, sample, order = random_network(options).train(), batch(toy), torch.tensor([3, 0, 4, 1, 2])
    found = []
    for ensemble in (sample.ensemble, sample.ensemble[:, order]):
        torch.manual_seed(3)
        with masks_for(sample), torch.no_grad():
            found.append(model(sample._replace(ensemble=ensemble)))
    torch.testing.assert_close(numbers(found[1]), numbers(found[0]), rtol=1e-10, atol=1e-10)
    if "head" in options:
        torch.testing.assert_close(found[1].members, found[0].members[order], rtol=1e-10, atol=1e-10)
        assert (found[0].members - found[0].members[order]).abs().max() > 0.1


def test_a_single_member_works(options, toy):
    model, sample = random_network(options), batch(toy, members=1)
    found = model(sample)
    found.crps(sample.target).mean().backward()
    assert torch.isfinite(numbers(found)).all()
    assert all(torch.isfinite(parameter.grad).all() for parameter in model.parameters())


@pytest.mark.parametrize("attention", [True, False])
def test_the_path_of_cells_moves_all_members_alike(attention, toy):
    """In units of the spread, or without attention of past errors, both the same for all members of a cell."""
    network = random_network({"head": "members", "member_attention": attention, "cell_width": 5, "cell_embedding": 2})
    with torch.no_grad():
        moved = network(batch(toy)).members
        network.shift.weight.zero_()
        network.shift.bias.zero_()
        shift = moved - network(batch(toy)).members
    torch.testing.assert_close(shift, shift[:1].expand_as(shift))
    assert (shift.abs() > 1e-3).all()


@pytest.mark.parametrize("attention", [True, False])
def test_untrained_members_equal_the_raw_ones(attention, toy):
    sample = batch(toy)
    model = Transformer(TASK, GRID, head="members", member_attention=attention, attention_window=2).double()
    with torch.no_grad():
        torch.testing.assert_close(model(sample).members, sample.ensemble[:, :, [1]].movedim(1, 0), rtol=0, atol=0)


def test_a_rotated_globe_has_a_rotated_forecast(options, toy):
    model, sample, turn = random_network(options), batch(toy), 4
    turned = Sample(*(t.roll(turn, -1) if t.ndim > 2 else t for t in sample))
    with torch.no_grad():
        found, expected = numbers(model(turned)), numbers(model(sample)).roll(turn, -1)
    assert expected.std() > 0.1
    torch.testing.assert_close(found, expected, rtol=1e-9, atol=1e-9)


def test_gradients_are_those_of_finite_differences(toy):
    """Of all parameters, along one direction."""
    grid = Grid.regular(5, 8)
    model, sample = random_network({**WINDOWS, "width": 4, "depth": 1}, grid), batch(toy, grid, 3)
    weights = [*model.parameters()]
    direction = [torch.randn_like(weight) for weight in weights]

    def loss(step=0.0):
        with torch.no_grad():
            for weight, way in zip(weights, direction, strict=True):
                weight += step * way
        return model(sample).crps(sample.target).mean()

    slopes, step = torch.autograd.grad(loss(), weights), 1e-6
    with torch.no_grad():
        found = (loss(step) - loss(-2 * step)) / (2 * step)
    expected = sum((slope * way).sum() for slope, way in zip(slopes, direction, strict=True))
    torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-8)
