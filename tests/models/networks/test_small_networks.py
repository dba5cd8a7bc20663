"""Small networks: numbers of parameters, every head, stems and paths of single cells, patches, and any backbone."""

import pytest
import torch
from torch.nn import functional

from data_pipeline.dataset import batches
from data_pipeline.grid import Grid
from data_pipeline.task import Task
from models.corrector import build_model
from models.networks.error_climate import ErrorClimate
from models.networks.features import Features
from models.networks.mlp import MLP
from models.networks.transformer import Transformer
from models.networks.unet import UNet
from models.published.lenet import LeNet

TASK = Task("toy", ["2t", "10u", "10v"], ["2t"], [24, 48], ["lsm"])
GRID = Grid.regular(13, 16)
OPTIONS = {"width": 4, "depth": 1, "dropout": 0.0}
RESNET = {"_target_": "weathernets.resnet.ResNet", "width": 5}


@pytest.mark.parametrize("kind", [UNet, Transformer])
def test_the_path_of_cells_is_an_mlp(kind, toy):
    """Without the convolutions' share of the last layer, the network is the MLP with the same weights."""
    torch.manual_seed(3)
    network = kind(TASK, GRID, **OPTIONS, stem_width=3, cell_width=6, cell_embedding=2).double().eval()
    mlp = MLP(TASK, GRID, width=6, depth=2, cell_embedding=2).double().eval()
    with torch.no_grad():
        for tensor in (network.features.embedding, network.last.weight, network.last.bias):
            tensor.normal_()
        mlp.features.embedding.copy_(network.features.embedding)
        *hidden, last = mlp.network
        for own, others in zip(hidden, network.cell, strict=True):
            own.load_state_dict(others.state_dict())
        last.weight.copy_(network.last.weight[:, -6:])
        last.bias.copy_(network.last.bias)
        sample = next(batches(toy(TASK, GRID, 2), 2))
        sample = sample._replace(ensemble=(sample.ensemble.double() - 280) / 10, static=sample.static.double())
        both = network(sample).mean
        network.last.weight[:, :-6] = 0
        torch.testing.assert_close(network(sample).mean, mlp(sample).mean)
    assert not torch.allclose(both, mlp(sample).mean, atol=1e-2)


@pytest.mark.parametrize("attention", [True, False])
def test_the_path_of_cells_moves_all_members_alike(attention, toy):
    """In units of the spread, or without attention of past errors, both the same for all members of a cell."""
    torch.manual_seed(0)
    network = Transformer(TASK, GRID, head="members", member_attention=attention, cell_width=5).double().eval()
    for parameter in network.parameters():
        torch.nn.init.normal_(parameter, std=0.2)
    sample = next(batches(toy(TASK, GRID, 2), 2))
    sample = sample._replace(ensemble=(sample.ensemble.double() - 280) / 10, static=sample.static.double())
    with torch.no_grad():
        moved = network(sample).members
        network.shift.weight.zero_()
        network.shift.bias.zero_()
        shift = moved - network(sample).members
    torch.testing.assert_close(shift, shift[:1].expand_as(shift))
    assert shift.abs().mean() > 1e-3


def test_the_first_convolution_reads_the_stem(toy):
    """A stem that returns the GELU of the first features is the same as a trunk on these features."""
    torch.manual_seed(4)
    network = UNet(TASK, GRID, **OPTIONS, stem_width=3)
    sample = next(batches(toy(TASK, GRID, 2), 2))
    with torch.no_grad():
        network.last.weight.normal_()
        network.stem[0].weight.copy_(torch.eye(3, network.features.count)[..., None, None])
        network.stem[0].bias.zero_()
        features = network.features(sample)
        expected = network.last(network.trunk(torch.nn.functional.gelu(features[:, :3])))
        torch.testing.assert_close(network.maps(features), expected)


def test_the_output_of_a_cell_depends_on_its_patch_only():
    torch.manual_seed(0)
    model = LeNet(TASK, GRID).double().eval()
    torch.nn.init.normal_(model.network[-1].weight)
    x = torch.randn(2, model.features.count, *GRID.shape, dtype=torch.float64)
    first, second, third, last = (layer for layer in model.network if isinstance(layer, torch.nn.Conv2d))
    with torch.no_grad():
        found = model.network(x)
        for row, column in ((6, 7), (4, 1), (8, 15)):
            patch = x[..., row - 4 : row + 5, :].roll(4 - column, -1)[..., :9]
            y = functional.gelu(functional.conv2d(patch, first.weight, first.bias))
            y = functional.gelu(functional.conv2d(y, second.weight, second.bias))[..., 0, 0]
            y = functional.gelu(functional.linear(y, third.weight[..., 0, 0], third.bias))
            y = functional.linear(y, last.weight[..., 0, 0], last.bias)
            torch.testing.assert_close(found[..., row, column], y)


