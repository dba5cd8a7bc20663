"""TargetMessages: the messages of a file that `correct` replaces by targets, or after which it adds them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations, product
from pathlib import Path
from typing import Literal

from data_pipeline.common.errors import InputError
from data_pipeline.formats.equivalents import needed, sources
from data_pipeline.task import Task, Variable
from data_pipeline.variables.meaning import UNKNOWN, Meaning
from data_pipeline.writing import Message, messages

WriteMode = Literal["replace", "add"]
STEP_TYPES = {"accumulation": "accum", "mean": "avg", "maximum": "max", "minimum": "min"}
"""Values of the ecCodes key `stepType`."""


@dataclass(frozen=True)
class TargetMessages:
    """How the targets of `task` are written into a copy of a file.

    A target replaces the messages that hold it, also in other units or as geopotential height. A target that is
    computed from several messages, such as `tp:24h` from amounts since the start, is added after one of them. For each
    target, `variables` has the file's variable that is replaced or followed, and `factors` the factor from it to the
    target. `held` has pairs of positions, of a target and of a lead time at which the file holds it. `intervals` has
    the interval of each target at each lead time.
    """

    task: Task
    intervals: tuple[tuple[int, ...], ...]
    variables: tuple[Variable, ...]
    factors: tuple[float, ...]
    held: frozenset[tuple[int, int]]

    @classmethod
    def of(
        cls, task: Task, meanings: tuple[Meaning, ...], forecasts: Sequence[Path], names: Mapping[str, str] | None
    ) -> TargetMessages:
        """Look for the targets, whose raw members have `meanings`, in all files of a forecast."""
        forecast = " and ".join(map(str, forecasts))
        found = {
            (message.variable, message.lead_time, message.interval)
            for path in forecasts
            for message in messages(path, names)
        }
        there = {variable for variable, _, _ in found}
        variables, factors, held = [], [], set()
        for k, (target, meaning) in enumerate(zip(task.targets, meanings, strict=True)):
            scaled = {source.variables[0]: source.factor for source in sources(target) if len(source.variables) == 1}
            candidates = [variable for variable in (*scaled, *needed(target)) if variable in there]
            if not candidates:
                raise InputError(
                    f"{forecast} has no {target}, nor messages that it is made from; add them to the input"
                )
            variables.append(candidates[0])
            factors.append(scaled.get(candidates[0], 1.0))
            for lead, interval in zip(task.lead_times, meaning.intervals, strict=True):
                spans = {span for variable, at, span in found if (variable, at) == (candidates[0], lead)}
                if candidates[0] in scaled and (interval == UNKNOWN or interval in spans):
                    held.add((k, lead))
        for (j, one), (k, other) in combinations(enumerate(meanings), 2):
            apart = all(a != b for a, b in zip(one.intervals, other.intervals, strict=True))
            all_held = {*product((j, k), task.lead_times)} <= held
            if variables[j] == variables[k] and not (apart and all_held):
                raise InputError(
                    f"{forecast}: {task.targets[j]} and {task.targets[k]} would be written with the same messages, "
                    f"those of {variables[j]}; train one corrector for each target"
                )
        intervals = tuple(meaning.intervals for meaning in meanings)
        return cls(task, intervals, tuple(variables), tuple(factors), frozenset(held))

    def mode_of(self, message: Message) -> tuple[int, WriteMode] | None:
        """Return the target that replaces a message, or that is added after it; None for other messages."""
        if message.lead_time not in self.task.lead_times:
            return None
        lead = self.task.lead_times.index(message.lead_time)
        for k, variable in enumerate(self.variables):
            if message.variable == variable:
                if (k, message.lead_time) not in self.held:
                    return k, "add"
                if self.intervals[k][lead] in (message.interval, UNKNOWN):
                    return k, "replace"
        return None

    def new_message(self, target: int, message: Message) -> Message:
        """Return the contents of the message of a target that is added after `message`."""
        variable, lead = self.task.targets[target], self.task.lead_times.index(message.lead_time)
        own = Variable(variable.name, variable.level, process=variable.process)
        return message._replace(variable=own, interval=self.intervals[target][lead])

    def new_keys(self, target: int, message: Message) -> dict[str, str | int]:
        """Return the ecCodes keys in which the message of a target differs from `message`."""
        variable = self.task.targets[target]
        keys: dict[str, str | int] = {}
        if variable.name != message.variable.name:
            keys["shortName"] = variable.name
        if variable.period:
            begin = message.lead_time - variable.period
            keys |= {"stepType": STEP_TYPES[variable.processing], "startStep": begin, "endStep": message.lead_time}
        return keys
