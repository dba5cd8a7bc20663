"""Killed and pruned runs that go on, and the EMOS that runs compare with."""

import json
import os
import shutil
import signal
import subprocess
from pathlib import Path

import pytest
from twin_project import QUICK, SPLIT, start, wait_for_line


def summary_of(folder):
    return json.loads((folder / "summary.json").read_text())


@pytest.mark.long
def test_one_process_resumes_a_run_of_two_ranks_after_one_was_killed(project, run_verb):
    """The ranks are new processes: forks share the hash seed of Python."""
    options = [*SPLIT, "model=unet", "run_dir=runs/killed", "trainer.epochs=6", "trainer.patience=10", "model.width=4"]
    process = start(project, "train", *options, "trainer.mesh=[1,2]", kind=subprocess.Popen)
    wait_for_line(process, "epoch   2")
    children = Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()
    os.kill(int(children[-1]), signal.SIGKILL)
    _, errors = process.communicate(timeout=900)
    assert process.returncode == 3, errors
    assert "was killed by signal 9" in errors
    assert "resuming from" in run_verb(project, "train", *options)
    rows = (project / "runs/killed/metrics.csv").read_text().splitlines()
    assert [int(row.split(",")[0]) for row in rows[1:]] == list(range(1, 7))
    account = summary_of(project / "runs/killed")
    assert (account["starts"], account["finished"], account["epochs"]) == (2, True, 6)
    # The twin has 20 training forecasts; an epoch that was killed counts twice.
    assert 6 * 20 <= account["samples"] <= 8 * 20
    assert [float(row.split(",")[3]) for row in rows[1:]] == [each["loss"] for each in account["validations"][1:]]


def test_emos_of_the_validation_is_that_of_a_trained_emos(first_project):
    """The network's run fits the same EMOS as `deepweather train model=emos`, and scores it in the same units."""
    emos, unet = (summary_of(first_project / "runs" / name) for name in ("emos", "unet"))
    assert abs(unet["references"]["emos"] / emos["validation"]["crps"] - 1) < 1e-5
    assert abs(unet["references"]["raw"] / emos["references"]["raw"] - 1) < 1e-6
    assert emos["finished"]
    assert emos["samples_per_second"] is None
    assert emos["time_to_crps"]["raw"]["seconds"] < emos["seconds"]


def test_evaluate_takes_the_emos_of_the_training_run(project, run_verb):
    output = run_verb(
        project, "evaluate", *SPLIT, "correctors={unet: runs/unet/corrector.safetensors}", "run_dir=runs/cached"
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
