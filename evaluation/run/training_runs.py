"""Several training runs of one model, `correctors={NAME: {runs: [A, B, C]}}`, as one entry of the scores.

Each run is scored like a separate corrector, with the name `NAME#1`, `NAME#2`, ... The entry's averages are the means
over its runs.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import cached_property, reduce
from operator import add
from typing import Any, TypeVar

from data_pipeline.common.errors import InputError
from evaluation.forecasters.corrector_checks import EMOS_NAME
from evaluation.scoring.aggregation import Tally, WeightedMean
from evaluation.scoring.scoreboard import Scoreboard
from evaluation.significance.run_means import RunMean
from models.corrector import Corrector

MARK = "#"
Runs = Mapping[str, Sequence[str]]
"""The names of the runs of each model with several runs."""
Value = TypeVar("Value")


def name_runs(correctors: Mapping[str, Any]) -> dict[str, Any]:
    """Return the option `correctors` with an item for each run of a model."""
    named: dict[str, Any] = {}
    for name, given in correctors.items():
        if not isinstance(given, dict):
            named[name] = given
            continue
        runs = given.get("runs")
        if set(given) != {"runs"} or not isinstance(runs, list) or len(runs) < 2:
            raise InputError(
                f"correctors.{name} must be a path, a list of paths of all folds, or {{runs: [A, B, ...]}} with at "
                f"least two training runs of one model; got {given!r}"
            )
        if name == EMOS_NAME:
            raise InputError(
                "correctors.emos: an EMOS is fitted without a random seed, so it has no runs; give one file"
            )
        named |= {f"{name}{MARK}{number}": run for number, run in enumerate(runs, 1)}
    return named


def group_runs(names: Sequence[str]) -> dict[str, tuple[str, ...]]:
    """Return the runs of each model with several runs, from the names of all runs.

    >>> group_runs(["emos", "unet#1", "unet#2"])
    {'unet': ('unet#1', 'unet#2')}
    """
    found: dict[str, tuple[str, ...]] = {}
    for name in names:
        model, mark, _ = name.partition(MARK)
        if mark:
            found[model] = (*found.get(model, ()), name)
    return found


def check_one_model(correctors: Mapping[str, Corrector], runs: Runs) -> None:
    """Refuse runs that are not of one model: another class, or another number of parameters."""
    for name, members in runs.items():
        kinds = {
            (type(corrector.model).__name__, sum(p.numel() for p in corrector.model.parameters()))
            for corrector in (correctors[member] for member in members)
        }
        if len(kinds) > 1:
            described = ", ".join(f"{kind} with {count} parameters" for kind, count in sorted(kinds))
            raise InputError(
                f"correctors.{name}: its runs are different models ({described}); runs must differ in the training "
                "seed only; give other models names of their own"
            )


def with_first_runs(values: Mapping[str, Value], runs: Runs) -> dict[str, Value]:
    """Return the values by model, where a model with several runs has the value of its first run."""
    first = {members[0]: name for name, members in runs.items()}
    others = {member for members in runs.values() for member in members[1:]}
    return {first.get(name, name): value for name, value in values.items() if name not in others}


class PooledTally(Tally):
    """The averages of a model over its training runs, each of which has a tally."""

    def __init__(self, name: str, runs: Sequence[Tally]) -> None:
        self.__dict__.update(reduce(add, runs).__dict__)
        self.name, self._runs = name, tuple(runs)

    @cached_property
    def per_forecast(self) -> dict[str, WeightedMean]:
        """Averages of each forecast over all runs, together with the averages of each run."""
        runs = [run.per_forecast for run in self._runs]
        return {statistic: RunMean.over(self.name, [run[statistic] for run in runs]) for statistic in runs[0]}

    def forecast_mean(self, statistic: str) -> WeightedMean:
        """Return the averages of one statistic over each forecast."""
        return self.per_forecast[statistic]

    @cached_property
    def per_cell(self) -> dict[str, WeightedMean]:
        """Averages of each cell over all runs."""
        count = len(self._runs)
        return {s: WeightedMean(mean.total / count, mean.weight / count) for s, mean in super().per_cell.items()}


def pool_runs(board: Scoreboard, runs: Runs) -> Scoreboard:
    """Return the scoreboard with one tally for all runs of a model."""
    if not runs:
        return board

    def pooled(tallies: Mapping[str, Tally]) -> dict[str, Tally]:
        found = with_first_runs(tallies, runs)
        joined = {name: PooledTally(name, [tallies[member] for member in runs[name]]) for name in runs if name in found}
        return found | joined

    return replace(
        board,
        tallies=pooled(board.tallies),
        by_member_count={size: pooled(tallies) for size, tallies in board.by_member_count.items()},
        written=pooled(board.written),
        further={method: pooled(tallies) for method, tallies in board.further.items()},
        written_by_count={size: pooled(tallies) for size, tallies in board.written_by_count.items()},
    )
