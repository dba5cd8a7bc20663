"""Runs of a sweep (`deepweather VERB -m`): a name, a folder and a command for each, and processes that run them here.

A run of a sweep is the command that a user would type for this run alone. So it resumes, starts its ranks and reports
errors like any other run.
"""

from __future__ import annotations

import json
import math
import os
import re
import shlex
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from data_pipeline.common.errors import InputError, InterruptedRunError
from data_pipeline.common.files import lock_folder
from data_pipeline.common.identity import sha256_of_bytes
from data_pipeline.common.messages import say
from data_pipeline.common.progress import Progress, hide_progress
from data_pipeline.common.pruning_record import PruningRecord
from data_pipeline.common.threads import processors

DEFAULT_FOLDER = "runs/sweep"
"""Folder of a sweep whose command names no `run_dir`."""
OUTPUT = "output.log"
"""File in a run's folder with the run's output, if several runs share the terminal or the run is a job."""
LONGEST_NAME = 150
QUERY_SECONDS = 0.1


@dataclass(frozen=True)
class SweepRun:
    """A run of a sweep: its options that vary (`varied`), and its command after the word `deepweather`."""

    varied: tuple[str, ...]
    words: tuple[str, ...]
    folder: Path

    @property
    def name(self) -> str:
        """Name of the run, and of its folder in the folder of the sweep."""
        return self.folder.name

    @property
    def pruned_after(self) -> int | None:
        """The epoch after which a training was pruned, None if it was not or has been continued since."""
        finished = (self.folder / "corrector.safetensors").exists()
        return None if finished else PruningRecord.read(self.folder).pruned_after

    @property
    def command(self) -> list[str]:
        """The command as a new process of this Python."""
        return [sys.executable, "-m", "deepweather", *self.words]


class FailedRunsError(InputError):
    """Some runs of a sweep failed; the exit code is the lowest of their codes: 1 is a bug, 2 is wrong input."""

    def __init__(self, message: str, exit_code: int) -> None:
        super().__init__(message)
        self.exit_code = exit_code


def run_name(varied: Sequence[str]) -> str:
    """Return a name for a run from its options that vary, such as `model.width-8+trainer.seed-1`.

    The name needs no quotes in a shell or in an option. If values have other characters than letters, digits, points
    and hyphens, a hash tells them apart.
    """
    words = [word.lstrip("+").replace("=", "-", 1) for word in varied]
    plain = [re.sub(r"[^\w.-]+", "_", word).strip("_") for word in words]
    name = "+".join(plain)
    if plain == words and len(name) <= LONGEST_NAME:
        return name
    return f"{name[:LONGEST_NAME]}-{sha256_of_bytes(' '.join(varied).encode())[:6]}"


def check_alone() -> None:
    """Raise an `InputError` if this process is one of several ranks: each of them would start the whole sweep."""
    if "WORLD_SIZE" in os.environ or int(os.environ.get("SLURM_STEP_NUM_TASKS") or 1) > 1:
        raise InputError(
            "a sweep (-m) starts the processes of its runs itself; start it without torchrun or srun, and set the "
            "ranks of each run with trainer.mesh"
        )


