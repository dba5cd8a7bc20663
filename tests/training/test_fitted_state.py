"""What a run fits before its first step is fitted once: a resumed run reads it from its folder, to the bit."""

import shutil

import numpy as np
import pytest
import torch
from grib_parts import OPTIONS, write_archive
from ranks import run_on_ranks
from specs import QUICK
from torch.utils.data import default_collate

from data_pipeline.grid import Grid
from data_pipeline.task import Task
from models import protocol
from models.corrector import Corrector, needed_task
from models.parallel.mesh import Mesh, arrange_mesh
from models.statistical.crossfit import CrossFitted
from training.run.fitted_state import FITTED_FILE, FittedState
from training.step.correction_module import CorrectionModule

TASK = Task("toy", ["2t", "msl"], ["2t"], [48])
GRID = Grid.regular(16, 24)
BASELINE = QUICK["mlp"] | {"baseline": {"seasonal": False, "shared": False}}
LEARNING = {name: QUICK[name] for name in ("boosted_emos", "deep_weather", "poet")} | {"baseline": BASELINE}


def built(spec, toy, domain=GRID, seed=0):
    torch.manual_seed(seed)
    task = needed_task(spec, TASK)
    return Corrector(task, domain, spec, toy(task, GRID, 1).static)


def outputs(corrector, batch):
    """Mean and CRPS of one batch, as in training with the numbers of other years, and as in evaluation."""
    found = []
    for training in (True, False):
        torch.manual_seed(0)
        with torch.no_grad():
            forecast = corrector.train(training)(batch)
            found += [forecast.mean, forecast.crps(batch.target)]
    return found


@pytest.mark.parametrize("name", LEARNING)
def test_a_restored_corrector_is_the_fitted_one(name, toy, tmp_path):
    spec = LEARNING[name]
    fitted, other = built(spec, toy), built(spec, toy, seed=1)
    data = toy(fitted.task, GRID, 120)
    fitted.fit(data)
    FittedState(tmp_path / FITTED_FILE, "run").save(fitted, Mesh.single())
    assert FittedState(tmp_path / FITTED_FILE, "run").restore(other, Mesh.single())
    batch = default_collate([data[k] for k in (0, 50, 119)])
    for ours, theirs in zip(outputs(other, batch), outputs(fitted, batch), strict=True):
        torch.testing.assert_close(ours, theirs, rtol=0, atol=0, equal_nan=True)
    assert other.state_dict().keys() == fitted.state_dict().keys()
    assert (other.provenance, other.notes, other.envelope) == (fitted.provenance, fitted.notes, fitted.envelope)
    assert other.provenance["fits"]


def cross_fitted(corrector):
    return [module for module in corrector.modules() if isinstance(module, CrossFitted)]


def test_a_file_that_is_damaged_missing_or_of_another_run_is_not_used(toy, tmp_path):
    corrector, path = built(QUICK["emos"], toy), tmp_path / FITTED_FILE
    corrector.fit(toy(corrector.task, GRID, 60))
    FittedState(path, "run").save(corrector, Mesh.single())
    whole = path.read_bytes()
    assert FittedState(path, "run").restore(corrector, Mesh.single())
    assert not FittedState(path, "other").restore(corrector, Mesh.single())
    for damaged in (whole[:-1000], whole[:-100] + bytes([whole[-100] ^ 1]) + whole[-99:]):
        path.write_bytes(damaged)
        assert not FittedState(path, "run").restore(corrector, Mesh.single())
    path.unlink()
    assert not FittedState(path, "run").restore(corrector, Mesh.single())


def restored_tiles(rank, toy, path):
    """The tables of this rank's tile that it reads, and its tile; then all ranks write what they have read."""
    mesh = arrange_mesh(1, 1, 2)
    corrector = built(BASELINE, toy, mesh.domain(GRID))
    assert FittedState(path, "run").restore(corrector, mesh)
    FittedState(path.with_name("again"), "run").save(corrector, mesh)
    return [each.table.numpy() for each in cross_fitted(corrector)], corrector.domain.tile


def test_the_state_does_not_depend_on_the_mesh(toy, tmp_path):
    """With the tables of other years: without them a resumed run would train on other features than its first part."""
    fitted, other = built(BASELINE, toy), built(BASELINE, toy)
    fitted.fit(toy(TASK, GRID, 120))
    whole = cross_fitted(fitted)
    assert len(whole) == 2
    FittedState(tmp_path / FITTED_FILE, "run").save(fitted, Mesh.single())
    for tables, tile in run_on_ranks(2, restored_tiles, toy, tmp_path / FITTED_FILE):
        for found, table in zip(tables, whole, strict=True):
            np.testing.assert_array_equal(found, table.table[..., *tile])
    FittedState(tmp_path / "again", "run").restore(other, Mesh.single())
    for ours, theirs in zip(cross_fitted(other), whole, strict=True):
        assert ours.fitted
        assert torch.equal(ours.table, theirs.table)
        assert torch.equal(ours.ends, theirs.ends)


def test_a_resumed_run_fits_nothing_again(tmp_path, command, monkeypatch):
    """A stopped command, started again, reads no training sample for fits, and writes the corrector of a whole run."""
    write_archive(tmp_path)
    line = ("train", *OPTIONS, "path=.", "model=mlp", "model.width=8", "trainer.epochs=2", "trainer.emos_minutes=0")
    assert command(tmp_path, *line, "run_dir=whole").code == 0
    with monkeypatch.context() as patch:

        def stop(self, batch, index):
            raise KeyboardInterrupt

        patch.setattr(CorrectionModule, "training_step", stop)
        assert command(tmp_path, *line, "run_dir=parts").code == 3
    assert (tmp_path / "parts" / FITTED_FILE).is_file()
    fits, fit = [], protocol.fit
    monkeypatch.setattr(protocol, "fit", lambda model, *rest: fits.append(type(model).__name__) or fit(model, *rest))
    ended = command(tmp_path, *line, "run_dir=parts")
    assert ended.code == 0, ended.stderr
    assert f"fitted before, read from parts/{FITTED_FILE}" in ended.stdout
    assert set(fits) <= {"Climatology"}, "the reference of the validation, fitted after the last epoch"
    assert not (tmp_path / "parts" / FITTED_FILE).exists()
    ours, theirs = (Corrector.load(tmp_path / name / "corrector.safetensors") for name in ("parts", "whole"))
    assert ours.provenance == theirs.provenance
    for name, tensor in theirs.state_dict().items():
        assert torch.equal(ours.state_dict()[name], tensor), name


def test_a_stray_state_of_a_finished_run_is_removed(tmp_path, command):
    """A process can be killed between the corrector's file and this one."""
    write_archive(tmp_path)
    line = ("train", *OPTIONS, "path=.", "model=emos", "model.shared=false", "run_dir=done")
    assert command(tmp_path, *line).code == 0
    shutil.copy(tmp_path / "done/corrector.safetensors", tmp_path / "done" / FITTED_FILE)
    assert "already trained" in command(tmp_path, *line).stdout
    assert not (tmp_path / "done" / FITTED_FILE).exists()
