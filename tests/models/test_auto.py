"""The model `auto` on samples whose best correction is known: it takes that one, at each lead time for itself.

Scores are of fresh samples of the same law, computed by the formulas of scoringrules' reference values for normal
distributions, not by the model's own weights.
"""

import copy
import math
from unittest.mock import patch

import pytest
import torch
from specs import quick_auto

from data_pipeline.dataset import batches
from data_pipeline.grid import Grid
from data_pipeline.sample import Sample
from data_pipeline.task import Task
from models.averages.auto import CANDIDATES, Candidate, without_unused
from models.corrector import Corrector
from models.distribution import Ensemble, Patched

GRID = Grid.regular(5, 8)
SPEC = {"_target_": "models.averages.auto.Auto", "minutes": 0, "folds": 3}
DAYS = 86400


class World:
    """Forecasts of truth = signal + noise; at each lead time the members are `law(signal, generator)` (M, ...)."""

    def __init__(self, laws, count=240, members=8, seed=0):
        self.task = Task("world", ["2t"], ["2t"], [*laws], [])
        self.static = torch.zeros(len(self.task.static_names), *GRID.shape)
        generator = torch.Generator().manual_seed(seed)
        self.samples = []
        for k in range(count):
            lead = [*laws][k % len(laws)]
            signal = 280 + 3 * torch.randn(1, *GRID.shape, generator=generator)
            truth = signal + torch.randn(1, *GRID.shape, generator=generator)
            self.samples.append(
                Sample(
                    laws[lead](signal.expand(members, 1, *GRID.shape), generator),
                    torch.ones(1, *GRID.shape, dtype=torch.bool), self.static, truth,
                    torch.tensor(1_000_000_000 + k * 6 * DAYS), torch.tensor(lead),
                )
            )  # fmt: skip

    def __len__(self):
        return len(self.samples)

    def __getitem__(self, index):
        return self.samples[index]


def draw(like, generator):
    return torch.randn(like.shape, generator=generator)


def perfect(signal, generator):
    return signal + draw(signal, generator)


def biased(signal, generator):
    """Too warm, with half the spread."""
    return signal + 2 + 0.5 * draw(signal, generator)


def blind(signal, generator):
    """No information about the signal."""
    return 280 + 3 * draw(signal[:1], generator) + 0.1 * draw(signal, generator)


@pytest.fixture(scope="module", autouse=True)
def _quick():
    with quick_auto():
        yield


@pytest.fixture(scope="module")
def fitted():
    """A corrector of a world in which each lead time has another law, with weights from 10 of its 40 cells."""
    world = World({24: perfect, 48: biased, 72: blind}, count=360)
    corrector = Corrector(world.task, GRID, SPEC, world.static)
    with patch("models.averages.auto.SAMPLE_CASES", 10 * 360):
        corrector.fit(world)
    return corrector.eval()


def crps_of(corrector, law, lead):
    """Mean CRPS of fresh forecasts; the fair one where the forecast is an ensemble."""
    world = World({lead: law}, count=40, seed=9)
    sample = next(batches(world, 40))
    with torch.no_grad():
        found = corrector(sample)
    return float(found.crps(sample.target, fair=True).mean()), found


IDEAL = 1 / math.sqrt(math.pi)
"""CRPS of N(signal, 1), which knows the signal."""


def test_each_lead_time_gets_the_best_correction(fitted):
    """A perfect ensemble stays, bias and spread are corrected; climatology replaces forecasts without information."""
    crps, found = crps_of(fitted, perfect, 24)
    assert isinstance(found, Patched)
    assert isinstance(found.outer, Ensemble)
    assert not found.where.any()
    assert crps == pytest.approx(IDEAL, rel=0.03)
    crps, found = crps_of(fitted, biased, 48)
    assert found.where.all()
    assert crps == pytest.approx(IDEAL * math.sqrt(1 + 0.25 / 8), rel=0.03)
    crps, found = crps_of(fitted, blind, 72)
    assert crps == pytest.approx(IDEAL * math.sqrt(1 + 9), rel=0.03)
    assert found.where.all()


def test_each_lead_time_has_its_own_weights(fitted):
    """A part has all the weight at each lead time."""
    made, parts = copy.deepcopy(fitted), {24: "emos", 48: "season", 72: "raw moments"}
    made.model.raw.zero_()
    made.model.weights.zero_()
    for k, name in enumerate(parts.values()):
        made.model.weights[made.model.names.index(name), k] = 1
    made.model._set_used()
    sample = next(batches(World(dict.fromkeys(parts, biased), count=6), 6))
    with torch.no_grad():
        found = made(sample).mean
        for row, lead in enumerate(sample.lead_time.tolist()):
            expected = made.model.parts[made.model.names.index(parts[lead])](sample).mean
            torch.testing.assert_close(found[row], expected[row])


def test_the_file_has_weights_choices_and_only_the_parts_with_a_weight(fitted, tmp_path):
    without_unused(fitted).save(tmp_path / "auto")
    again = Corrector.load(tmp_path / "auto")
    sample = next(batches(World({24: perfect, 48: biased, 72: blind}, count=6), 6))
    with torch.no_grad():
        one, other = fitted(sample), again(sample)
    assert torch.equal(one.mean, other.mean)
    assert torch.equal(one.where, other.where)
    kept = [name for name, weights in zip(fitted.model.names, fitted.model.weights, strict=True) if weights.any()]
    assert [*again.spec["parts"]] == kept
    assert len(kept) < len(fitted.model.names)
    first, second, third = again.provenance["choices"]
    assert first["chosen"] == "raw"
    assert second["chosen"].endswith("emos")
    assert third["crps"]["auto"] == min(third["crps"].values())
    assert f"{second['forecast']}: {second['chosen']} (CRPS in left-out years: raw, fair " in repr(again)


def test_a_part_without_enough_cases_is_left_out_and_named(capsys, monkeypatch):
    """Two years with three cases each."""
    single = Candidate({"_target_": "models.statistical.emos.EMOS", "shared": False})
    monkeypatch.setitem(CANDIDATES, "season", single)
    world = World({24: biased}, count=6)
    world.samples = [
        sample._replace(init_time=torch.tensor(946_684_800 + (k % 3) * DAYS + k // 3 * 366 * DAYS))
        for k, sample in enumerate(world.samples)
    ]
    corrector = Corrector(world.task, GRID, SPEC, world.static)
    corrector.fit(world)
    assert "season is left out: " in capsys.readouterr().out
    crps, _ = crps_of(corrector, biased, 24)
    assert math.isfinite(crps)
