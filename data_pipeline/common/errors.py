"""The two ways a run may end that are not our bug, and the exit codes they carry.

A message is one sentence that names the thing (file, field, option) and the way out.
"""

from __future__ import annotations


class InputError(Exception):
    """The user's files, options or disk do not allow the run: exit code 2."""

    exit_code = 2


class DiskFullError(InputError):
    """There is no space left for a file: exit code 2, or 3 from a run that can go on when there is."""


class InterruptedRunError(InputError):
    """The run stopped half-way and the same command will go on from there: exit code 3."""

    exit_code = 3
