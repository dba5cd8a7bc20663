"""Jobs that `submit` has made, on a real Slurm: they end, start again, and write the bytes of runs without Slurm."""

import hashlib
import re
import shutil
import sys
import time

import pytest
from conftest import ROOT
from slurm_cluster import ENDED, PATIENCE
from twin_project import SPLIT, TWIN, start

from conf.jobs.job_file import JobFile
from conf.jobs.job_options import JobOptions

pytestmark = pytest.mark.long
PROGRAM = f"{sys.executable} {ROOT / 'scripts/deepweather.py'}"
TRAIN = [*SPLIT, "model=mlp", "trainer.epochs=3", "trainer.mesh=[1,2]"]


@pytest.fixture
def folder(first_project, tmp_path):
    """A copy of the project, in a folder with a space in its name."""
    return shutil.copytree(first_project, tmp_path / "my project")


def submit(slurm, folder, *words):
    """Submit a job by the command; return its number."""
    options = [f"command={PROGRAM}", "cpus=1", *words]
    printed = slurm.run(*PROGRAM.split(), "submit", *options, cwd=folder)
    return int(re.search(r"^job (\d+): ", printed, re.MULTILINE)[1])


def wait(slurm, job, folder, name):
    """Wait for the end of a job, and of all tasks of an array; return the text of its logs."""
    until = time.monotonic() + PATIENCE
    while True:
        lines = slurm.run("scontrol", "--oneliner", "show", "job", job).splitlines()
        fields = [dict(word.split("=", 1) for word in line.split() if "=" in word) for line in lines]
        logs = "\n".join(path.read_text() for path in sorted((folder / "slurm").glob(f"{name}-{job}*.out")))
        if all(each["JobState"] in ENDED for each in fields):
            assert all(each["JobState"] == "COMPLETED" for each in fields), logs
            return logs
        assert time.monotonic() < until, logs
        time.sleep(0.3)


def hashes(folder):
    """The hash of every file below a folder."""
    paths = sorted(path for path in folder.rglob("*") if path.is_file())
    return {str(path.relative_to(folder)): hashlib.sha256(path.read_bytes()).hexdigest() for path in paths}


@pytest.fixture
def run(command, folder):
    """Run a verb without Slurm."""

    def run_here(*words):
        ended = command(folder, *words)
        assert ended.code == 0, ended.stderr

    return run_here


def test_a_training_of_two_tasks_is_interrupted_resumes_and_equals_a_run_without_slurm(slurm, folder):
    job = submit(slurm, folder, "nodes=2", "train", *TRAIN, "run_dir=runs/job")
    slurm.wait_for_text(folder / f"slurm/train-job-{job}.out", "epoch")
    slurm.run("scancel", "--signal=USR1", job)
    text = wait(slurm, job, folder, "train-job")
    assert text.count("interrupted; the job starts again and resumes") == 1, text
    assert "wrote runs/job/corrector.safetensors" in text
    _, errors = start(folder, "train", *TRAIN, "run_dir=runs/plain").communicate(timeout=PATIENCE)
    assert errors == ""
    found = [(folder / f"runs/{name}/corrector.safetensors").read_bytes() for name in ("job", "plain")]
    assert found[0] == found[1]


def test_an_array_corrects_what_one_process_corrects(slurm, folder, run):
    (folder / "in").mkdir()
    for number, day in enumerate(("20180709", "20180108", "20180712")):
        shutil.copy(folder / f"data/twin/output.sfc.{day}", folder / f"in/{number}, {day}.grib")
    (folder / "in/readme.txt").write_text("no forecast")
    words = ["correct", "corrector=runs/emos/corrector.safetensors", "input=in"]
    wait(slurm, submit(slurm, folder, "array_tasks=2", *words, "output=out/"), folder, "correct-out")
    found = hashes(folder / "out")
    shutil.rmtree(folder / "out")
    run(*words, "output=out/")
    assert len(found) == 6  # three files, each with its sidecar
    assert found == hashes(folder / "out")


