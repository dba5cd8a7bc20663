"""Scores: each module of this folder has a tuple `SCORES`, a tuple `DIAGRAMS` or both, and needs no registration.

`all_scores` and `all_diagrams` list them; `score.py` says what a score is, docs/extending/score.md how to add one.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import cache
from importlib import import_module
from pkgutil import iter_modules
from typing import TypeVar

from evaluation.scores.score import CellStatistic, Diagram, Score

S = TypeVar("S", Score, Diagram)


@cache
def all_scores() -> dict[str, Score]:
    """Return every score by its name, in the order of modules and of their tuples."""
    return _by_name(score for module in _modules() for score in getattr(module, "SCORES", ()))


@cache
def all_diagrams() -> dict[str, Diagram]:
    """Return every diagram by its name."""
    return _by_name(diagram for module in _modules() for diagram in getattr(module, "DIAGRAMS", ()))


def default_scores() -> tuple[Score, ...]:
    """Return the scores that are computed if none are named."""
    return tuple(score for score in all_scores().values() if score.default)


def default_diagrams() -> tuple[Diagram, ...]:
    """Return the diagrams that are computed if none are named."""
    return tuple(diagram for diagram in all_diagrams().values() if diagram.default)


def statistics_of(*wanted: Score | Diagram) -> dict[str, CellStatistic]:
    """Return the statistics of scores and diagrams by name, each once."""
    found: dict[str, CellStatistic] = {}
    for one in wanted:
        for name, statistic in one.statistics.items():
            if found.setdefault(name, statistic) is not statistic:
                raise ValueError(f"{one.name}: another score has a different statistic of the name {name}")
    return found


def _modules() -> list[object]:
    return [import_module(f"{__name__}.{found.name}") for found in iter_modules(__path__)]


def _by_name(found: Iterable[S]) -> dict[str, S]:
    named: dict[str, S] = {}
    for one in found:
        if one.name in named:
            raise ValueError(f"two scores have the name {one.name}")
        named[one.name] = one
    return named
