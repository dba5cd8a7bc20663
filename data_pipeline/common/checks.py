"""Checks of single option values: each raises an `InputError` that names the option, what it takes and what it got."""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable, Collection, Mapping
from typing import Any, TypeVar

from data_pipeline.common.errors import InputError

T = TypeVar("T")


def whole(name: str, value: object, least: int, most: int | None = None) -> None:
    """Refuse what is not a whole number from `least` to `most`."""
    if type(value) is not int or value < least or (most is not None and value > most):
        wanted = f"from {least} to {most}" if most is not None else f"of at least {least}"
        raise InputError(f"{name} must be a whole number {wanted}, got {value!r}")


def positive(name: str, value: object) -> None:
    """Refuse what is not a number greater than 0."""
    if isinstance(value, bool) or not isinstance(value, int | float) or not value > 0:
        raise InputError(f"{name} must be a number greater than 0, got {value!r}")


def between(name: str, value: object, least: float, below: float) -> None:
    """Refuse what is not a number from `least` to just below `below`."""
    if isinstance(value, bool) or not isinstance(value, int | float) or not least <= value < below:
        raise InputError(f"{name} must be a number of at least {least:g} and less than {below:g}, got {value!r}")


def share(name: str, value: object) -> None:
    """Refuse what is not a number from 0 to 1."""
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value <= 1:
        raise InputError(f"{name} must be a number from 0 to 1, got {value!r}")


def number(name: str, value: object) -> None:
    """Refuse what is not a finite number."""
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        raise InputError(f"{name} must be a number, got {value!r}")


def one_of(name: str, value: object, allowed: Collection[str]) -> None:
    """Refuse what is not among the words `allowed`."""
    if value not in allowed:
        raise InputError(f"{name} must be one of {', '.join(allowed)}, got {value!r}")


def made(name: str, kind: Callable[..., T], options: Mapping[str, Any]) -> T:
    """Return `kind(**options)`; refuse an option that it does not have, and the lack of one that it needs."""
    parameters = inspect.signature(kind).parameters.values()
    known = [each.name for each in parameters if each.kind not in (each.VAR_POSITIONAL, each.VAR_KEYWORD)]
    unknown = [option for option in options if option not in known]
    if unknown and not any(each.kind is each.VAR_KEYWORD for each in parameters):
        raise InputError(f"{name} has no option {unknown[0]!r}; it has {', '.join(known) or 'none'}")
    needed = [each.name for each in parameters if each.name in known and each.default is each.empty]
    if lacking := [option for option in needed if option not in options]:
        raise InputError(f"{name} has no value for its option {lacking[0]!r}; give it one")
    return kind(**options)


def yes_or_no(name: str, value: object) -> None:
    """Refuse what is neither true nor false."""
    if type(value) is not bool:
        raise InputError(f"{name} must be true or false, got {value!r}")