def test_statistics_and_stores_of_workers_in_jobs_have_the_bytes_of_threads(slurm, folder, run):
    words = ["prepare", *TWIN, *SPLIT, "statistics=[efi]"]
    run(*words, "run_dir=threads", "store=threads/store")
    job = submit(
        slurm, folder, "memory=2GB", "time=00:30:00",
        *words, "run_dir=jobs", "store=jobs/store", "cluster=slurm", "cluster.jobs=2",
    )  # fmt: skip
    text = wait(slurm, job, folder, "prepare-jobs")
    assert "2 jobs submitted" in text
    found = {name: value for name, value in hashes(folder / "jobs").items() if not name.startswith("slurm/")}
    assert found
    assert found == hashes(folder / "threads")


STEP = """
import signal, sys, time
signal.signal(signal.SIGUSR1, signal.SIG_IGN)
signal.signal(signal.SIGTERM, lambda *_: sys.exit(3))
signal.pthread_sigmask(signal.SIG_UNBLOCK, [signal.SIGUSR1, signal.SIGTERM])
print("start", flush=True)
time.sleep(600)
"""


def stubborn(slurm, folder, *options):
    """Submit a job whose run misses the signal before its time limit, and ends by SIGTERM with code 3."""
    (folder / "slurm").mkdir()
    (folder / "step.py").write_text(STEP)
    command = f"{sys.executable} {folder}/step.py"
    made = JobFile("x", [], JobOptions(command=command, cpus=1), folder, "job")
    (folder / "job.sbatch").write_text(made.text())
    job = slurm.submit(folder / "job.sbatch", *options)
    return job, folder / f"slurm/job-{job}.out"


def test_a_killed_run_starts_again_in_the_same_job_and_a_cancelled_one_does_not(slurm, tmp_path):
    job, log = stubborn(slurm, tmp_path)
    slurm.wait_for_text(log, "start")
    slurm.run("scancel", "--signal=KILL", f"{job}.0")
    # Between the two starts srun may say that the first step has not ended yet.
    slurm.wait_for_text(log, "^start$", 2)
    assert "the run was killed, code 137, attempt 1 of 3\n" in log.read_text()
    assert slurm.job(job)["Restarts"] == "0"
    slurm.run("scancel", job)
    assert slurm.wait(job)["JobState"] == "CANCELLED"
    time.sleep(3)
    assert slurm.job(job)["JobState"] == "CANCELLED"
    assert log.read_text().count("start\n") == 2


def test_a_job_that_makes_way_for_an_urgent_one_starts_again(slurm, tmp_path):
    """Slurm's own preemption: it signals, waits for the grace time of the partition, and requeues the job by itself."""
    job, log = stubborn(slurm, tmp_path, "--partition=idle", "--exclusive", "--nodelist=node1")
    slurm.wait_for_text(log, "start")
    (tmp_path / "urgent.sbatch").write_text("#!/bin/bash\ntrue\n")
    options = ["--partition=urgent", "--exclusive", "--nodelist=node1", f"--output={tmp_path}/urgent.out"]
    assert slurm.wait(slurm.submit(tmp_path / "urgent.sbatch", *options))["JobState"] == "COMPLETED"
    slurm.wait_for_text(log, "^start$", 2)
    slurm.run("scancel", job)
    assert slurm.wait(job)["Restarts"] == "1"


def test_a_job_whose_time_limit_came_before_the_run_had_saved_starts_again(slurm, tmp_path):
    job, log = stubborn(slurm, tmp_path, "--time=1")
    slurm.wait_for_text(log, "the job starts again and resumes")
    slurm.wait(job, "RUNNING")
    slurm.wait_for_text(log, "^start$", 2)
    slurm.run("scancel", job)
    assert slurm.wait(job)["Restarts"] == "1"
