"""Sweeps: which runs the words of the command line describe, and how runs start, fail and are interrupted."""

import json
import math
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
from conftest import ROOT
from hydra._internal.core_plugins.basic_sweeper import BasicSweeper
from hydra.core.override_parser.overrides_parser import OverridesParser
from waiting import eventually, is_running

from conf.hydra_command import composed
from conf.hydra_sweep import combinations, draw_runs
from conf.sweep_runs import OUTPUT, FailedRunsError, SweepRun, run_here, run_name, table_of_trainings
from data_pipeline.common.errors import InputError
from data_pipeline.common.pruning_record import PruningRecord, Rung

HELP, WRONG = ("help",), ("no-verb",)
"""Commands that end at once, with exit codes 0 and 2."""
WAITING = """
import os, signal, sys, time
def stop(*_):
    open(sys.argv[1] + ".told", "w").close()
    ENDING
signal.signal(signal.SIGTERM, stop)
open(sys.argv[1], "w").close()
while True:
    time.sleep(1)
"""


def parsed(*words):
    return OverridesParser.create().parse_overrides(list(words))


def test_all_combinations_are_those_of_hydra():
    overrides = parsed("a=1,2", "b=x", "c=range(0,3)", "+d=choice(u,v)", "e=[1,2],[3]", "f='p,q'")
    (expected,) = BasicSweeper.split_arguments(overrides, None)
    assert list(combinations(overrides)) == expected
    assert len(expected) == 2 * 3 * 2 * 2
    assert list(combinations(parsed("~a", "b=1,2"))) == [["~a", "b=1"], ["~a", "b=2"]]


def test_random_runs_are_uniform_and_extend_a_shorter_sweep():
    overrides = parsed(
        "rate=tag(log,interval(1e-5,1e-1))", "width=int(interval(4,7))", "drop=interval(0.0,0.5)", "k=a,b"
    )
    runs = draw_runs(overrides, 500, seed=0)
    assert draw_runs(overrides, 30, seed=0) == runs[:30]
    assert draw_runs(overrides, 30, seed=1) != runs[:30]
    rate, width, drop, letter = (
        np.array([word.partition("=")[2] for word in each]) for each in zip(*runs, strict=True)
    )
    logarithms = np.log10(rate.astype(float))
    assert -5 <= logarithms.min() < -4.9 < -1.1 < logarithms.max() <= -1
    # The standard error of the mean of 500 uniform numbers is the width of the interval / sqrt(12 * 500).
    assert abs(logarithms.mean() + 3) < 4 * 4 / math.sqrt(12 * 500)
    assert abs(drop.astype(float).mean() - 0.25) < 4 * 0.5 / math.sqrt(12 * 500)
    assert set(width) == {"4", "5", "6", "7"}
    assert set(letter) == {"a", "b"}
    # Runs are different, and end when there are no more.
    assert sorted(draw_runs(parsed("a=1,2", "b=x,y"), 10, seed=0)) == sorted(combinations(parsed("a=1,2", "b=x,y")))


SEEDS = "trainer.seed=1,2"


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["trainer.seed=1"], "-m runs a sweep, and no option has several values"),
        (["trainer.learning_rate=interval(0.1,0.2)"], "hydra.sweeper.trials=N"),
        (
            ["trainer.learning_rate=tag(log,interval(0,1))", "hydra.sweeper.trials=2"],
            "the interval from 0 to 1 must have its lower end first, greater than 0 for a logarithmic scale",
        ),
        ([SEEDS, "run_dir=a,b"], "run_dir is the folder of the sweep"),
        (["trainer.seed=1,1"], "the run trainer.seed-1 is in the sweep twice"),
        ([SEEDS, "hydra.launcher.parallel=0"], "hydra.launcher.parallel must be a whole"),
        ([SEEDS, "hydra.sweeper.trials=0"], "hydra.sweeper.trials must be a whole number"),
        ([SEEDS], "without torchrun or srun"),
    ],
)
def test_a_wrong_sweep_is_one_error_line_and_starts_nothing(words, sentence, tmp_path, command, monkeypatch):
    if "torchrun" in sentence:
        monkeypatch.setenv("WORLD_SIZE", "2")
    ended = command(tmp_path, "train", "-m", *words)
    assert (ended.code, ended.stdout) == (2, "")
    (line,) = ended.stderr.splitlines()
    assert line.startswith("error: ")
    assert sentence in line
    assert list(tmp_path.iterdir()) == []


def test_names_of_runs_differ_and_need_no_quotes():
    assert run_name(["model.width=8", "+trainer.seed=1"]) == "model.width-8+trainer.seed-1"
    options = [["a=[1,2]"], ["a=[1.2]"], ["a='1,2'"], ["a=1_2"], ["path=/x/y"], ["path=/x-y"], [f"a={'b' * 300}"]]
    names = [run_name(varied) for varied in options]
    assert len(set(names)) == len(names)
    for name in names:
        assert re.fullmatch(r"[\w.+-]{1,200}", name)
        assert composed("train", [f"run_dir=runs/{name}"]).run_dir == f"runs/{name}"


def sweep(folder, **commands):
    return [SweepRun((f"name={name}",), words, folder / name) for name, words in commands.items()]