def spec(**options):
    return {"_target_": "models.networks.backbone.Backbone"} | options


def test_output_channels_are_counted_without_random_numbers():
    torch.manual_seed(0)
    first = build_model(spec(), TASK, GRID)
    count = first.features.count
    random = torch.get_rng_state()
    torch.nn.Conv2d(count, 2, 1)  # the last layer of a linear regression
    expected = torch.get_rng_state()
    torch.set_rng_state(random)
    build_model(spec(), TASK, GRID)
    assert torch.equal(torch.get_rng_state(), expected)
    assert first.last.in_channels == count
    made = build_model(spec(backbone=RESNET), TASK, GRID)
    assert (made.last.in_channels, made.last.out_channels) == (5, 2)
    conv = {"_target_": "torch.nn.Conv2d", "out_channels": 3, "kernel_size": 3, "padding": 1}
    assert build_model(spec(backbone=conv), TASK, GRID).last.in_channels == 3


def test_number_of_parameters_of_an_mlp():
    """Rasp & Lerch's shape: one hidden layer, n numbers in every cell; ENS-10's version has 128 units."""
    task = Task("toy", ["sst", "2t", "msl"], ["2t"], [24])
    features = 2 * 3 + 3 + 2 + 2 + 1  # the last is the mask of sea cells
    plain = MLP(task, GRID, width=128)
    assert sum(p.numel() for p in plain.parameters()) == (features * 128 + 128) + (128 * 2 + 2)
    located = MLP(task, GRID, width=128, depth=2, cell_embedding=4)
    expected = 4 * 13 * 16 + ((features + 4) * 128 + 128) + (128 * 128 + 128) + (128 * 2 + 2)
    assert sum(p.numel() for p in located.parameters()) == expected


TWO = Task("toy", ["2t", "msl"], ["2t"], [24, 48])
SMALL = Grid.regular(5, 8)


def test_a_cell_without_truth_has_no_expected_error(toy):
    data = toy(TWO, SMALL, 20)
    for sample in data:
        sample.target[:, 1, 1] = torch.nan
    climate = ErrorClimate(TWO, SMALL)
    climate.fit(batches(data, 7))
    assert torch.isfinite(climate.bias).all()
    assert not climate.bias[..., 1, 1].any()
    assert climate(next(batches(data, 4))).shape == (4, 2, *SMALL.shape)


def test_the_lead_time_feature_goes_from_minus_one_to_one(toy):
    task = Task("toy", ["2t", "msl"], ["2t"], [24, 48, 120])
    features, sample = Features(task, SMALL), next(batches(toy(task, SMALL, 6), 6))
    found = features(sample)
    assert found.shape[1] == features.count
    assert sample.lead_time.tolist() == [24, 48, 120, 24, 48, 120]
    torch.testing.assert_close(found[:, -1, 2, 3], torch.tensor([-1.0, -0.5, 1.0, -1.0, -0.5, 1.0]))
    assert Features(Task("toy", ["2t", "msl"], ["2t"], [24]), SMALL).count == features.count - 1


def test_every_cell_trains_its_own_embedding(toy):
    """The embedding has a gradient as soon as the last layer is not zero, only in cells with truth."""
    torch.manual_seed(0)
    features, sample = Features(TWO, SMALL, cell_embedding=2), next(batches(toy(TWO, SMALL, 4), 4))
    assert features.embedding.shape == (2, *SMALL.shape)
    weight, mask = torch.randn(features.count), torch.rand(SMALL.shape) > 0.5
    weighted_sum = torch.einsum("bfhw,f->bhw", features(sample), weight)
    (gradient,) = torch.autograd.grad(weighted_sum[:, mask].sum(), features.embedding)
    torch.testing.assert_close(gradient, 4 * weight[-2:, None, None] * mask)
    features.embedding.data = torch.randn(2, *SMALL.shape)
    torch.testing.assert_close(features(sample)[3, -2:], features.embedding)


def test_the_mask_of_a_sea_only_field_is_a_feature(toy):
    """It is the only land mask of a task without static fields; other tasks have no such feature."""
    task = Task("toy", ["sst", "2t"], ["2t"], [24])
    sample = next(batches(toy(task, SMALL, 2), 2))
    land = torch.rand(SMALL.shape) > 0.5
    sample.mask[:, 0] = ~land
    features = Features(task, SMALL)
    found = features(sample)
    assert found.shape[1] == features.count == Features(Task("toy", ["msl", "2t"], ["2t"], [24]), SMALL).count + 1
    assert any(torch.equal(found[0, k], (~land).float()) for k in range(features.count))
    sample.mask[:, 0] = True
    assert any((features(sample)[:, k] == 1).all() for k in range(features.count))
