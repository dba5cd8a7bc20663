"""Layers and the U-Net on tiles of the half-degree globe, 361 x 720, against the whole globe."""

import pytest
import torch
import torch.distributed as dist
from layers import differences, inputs, make_layer, results
from model_tiles import area, cut, relative
from ranks import run_on_ranks

from data_pipeline.grid import Grid
from data_pipeline.sample import Sample
from data_pipeline.task import Task
from models.networks.unet import UNet
from models.parallel.domain import Domain
from models.parallel.exchange import allsum

GRID = Grid.regular(361, 720)
TASK = Task("toy", ["2t", "msl"], ["2t"], [24], ["lsm"])
NAMES = ("strided conv 3", "transposed conv 3", "batch norm", "mixture")


def layers_on_tiles(rank, bands, sectors, path):
    domain = Domain.split(GRID, bands, sectors, rank, dist.group.WORLD.group_name)
    return {name: differences(domain, name, expected) for name, expected in torch.load(path).items()}


@pytest.mark.long
def test_layers(tmp_path):
    torch.save({name: results(make_layer(name, GRID), *inputs(GRID)) for name in NAMES}, tmp_path / "whole.pt")
    for found in run_on_ranks(3, layers_on_tiles, 3, 1, tmp_path / "whole.pt"):
        for name, largest in found.items():
            assert max(largest) < 1e-12, (name, largest)


def forecast():
    """A batch of one, in normalised units."""
    torch.manual_seed(1)
    static, members = torch.randn(1, len(TASK.static_names), *GRID.shape), torch.randn(1, 3, 2, *GRID.shape)
    truth = members[:, :, :1].mean(1) + static[:, :1] / 4
    fields = [field.double() for field in (members, static, truth)]
    return Sample(
        ensemble=fields[0], mask=torch.ones(1, 2, *GRID.shape, dtype=torch.bool), static=fields[1], target=fields[2],
        init_time=torch.tensor([10**9]), lead_time=torch.tensor([24]),
    )  # fmt: skip


def unet(grid, sample, weights):
    """Mean and spread; the score and its gradients."""
    torch.manual_seed(2)
    model = UNet(TASK, grid, width=4, depth=3).double().eval()
    for parameter in model.parameters():
        torch.nn.init.normal_(parameter, std=0.1)
    found = model(sample)
    loss = (found.crps(sample.target) * weights).sum()
    return (found.mean.detach(), found.std.detach()), (loss.detach(), *torch.autograd.grad(loss, model.parameters()))


def unet_on_tiles(rank, bands, sectors, path):
    domain = Domain.split(GRID, bands, sectors, rank, dist.group.WORLD.group_name)
    fields, sums = torch.load(path)
    own_fields, own_sums = unet(domain, cut(forecast(), domain), domain.cut(area(GRID)))
    pairs = [(own, domain.cut(one)) for own, one in zip(own_fields, fields, strict=True)]
    pairs += [(allsum(own, domain), one) for own, one in zip(own_sums, sums, strict=True)]
    return [relative(own, one) for own, one in pairs]


def test_unet(tmp_path):
    torch.save(unet(GRID, forecast(), area(GRID)), tmp_path / "whole.pt")
    for largest in run_on_ranks(4, unet_on_tiles, 2, 2, tmp_path / "whole.pt"):
        assert max(largest) < 1e-12, largest
