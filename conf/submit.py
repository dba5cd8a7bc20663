"""The verb `submit`: writes the job file of another verb, and submits it to Slurm.

    deepweather submit site=site.yaml train data=ens10 path=/data/ens10 trainer.mesh=[2,4] run_dir=runs/t850

`correct` with a folder as output becomes a job array, which corrects each cycle in a task of its own.
"""

from __future__ import annotations

import math
import re
import shutil
import sys
from collections.abc import Mapping, Sequence
from contextlib import nullcontext, redirect_stdout
from functools import partial
from pathlib import Path
from typing import Any, TextIO

from conf import DRY_RUN, light_verb, options_of_verb
from conf.command_line import default_options, format_value
from conf.jobs.job_array import submit_job
from conf.jobs.job_file import JobFile
from conf.jobs.job_options import MESHES, VERBS, JobOptions, read_job_options
from data_pipeline.common.checks import check_choice
from data_pipeline.common.errors import InputError
from data_pipeline.formats.variables import checked_names
from models.corrected_files.input_files import InputFiles, find_cycles, is_folder
from models.parallel.mesh_shape import mesh_shape

DASK_ON_SLURM = "data_pipeline.cluster.Slurm"


def main() -> None:
    """Read the words before the verb as options of the job, and leave the words after the verb to the verb."""
    words = [word for word in sys.argv[1:] if word != DRY_RUN]
    dry_run = len(words) < len(sys.argv) - 1
    at = next((number for number, word in enumerate(words) if not word.startswith("-") and "=" not in word), len(words))
    given = [word.partition("=")[0] for word in words[:at]]
    sys.argv[1:] = words[:at]
    # The output of a dry run can be piped into sbatch, so progress and notes go to standard error.
    output = sys.stdout
    with redirect_stdout(sys.stderr) if dry_run else nullcontext():
        light_verb("submit")(partial(submit, given=given, command=words[at:], output=output if dry_run else None))()


def submit(options: dict[str, Any], given: Sequence[str], command: Sequence[str], output: TextIO | None = None) -> None:
    """Write the job file of a command, a verb and its words, and submit it; or only print it to `output`."""
    if not command:
        raise InputError(f"submit needs the verb that is to run: deepweather submit {{{','.join(VERBS)}}} ...")
    verb, *words = command
    check_choice("the verb of submit", verb, VERBS)
    if flags := [word for word in words if word.startswith("-")]:
        raise InputError(
            f"deepweather submit {verb} cannot pass on {flags[0]}; submit several runs one by one, or start them as a "
            f"sweep with deepweather {verb} -m, without submit"
        )
    job = job_file(verb, words, read_job_options(default_options("submit"), options, given, verb))
    text = job.text()
    if output is not None:
        print(text, end="", file=output)
        return
    if shutil.which("sbatch") is None:
        raise InputError(
            "submit needs the command sbatch, which was not found; run it on a machine of the cluster, or add "
            f"{DRY_RUN} to print the job file"
        )
    print(f"job {submit_job(job.path, text)}: {job.path}")
    print(f"output: {job.output}")


def job_file(verb: str, words: Sequence[str], options: JobOptions) -> JobFile:
    """Return the job file of a verb with its words, after a check of the words."""
    mesh = MESHES.get(verb)
    outputs = ("output", "input", "format", "variable_names", "status")
    found = options_of_verb(verb, words, [*outputs, "run_dir", "cluster._target_", *([mesh] if mesh else [])])
    ranks = math.prod(mesh_shape(found[mesh], mesh)) if mesh else 1
    tasks = correction_tasks(found, options.array_tasks) if verb == "correct" else []
    if len(tasks) > 1 and found["status"] is not None:
        raise InputError("all tasks of the array would write status; leave it out, or name a file as output")
    if tasks:
        words = [word for word in words if not word.startswith("input=")]
    if found["cluster._target_"] == DASK_ON_SLURM:
        words = [*words, *dask_words(options, words)]
    name = options.job_name or job_name(verb, found["run_dir"] or found["output"])
    return JobFile(verb, words, options, Path.cwd(), name, ranks, mesh or "", mesh is not None, tasks)


def correction_tasks(found: Mapping[str, Any], most: int) -> list[list[str]]:
    """Return the words of each task of the array that corrects cycle by cycle; none if all inputs are one data set.

    Cycles share tasks if there are more than `most` cycles.
    """
    names = checked_names("variable_names", found["variable_names"])
    files = InputFiles.find(found["input"])
    cycles = find_cycles(files, found["output"], found["format"], names)
    if not is_folder(found["output"]):
        return []
    if files.note:
        print(files.note)
    count = min(most, len(cycles))
    shares = [cycles[len(cycles) * k // count : len(cycles) * (k + 1) // count] for k in range(count)]
    return [[f"input={format_value([str(path) for cycle in share for path in cycle.inputs])}"] for share in shares]


def dask_words(options: JobOptions, words: Sequence[str]) -> list[str]:
    """Return words that give the jobs of Dask's workers the options of this job, where `words` do not set them.

    These jobs inherit the environment of this one, so modules and setup need not be repeated.
    """
    if options.container is not None:
        raise InputError(
            "cluster=slurm submits the workers of Dask from inside the job, which a container prevents; leave out "
            "container, or use cluster=threads"
        )
    values: dict[str, str | int | Sequence[str] | None] = {
        "cluster.partition": options.partition,
        "cluster.account": options.account,
        "cluster.cores": options.cpus,
        "cluster.memory": options.memory,
        "cluster.walltime": options.time,
        "cluster.directives": options.directives,
    }
    given = {word.partition("=")[0] for word in words}
    return [f"{name}={format_value(value)}" for name, value in values.items() if value and name not in given]


def job_name(verb: str, output: str) -> str:
    """Return the verb and the last part of a run's output, as a name without spaces and quotes.

    >>> job_name("correct", "corrected/2026 11/")
    'correct-2026_11'
    """
    return re.sub(r"[^\w.+-]+", "_", f"{verb}-{Path(output).name}")


if __name__ == "__main__":
    main()
