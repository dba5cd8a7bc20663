"""Runs of a sweep as jobs of Slurm: job arrays with the job file of `deepweather submit`, followed to their ends.

`jobs.json` in the folder of the sweep names the tasks that were submitted. So the same command, started again, follows
tasks that still wait or run instead of submitting their runs twice.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

from conf.jobs.job_array import ArrayTask, follow_tasks, open_tasks, submit_job
from conf.jobs.job_file import JobFile
from conf.jobs.job_options import MESHES, JobOptions
from conf.sweep_runs import SweepRun, describe_end, report
from data_pipeline.common.errors import InputError, InterruptedRunError
from data_pipeline.common.files import atomic_write, lock_folder
from data_pipeline.common.messages import say

SUBMITTED = "jobs.json"


def run_as_jobs(
    runs: Sequence[SweepRun], folder: Path, options: JobOptions, ranks: Callable[[SweepRun], int], wait: bool
) -> None:
    """Submit all runs that no job has; with `wait`, follow them and raise a `FailedRunsError` if some failed."""
    if shutil.which("sbatch") is None:
        raise InputError(
            "hydra/launcher=slurm needs the command sbatch, which was not found; run it on a machine of the cluster, "
            "or leave out hydra/launcher=slurm"
        )
    verb = runs[0].words[0]
    options = replace(options, job_name=options.job_name or f"{verb}-{folder.name}")
    arrays = job_arrays(runs, verb, options, ranks)
    folder.mkdir(parents=True, exist_ok=True)
    say(f"sweep: {len(runs)} runs in {folder}")
    with lock_folder(folder):
        tasks, outputs = submit_all(runs, folder, arrays)
        if not wait:
            say("sweep: the jobs run on; the same command follows them with hydra.launcher.wait=true")
            return
        codes: dict[SweepRun, int] = {}

        def ended(task: ArrayTask, code: int) -> None:
            run = tasks[task]
            codes[run] = code
            say(f"{describe_end(run, code, outputs[run])}; {len(codes)} of {len(runs)} runs ended")

        try:
            follow_tasks(tasks, ended)
        except KeyboardInterrupt:
            open_jobs = " ".join(sorted({str(job) for job, _ in tasks}))
            raise InterruptedRunError(
                f"interrupted; the jobs run on: the same command follows them, scancel {open_jobs} ends them"
            ) from None
    report(runs, codes, folder, outputs)


def job_arrays(
    runs: Sequence[SweepRun], verb: str, options: JobOptions, ranks: Callable[[SweepRun], int]
) -> list[tuple[JobFile, list[SweepRun]]]:
    """Return job files and their runs: an array for each number of ranks, and for each `array_tasks` runs."""
    by_ranks: dict[int, list[SweepRun]] = {}
    for run in runs:
        by_ranks.setdefault(ranks(run), []).append(run)
    found: list[tuple[JobFile, list[SweepRun]]] = []
    for count, alike in by_ranks.items():
        for first in range(0, len(alike), options.array_tasks):
            some = alike[first : first + options.array_tasks]
            name = f"{options.job_name}-{len(found)}" if found else str(options.job_name)
            mesh = MESHES.get(verb)
            words = [run.words[1:] for run in some]
            job = JobFile(verb, (), options, Path.cwd(), name, count, mesh or "", mesh is not None, words)
            job.nodes  # noqa: B018 (raises an error about ranks that do not fit, before anything is submitted)
            found.append((job, some))
    return found


def submit_all(
    runs: Sequence[SweepRun], folder: Path, arrays: Sequence[tuple[JobFile, list[SweepRun]]]
) -> tuple[dict[ArrayTask, SweepRun], dict[SweepRun, Path]]:
    """Submit the runs that no job has; return the run of each task, and the file of each run's output."""
    file = folder / SUBMITTED
    known = json.loads(file.read_text("utf-8")) if file.exists() else {}
    by_name = {run.name: run for run in runs}
    tasks: dict[ArrayTask, SweepRun] = {}
    outputs: dict[SweepRun, Path] = {}
    record = {}
    for number, job in known.items():
        still = open_tasks(int(number), job["name"])
        names = {task: job["runs"][task] for task in still if job["runs"][task] in by_name}
        tasks |= {(int(number), task): by_name[name] for task, name in names.items()}
        outputs |= {by_name[name]: _output(job["output"], number, task) for task, name in names.items()}
        if still:
            record[number] = job
    if tasks:
        say(f"sweep: {len(tasks)} runs have been submitted before and still wait or run")
    running = set(tasks.values())
    for array, every in arrays:
        wanted = [run for run in every if run not in running]
        if not wanted:
            continue
        array = replace(array, tasks=[run.words[1:] for run in wanted])
        number = submit_job(array.path, array.text())
        say(f"job {number}: {len(wanted)} runs, {array.path}")
        record[str(number)] = {
            "name": array.name, "output": str(array.output), "runs": [run.name for run in wanted],
        }  # fmt: skip
        # After each job: a launcher that is killed must not submit its runs again.
        with atomic_write(file, "w") as stream:
            json.dump(record, stream, indent=2)
        tasks |= {(number, task): run for task, run in enumerate(wanted)}
        outputs |= {run: _output(str(array.output), str(number), task) for task, run in enumerate(wanted)}
    return tasks, outputs


def _output(pattern: str, job: str, task: int) -> Path:
    return Path(pattern.replace("%A", job).replace("%a", str(task)).replace("%%", "%"))
