"""Guards: whether a forecast resembles those of the training, and what corrects it if it does not."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from data_pipeline.common.checks import check_choice
from data_pipeline.common.errors import InputError
from data_pipeline.common.file_format import GRIB_FORMAT, UNKNOWN_FORMAT, file_format
from data_pipeline.grid import Grid
from data_pipeline.sources.forecast_summary import join_tiles, summarise_tile
from data_pipeline.variables.meaning import differences
from data_pipeline.writing import messages
from models.engines.engine import CorrectorDescription, Engine, at_stations
from models.engines.forecast import RawForecast
from models.parallel.domain import Domain
from models.parallel.single_process import Processes
from models.provenance.envelope import Problem, finish
from models.provenance.groups import expected_share

if TYPE_CHECKING:
    import xarray as xr

ON_PROBLEM = ("error", "emos", "raw")
"""Values of the option `on_problem`."""
UNTRAINED_TIMES = ("problem", "correct")
"""Values of the option `untrained_times`."""


@dataclass(frozen=True)
class Verdict:
    """What corrects one forecast, `corrector`, `emos` or `raw`, and one sentence for each problem.

    With `corrector`, the problems are times without training that the user allows.
    """

    method: str = "corrector"
    problems: tuple[str, ...] = ()


@dataclass(frozen=True)
class TileSummary:
    """The properties of one forecast on one tile that the guards check."""

    channels: np.ndarray
    """(C, 6), see `forecast_summary.summarise_tile`."""
    twins: frozenset[tuple[int, int]]
    """Pairs of positions of members that are equal in all cells of the tile."""
    varies: bool
    """Whether some member has two different values on the tile."""


def check_guard(on_problem: object, fallback: bool, untrained_times: object) -> None:
    """Raise `InputError` for a wrong option, and for an EMOS without a `fallback` or a fallback without use."""
    check_choice("untrained_times", untrained_times, UNTRAINED_TIMES)
    check_choice("on_problem", on_problem, ON_PROBLEM)
    if on_problem == "emos" and not fallback:
        raise InputError("on_problem=emos needs fallback=FILE, the file of a corrector of model=emos")
    if on_problem != "emos" and fallback:
        raise InputError(f"fallback belongs to on_problem=emos, got on_problem={on_problem}; remove fallback")


@dataclass(frozen=True)
class Guard:
    """Checks forecasts of a corrector, and chooses the fallback; raises `InputError` for an invalid option."""

    on_problem: str = "error"
    fallback: Engine | None = None
    """The EMOS corrector of `on_problem=emos`."""
    untrained_times: str = "problem"
    """`correct`: starts at hours, and valid times in months, without training are corrected, and counted."""

    def __post_init__(self) -> None:
        check_guard(self.on_problem, self.fallback is not None, self.untrained_times)

    def at(self, grid: Grid, processes: Processes, static: xr.Dataset | None = None) -> Guard:
        """Return the guard with the fallback at the stations of an input."""
        if self.fallback is None:
            return self
        return replace(self, fallback=at_stations(self.fallback, grid, processes, static))

    def check_fallback(self, description: CorrectorDescription) -> None:
        """Raise `InputError` unless the fallback can correct every forecast of a corrector."""
        if self.fallback is None:
            return
        own, other = description.task, self.fallback.description.task
        where = f"fallback={self.fallback.description.path}"
        for name, same in {
            "targets": own.targets == other.targets,
            "lead times": {*own.lead_times} <= {*other.lead_times},
            "inputs": {*other.channels} <= {*own.channels},
            "grid": description.grid.matches(self.fallback.description.grid),
        }.items():
            if not same:
                raise InputError(f"{where} has other {name} than the corrector; train it on the same task and grid")
        meanings = self.fallback.description.meanings
        if meanings and description.meanings:
            own_meanings = [description.meanings[own.channels.index(channel)] for channel in other.channels]
            if found := differences(meanings, other.lead_times, own_meanings, own.lead_times):
                raise InputError(f"{where} has {'; '.join(found)} as the corrector; train both on one data")

    def verdict(
        self, description: CorrectorDescription, tiles: Sequence[TileSummary], forecast: RawForecast
    ) -> Verdict:
        """Return the verdict on a forecast, given the summaries of all tiles."""
        found = forecast_problems(description, tiles, forecast)
        problems = self._refused(found)
        name = f"the forecast of {forecast.init_time} +{forecast.lead_time} h"
        if not problems:
            return Verdict(problems=tuple(f"{name}: {problem.sentence}" for problem in found))
        for problem in problems:
            if problem.fatal or self.on_problem == "error":
                way_out = "correct the input" if problem.fatal else "correct the input, or set on_problem=raw or emos"
                if problem.of_time:
                    way_out = "train on such times, or set untrained_times=correct, or on_problem=raw or emos"
                raise InputError(f"{name} cannot be corrected: {problem.sentence}; {way_out}")
        sentences = tuple(f"{name}: {problem.sentence}" for problem in problems)
        if self.fallback is None:
            return Verdict("raw", sentences)
        other = self.fallback.description
        own = [description.task.channels.index(channel) for channel in other.task.channels]
        narrowed = [replace(tile, channels=tile.channels[own]) for tile in tiles]
        if self._refused(forecast_problems(other, narrowed, forecast)):
            return Verdict("raw", (*sentences, f"{name}: it does not resemble the training of the fallback either"))
        return Verdict("emos", sentences)

    def _refused(self, problems: Sequence[Problem]) -> list[Problem]:
        """Return the problems without those of times that the user allows."""
        return [one for one in problems if not (one.of_time and self.untrained_times == "correct")]

    def narrowed(self, description: CorrectorDescription, forecast: RawForecast) -> RawForecast:
        """Return a forecast with the channels of the fallback only."""
        assert self.fallback is not None
        own = [description.task.channels.index(channel) for channel in self.fallback.description.task.channels]
        return replace(forecast, ensemble=np.ascontiguousarray(forecast.ensemble[:, own]), mask=forecast.mask[own])


def summarise_forecast(forecast: RawForecast, domain: Domain) -> TileSummary:
    """Return the properties of a forecast on this rank's tile that the guards check."""
    grid = domain.grid
    channels = summarise_tile(forecast.ensemble, forecast.mask, grid.weights, *domain.tile, grid.shape)
    fields = forecast.raw.reshape(len(forecast.raw), -1)
    thin = fields[:, :: max(1, fields.shape[1] // 64)]
    varies = bool((fields != fields[:, :1]).any(1).any()) if np.isfinite(fields).any() else False
    same: dict[bytes, list[int]] = {}
    for number, member in enumerate(thin):
        same.setdefault(member.tobytes(), []).append(number)
    twins = {
        (one, other)
        for group in same.values()
        for position, one in enumerate(group)
        for other in group[position + 1 :]
        if np.array_equal(fields[one], fields[other], equal_nan=True)
    }
    return TileSummary(channels, frozenset(twins), varies)


def forecast_problems(
    description: CorrectorDescription, tiles: Sequence[TileSummary], forecast: RawForecast
) -> list[Problem]:
    """Return the problems of a forecast, from the summaries of all tiles; without an envelope, only equal members."""
    found: list[Problem] = []
    if any(tile.varies for tile in tiles) and (pairs := frozenset.intersection(*(tile.twins for tile in tiles))):
        one, other = (forecast.numbers[position] for position in min(pairs))
        found.append(Problem(f"its members {one} and {other} are equal in all cells of all targets"))
    if forecast.absent and not description.provenance.get("any_groups"):
        lacked = " and ".join(forecast.absent)
        found.append(Problem(f"it has no member of {lacked}, and its model needs all groups, unlike model=emos"))
        return found
    if description.envelope is None:
        return found
    names = [str(channel) for channel in description.task.channels]
    bounded = [str(one) for one in description.task.channels if one.variable.near_bound]
    rows = join_tiles([tile.channels for tile in tiles])
    summaries = dict(zip(names, map(finish, rows), strict=True))
    members = len(forecast.numbers)
    if forecast.absent:
        # Without a group, the mean and spread of all members differ from those in training.
        of_groups = {str(one) for one in description.task.formulas if one.members}
        summaries = {name: one for name, one in summaries.items() if name in of_groups}
        members = round(members / expected_share(description.provenance, description.task, forecast.absent))
    return found + description.envelope.problems(summaries, forecast.init_time, forecast.lead_time, members, bounded)


def repeated_messages(
    forecasts: Sequence[Path], names: Mapping[str, str] | None, variables: set[str], added: Sequence[int]
) -> str:
    """Return a sentence about messages of these variables that the files hold more than once, or an empty text.

    `added` is what each file adds to the numbers of its members.
    """
    counts = Counter(
        message._replace(number=message.number + more)
        for path, more in zip(forecasts, added, strict=True)
        if file_format(path) in (GRIB_FORMAT, UNKNOWN_FORMAT)
        for message in messages(path, names)
        if message.variable.name in variables
    )
    repeated = [message for message, count in counts.items() if count > 1]
    if not repeated:
        return ""
    first = min(repeated)
    return (
        f"the input holds {len(repeated)} message{'s' * (len(repeated) > 1)} more than once, such as {first.variable} "
        f"of {first.init_time:%Y-%m-%dT%H:%M} +{first.lead_time} h, member {first.number}"
    )
