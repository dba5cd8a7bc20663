"""Errors that are not bugs, and their exit codes.

A message names the fault, the place (file, field, option) and the remedy.
"""

from __future__ import annotations

ATTENTION = 4
"""Exit code of a run whose output is complete but needs attention: fallbacks were used, or an alarm was raised."""


class InputError(Exception):
    """Wrong files or options, or a disk error: exit code 2."""

    exit_code = 2


class AbsentVariableError(InputError):
    """Files lack a variable that was requested."""


class DiskFullError(InputError):
    """No space left for a file: exit code 2, or 3 if the same command can continue later."""


class InterruptedRunError(InputError):
    """The run stopped early, and the same command continues it: exit code 3."""

    exit_code = 3
