"""Training by several processes, and interrupted training that the same command resumes."""

import os
import signal
import subprocess
import sys
from pathlib import Path

from conftest import ROOT
from equal_runs import check_equal_runs
from forks import Program
from twin_project import QUICK, SPLIT


def start(folder, *arguments, kind=Program):
    """Start a verb in its own process: a fork of a server, or a new process if `kind` is `subprocess.Popen`."""
    return kind(
        [sys.executable, ROOT / "scripts/deepweather.py", *arguments],
        cwd=folder, env=os.environ | {"PYTHONPATH": str(ROOT)},
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip


def test_four_ranks_write_the_same_files_as_one_process(project):
    """Weights and the table of epochs are equal up to rounding."""
    process = start(project, "train", *SPLIT, "model=unet", "run_dir=runs/mesh", *QUICK, "trainer.mesh=[2,2]")
    output, errors = process.communicate(timeout=900)
    assert (process.returncode, errors) == (0, "")
    assert "in 2 x 1 tiles, batches shared by 2" in output
    assert output.count("\nepoch ") == 2
    one, four = project / "runs/unet", project / "runs/mesh"
    assert {path.name for path in one.iterdir()} == {path.name for path in four.iterdir()}
    check_equal_runs(one, four)


def test_one_process_resumes_a_run_of_two_ranks_after_one_was_killed(project, run_verb):
    options = [*SPLIT, "model=unet", "run_dir=runs/killed", "trainer.epochs=10", "trainer.patience=10", "model.width=4"]
    process = start(project, "train", *options, "trainer.mesh=[1,2]", kind=subprocess.Popen)
    for line in process.stdout:
        if line.startswith("epoch   2"):
            children = Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()
            os.kill(int(children[-1]), signal.SIGKILL)
            break
    _, errors = process.communicate(timeout=900)
    assert process.returncode == 3, errors
    assert "was killed by signal 9" in errors
    assert "resuming from" in run_verb(project, "train", *options)
    rows = (project / "runs/killed/metrics.csv").read_text().splitlines()
    assert [int(row.split(",")[0]) for row in rows[1:]] == list(range(1, 11))


def test_the_same_command_resumes_interrupted_training(project, run_verb):
    """Training gets SIGTERM after two epochs; then the same command runs again."""
    options = [*SPLIT, "model=unet", "run_dir=runs/long", "trainer.epochs=10", "trainer.patience=10", "model.width=4"]
    process = start(project, "train", *options)
    for line in process.stdout:
        if line.startswith("epoch   2"):
            process.terminate()
            break
    _, errors = process.communicate(timeout=900)
    assert process.returncode == 3, errors
    assert "run the same command again" in errors
    assert not (project / "runs/long/corrector.safetensors").exists()
    assert "resuming from" in run_verb(project, "train", *options)
    rows = (project / "runs/long/metrics.csv").read_text().splitlines()
    assert [int(row.split(",")[0]) for row in rows[1:]] == list(range(1, 11))
