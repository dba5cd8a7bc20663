"""Averages against loops and analytic integrals; sums of parts equal the whole."""

import math

import numpy as np
import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from data_pipeline.grid import Grid
from data_pipeline.task import Task
from evaluation.regions import region_weights
from evaluation.scores import default_diagrams, default_scores, statistics_of
from evaluation.scores.case import Case
from evaluation.scores.score import Settings
from evaluation.scoring.aggregation import Tally
from models.distribution import Ensemble, Normal

GRID = Grid.regular(5, 4)
TASK = Task("toy", ["2t", "msl"], ["2t", "msl"], [24, 48])
STATISTICS = statistics_of(*default_scores(), *default_diagrams())


def empty(**options):
    return Tally("m", 6, Settings(TASK, 4), region_weights(GRID), STATISTICS, **options)


def test_regions_partition_the_globe():
    land = np.linspace(0, 1, 20).reshape(5, 4)
    weights = region_weights(GRID, land)
    np.testing.assert_allclose(weights["north"] + weights["tropics"] + weights["south"], weights["global"])
    np.testing.assert_allclose(weights["land"] + weights["sea"], weights["global"])
    assert (weights["unweighted"] == 1).all()
    assert not weights["land"][land < 0.5].any()
    europe = Grid(tuple(range(70, 35, -5)), tuple(range(0, 40, 5)))
    assert list(region_weights(europe)) == ["global", "unweighted"], "others have no points, or all"


def batch(count=6, members=3, seed=0):
    generator = torch.Generator().manual_seed(seed)
    values = torch.randn(members + 1, count, 2, 5, 4, generator=generator, dtype=torch.float64)
    truth = values[0].clone()
    truth[1, 0, 2, 1] = truth[4, 1] = math.nan
    return Ensemble(values[1:]), truth, torch.rand(truth.shape, generator=generator)


def part(ensemble, rows):
    return Ensemble(ensemble.members[:, rows])


def test_blocks_of_dates_have_the_sums_of_their_forecasts():
    """By the compiled sums and by those on another device, whole and in two parts; forecast 5 is in no block."""
    ensemble, truth, uniform = batch()
    leads, blocks = np.array([0, 1, 1, 0, 1, 1]), np.array([0, 2, 2, 0, 1, -1])
    compiled, on_device, one, other = (empty(blocks=blocks) for _ in range(4))
    compiled.add(np.arange(6), leads, Case(ensemble, truth, uniform, 4))
    on_device._add_on_device(np.arange(6), leads, Case(ensemble, truth, uniform, 4))
    for tally, rows in ((one, np.array([0, 3, 4])), (other, np.array([1, 2, 5]))):
        tally.add(rows, leads[rows], Case(part(ensemble, rows), truth[rows], uniform[rows], 4))
    known = ~truth.isnan().numpy()
    for statistic in ("crps", "crps_fair"):
        cells = np.where(known, ensemble.crps(truth, fair=statistic == "crps_fair").numpy(), 0.0)
        for tally in (compiled, on_device, one + other):
            found = tally.per_block(statistic)
            for block in range(3):
                np.testing.assert_allclose(found.total[block], cells[blocks == block].sum(0), atol=1e-12)
                np.testing.assert_array_equal(found.weight[block], known[blocks == block].sum(0))
    assert set(compiled.per_cell) == set(empty().per_cell)
    assert empty().per_block("crps") is None


class Waits(TorchDispatchMode):
    """Counts the operations for which the program waits for the device."""

    def __init__(self):
        super().__init__()
        self.found = []

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        if function.overloadpacket in (torch.ops.aten._local_scalar_dense, torch.ops.aten.nonzero):
            self.found.append(function)
        return function(*args, **(kwargs or {}))


class DeviceCase(Case):
    """A case whose values are computed as on an accelerator."""

    of_members = None


@pytest.mark.parametrize("law", [Ensemble, lambda members: Normal(members.mean(0), members.std(0))])
def test_adding_a_batch_makes_one_transfer_from_the_device(law, monkeypatch):
    """All sums are moved to the CPU in one transfer."""
    transfers = []
    monkeypatch.setattr(torch.Tensor, "cpu", lambda tensor: transfers.append(tensor.shape) or tensor)
    ensemble, truth, uniform = batch()
    tally = empty()
    with Waits() as waits:
        tally._add_on_device(
            np.arange(6), np.array([0, 1, 1, 0, 1, 1]), DeviceCase(law(ensemble.members), truth, uniform, 4)
        )
    assert waits.found == []
    assert len(transfers) == 1
