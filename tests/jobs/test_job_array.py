"""Tasks of job arrays: the states that scontrol prints, followed to their ends; sweeps that are started again."""

import json
import math
import os
import re
import shlex
import sys

import pytest
from twin_project import QUICK, SPLIT

from conf.jobs import job_array
from conf.jobs.job_array import follow_tasks, open_tasks, task_states
from conf.jobs.job_options import JobOptions
from conf.sweep_jobs import SUBMITTED, job_arrays, run_as_jobs
from conf.sweep_runs import FailedRunsError, SweepRun
from data_pipeline.common.errors import InputError

RECORD = "JobId=8 ArrayJobId=7 ArrayTaskId={} JobName=train-sweep UserId=a(1) JobState={} ExitCode={} A=b=c"


@pytest.fixture
def scheduler(tmp_path, monkeypatch):
    """Programs sbatch and scontrol: jobs get numbers from 7 on, and states are what the test writes."""
    folder = tmp_path / "bin"
    folder.mkdir()
    programs = {
        "sbatch": f'cat "$2" >> {tmp_path}/scripts; n=$(cat {tmp_path}/number 2>/dev/null || echo 6); n=$((n + 1)); '
        f'echo $n > {tmp_path}/number; echo "$n;cluster"',
        # One answer after the other; the last one stays.
        "scontrol": f'f={tmp_path}/answers; a=$(head -n 1 $f); [ $(wc -l < $f) -le 1 ] || sed -i 1d $f; eval "$a"',
    }
    for name, text in programs.items():
        (folder / name).write_text(f"#!/bin/bash\n{text}\n")
        (folder / name).chmod(0o755)
    monkeypatch.setenv("PATH", f"{folder}:{os.environ['PATH']}")
    monkeypatch.setattr(job_array, "SECONDS_BETWEEN_STATES", 0.0)
    monkeypatch.chdir(tmp_path)

    def answer(*answers):
        """`answers` are lists of (tasks, state, exit code), or shell commands."""
        lines = []
        for each in answers:
            if not isinstance(each, str):
                records = [RECORD.format(*task) for task in each]
                each = f"printf '%s\\n' {shlex.join(records)}"
            lines.append(each)
        (tmp_path / "answers").write_text("".join(f"{line}\n" for line in lines))

    return answer


INVALID = "echo 'slurm_load_jobs error: Invalid job id specified' >&2; exit 1"
AWAY = "echo 'Unable to contact slurm controller' >&2; exit 1"


def test_states_of_tasks_are_read(scheduler):
    scheduler([("5-6,9%2", "PENDING", "0:0"), (0, "COMPLETED", "0:0"), (1, "FAILED", "2:0"), (2, "CANCELLED", "0:15")])
    pending = dict.fromkeys((5, 6, 9), ("PENDING", "train-sweep", 3))
    assert task_states(7) == pending | {
        0: ("COMPLETED", "train-sweep", 0), 1: ("FAILED", "train-sweep", 2), 2: ("CANCELLED", "train-sweep", -15),
    }  # fmt: skip
    assert open_tasks(7, "train-sweep") == {5, 6, 9}
    assert open_tasks(7, "another") == set()
    scheduler(INVALID)
    assert task_states(7) == {}
    scheduler(AWAY)
    assert task_states(7) is None
    with pytest.raises(InputError, match="no answer from Slurm about job 7"):
        open_tasks(7, "train-sweep")


def followed(*tasks):
    """Return the ends of tasks of job 7."""
    ends = []
    follow_tasks([(7, task) for task in tasks], lambda task, code: ends.append((*task, code)))
    return sorted(ends)


def test_an_end_counts_when_it_is_seen_twice(scheduler):
    """A requeued job looks ended for a moment; a controller that does not answer changes nothing."""
    running, moment, pending = ([(0, state, "3:0")] for state in ("RUNNING", "FAILED", "PENDING"))
    scheduler(running, moment, pending, AWAY, running, [(0, "COMPLETED", "0:0")])
    assert followed(0) == [(7, 0, 0)]
    # A task that Slurm has forgotten can be resumed.
    scheduler([(0, "RUNNING", "0:0"), (1, "RUNNING", "0:0")], [(1, "FAILED", "1:0")])
    assert followed(0, 1) == [(7, 0, 3), (7, 1, 1)]


def runs_of(folder, *names):
    return [SweepRun((f"name={name}",), ("train", f"run_dir={folder}/{name}"), folder / name) for name in names]


def started(path):
    """The words of the tasks in all job files that were submitted."""
    return re.findall(r"^    \d+\) words=\((.*)\) ;;$", path.read_text(), re.MULTILINE)


def test_a_sweep_that_is_started_again_submits_only_what_is_not_open(scheduler, tmp_path, capsys):
    folder = tmp_path / "sweep"
    scheduler([("0-1", "PENDING", "0:0")])
    run_as_jobs(runs_of(folder, "a", "b"), folder, JobOptions(), lambda run: 1, wait=False)
    assert started(tmp_path / "scripts") == [f"run_dir={folder}/a", f"run_dir={folder}/b"]
    # `a` has ended, `b` runs on, `c` is new.
    first = [(0, "COMPLETED", "0:0"), (1, "RUNNING", "0:0")]
    scheduler(first, [(0, "COMPLETED", "0:0"), (1, "COMPLETED", "0:0")])
    run_as_jobs(runs_of(folder, "a", "b", "c"), folder, JobOptions(), lambda run: 1, wait=True)
    assert started(tmp_path / "scripts")[2:] == [f"run_dir={folder}/a", f"run_dir={folder}/c"]
    assert {number: job["runs"] for number, job in json.loads((folder / SUBMITTED).read_text()).items()} == {
        "7": ["a", "b"], "8": ["a", "c"],
    }  # fmt: skip
    assert "3 of 3 runs in" in capsys.readouterr().out


