"""Networks with a stem and a path of single cells."""

import pytest
import torch

from data_pipeline.dataset import batches
from data_pipeline.grid import Grid
from data_pipeline.task import Task
from models.networks.mlp import MLP
from models.networks.transformer import Transformer
from models.networks.unet import UNet

TASK = Task("toy", ["2t", "10u", "10v"], ["2t"], [24, 48], ["lsm"])
GRID = Grid.regular(13, 16)
OPTIONS = {"width": 4, "depth": 1, "dropout": 0.0}


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
