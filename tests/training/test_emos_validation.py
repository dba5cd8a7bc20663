"""EMOS in the units of another corrector, against its own physical forecast, and the reasons to leave EMOS out."""

import pytest
import torch
from training_parts import GRID, TASK

from data_pipeline.common.errors import InputError, InterruptedRunError
from models.corrector import Corrector, needed_task
from models.parallel.mesh import Mesh
from training import emos_validation
from training.emos_validation import EMOSInUnits, fit_emos_reference
from training.run.trainer_options import TrainerOptions

MLP = {"_target_": "models.networks.mlp.MLP", "width": 8, "depth": 1}
EMOS = {"_target_": "models.statistical.emos.EMOS"}


def fitted(toy, spec, count, seed):
    task = needed_task(spec, TASK)
    data = toy(task, GRID, count, seed=seed)
    corrector = Corrector(task, GRID, spec, data.static)
    corrector.fit(data)
    return corrector.eval()


def test_crps_in_units_of_a_network_is_the_physical_crps_divided_by_its_scale(toy):
    """Both normalisers are fitted to different samples, so that a mistake in either direction would show."""
    network, emos = fitted(toy, MLP, 24, 0), fitted(toy, EMOS, 40, 3)
    data = toy(TASK, GRID, 6, seed=7)
    batch = torch.utils.data.default_collate([data[k] for k in range(6)])
    normalised = network.normalizer(batch)
    found = EMOSInUnits(emos, network)(normalised).crps(normalised.target)
    own = batch._replace(
        ensemble=batch.ensemble[:, :, :1], mask=batch.mask[:, :1],
        static=batch.static[:, [TASK.static_names.index(name) for name in emos.task.static_names]],
    )  # fmt: skip
    scale = network.normalizer.target_scaling[1]
    assert emos.task.channels == TASK.channels[:1]
    torch.testing.assert_close(found, emos(own).crps(batch.target) / scale, rtol=2e-4, atol=2e-5)


@pytest.mark.parametrize(
    ("minutes", "power", "reason"),
    [(0, 1.0, ""), (10.0, 1.0, "is not compared with emos: too long"), (10.0, 0.5, "the model has model.power=0.5")],
)
def test_emos_is_left_out_with_a_reason(toy, minutes, power, reason, monkeypatch, capsys):
    def refuse(*arguments):
        raise InputError("too long")

    monkeypatch.setattr(emos_validation, "fit_emos", refuse)
    corrector = fitted(toy, MLP, 8, 0)
    corrector.normalizer.power = power
    chosen = TrainerOptions(emos_minutes=minutes)
    assert fit_emos_reference(None, TASK, None, None, corrector, chosen, Mesh.single()) is None
    said = capsys.readouterr().out
    assert reason in said
    assert bool(reason) == bool(said)


def test_a_lost_rank_is_not_a_reason_to_leave_emos_out(toy, monkeypatch):
    def lose(*arguments):
        raise InterruptedRunError("another rank is gone")

    monkeypatch.setattr(emos_validation, "fit_emos", lose)
    with pytest.raises(InterruptedRunError):
        fit_emos_reference(None, TASK, None, None, fitted(toy, MLP, 8, 0), TrainerOptions(), Mesh.single())