def test_a_failed_task_is_named_with_its_output(scheduler, tmp_path):
    folder = tmp_path / "sweep"
    (tmp_path / "slurm").mkdir()
    (tmp_path / "slurm/train-sweep-7_1.out").touch()
    scheduler([(0, "COMPLETED", "0:0"), (1, "FAILED", "2:0"), (2, "OUT_OF_MEMORY", "0:125")])
    with pytest.raises(FailedRunsError) as failed:
        run_as_jobs(runs_of(folder, "a", "b", "c"), folder, JobOptions(), lambda run: 1, wait=True)
    assert failed.value.exit_code == 2
    assert f"b has wrong input or options (exit code 2, see {tmp_path}/slurm/train-sweep-7_1.out)" in str(failed.value)
    assert "c was killed by signal 9 (Killed)" in str(failed.value)


def test_runs_of_other_ranks_and_many_runs_are_arrays_of_their_own(tmp_path):
    runs = runs_of(tmp_path, *"abcde")
    arrays = job_arrays(runs, "train", JobOptions(array_tasks=2, job_name="x"), lambda run: 4 if run.name == "b" else 2)
    found = [(job.ranks, job.name, [run.name for run in some]) for job, some in arrays]
    assert found == [(2, "x", ["a", "c"]), (2, "x-1", ["d", "e"]), (4, "x-2", ["b"])]
    with pytest.raises(InputError, match=r"nodes=3 cannot share the 2 ranks of trainer.mesh evenly"):
        job_arrays(runs, "train", JobOptions(nodes=3, job_name="x"), lambda run: 2)


def test_options_of_the_jobs_come_from_the_command_line_and_the_site(scheduler, tmp_path, command):
    (tmp_path / "site.yaml").write_text("account: meteo\ncpus: 2\ntrain: {partition: long}\n")
    words = ["hydra/launcher=slurm", "hydra.launcher.site=site.yaml", "hydra.launcher.cpus=3", "run_dir=runs/a"]
    words += ["trainer.mesh=[1,2],[2,2]", "hydra.launcher.wait=false"]
    ended = command(tmp_path, "train", "-m", *words)
    assert ended.code == 0, ended.stderr
    text = (tmp_path / "scripts").read_text()
    for line in ("--account=meteo", "--partition=long", "--cpus-per-task=3", "--array=0-0"):
        assert text.count(f"#SBATCH {line}\n") == 2, line
    assert [int(count) for count in re.findall(r"--ntasks-per-node=(\d+)", text)] == [2, 4]


@pytest.mark.parametrize(
    ("word", "sentence"),
    [
        ("hydra.launcher.wait=3", "hydra.launcher.wait must be true or false, got 3"),
        ("hydra.launcher.cpus=0", "cpus must be a whole number"),
        ("hydra.launcher.cpus=1", "hydra/launcher=slurm needs the command sbatch, which was not found"),
    ],
)
def test_a_wrong_sweep_says_so(word, sentence, tmp_path, command, monkeypatch):
    monkeypatch.setenv("PATH", str(tmp_path))
    ended = command(tmp_path, "train", "-m", "trainer.seed=1,2", "hydra/launcher=slurm", word)
    assert ended.code == 2
    assert sentence in ended.stderr


@pytest.mark.long
def test_a_sweep_on_slurm_and_its_table(slurm, first_project, tmp_path):
    """Two ranks each; the first run has a wrong option: it is named, and the table has the others."""
    program = [sys.executable, "-m", "deepweather"]
    (tmp_path / "data").symlink_to(first_project / "data")
    words = [*SPLIT, *QUICK[:1], "model=mlp", "model.width=nine,4,6", "trainer.mesh=[1,2]", "run_dir=runs/width"]
    # Names of nodes are no addresses here, and another cluster of tests may have a job with the same number.
    setup = "export MASTER_ADDR=127.0.0.1 MASTER_PORT=$((25000 + RANDOM % 5000))"
    (tmp_path / "site.yaml").write_text(json.dumps({"cpus": 1, "setup": [setup]}))
    words += ["hydra/launcher=slurm", "hydra.launcher.site=site.yaml"]
    printed = slurm.run(*program, "train", "-m", *words, cwd=tmp_path, check=False)
    assert "2 of 3 runs in runs/width are done" in printed
    assert re.search(r"model.width-nine has wrong input or options \(exit code 2, see .*train-width-\d+_0.out", printed)
    rows = re.findall(r"^(model.width-\d) +model.width=\d +done +\S+ +(\S+) +2 ", printed, re.MULTILINE)
    assert sorted(run for run, _ in rows) == ["model.width-4", "model.width-6"]
    for run, crps in rows:
        summary = json.loads((tmp_path / "runs/width" / run / "summary.json").read_text())
        assert math.isclose(float(crps), summary["validation"]["crps"], rel_tol=1e-3)
        assert summary["ranks"] == 2
