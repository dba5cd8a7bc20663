"""The job file: a script for sbatch that runs one command of deepweather, and starts it again after an interruption.

Each start runs the same command. The script decides by the exit code of the run:

- 3, interrupted: the job is requeued, unless a person has cancelled it;
- above 128, killed by a signal, for example for lack of memory: the same job starts the run up to `ATTEMPTS` times;
- any other: the job ends with this code.
"""

from __future__ import annotations

import math
import shlex
import sys
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from conf.jobs.job_options import JobOptions
from data_pipeline.common.errors import InputError

PROGRAM = "deepweather"
ATTEMPTS = 3
"""Starts in one job of a run that is killed each time. A lack of memory that comes back would fill the time limit."""

START = """\
# A signal that comes before the program can handle it must not end the program. `env` of coreutils before 8.31 cannot
# keep such a signal waiting; there the program does not receive it.
start=(env "--block-signal=USR1,TERM")
"${start[@]}" true 2>/dev/null || start=(bash -c 'trap "" USR1 TERM; exec "$@"' bash)

# A job that a person has cancelled has neither of these states.
running() { [[ $(scontrol show job --oneliner "$job") == *JobState=RUNNING* ]]; }
out_of_time() { [[ $(scontrol show job --oneliner "$job") == *Reason=TimeLimit* ]]; }

# At the time limit Slurm also ends this shell, before the run has saved: the shell waits for the run.
trap : TERM
"""

END = """\
    code=$?
    if [ "$code" -le 128 ] || ! running; then break; fi
    echo "$job: the run was killed, code $code, attempt $attempt of {attempts}"
done
if {{ [ "$code" -eq 3 ] && running; }} || {{ {{ [ "$code" -eq 3 ] || [ "$code" -gt 128 ]; }} && out_of_time; }}; then
    if [ "${{SLURM_RESTART_COUNT:-0}}" -ge {restarts} ]; then
        echo "$job: interrupted, and started again {restarts} times already; submit it again to resume"
    else
        echo "$job: interrupted; the job starts again and resumes"
        scontrol requeue "$job" || echo "$job: cannot be requeued; submit it again to resume"
    fi
fi
exit "$code"
"""


@dataclass(frozen=True)
class JobFile:
    """The script that runs `deepweather VERB WORDS` on `ranks` processes.

    `tasks` are further words, one or more for each task of a job array; without them the job is no array. `option` is
    the option that sets the number of ranks, for errors.
    """

    verb: str
    words: Sequence[str]
    options: JobOptions
    folder: Path
    """Where the command runs."""
    name: str
    ranks: int = 1
    option: str = "mesh"
    gpus: bool = False
    """Whether each rank gets a GPU, if the nodes have GPUs."""
    tasks: Sequence[Sequence[str]] = field(default=())

    @property
    def nodes(self) -> int:
        """Number of nodes: the fewest that have a GPU for each rank and share the ranks evenly."""
        ranks, gpus = self.ranks, self.options.gpus if self.gpus else 0
        nodes = self.options.nodes
        if nodes is None:
            least = math.ceil(ranks / gpus) if gpus else 1
            nodes = next(count for count in range(least, ranks + 1) if ranks % count == 0)
        if ranks % nodes:
            raise InputError(
                f"nodes={nodes} cannot share the {ranks} ranks of {self.option} evenly; set nodes to a divisor of it"
            )
        if gpus and ranks // nodes > gpus:
            raise InputError(
                f"nodes={nodes} would have {ranks // nodes} ranks each, and {gpus} GPUs each (gpus={gpus}); set more "
                "nodes, or gpus=0 to compute on processors"
            )
        return nodes

    @property
    def output(self) -> Path:
        """The file of the job's output, with the placeholders of Slurm."""
        number = "%A_%a" if self.tasks else "%j"
        return Path(self._log.replace("%", "%%") + f"-{number}.out")

    @property
    def path(self) -> Path:
        """The file to which `write` saves the script."""
        return Path(f"{self._log}.sbatch")

    @property
    def _log(self) -> str:
        return str(self.folder / Path(self.options.logs).expanduser() / self.name)

    def directives(self) -> list[str]:
        """Return the options of sbatch."""
        options, nodes = self.options, self.nodes
        per_node = self.ranks // nodes
        last = len(self.tasks) - 1
        at_once = "" if options.array_at_once is None else f"%{options.array_at_once}"
        found = {
            "job-name": self.name,
            "account": options.account,
            "partition": options.partition,
            "array": f"0-{last}{at_once}" if self.tasks else None,
            "chdir": self.folder,
            "output": self.output,
            "open-mode": "append",
            "nodes": nodes,
            "ntasks-per-node": per_node,
            "cpus-per-task": options.cpus,
            "gpus-per-node": per_node if self.gpus and options.gpus else None,
            "mem": None if options.mebibytes is None else f"{options.mebibytes}M",
            "time": options.time,
            "signal": f"USR1@{options.signal_lead}",
        }
        lines = [f"--{name}={shlex.quote(str(value))}" for name, value in found.items() if value is not None]
        return [*lines, "--requeue", *options.directives]

    def text(self) -> str:
        """Return the script."""
        options = self.options
        parts = [
            # A login shell has the command `module`.
            f"#!/bin/bash{' -l' * bool(options.modules)}",
            f"# Made by `deepweather submit`: deepweather {self.verb}, the same command in each start.",
            *(f"#SBATCH {line}" for line in self.directives()),
            "",
            *([f"module load {shlex.join(options.modules)}"] if options.modules else []),
            *options.setup,
            "# Tasks of srun get their processors by this variable since Slurm 22.05.",
            "export SRUN_CPUS_PER_TASK=$SLURM_CPUS_PER_TASK OMP_NUM_THREADS=$SLURM_CPUS_PER_TASK",
            f"job={'${SLURM_ARRAY_JOB_ID}_$SLURM_ARRAY_TASK_ID' if self.tasks else '$SLURM_JOB_ID'}",
            "",
            START,
        ]
        command = [*shlex.split(options.container or ""), *_program(options), self.verb, *self.words]
        run = f'    srun "${{start[@]}}" {shlex.join(command)}'
        if self.tasks:
            parts += ["case $SLURM_ARRAY_TASK_ID in"]
            parts += [f"    {number}) words=({shlex.join(words)}) ;;" for number, words in enumerate(self.tasks)]
            parts += ["esac"]
            run += ' "${words[@]}"'
        parts += [
            f"for ((attempt = 1; attempt <= {ATTEMPTS}; attempt++)); do",
            run,
            END.format(attempts=ATTEMPTS, restarts=options.restarts),
        ]
        return "\n".join(parts)


def _program(options: JobOptions) -> list[str]:
    """Return the command of the program: by default the path of this program, because PATH may differ in jobs."""
    if options.command is not None:
        return shlex.split(options.command)
    own = Path(sys.executable).with_name(PROGRAM)
    return [PROGRAM if options.container is not None or not own.exists() else str(own)]
