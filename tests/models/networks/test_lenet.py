"""The LeNet-style network against its convolutions on a patch around a cell."""

import torch
from torch.nn import functional

from data_pipeline.grid import Grid
from data_pipeline.task import Task
from models.networks.lenet import LeNet

TASK = Task("toy", ["sst", "2t", "msl"], ["2t"], [48], ["lsm"])
GRID = Grid.regular(13, 16)


def random_network(**options):
    """A network with random weights in its last layer."""
    torch.manual_seed(0)
    model = LeNet(TASK, GRID, **options).double().eval()
    torch.nn.init.normal_(model.network[-1].weight)
    return model


def test_the_output_of_a_cell_depends_on_its_patch_only():
    model = random_network()
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
