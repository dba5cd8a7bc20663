"""The end of a command in a suite: its exit code, one line of JSON, and a message to ecFlow or Cylc."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from data_pipeline.common.checks import check_choice
from data_pipeline.common.errors import ATTENTION, InputError, InterruptedRunError
from data_pipeline.common.files import atomic_write
from data_pipeline.common.messages import say

SUITE_SECONDS = 30
"""Longest wait for a server of a suite."""
LABEL_LENGTH = 200
"""Most characters of a message to a suite."""


def run_to_end(verb: str, options: Mapping[str, Any], work: Callable[[], Sequence[str] | None]) -> None:
    """Run a verb, whose `work` returns reasons for attention; exit with 4 if there are any, unless `attention=record`.

    A verb with the option `status` writes its end to this file, also the end by an error. A file of an earlier run is
    removed first, so that a killed run leaves none. Reasons are told to the suite that has started the command.
    """
    if "status" not in options:
        work()
        return
    check_choice("attention", options["attention"], ("exit", "record"))
    status = options["status"]
    if status is not None and (not isinstance(status, str) or not status):
        raise InputError(f"status must be the path of a file, got {status!r}")
    path = None if status is None or not _first_rank() else Path(status).expanduser()
    if path and (path.is_dir() or not path.parent.is_dir()):
        raise InputError(f"status={status} cannot be written: name a file in a folder that exists")
    if path:
        path.unlink(missing_ok=True)

    def record(code: int, reasons: Sequence[str]) -> None:
        if path:
            ended = datetime.now(UTC).isoformat(timespec="seconds")
            with atomic_write(path, "w") as file:
                json.dump({"verb": verb, "code": code, "reasons": list(reasons), "ended": ended}, file)
                file.write("\n")

    try:
        reasons = work() or []
    except InputError as error:
        record(error.exit_code, [" ".join(str(error).split())])
        raise
    except KeyboardInterrupt:
        record(InterruptedRunError.exit_code, ["interrupted"])
        raise
    code = ATTENTION if reasons and options["attention"] == "exit" else 0
    record(code, reasons)
    if reasons and _first_rank():
        tell_suite("; ".join(reasons))
    sys.stdout.flush()
    if code:
        sys.exit(code)


def tell_suite(reasons: str) -> None:
    """Give the reasons to the workflow manager whose variables are set: a label and an event of ecFlow, or Cylc's log.

    The command itself has succeeded, so a server that does not answer is a warning.
    """
    text = reasons if len(reasons) <= LABEL_LENGTH else f"{reasons[: LABEL_LENGTH - 3]}..."
    commands = []
    if {"ECF_NAME", "ECF_PASS"} <= os.environ.keys():
        commands = [["ecflow_client", "--label=attention", text], ["ecflow_client", "--event=attention"]]
    elif {"CYLC_WORKFLOW_ID", "CYLC_TASK_JOB"} <= os.environ.keys():
        job = os.environ["CYLC_WORKFLOW_ID"], os.environ["CYLC_TASK_JOB"]
        commands = [["cylc", "message", "--", *job, f"WARNING:{text}"]]
    for command in commands:
        try:
            subprocess.run(command, check=True, capture_output=True, text=True, timeout=SUITE_SECONDS)
        except subprocess.CalledProcessError as error:
            why = (error.stderr or error.stdout).strip().splitlines()[-1:] or [f"code {error.returncode}"]
            say(f"warning: {' '.join(command[:2])} did not take the reasons: {why[0]}", "warning")
        except (OSError, subprocess.TimeoutExpired) as error:
            say(f"warning: {' '.join(command[:2])} did not take the reasons: {error}", "warning")


def _first_rank() -> bool:
    return os.environ.get("RANK", "0") == "0"
