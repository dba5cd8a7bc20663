"""The LeNet-style network against its convolutions on a patch around a cell."""

import pytest
import torch
from torch.nn import functional

from data_pipeline.common.errors import InputError
from data_pipeline.dataset import batches
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


def test_the_receptive_field_is_nine_by_nine_cells_across_the_date_line():
    model = random_network()
    x = torch.randn(1, model.features.count, *GRID.shape, dtype=torch.float64)
    y = x.clone()
    y[..., 6, 1] += 1
    with torch.no_grad():
        changed = (model.network(x) != model.network(y)).any(1)[0].nonzero()
    assert set(changed[:, 0].tolist()) == set(range(2, 11))
    assert set(changed[:, 1].tolist()) == {13, 14, 15, 0, 1, 2, 3, 4, 5}


def test_number_of_parameters():
    f = 3 * 2 + len(TASK.static_names) + 2 + 2 + 1  # the last is the mask of sea cells
    expected = (25 * f * 8 + 8) + (25 * 8 * 16 + 16) + (16 * 10 + 10) + (10 * 2 + 2)
    assert sum(p.numel() for p in LeNet(TASK, GRID, width=8, hidden=10).parameters()) == expected


def test_dropout_is_off_in_evaluation(toy):
    model, sample = random_network(dropout=0.5), next(batches(toy(TASK, GRID, 2), 2))
    sample = sample._replace(ensemble=(sample.ensemble - 280).double() / 10)
    with torch.no_grad():
        torch.testing.assert_close(model(sample).mean, model(sample).mean, rtol=0, atol=0)
        assert not torch.equal(model.train()(sample).mean, model.eval()(sample).mean)


@pytest.mark.parametrize("option", [{"width": 0}, {"hidden": 1.5}, {"dropout": 1.0}], ids=str)
def test_wrong_options_are_refused(option):
    with pytest.raises(InputError, match=f"model.{next(iter(option))} must be a"):
        LeNet(TASK, GRID, **option)