@pytest.mark.parametrize("parallel", [1, 2])
def test_a_failed_run_is_named_and_the_others_go_on(tmp_path, parallel, capfd):
    runs = sweep(tmp_path, one=HELP, two=WRONG, three=HELP)
    with pytest.raises(FailedRunsError, match=r"1 of 3 runs .* did not end well .*two has wrong input") as failed:
        run_here(runs, tmp_path, parallel)
    assert failed.value.exit_code == 2
    printed = capfd.readouterr().out
    assert "three is done" in printed
    assert "2 of 3 runs in" in printed
    # Runs that are not alone write into files of their own.
    assert ("usage" in printed) == (parallel == 1)
    if parallel > 1:
        assert "there is no verb 'no-verb'" in (tmp_path / "two" / OUTPUT).read_text()


def test_a_sweep_with_a_pruned_run_ends_well(tmp_path, capfd):
    PruningRecord({1: Rung(0.5, 3, 3, True)}).write(tmp_path / "two")
    run_here(sweep(tmp_path, one=HELP, two=HELP), tmp_path, 1)
    printed = capfd.readouterr().out
    assert "two was pruned after epoch 1" in printed
    assert "1 of 2 runs" in printed.splitlines()[-1]
    assert "1 pruned" in printed.splitlines()[-1]


def test_the_table_of_trainings_has_the_lowest_crps_first(tmp_path):
    runs = sweep(tmp_path, emos=HELP, worse=HELP, better=HELP, pruned=HELP, failed=HELP)
    for run, loss, crps, epochs, finished in zip(
        runs[:4],
        (None, 0.7, 0.6123456, 0.9),
        (0.5, 0.4, 0.3, None),
        (0, 12, 3, 1),
        (True, False, True, False),
        strict=True,
    ):
        run.folder.mkdir()
        summary = {"finished": finished, "seconds": 90, "epochs": epochs, "validation": {"loss": loss, "crps": crps}}
        (run.folder / "summary.json").write_text(json.dumps(summary))
    PruningRecord({1: Rung(0.9, 3, 3, True)}).write(tmp_path / "pruned")
    assert [line.split() for line in table_of_trainings(runs).splitlines()] == [
        ["run", "options", "state", "val_loss", "val_crps", "epochs", "minutes"],
        ["better", "name=better", "done", "0.6123", "0.3", "3", "1.5"],
        ["worse", "name=worse", "unfinished", "0.7", "0.4", "12", "1.5"],
        ["emos", "name=emos", "done", "–", "0.5", "–", "1.5"],
        ["pruned", "name=pruned", "pruned", "0.9", "–", "1", "1.5"],
    ]
    assert table_of_trainings(runs[4:]) == ""


@pytest.fixture
def waiting_sweep(tmp_path):
    """A process with a sweep whose only run waits, and the number of the run's process."""
    script, started, children = tmp_path / "program.py", tmp_path / "started", []

    def start(ending):
        waiting = WAITING.replace("ENDING", ending)
        script.write_text(
            f"""
import sys
from pathlib import Path
from conf import reporting
from conf.sweep_runs import SweepRun, run_here
SweepRun.command = property(lambda run: [sys.executable, "-c", {waiting!r}, {str(started)!r}])
with reporting():
    run_here([SweepRun(("a=1",), ("train",), Path("sweep") / name) for name in ("one", "two")], Path("sweep"), 1)
"""
        )
        environment = os.environ | {"PYTHONPATH": str(ROOT)}
        launcher = subprocess.Popen(
            [sys.executable, script], cwd=tmp_path, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE
        )
        while not started.exists():
            assert launcher.poll() is None, launcher.stderr.read()
            time.sleep(0.05)
        children.extend(Path(f"/proc/{launcher.pid}/task/{launcher.pid}/children").read_text().split())
        return launcher, int(children[0])

    yield start
    for child in children:
        if is_running(int(child)):
            os.kill(int(child), signal.SIGKILL)


@pytest.mark.parametrize("ending", ["sys.exit(3)", "None"], ids=["saves", "ignores it"])
def test_an_interrupted_sweep_stops_its_runs(waiting_sweep, tmp_path, ending):
    """The first Ctrl-C lets a run save, the second kills it; the next run does not begin."""
    launcher, child = waiting_sweep(ending)
    launcher.send_signal(signal.SIGINT)
    if ending == "None":
        assert eventually((tmp_path / "started.told").exists)
        time.sleep(1.5)  # a second signal counts a second after the first was handled
        assert is_running(child)
        launcher.send_signal(signal.SIGINT)
    _, error = launcher.communicate(timeout=60)
    assert launcher.returncode == 3
    assert error.startswith(b"error: the sweep was interrupted")
    assert eventually(lambda: not is_running(child))


def test_a_second_sweep_waits_for_the_runs_of_a_killed_one(waiting_sweep, tmp_path):
    """The lock of the folder is inherited by the runs."""
    launcher, child = waiting_sweep("sys.exit(3)")
    launcher.kill()
    launcher.wait()
    with pytest.raises(InputError, match="another run is writing to"):
        run_here(sweep(tmp_path / "sweep", one=HELP), tmp_path / "sweep", 1)
    os.kill(child, signal.SIGTERM)
    assert eventually(lambda: not is_running(child))
    run_here(sweep(tmp_path / "sweep", one=HELP), tmp_path / "sweep", 1)
