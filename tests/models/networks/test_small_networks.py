"""Small networks: numbers of parameters, every head, stems and paths of single cells, patches, and any backbone."""

import pytest
import torch
from torch.nn import functional

from data_pipeline.dataset import batches
from data_pipeline.grid import Grid
from data_pipeline.task import Task
from models.corrector import Corrector, build_model
from models.members.coupling import written_members
from models.networks.head import HEADS
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
    assert (
        sum(p.numel() for p in MLP(task, GRID, width=8, head="bernstein").parameters())
        == 8 * (features + 1) + 8 * 13 + 13
    )


@pytest.mark.parametrize("head", HEADS)
def test_two_targets_at_two_lead_times_with_every_head(head, toy, tmp_path):
    """One corrector for all of them, whose file gives the same forecast."""
    task, grid = Task("toy", ["sst", "2t", "msl"], ["2t", "sst"], [24, 48]), Grid.regular(5, 8)
    data = toy(task, grid, 24)
    torch.manual_seed(3)
    spec = {"_target_": "models.networks.mlp.MLP", "width": 8, "head": head}
    corrector = Corrector(task, grid, spec, data.static)
    corrector.fit(data)
    sample = next(batches(data, 24))
    torch.nn.init.normal_(corrector.model.network[-1].weight, std=0.1)
    corrector.save(tmp_path / "corrector")
    found, loaded = (c(sample) for c in (corrector.eval(), Corrector.load(tmp_path / "corrector")))
    assert found.mean.shape == (24, 2, *grid.shape)
    torch.testing.assert_close(loaded.crps(sample.target), found.crps(sample.target), rtol=0, atol=0)
    members = written_members(found, sample, corrector.task, grid).members
    assert members.shape == (5, 24, 2, *grid.shape)
    assert members.isfinite().all()
