"""A pruned run that goes on, and the EMOS that runs compare with."""

import json
import shutil

import pytest
from twin_project import QUICK, SPLIT

pytestmark = pytest.mark.usefixtures("without_figures")


def summary_of(folder):
    return json.loads((folder / "summary.json").read_text())


def test_emos_of_the_validation_is_that_of_a_trained_emos(first_project):
    """The network's run fits the same EMOS as `deepweather train model=emos`, and scores it in the same units."""
    emos, unet = (summary_of(first_project / "runs" / name) for name in ("emos", "unet"))
    assert abs(unet["references"]["emos"] / emos["validation"]["crps"] - 1) < 1e-5
    assert abs(unet["references"]["raw"] / emos["references"]["raw"] - 1) < 1e-6
    assert emos["finished"]
    assert emos["samples_per_second"] is None
    assert emos["time_to_crps"]["raw"]["seconds"] < emos["seconds"]


def test_evaluate_takes_the_emos_of_a_training_run(project, run_verb, monkeypatch, tmp_path):
    monkeypatch.setenv("DEEPWEATHER_CACHE", str(tmp_path))
    assert "fitting emos" in run_verb(project, "train", *SPLIT, *QUICK, "model=mlp", "run_dir=runs/first")
    output = run_verb(
        project, "evaluate", *SPLIT, "correctors={mlp: runs/first/corrector.safetensors}", "run_dir=runs/cached"
    )
    assert "emos was fitted on the training dates before, and is read from" in output
    assert output.splitlines()[-1].startswith("done in ")


PRUNING = "trainer.pruning={first_epoch: 1, factor: 2}"


def test_a_pruned_run_is_marked_and_can_be_continued(project, run_verb):
    words = (*SPLIT, "model=unet", *QUICK, "trainer.learning_rate=1e-6", "trainer.ema_decay=0.5")
    # A better run beside it.
    better = project / "runs/pruned/better"
    better.mkdir(parents=True)
    shutil.copy(project / "runs/unet/config.yaml", better)
    (better / "pruning.json").write_text(json.dumps({"rungs": {}, "ended": 0.0}))
    worse = project / "runs/pruned/worse"
    output = run_verb(project, "train", *words, "run_dir=runs/pruned/worse", PRUNING)
    message = "pruned after epoch 1: val_loss "
    assert message in output
    assert "has place 2 of the 2 runs" in output
    assert "epoch   2" not in output
    assert not (worse / "corrector.safetensors").exists()
    again = run_verb(project, "train", *words, "run_dir=runs/pruned/worse", PRUNING)
    assert message in again
    assert "epoch" not in again.replace(message, "")
    continued = run_verb(project, "train", *words, "run_dir=runs/pruned/worse")
    assert "resuming from" in continued
    assert "epoch   1" not in continued
    run_verb(project, "train", *words, "run_dir=runs/undisturbed")
    files = [project / run / "corrector.safetensors" for run in ("runs/pruned/worse", "runs/undisturbed")]
    assert files[0].read_bytes() == files[1].read_bytes()
