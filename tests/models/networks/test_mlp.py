"""MLP: cell embedding, lead times, every head, several targets."""

from dataclasses import replace

import pytest
import torch

from data_pipeline.common.errors import InputError
from data_pipeline.dataset import batches
from data_pipeline.grid import Grid
from data_pipeline.task import Task
from models.corrector import Corrector
from models.networks.head import HEADS
from models.networks.lenet import LeNet
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


def noise_at_places(toy):
    """Truth that differs from the ensemble by a random number of each cell, which only the embedding can learn."""
    sample = next(batches(toy(TASK, GRID, 32), 32))
    ensemble = torch.randn(sample.ensemble.shape, generator=torch.Generator().manual_seed(1))
    peculiar = torch.randn(GRID.shape, generator=torch.Generator().manual_seed(2))
    return sample._replace(
        ensemble=ensemble, target=ensemble[:, :, 1].mean(1, keepdim=True) + peculiar, static=0 * sample.static
    )


def test_the_embedding_separates_cells_with_equal_features(toy):
    """Without the embedding the best forecast is N(0, 1), with a CRPS of 1/√π; with it there is no error."""
    torch.manual_seed(0)
    sample = noise_at_places(toy)
    without, located = (train_scores(MLP(TASK, GRID, width=16, cell_embedding=n), sample, 150)[1] for n in (0, 2))
    assert without > 0.3
    assert located < 0.1


def test_the_lead_time_separates_forecasts(toy):
    """Errors have opposite signs at two lead times, and no other feature differs."""
    torch.manual_seed(0)
    task = replace(TASK, lead_times=(24, 48))
    sample = next(batches(toy(task, GRID, 32), 32))
    ensemble = torch.randn(sample.ensemble.shape, generator=torch.Generator().manual_seed(1))
    sign = torch.where(sample.lead_time == 24, 1.0, -1.0)[:, None, None, None]
    # All have the same valid time, so that the season is equal.
    starts = -3600 * sample.lead_time
    sample = sample._replace(ensemble=ensemble, target=ensemble[:, :, [1]].mean(1) + sign, init_time=starts)
    assert train_scores(MLP(task, GRID, width=16), sample, 120)[1] < 0.1


@pytest.mark.parametrize("head", HEADS)
@pytest.mark.parametrize("kind", [MLP, LeNet])
def test_two_targets_at_two_lead_times_with_every_head(kind, head, toy, tmp_path):
    """One corrector for all of them improves in training, and its file gives the same forecast."""
    task = Task("toy", ["sst", "2t", "msl"], ["2t", "sst"], [24, 48])
    data = toy(task, GRID, 24)
    torch.manual_seed(3)
    spec = {"_target_": f"{kind.__module__}.{kind.__name__}", "width": 8, "head": head}
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


def test_a_corrector_without_options_for_head_and_embedding_loads(toy):
    """Defaults apply to options that the file lacks."""
    spec = {"_target_": "models.networks.mlp.MLP", "width": 8, "depth": 2, "dropout": 0.0}
    model = Corrector(TASK, GRID, spec, toy(TASK, GRID, 1).static).model
    names = {"errors.bias", "errors.residual"} | {f"network.{i}.{n}" for i in (0, 3, 6) for n in ("weight", "bias")}
    assert {name.removeprefix("features.") for name in model.state_dict()} == names


@pytest.mark.parametrize(
    "option", [{"width": 0}, {"depth": 0}, {"dropout": 1.0}, {"cell_embedding": -1}, {"head": "gauss"}], ids=str
)
def test_wrong_options_are_refused(option):
    with pytest.raises(InputError, match=rf"model\.{next(iter(option))} must be "):
        MLP(TASK, GRID, **option)
