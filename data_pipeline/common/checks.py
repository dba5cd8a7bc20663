"""Checks of option values. Each raises an `InputError` with the option's name, its allowed values and its value."""

from __future__ import annotations

import inspect
import math
import re
from collections.abc import Callable, Collection, Mapping
from typing import Any, TypeVar

from data_pipeline.common.errors import InputError

_T = TypeVar("_T")


def check_integer(name: str, value: object, minimum: int, maximum: int | None = None) -> None:
    """Raise an `InputError` unless `value` is an integer from `minimum` to `maximum`."""
    if type(value) is not int or value < minimum or (maximum is not None and value > maximum):
        wanted = f"from {minimum} to {maximum}" if maximum is not None else f"of at least {minimum}"
        raise InputError(f"{name} must be a whole number {wanted}, got {value!r}")


def check_positive(name: str, value: object) -> None:
    """Raise an `InputError` unless `value` is a number greater than 0."""
    if isinstance(value, bool) or not isinstance(value, int | float) or not value > 0:
        raise InputError(f"{name} must be a number greater than 0, got {value!r}")


def check_between(name: str, value: object, minimum: float, below: float) -> None:
    """Raise an `InputError` unless `value` is a number with minimum <= value < below."""
    if isinstance(value, bool) or not isinstance(value, int | float) or not minimum <= value < below:
        raise InputError(f"{name} must be a number of at least {minimum:g} and less than {below:g}, got {value!r}")


def check_fraction(name: str, value: object) -> None:
    """Raise an `InputError` unless `value` is a number from 0 to 1, both included."""
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value <= 1:
        raise InputError(f"{name} must be a number from 0 to 1, got {value!r}")


def check_number(name: str, value: object) -> None:
    """Raise an `InputError` unless `value` is a finite number."""
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        raise InputError(f"{name} must be a number, got {value!r}")


def check_choice(name: str, value: object, allowed: Collection[str]) -> None:
    """Raise an `InputError` unless `value` is one of `allowed`."""
    if not isinstance(value, str) or value not in allowed:
        raise InputError(f"{name} must be one of {', '.join(allowed)}, got {value!r}")


def check_boolean(name: str, value: object) -> None:
    """Raise an `InputError` unless `value` is True or False."""
    if type(value) is not bool:
        raise InputError(f"{name} must be true or false, got {value!r}")


def check_walltime(name: str, value: object) -> None:
    """Raise an `InputError` unless `value` is a time limit, [days-]hours:minutes:seconds."""
    if not isinstance(value, str) or not re.fullmatch(r"(\d+-)?\d+:\d\d:\d\d", value):
        raise InputError(f"{name} must be hours:minutes:seconds, such as 02:00:00, got {value!r}")


def seconds_of_walltime(value: str) -> int:
    """Return the seconds of a time limit, [days-]hours:minutes:seconds.

    >>> seconds_of_walltime("1-02:00:30")
    93630
    """
    days, _, clock = value.rpartition("-")
    hours, minutes, seconds = map(int, clock.split(":"))
    return ((int(days or 0) * 24 + hours) * 60 + minutes) * 60 + seconds


def size_in_bytes(name: str, value: object) -> int:
    """Return a size in bytes from a number of bytes, or from a text such as 4GB (4·10⁹) or 4GiB (4·2³⁰).

    >>> size_in_bytes("memory", "1.5GB"), size_in_bytes("memory", "2 KiB"), size_in_bytes("memory", 7)
    (1500000000, 2048, 7)
    """
    text = value.strip().lower() if isinstance(value, str) else ""
    if found := re.fullmatch(r"(\d+(?:\.\d+)?)\s*([kmgtp]?)(i?)b?", text):
        value = int(float(found[1]) * (1024 if found[3] else 1000) ** " kmgtp".index(found[2] or " "))
    if type(value) is not int or value <= 0:
        raise InputError(f"{name} must be a size such as 4GB or 16GiB, got {value!r}")
    return value


def construct(name: str, kind: Callable[..., _T], options: Mapping[str, Any]) -> _T:
    """Return `kind(**options)`; raise an `InputError` if an option is unknown, or if a required option is missing."""
    check_options(name, kind, options)
    return kind(**options)


def check_options(name: str, kind: Callable[..., Any], options: Mapping[str, Any]) -> None:
    """Raise an `InputError` if `kind` does not know one of `options`, or if a required option is missing."""
    if not isinstance(options, Mapping):
        raise InputError(f"{name} must be options with their values, such as {{option: value}}, got {options!r}")
    parameters = inspect.signature(kind).parameters.values()
    known = [each.name for each in parameters if each.kind not in (each.VAR_POSITIONAL, each.VAR_KEYWORD)]
    unknown = [option for option in options if option not in known]
    if unknown and not any(each.kind is each.VAR_KEYWORD for each in parameters):
        raise InputError(f"{name} has no option {unknown[0]!r}; it has {', '.join(known) or 'none'}")
    required = [each.name for each in parameters if each.name in known and each.default is each.empty]
    if missing := [option for option in required if option not in options]:
        raise InputError(f"{name} has no value for its option {missing[0]!r}; give it one")


def per_target(value: Any, count: int, option: str = "power") -> list[Any]:
    """Return an option of a model, one value or a list, as a list with a value for each of `count` targets.

    >>> per_target(0.5, 2), per_target([1, 0.5], 2)
    ([0.5, 0.5], [1, 0.5])
    """
    if not isinstance(value, list | tuple):
        return [value] * count
    if len(value) != count:
        raise InputError(f"model.{option} must be one value, or a list for the {count} targets, got {list(value)}")
    return list(value)
