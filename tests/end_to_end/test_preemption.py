"""Runs that are killed or told to stop at any moment: the same command ends with the same bits and leaves nothing."""

import contextlib
import itertools
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

from data_pipeline.common.interruption import INTERRUPTED, SIGNALS

OPTIONS = [
    *SPLIT, "model=unet", "model.width=4", "trainer.epochs=8", "trainer.patience=10",
    "trainer.checkpoint_minutes=0.001",
]  # fmt: skip
LONGER = [word if "epochs" not in word else "trainer.epochs=60" for word in OPTIONS]
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


def is_running(pid):
    with contextlib.suppress(OSError):
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    return False


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


def test_a_run_that_is_killed_twice_is_the_same_run(project):
    """Before its first step, and after its first epoch."""
    finish(train(project, "runs/alone", "trainer.epochs=3"))
    for words in ("initial weights", "epoch   1"):
        process = train(project, "runs/killed", "trainer.epochs=3")
        wait_for_line(process, words)
        process.kill()
        finish(process, (-signal.SIGKILL,))
    finish(train(project, "runs/killed", "trainer.epochs=3"))
    assert results(project / "runs/killed") == results(project / "runs/alone")


@pytest.mark.long
@pytest.mark.parametrize("mesh", ["[1,1]", "[1,2]"])
def test_a_run_that_is_killed_at_twenty_random_moments_is_the_same_run(project, mesh):
    """Ten moments on one rank, and ten on two."""
    random_numbers = random.Random(1)
    began = time.monotonic()
    finish(train(project, f"runs/alone-{mesh[3]}", f"trainer.mesh={mesh}", kind=subprocess.Popen))
    took = time.monotonic() - began
    expected = results(project / f"runs/alone-{mesh[3]}")
    kinds, kills = itertools.cycle(["one rank", "all ranks", "launcher"]), 0
    for number in itertools.count():
        folder = f"runs/killed-{mesh[3]}-{number}"
        while kills < 10:
            process = train(project, folder, f"trainer.mesh={mesh}", kind=subprocess.Popen)
            # Starting takes longer than the training, which deserves more of the moments.
            time.sleep(took * random_numbers.uniform(0.05, 0.8))
            if process.poll() is not None:
                break
            ranks = kill(process, next(kinds))
            kills += 1
            finish(process, (0, 3, -signal.SIGKILL))
            wait_until_gone(ranks)
        finish(train(project, folder, f"trainer.mesh={mesh}", kind=subprocess.Popen))
        assert results(project / folder) == expected
        if kills == 10:
            return


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


@pytest.fixture(scope="module")
def undisturbed(slurm, project):
    """The results of a job that ran to its end."""
    number, path = submit(slurm, project, "undisturbed")
    assert slurm.wait(number)["ExitCode"] == "0:0", path.read_text()
    return results(project / "runs/undisturbed")


@pytest.mark.long
def test_a_job_that_is_preempted_three_times_has_the_weights_of_an_undisturbed_one(slurm, project, undisturbed):
    """SIGUSR1 comes while the tasks start, and twice while they train."""
    random_numbers = random.Random(2)
    number, path = submit(slurm, project, "preempted")
    for times in range(3):
        slurm.wait(number, "RUNNING")
        if times:
            slurm.wait_for_text(path, EPOCH, len(re.findall(EPOCH, path.read_text(), re.MULTILINE)) + 1)
        time.sleep(random_numbers.uniform(0, 3))
        slurm.run("scancel", "--signal=USR1", number)
        slurm.wait_for_text(path, "interrupted; the job starts again", times + 1)
    ended = slurm.wait(number)
    assert (ended["JobState"], ended["ExitCode"], ended["Restarts"]) == ("COMPLETED", "0:0", "3"), path.read_text()
    assert path.read_text().count("resuming from") == 2
    assert results(project / "runs/preempted") == undisturbed


def batch_shells(number):
    """The shells that run the file of a job."""
    return [
        int(path.parent.name)
        for path in Path("/proc").glob("[0-9]*/cmdline")
        if f"job{number:05}/slurm_script" in path.read_bytes().decode(errors="replace")
    ]


@pytest.mark.long
def test_a_job_whose_batch_shell_is_killed_resumes_when_it_is_submitted_again(slurm, project, undisturbed):
    number, path = submit(slurm, project, "shell")
    slurm.wait(number, "RUNNING")
    slurm.wait_for_text(path, EPOCH, 3)
    shells = batch_shells(number)
    assert shells
    for shell in shells:
        os.kill(shell, signal.SIGKILL)
    assert slurm.wait(number)["JobState"] != "COMPLETED"
    again, path = submit(slurm, project, "shell", "-again")
    assert slurm.wait(again)["ExitCode"] == "0:0", path.read_text()
    assert path.read_text().count("resuming from") == 1
    assert results(project / "runs/shell") == undisturbed
