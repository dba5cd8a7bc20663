"""MLP: cell embedding, lead times, every head, several targets."""

import pytest
import torch

from data_pipeline.dataset import batches
from data_pipeline.grid import Grid
from data_pipeline.task import Task
from models.corrector import Corrector
from models.networks.head import HEADS
from models.networks.mlp import MLP

GRID = Grid.regular(5, 8)
TASK = Task("toy", ["sst", "2t", "msl"], ["2t"], [24])


def test_number_of_parameters():
    """Rasp & Lerch's shape: one hidden layer, n numbers in every cell; ENS-10's version has 128 units."""
    features = 2 * 3 + 3 + 2 + 2 + 1  # the last is the mask of sea cells
    plain = MLP(TASK, GRID, width=128)
    assert sum(p.numel() for p in plain.parameters()) == (features * 128 + 128) + (128 * 2 + 2)
    located = MLP(TASK, GRID, width=128, depth=2, cell_embedding=4)
    expected = 4 * 40 + ((features + 4) * 128 + 128) + (128 * 128 + 128) + (128 * 2 + 2)
    assert sum(p.numel() for p in located.parameters()) == expected
    assert (
        sum(p.numel() for p in MLP(TASK, GRID, width=8, head="bernstein").parameters())
        == 8 * (features + 1) + 8 * 13 + 13
    )


def train_scores(model, sample, steps, rate=0.05):
    """The first and the last score of a model trained on one batch."""
    optimizer, scores = torch.optim.Adam(model.parameters(), rate), []
    for _ in range(steps):
        score = model(sample).crps(sample.target).mean()
        optimizer.zero_grad()
        score.backward()
        optimizer.step()
        scores.append(float(score.detach()))
    return scores[0], scores[-1]


@pytest.mark.parametrize("head", HEADS)
def test_two_targets_at_two_lead_times_with_every_head(head, toy, tmp_path):
    """One corrector for all of them improves in training, and its file gives the same forecast."""
    task = Task("toy", ["sst", "2t", "msl"], ["2t", "sst"], [24, 48])
    data = toy(task, GRID, 24)
    torch.manual_seed(3)
    spec = {"_target_": "models.networks.mlp.MLP", "width": 8, "head": head}
    corrector = Corrector(task, GRID, spec, data.static)
    corrector.fit(data)
    sample = next(batches(data, 24))
    first, last = train_scores(corrector.model, corrector.normalizer(sample), 12, rate=0.02)
    assert last < 0.97 * first
    corrector.save(tmp_path / "corrector")
    found, loaded = (c(sample) for c in (corrector.eval(), Corrector.load(tmp_path / "corrector")))
    assert found.mean.shape == (24, 2, *GRID.shape)
    torch.testing.assert_close(loaded.crps(sample.target), found.crps(sample.target), rtol=0, atol=0)
    members = corrector.members(sample)
    assert members.shape == (5, 24, 2, *GRID.shape)
    assert members.isfinite().all()
