"""Runs that are killed or told to stop at any moment: the same command ends with the same bits and leaves nothing."""

import contextlib
import os
import random
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from conftest import ROOT
from forks import Program
from twin_project import SPLIT, start, wait_for_line
from waiting import is_running

from data_pipeline.common.interruption import INTERRUPTED, SIGNALS

pytestmark = pytest.mark.long

OPTIONS = [
    *SPLIT, "model=unet", "model.width=4", "trainer.epochs=8", "trainer.patience=10",
    "trainer.checkpoint_minutes=0.001",
]  # fmt: skip
LONGER = [word if "epochs" not in word else "trainer.epochs=30" for word in OPTIONS]
"""A run that lasts long enough to be stopped three times."""
LIMIT = 900
"""Seconds after which a process counts as hanging."""


def train(project, folder, *options, kind=Program):
    """Start a training in its own process."""
    return start(project, "train", *OPTIONS, f"run_dir={folder}", *options, kind=kind)


def finish(process, codes=(0,)):
    output, errors = process.communicate(timeout=LIMIT)
    assert process.returncode in codes, output + errors
    return output, errors


def results(folder):
    """The results of a run, and the names of all its files but the curves, of which each start writes one."""
    names = {str(path.relative_to(folder)) for path in folder.rglob("*") if "tensorboard/" not in str(path)}
    return (folder / "corrector.safetensors").read_bytes(), (folder / "metrics.csv").read_text(), names


def descendants(pid):
    """The processes that a process has started, and theirs."""
    try:
        children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    except OSError:
        return []
    return [int(child) for child in children] + [each for child in children for each in descendants(int(child))]


def kill(process, which):
    """Kill one rank, all ranks, or the process that a batch system has started, which is all there is on one rank."""
    ranks = descendants(process.pid)
    if which == "launcher" or not ranks:
        process.kill()
    for rank in {"one rank": ranks[-1:], "all ranks": ranks, "launcher": []}[which]:
        with contextlib.suppress(ProcessLookupError):
            os.kill(rank, signal.SIGKILL)
    return ranks


def wait_until_gone(pids):
    """Wait for the end of ranks whose launcher was killed; a new start waits for them too."""
    until = time.monotonic() + LIMIT
    while any(map(is_running, pids)):
        assert time.monotonic() < until, "ranks outlive their launcher"
        time.sleep(0.1)


def test_a_run_that_is_killed_at_random_moments_is_the_same_run(project):
    """Two ranks, as new processes: forks share the hash seed of Python."""
    random_numbers, options = random.Random(1), ["trainer.mesh=[1,2]", "trainer.epochs=4"]
    began = time.monotonic()
    finish(train(project, "runs/alone", *options, kind=subprocess.Popen))
    took = time.monotonic() - began
    for which in ("one rank", "all ranks", "launcher"):
        process = train(project, "runs/killed", *options, kind=subprocess.Popen)
        # Starting takes longer than the training, which deserves more of the moments.
        time.sleep(took * random_numbers.uniform(0.3, 0.8))
        ranks = kill(process, which)
        finish(process, (0, 3, -signal.SIGKILL))
        wait_until_gone(ranks)
    finish(train(project, "runs/killed", *options, kind=subprocess.Popen))
    assert results(project / "runs/killed") == results(project / "runs/alone")


LINES = ["forecasts to train on", "initial weights", "epoch   2"]


@pytest.mark.parametrize(("number", "words"), list(zip(SIGNALS, LINES, strict=True)))
def test_each_signal_ends_a_run_that_resumes(project, tmp_path, number, words):
    """While it fits the normaliser, before the first step, and between two epochs."""
    process = train(project, tmp_path / "run")
    wait_for_line(process, words)
    process.send_signal(number)
    _, errors = finish(process, (3,))
    (line,) = errors.splitlines()
    assert line.startswith("error: interrupted")
    assert line.endswith("run the same command again to resume")
    assert not [path for path in (tmp_path / "run").rglob("*") if path.name.endswith(".partial")]


