"""Plan: what a store holds and in which files; two stores with the same plan are the same byte for byte."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator
from dataclasses import asdict, dataclass, fields, replace
from typing import Any

import numpy as np

from data_pipeline.common.checks import check_integer
from data_pipeline.common.errors import InputError
from data_pipeline.grid import Grid
from data_pipeline.inputs import input_fields, left_out
from data_pipeline.protocols import DataSource, Fields
from data_pipeline.split import valid_in, verified, year_of
from data_pipeline.task import Channel, Task, Variable

STATIC = "static.nc"
FLOAT = 4
"""Bytes of a value."""
WORDS = {"fingerprint": "files of the archive", "numbers": "members", "shard_samples": "shard_bytes"}

FURTHER = ("other_leads", "analysis", "left_out")
TEXTS: dict[str, Callable[[str], Variable | Channel]] = {
    "inputs": Variable.parse, "targets": Variable.parse, "other_leads": Channel.other_lead, "analysis": Variable.parse,
}  # fmt: skip
"""How variables and channels are read from the text that stands for them."""


@dataclass(frozen=True)
class Plan:
    """The `samples`, (start in seconds since 1970, lead time in hours), and what each consists of.

    `years` are those of valid time, None where the whole archive was taken; `shard_samples` is how many samples share
    a file; with `moments` two pseudo-members stand for the members with those `numbers`. `other_leads` and `analysis`
    are those of the task, whose lack made that `left_out` forecasts of these years are no samples.
    """

    fingerprint: str
    inputs: tuple[Variable, ...]
    targets: tuple[Variable, ...]
    lead_times: tuple[int, ...]
    static: tuple[str, ...]
    grid: Grid
    numbers: tuple[int, ...]
    moments: bool
    years: tuple[int, ...] | None
    shard_samples: int
    samples: tuple[tuple[int, int], ...]
    other_leads: tuple[Channel, ...] = ()
    analysis: tuple[Variable, ...] = ()
    left_out: int = 0

    @property
    def channels(self) -> tuple[Channel, ...]:
        """All channels of the ensemble, in the order of `Task.channels`."""
        return tuple(map(Channel, self.inputs)) + self.further

    @property
    def further(self) -> tuple[Channel, ...]:
        """The channels at other lead times and of the analysis."""
        return self.other_leads + tuple(Channel(variable, "analysis") for variable in self.analysis)

    @property
    def ensemble_shape(self) -> tuple[int, int, int, int]:
        """The ensemble of a sample, (M, C, H, W)."""
        return 2 if self.moments else len(self.numbers), len(self.channels), *self.grid.shape

    @property
    def target_shape(self) -> tuple[int, int, int, int]:
        """The truth of a sample, (1, T, H, W)."""
        return 1, len(self.targets), *self.grid.shape

    @property
    def sample_bytes(self) -> int:
        """Size of a sample on disk."""
        return FLOAT * int(np.prod(self.ensemble_shape) + np.prod(self.target_shape))

    @property
    def bytes(self) -> int:
        """Size of all files, but for some kilobytes of description in each."""
        return len(self.samples) * self.sample_bytes + FLOAT * len(self.static) * int(np.prod(self.grid.shape))

    @property
    def shards(self) -> dict[str, range]:
        """Which samples lie in which file."""
        count, size = len(self.samples), self.shard_samples
        return {
            f"samples-{first // size:05}.nc": range(first, min(first + size, count)) for first in range(0, count, size)
        }

    @property
    def files(self) -> list[str]:
        """The names of all files with values."""
        return [STATIC, *self.shards] if self.static else [*self.shards]

    def __str__(self) -> str:
        kept = f"mean and spread of {len(self.numbers)} members" if self.moments else f"{len(self.numbers)} members"
        return (
            f"{len(self.samples)} forecasts ({kept} of {_join(self.channels)}; truth {_join(self.targets)}) "
            f"in {len(self.files)} files, {self.bytes / 1e9:.2f} GB"
            + (f"; {self.left_out} forecasts lack one of {_join(self.further)}" if self.left_out else "")
        )

    def to_json(self) -> dict[str, Any]:
        """Return plain values from which `from_json` makes this plan again."""
        texts = {name: [str(variable) for variable in getattr(self, name)] for name in TEXTS}
        values = asdict(self) | texts
        # A plan without them reads as it did before there were any.
        return {name: value for name, value in values.items() if value or name not in FURTHER}

    @classmethod
    def from_json(cls, values: dict[str, Any]) -> Plan:
        """Return the plan that `to_json` described."""
        found: dict[str, Any] = {
            name: tuple(value) if isinstance(value, list) else value for name, value in values.items()
        }
        for name in TEXTS:
            found[name] = tuple(map(TEXTS[name], found.get(name, ())))
        found["samples"] = tuple((int(start), int(lead)) for start, lead in found["samples"])
        return cls(**found | {"grid": Grid(**found["grid"])})

    def differs_in(self, other: Plan) -> list[str]:
        """Return in the user's words what another plan has otherwise."""
        names = [field.name for field in fields(self) if getattr(self, field.name) != getattr(other, field.name)]
        return [WORDS.get(name, name.replace("_", " ")) for name in names]


@dataclass(frozen=True, eq=False)
class Job:
    """A plan, with the fields of the archive that its samples are read from."""

    plan: Plan
    archive: DataSource
    ensemble: Fields
    truth: Fields
    keys: list[tuple[int, int, int]]
    """Of each sample the positions of start and lead time in `ensemble` and of the analysis in `truth`."""

    @classmethod
    def of(cls, archive: DataSource, task: Task, years: Collection[int] | None, moments: bool, shard_bytes: int) -> Job:
        """Look up the forecasts of `task` that are valid in `years` (None: all) and verified."""
        check_integer("shard_bytes", shard_bytes, 1)
        archive.refuse(years or (), moments, task.further)
        ensemble = input_fields(archive, task)
        truth = archive.analysis_fields(task.targets)
        if not ensemble.grid.matches(truth.grid):
            raise InputError(
                f"the ensemble has {ensemble.grid}, the analysis {truth.grid}; bring both to one grid first"
            )
        wanted = set(_valid_years(ensemble)) if years is None else set(years)
        keys = verified(ensemble.init_times, task.lead_times, truth.init_times, wanted)
        seconds = ensemble.init_times.astype("datetime64[s]").astype(np.int64)
        plan = Plan(
            archive.fingerprint, task.inputs, task.targets, task.lead_times,
            tuple(map(str, archive.static)), ensemble.grid, ensemble.numbers, moments,
            None if years is None else tuple(sorted(wanted)), 1,
            tuple((int(seconds[i]), task.lead_times[j]) for i, j, _ in keys),
            task.other_leads, task.analysis, valid_in(left_out(ensemble), task.lead_times, wanted),
        )  # fmt: skip
        together = max(1, shard_bytes // plan.sample_bytes)
        return cls(replace(plan, shard_samples=together), archive, ensemble, truth, keys)


def _valid_years(ensemble: Fields) -> Iterator[int]:
    """All years in which a forecast may be valid."""
    for lead in ensemble.lead_times:
        yield from map(year_of, ensemble.init_times + np.timedelta64(lead, "h"))


def _join(values: Collection[object]) -> str:
    return ", ".join(map(str, values))
