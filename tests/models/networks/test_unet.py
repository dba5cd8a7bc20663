"""The U-Net with a stem and a path of single cells."""

import pytest
import torch

from data_pipeline.common.errors import InputError
from data_pipeline.dataset import batches
from data_pipeline.grid import Grid
from data_pipeline.task import Task
from models.networks.mlp import MLP
from models.networks.unet import UNet

TASK = Task("toy", ["2t", "10u", "10v"], ["2t"], [24, 48], ["lsm"])
GRID = Grid.regular(13, 16)
OPTIONS = {"width": 4, "depth": 1, "dropout": 0.0}


def test_the_path_of_cells_is_an_mlp(toy):
    """Without the convolutions' share of the last layer, the network is the MLP with the same weights."""
    torch.manual_seed(3)
    network = UNet(TASK, GRID, **OPTIONS, stem_width=3, cell_width=6, cell_embedding=2).eval()
    mlp = MLP(TASK, GRID, width=6, depth=2, cell_embedding=2).eval()
    with torch.no_grad():
        network.features.embedding.normal_()
        network.last.weight.normal_()
        network.last.bias.normal_()
        mlp.features.embedding.copy_(network.features.embedding)
        *hidden, last = mlp.network
        for own, others in zip(hidden, network.cell, strict=True):
            own.load_state_dict(others.state_dict())
        last.weight.copy_(network.last.weight[:, 4:])
        last.bias.copy_(network.last.bias)
        sample = next(batches(toy(TASK, GRID, 2), 2))
        both = network(sample).mean
        network.last.weight[:, :4] = 0
        torch.testing.assert_close(network(sample).mean, mlp(sample).mean, rtol=1e-6, atol=1e-6)
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


def test_numbers_of_parameters():
    """Each option changes the number of weights by that of its layers. A stem makes the first block smaller."""

    def count(**options):
        return sum(p.numel() for p in UNet(TASK, GRID, **OPTIONS, **options).parameters())

    inputs, maps = UNet(TASK, GRID, **OPTIONS).features.count, 2
    first_block = 4 * (9 + 1)  # a convolution 3 x 3 and the linear map around it, per input
    assert count(stem_width=3) == count() + (inputs + 1) * 3 - (inputs - 3) * first_block
    assert count(cell_width=6) == count() + (inputs + 1) * 6 + 7 * 6 + 6 * maps
    cells = 3 * GRID.shape[0] * GRID.shape[1]
    assert count(cell_width=6, cell_embedding=3) == count(cell_width=6) + cells + 3 * 6


def test_files_without_these_options_have_the_same_tensors():
    """The defaults add no tensor, so that corrector files of earlier versions load."""
    names = {name.split(".")[0] for name, _ in UNet(TASK, GRID, **OPTIONS, cell_embedding=2).named_parameters()}
    assert names == {"trunk", "place", "last"}


@pytest.mark.parametrize("option", ["stem_width", "cell_width"])
def test_a_wrong_width_names_the_option(option):
    with pytest.raises(InputError, match=rf"model\.{option} must be a whole number of at least 0"):
        UNet(TASK, GRID, **OPTIONS, **{option: -1})