def test_a_signal_before_the_handler_does_no_harm(project, tmp_path):
    """The job script blocks the signals; the process starts, and ends with code 3 when it can handle them."""
    process = subprocess.Popen(
        ["env", "--block-signal=USR1,TERM", sys.executable, ROOT / "scripts/deepweather.py", "train", *OPTIONS],
        cwd=project, env=os.environ | {"PYTHONPATH": str(ROOT)}, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip
    until = time.monotonic() + LIMIT
    blocked = 1 << (signal.SIGUSR1 - 1)
    while not int(re.search(r"SigBlk:\s*(\w+)", Path(f"/proc/{process.pid}/status").read_text())[1], 16) & blocked:
        assert time.monotonic() < until
        time.sleep(0.001)
    process.send_signal(signal.SIGUSR1)
    assert process.communicate(timeout=LIMIT)[1] == f"error: {INTERRUPTED}\n"
    assert process.returncode == 3


EPOCH = r"^epoch +\d+ of \d+:"


def submit(slurm, project, name, job=""):
    """Submit a training of two tasks that share the globe; return the number of the job and the file of its output."""
    words = [
        "cpus=1", "directives=[--overcommit]", f"logs=slurm-{name}{job}", "train", *LONGER, "trainer.mesh=[1,2]",
        f"run_dir=runs/{name}",
    ]  # fmt: skip
    output = slurm.run(sys.executable, ROOT / "scripts/deepweather.py", "submit", *words, cwd=project)
    number = int(re.search(r"job (\d+)", output)[1])
    return number, Path(slurm.job(number)["StdOut"])


def batch_shells(number):
    """The shells that run the file of a job."""
    return [
        int(path.parent.name)
        for path in Path("/proc").glob("[0-9]*/cmdline")
        if f"job{number:05}/slurm_script" in path.read_bytes().decode(errors="replace")
    ]


def tasks(number):
    """The processes of Python that are tasks of a job; `env`, which keeps signals waiting, has become one."""
    words = (f"SLURM_JOB_ID={number}".encode(), b"SLURM_STEP_ID=0")
    found = set()
    for process in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            if b"python" in (process / "cmdline").read_bytes().partition(b"\0")[0]:
                variables = (process / "environ").read_bytes().split(b"\0")
                if all(word in variables for word in words):
                    found.update(word for word in variables if word.startswith(b"SLURM_PROCID="))
    return found


def test_a_job_that_is_preempted_and_whose_batch_shell_is_killed_has_the_weights_of_an_undisturbed_run(slurm, project):
    """SIGUSR1 comes while the tasks start and while they train; after the kill the job is submitted again."""
    number, path = submit(slurm, project, "disturbed")
    for times in range(3):
        slurm.wait(number, "RUNNING")
        if times:
            slurm.wait_for_text(path, EPOCH, len(re.findall(EPOCH, path.read_text(), re.MULTILINE)) + 1)
        if times < 2:
            # Slurm loses a signal to a step whose tasks do not run yet.
            slurm.wait_for(lambda: len(tasks(number)) == 2, "two tasks")
            slurm.run("scancel", "--signal=USR1", number)
            slurm.wait_for_text(path, "interrupted; the job starts again", times + 1)
    assert slurm.job(number)["Restarts"] == "2"
    shells = batch_shells(number)
    assert shells
    for shell in shells:
        os.kill(shell, signal.SIGKILL)
    assert slurm.wait(number)["JobState"] != "COMPLETED"
    again, path = submit(slurm, project, "disturbed", "-again")
    assert slurm.wait(again)["ExitCode"] == "0:0", path.read_text()
    assert path.read_text().count("resuming from") == 1
    finish(start(project, "train", *LONGER, "trainer.mesh=[1,2]", "run_dir=runs/undisturbed"))
    assert results(project / "runs/disturbed") == results(project / "runs/undisturbed")
