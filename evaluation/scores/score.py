"""Score: a number for each model, computed from averages of a statistic of every cell.

Statistics are averaged first; roots, ratios and all other functions that are not linear are applied to the averages.
Averages can be added, so that batches, ranks and intervals need no special code.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np
from torch import Tensor

from data_pipeline.grid import Grid
from data_pipeline.task import Task
from data_pipeline.variables.thresholds import Threshold
from evaluation.scores.case import Case
from evaluation.scores.ratios import divide

Joint = Literal["cells", "lead_times", "targets"]


@dataclass(frozen=True, eq=False)
class Binned:
    """A statistic of `bins` numbers: a cell adds each of its `values` to the bin `index`, and 0 to all other bins.

    The statistic has `bins` numbers for the first of `values`, then as many for the second, and so on. If `index` has a
    first axis of K, for example one index for each threshold, the numbers for k = 0 come first, then those for k = 1.
    """

    index: Tensor
    """(B, T, H, W) or (K, B, T, H, W), int64."""
    bins: int
    values: tuple[Tensor, ...]
    """Tensors of the same shape as `index`."""

    def each(self) -> list[Binned]:
        """Return one statistic over (B, T, H, W) for each of the K indices on the first axis."""
        if self.index.ndim == 4:
            return [self]
        pieces = zip(self.index, *self.values, strict=True)
        return [Binned(index, self.bins, tuple(values)) for index, *values in pieces]


@dataclass(frozen=True)
class Settings:
    """The properties of an evaluation that decide which scores can be computed, and how many numbers they have.

    `bins` is the number of bins of rank and PIT histograms, `thresholds` holds the thresholds of each target.
    `climatology` and `extremeness` say whether cases have a climate, and the extreme forecast index of the raw
    ensemble. `cuts` are the first rows and columns of the ranks' tiles of `grid`.
    """

    task: Task
    bins: int
    thresholds: tuple[tuple[Threshold, ...], ...] = ()
    climatology: bool = False
    extremeness: bool = False
    grid: Grid | None = None
    cuts: tuple[int, ...] = (0,)


@dataclass(frozen=True)
class CellStatistic:
    """A function of a case that can be averaged over cells and forecasts.

    `cells` returns (B, T, H, W), or (K, B, T, H, W) or `Binned` with K = `size` numbers a cell, which may depend on the
    settings. With `map`,
    which needs one number a cell, the average over time is kept for every cell too. A `joint` statistic depends on the
    values of each member in several cells, lead times or targets; others do not depend on which member has which value.
    """

    cells: Callable[[Case], Tensor | Binned]
    size: int | Callable[[Settings], int] | None = None
    map: bool = False
    joint: Joint | None = None

    def shape(self, settings: Settings) -> tuple[int, ...]:
        """Return (K,), or () for one number a cell."""
        return () if self.size is None else (self.size if isinstance(self.size, int) else self.size(settings),)


def always(settings: Settings) -> str:
    """Return "": the score can be computed, and is the same, with any settings."""
    return ""


def average_where_known(**averages: np.ndarray) -> np.ndarray:
    """Return the average of the first statistic, divided by that of the second one, if any: 1 where it is known."""
    first, *known = averages.values()
    return divide(first, *known) if known else np.asarray(first)


@dataclass(frozen=True)
class Score:
    """A score with its definition; to add one, add a module to `evaluation/scores` with a tuple `SCORES`.

    `value` gets the averages of the `statistics` by name: arrays (...) of single numbers or (..., K). It returns (...),
    or (..., L) if `labels` names L numbers of a target. It may be called with any leading axes. Statistics of the same
    name in several scores must be the same statistic; it is computed once. `best` is the value of a perfect forecast.
    If it is `low`, the score is 0 for a perfect forecast and has a skill, 1 - score / score of the reference, unless
    `zero` is false. `missing` says why the score cannot be computed, "" if it can. Scores that are `default` are
    computed if the option `scores` names none; they must be cheap. `note` is added to the text for some settings.
    With `in_strata`, the score is that of a histogram and is computed within seasons and latitudes, then averaged.
    """

    name: str
    title: str
    text: str
    reference: str
    statistics: Mapping[str, CellStatistic]
    best: Literal["low", "high", "zero", "one"] | None
    value: Callable[..., np.ndarray] = average_where_known
    units: Literal["target", ""] = "target"
    labels: tuple[str, ...] | Callable[[Settings, int], tuple[str, ...]] = ()
    missing: Callable[[Settings], str] = always
    note: Callable[[Settings], str] = always
    zero: bool = True
    in_strata: bool = False
    default: bool = False

    def labels_of(self, settings: Settings, target: int) -> tuple[str, ...]:
        """Return the labels of the numbers of a target; () for a single number."""
        return self.labels(settings, target) if callable(self.labels) else self.labels

    @property
    def has_skill(self) -> bool:
        """Whether there is a skill: a perfect forecast has the score 0."""
        return self.best == "low" and self.zero

    @property
    def joint(self) -> Joint | None:
        """What its statistics are `joint` over."""
        return next(iter(self.statistics.values())).joint

    @property
    def is_fair(self) -> bool:
        """Whether the score is that of infinitely many members, valid only for independent ones."""
        return self.name.endswith("_fair")


@dataclass(frozen=True)
class Diagram:
    """A curve or histogram of each model, defined as a `Score` is; `value` returns arrays for each label.

    `value(settings, target, **averages)` gets averages without leading axes and returns `{LABEL: {"x": array, ...}}`. A
    diagram with a single panel has the label "". If `by_start`, an average has a first axis with the contribution of
    each start, in the order of time; their sum is the average. `missing`, `note` and `default` are as in `Score`.
    """

    name: str
    title: str
    text: str
    reference: str
    statistics: Mapping[str, CellStatistic]
    value: Callable[..., Mapping[str, Mapping[str, Any]]]
    missing: Callable[[Settings], str] = field(default=always)
    note: Callable[[Settings], str] = field(default=always)
    by_start: bool = False
    default: bool = False
