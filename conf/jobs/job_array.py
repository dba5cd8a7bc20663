"""Jobs of Slurm from here: submit a job file, and follow the tasks of job arrays to their ends.

States come from `scontrol`, which every cluster has; `sacct` needs an accounting database.
"""

from __future__ import annotations

import signal
import subprocess
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path

from data_pipeline.common.errors import InputError, InterruptedRunError
from data_pipeline.common.files import atomic_write
from data_pipeline.common.progress import Progress

SECONDS_BETWEEN_STATES = 5.0
"""Seconds between two queries of states; Slurm remembers the end of a job for minutes (`MinJobAge`)."""
ENDED = (
    "COMPLETED", "FAILED", "CANCELLED", "TIMEOUT", "NODE_FAIL", "OUT_OF_MEMORY", "BOOT_FAIL", "DEADLINE", "PREEMPTED",
)  # fmt: skip

ArrayTask = tuple[int, int]
"""Number of a job array, and of a task in it."""


def submit_job(path: Path, text: str) -> int:
    """Write a job file and submit it; return the number of the job."""
    with atomic_write(path, "w") as file:
        file.write(text)
    done = subprocess.run(["sbatch", "--parsable", str(path)], capture_output=True, text=True, check=False)
    if done.returncode:
        raise InputError(f"sbatch refused {path}: {' '.join(done.stderr.split())}")
    return int(done.stdout.strip().partition(";")[0])


def open_tasks(job: int, name: str) -> set[int]:
    """Return the tasks of an array that wait or run; none if Slurm does not know a job of this number and name.

    Raises `InputError` if Slurm does not answer: the runs of these tasks could be submitted twice.
    """
    states = task_states(job)
    if states is None:
        raise InputError(
            f"scontrol gets no answer from Slurm about job {job}, which may still have runs of this sweep; run the "
            "same command again when Slurm answers"
        )
    return {task for task, (state, job_name, _) in states.items() if state not in ENDED and job_name == name}


def follow_tasks(tasks: Iterable[ArrayTask], ended: Callable[[ArrayTask, int], None]) -> None:
    """Call `ended(task, code)` when a task has ended, until all have.

    A task that Slurm no longer knows gets the code of a run that can resume. A requeued job is between two states for a
    moment, so an end counts when it has been seen twice.
    """
    following, seen = set(tasks), dict[ArrayTask, int]()
    with Progress("sweep: runs ended", len(following)) as progress:
        while following:
            for job in sorted({job for job, _ in following}):
                states = task_states(job)
                if states is None:  # the controller does not answer now
                    continue
                for task in sorted(number for each, number in following if each == job):
                    state, _, code = states.get(task, ("unknown", "", InterruptedRunError.exit_code))
                    if state != "unknown" and state not in ENDED:
                        seen.pop((job, task), None)
                    elif seen.get((job, task)) == code:
                        following.remove((job, task))
                        progress.step()
                        ended((job, task), code)
                    else:
                        seen[job, task] = code
            if following:
                time.sleep(SECONDS_BETWEEN_STATES)


def task_states(job: int) -> dict[int, tuple[str, str, int]] | None:
    """Return state, job name and exit code of the tasks of an array; None if Slurm's controller does not answer.

    The code of a task that a signal ended is the negative number of the signal.
    """
    found = subprocess.run(
        ["scontrol", "show", "job", "--oneliner", str(job)], capture_output=True, text=True, check=False
    )
    if found.returncode:
        return {} if "Invalid job id" in found.stderr else None
    states = {}
    for line in found.stdout.splitlines():
        fields = dict(word.split("=", 1) for word in line.split() if "=" in word)
        for task in _numbers(fields.get("ArrayTaskId", "")):
            states[task] = (fields["JobState"], fields["JobName"], _code(fields))
    return states


def _code(fields: Mapping[str, str]) -> int:
    code, _, number = fields["ExitCode"].partition(":")
    if fields["JobState"] == "COMPLETED":
        return 0
    if fields["JobState"] == "OUT_OF_MEMORY":  # with 0:125, which is no signal
        return -signal.SIGKILL
    return int(code) or -int(number) or InterruptedRunError.exit_code


def _numbers(text: str) -> Iterator[int]:
    """Yield the tasks of `3`, `0-2`, `1,4-5` or `0-9%2`; steps, such as `0-8:2`, do not occur here."""
    for part in text.partition("%")[0].split(","):
        first, _, last = part.partition("-")
        if first.isdecimal():
            yield from range(int(first), int(last or first) + 1)
