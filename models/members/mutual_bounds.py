"""Bounds between variables, member by member: the dew point is at most the temperature.

Correctors of two variables do not know each other's members. Where two corrected members contradict each other, the
dependent variable of the pair, such as the dew point, gets the value of the other. Where only one variable of the pair
is corrected, the raw members of the other bound it. Only a total, such as `tp`, is not bounded by its raw parts,
because uncorrected drizzle in one of them would then remain in the corrected total.

A variable bounds others after all bounds on it are applied. So chains hold: the snow of 6 h is at most the snow of
24 h, which is at most the total of 24 h.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from graphlib import TopologicalSorter
from typing import NamedTuple

import numpy as np

from data_pipeline.task import Variable


class MutualBound(NamedTuple):
    """`dependent` is at most `other`, or at least `other` if not `upper`; if `part`, it is part of a total `other`."""

    dependent: Variable
    other: Variable
    upper: bool
    part: bool


_UPPER = {("2d", "2t"), ("d", "t"), ("mn2t", "2t"), ("mn2t3", "2t"), ("mn2t6", "2t")}
_LOWER = {("mx2t", "2t"), ("mx2t3", "2t"), ("mx2t6", "2t"), ("10fg", "10si"), ("10fg3", "10si"), ("10fg6", "10si"),
          ("i10fg", "10si")}  # fmt: skip
_PARTS = {("cp", "tp"), ("lsp", "tp"), ("sf", "tp"), ("lcc", "tcc"), ("mcc", "tcc"), ("hcc", "tcc")}


def mutual_bounds(variables: Iterable[Variable]) -> list[MutualBound]:
    """Return the bounds between any two of the variables; all bounds on a variable come before the bounds that it sets.

    >>> [bound] = mutual_bounds([Variable("2t"), Variable("2d")])
    >>> str(bound.dependent), str(bound.other), bound.upper
    ('2d', '2t', True)
    """
    known = list(variables)
    pairs = [bound for one in known for two in known if one != two and (bound := _bound(one, two))]
    graph: TopologicalSorter[Variable] = TopologicalSorter()
    for bound in pairs:
        graph.add(bound.dependent, bound.other)
    place = {variable: k for k, variable in enumerate(graph.static_order())}
    return sorted(pairs, key=lambda bound: place[bound.dependent])


def _bound(one: Variable, two: Variable) -> MutualBound | None:
    if (one.level, one.process) != (two.level, two.process):
        return None
    names, named = (one.name, two.name), not one.process and one.period == two.period
    shorter = one.processing == two.processing == "accumulation" and 0 < one.period < two.period and one.bounds[0] == 0
    if (shorter and one.name == two.name) or ((shorter or named) and names in _PARTS):
        return MutualBound(one, two, upper=True, part=True)
    if named and names in _UPPER | _LOWER:
        return MutualBound(one, two, upper=names in _UPPER, part=False)
    return None


def bound_by_raw(corrected: Mapping[Variable, np.ndarray], raw: Mapping[Variable, np.ndarray]) -> None:
    """Bound corrected members (M, ...) by raw members of other variables, in place; NaN bounds nothing."""
    for bound in mutual_bounds([*corrected, *raw]):
        if bound.dependent in corrected and bound.other in raw:
            _limit(corrected[bound.dependent], raw[bound.other], bound.upper)
        elif bound.other in corrected and bound.dependent in raw and not bound.part:
            _limit(corrected[bound.other], raw[bound.dependent], not bound.upper)


def bound_mutually(corrected: Mapping[Variable, np.ndarray]) -> None:
    """Bound the members (M, ...) of dependent variables by the members of other corrected variables, in place."""
    for bound in mutual_bounds(corrected):
        _limit(corrected[bound.dependent], corrected[bound.other], bound.upper)


def _limit(values: np.ndarray, limits: np.ndarray, upper: bool) -> None:
    beyond = values > limits if upper else values < limits
    np.copyto(values, limits, where=beyond)