def run_here(runs: Sequence[SweepRun], folder: Path, parallel: int) -> None:
    """Run all runs on this machine, `parallel` at a time, and raise a `FailedRunsError` at the end if some failed.

    A single run at a time prints to the terminal; several print to `OUTPUT` in their folders and share the processors.
    """
    folder.mkdir(parents=True, exist_ok=True)
    say(f"sweep: {len(runs)} runs in {folder}")
    codes: dict[SweepRun, int] = {}
    waiting, running = list(enumerate(runs, 1)), dict[subprocess.Popen[bytes], SweepRun]()
    environment = dict(os.environ)
    if parallel > 1:
        environment.setdefault("OMP_NUM_THREADS", str(max(1, processors() // parallel)))
    if parallel == 1:
        hide_progress()  # each run shows its own
    progress = Progress("sweep: run", len(runs))
    with lock_folder(folder) as lock, _ended_with_this_process(running), progress:
        while waiting or running:
            while waiting and len(running) < parallel:
                number, run = waiting.pop(0)
                say(f"run {number} of {len(runs)} starts: {_described(run, parallel)}")
                running[_start(run, parallel, environment, lock)] = run
            for process in [process for process in running if process.poll() is not None]:
                run = running.pop(process)
                codes[run] = process.returncode
                progress.step()
                end = describe_end(run, process.returncode, run.folder / OUTPUT)
                say(f"{end}; {len(codes)} of {len(runs)} runs ended")
            time.sleep(QUERY_SECONDS)
    report(runs, codes, folder, {run: run.folder / OUTPUT for run in runs})


def report(
    runs: Sequence[SweepRun], codes: Mapping[SweepRun, int], folder: Path, outputs: Mapping[SweepRun, Path]
) -> None:
    """Print how the runs of a sweep ended; raise a `FailedRunsError` that names all unfinished runs.

    `outputs` are the files with the output of the runs, if they exist.
    """
    failed = {run: code for run in runs if (code := codes[run])}
    pruned = sum(run.pruned_after is not None for run in runs if run not in failed)
    done = f"{len(runs) - len(failed) - pruned} of {len(runs)} runs in {folder} are done"
    say(f"sweep: {done}" + f", {pruned} pruned" * bool(pruned))
    if runs[0].words[0] == "train":
        print(table_of_trainings(runs), end="", flush=True)
    if failed:
        named = "; ".join(describe_end(run, code, outputs[run]) for run, code in failed.items())
        raise FailedRunsError(
            f"{len(failed)} of {len(runs)} runs in {folder} did not end well ({named}); "
            "run the same command again to repeat or resume them",
            # A process that a signal killed can be resumed, as in `models.parallel.launch`.
            min(code if 0 < code < 128 else InterruptedRunError.exit_code for code in failed.values()),
        )


def table_of_trainings(runs: Sequence[SweepRun]) -> str:
    """Return the trainings with a `summary.json` as a table, the lowest CRPS of the validation first.

    Results are of the best epoch so far. A run without a loss or epochs, such as EMOS, has a dash there.
    """
    rows = []
    for run in runs:
        try:
            summary = json.loads((run.folder / "summary.json").read_text("utf-8"))
        except (OSError, ValueError):
            continue  # a run that has not begun, or failed before its training
        loss, crps = (summary["validation"][name] for name in ("loss", "crps"))
        state = "done" if summary["finished"] else "unfinished" if run.pruned_after is None else "pruned"
        numbers = ["–" if value is None else f"{value:.4g}" for value in (loss, crps)]
        cells = [run.name, " ".join(run.varied), state, *numbers, str(summary["epochs"] or "–")]
        rows.append((math.inf if crps is None else crps, [*cells, f"{summary['seconds'] / 60:.1f}"]))
    titles = ["run", "options", "state", "val_loss", "val_crps", "epochs", "minutes"]
    table = [titles, *(cells for _, cells in sorted(rows))] if rows else []
    widths = [max(map(len, column)) for column in zip(*table, strict=True)]
    return "".join("  ".join(map(str.ljust, cells, widths)).rstrip() + "\n" for cells in table)


def describe_end(run: SweepRun, code: int, output: Path) -> str:
    """Return how a run ended; `output` is the file with its output, if there is one."""
    if code < 0:
        return f"{run.name} was killed by signal {-code} ({signal.strsignal(-code)})"
    if code == 0 and run.pruned_after is not None:
        return f"{run.name} was pruned after epoch {run.pruned_after}"
    known = {0: "is done", 2: "has wrong input or options", 3: "was interrupted and can resume"}
    said = f", see {output}" if output.exists() else ""
    return f"{run.name} {known.get(code, 'failed')}" + (f" (exit code {code}{said})" if code else "")


def _described(run: SweepRun, parallel: int) -> str:
    where = f", output in {run.folder / OUTPUT}" if parallel > 1 else f", in {run.folder}"
    return shlex.join(run.varied) + where


def _start(run: SweepRun, parallel: int, environment: Mapping[str, str], lock: int) -> subprocess.Popen[bytes]:
    output: IO[bytes] | None = None
    if parallel > 1:
        run.folder.mkdir(parents=True, exist_ok=True)
        output = (run.folder / OUTPUT).open("ab")
    try:
        return subprocess.Popen(
            run.command, env=environment, stdin=subprocess.DEVNULL, stdout=output, stderr=output and subprocess.STDOUT,
            # Ctrl-C reaches this process only, which signals each run once.
            start_new_session=True,
            # A run that outlives this process keeps the lock, so that a second sweep does not start the run again.
            pass_fds=[lock],
        )  # fmt: skip
    finally:
        if output is not None:
            output.close()


@contextmanager
def _ended_with_this_process(running: Mapping[subprocess.Popen[bytes], SweepRun]) -> Iterator[None]:
    """Stop the runs if the block is interrupted; a second interrupt kills them."""
    try:
        yield
    except KeyboardInterrupt:
        for process in running:
            process.send_signal(signal.SIGTERM)
        try:
            for process in running:
                process.wait()
        except KeyboardInterrupt:
            for process in running:
                process.kill()
        raise InterruptedRunError(
            "the sweep was interrupted, and its running runs have stopped; run the same command again to resume"
        ) from None
