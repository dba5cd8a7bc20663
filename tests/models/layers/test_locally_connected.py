"""Layers with weights for every cell: the loss term of neighbouring weights, against loops over cells."""

import pytest
import torch

from data_pipeline.grid import Grid
from models.layers.locally_connected import LocallyConnected
from models.layers.loss_term import loss_terms

AREA = Grid((50.0, 45.0, 40.0), (0.0, 5.0, 10.0, 15.0))


def unlike(field, periodic):
    """Mean difference of neighbours in a map, along columns and along rows."""
    H, W = len(field), len(field[0])
    south = [abs(field[i + 1][j] - field[i][j]) for i in range(H - 1) for j in range(W)]
    last = W if periodic else W - 1
    east = [abs(field[i][(j + 1) % W] - field[i][j]) for i in range(H) for j in range(last)]
    return (sum(south) / len(south) + sum(east) / len(east)) / 2


@pytest.mark.parametrize("grid", [Grid.regular(5, 6), AREA], ids=["globe", "area"])
def test_differences_between_neighbours_are_a_term_of_the_loss(grid):
    torch.manual_seed(0)
    layer = LocallyConnected(grid, 2, 3, smoothness_penalty=0.7).double()
    torch.nn.init.normal_(layer.bias)
    layer(torch.zeros(4, 2, *grid.shape, dtype=torch.float64))
    weight, bias = ([unlike(m.tolist(), grid.periodic) for m in p.flatten(0, -3)] for p in (layer.weight, layer.bias))
    expected = 4 * 0.7 * (sum(weight) / 6 + sum(bias) / 3) / 2
    assert float(loss_terms(layer).detach()) == pytest.approx(expected, rel=1e-12)


@pytest.mark.parametrize(("roughness", "training"), [(0.0, True), (0.7, False)])
def test_there_is_no_term_without_the_option_or_in_evaluation(roughness, training):
    layer = LocallyConnected(AREA, 2, 3, roughness).train(training)
    layer(torch.zeros(4, 2, *AREA.shape))
    assert layer.term is None
    assert float(loss_terms(layer)) == 0
