"""StorePlan: the contents of a store and its files; stores with equal plans are equal byte for byte."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, dataclass, fields
from itertools import compress, product
from typing import Any

import numpy as np

from data_pipeline.common.identity import hash_of
from data_pipeline.common.messages import joined
from data_pipeline.dates import Dates
from data_pipeline.formulas.formula import Formula
from data_pipeline.formulas.formula_fields import without_formulas
from data_pipeline.grid import Grid
from data_pipeline.grids.points import grid_of_json
from data_pipeline.ledger import Ledger, Omission
from data_pipeline.protocols import MissingPolicy
from data_pipeline.task import Channel, HasChannels, Task, Variable
from data_pipeline.variables.meaning import Meaning

STATIC_NAME = "static.nc"
VALUE_BYTES = 4
"""Bytes of one value, a float32."""

_DESCRIPTIONS = {
    "fingerprint": "files of the archive or versions of its readers",
    "numbers": "members",
    "masked": "truth_checks",
    "shard_samples": "shard_bytes",
    "meanings": "units, levels and intervals",
    "target_meanings": "units, levels and intervals",
}
"""Words for attributes of a plan in error messages, if they differ from the attribute's name."""
_OPTIONAL = ("other_leads", "analysis", "formulas", "omissions", "masked")
"""Attributes that are left out of the JSON when they are empty."""
_PARSERS: dict[str, Callable[[str], Variable | Channel]] = {
    "inputs": Variable.parse, "targets": Variable.parse, "other_leads": Channel.other_lead, "analysis": Variable.parse,
    "formulas": Formula.parse,
}  # fmt: skip
"""Functions that parse the variables and channels of an attribute from their text in the JSON."""
_MEANINGS = ("meanings", "target_meanings")


@dataclass(frozen=True)
class StorePlan(HasChannels):
    """The `samples` of a store, (start in seconds since 1970, lead time in hours), and their contents.

    `dates` are valid times, None for the whole archive. A file holds `shard_samples` samples. With `moments`, two
    pseudo-members represent the members `numbers`. `meanings` and `target_meanings` are the meanings of the channels
    and of the truth in the archive. `other_leads`, `analysis` and `formulas` are options of the task. `missing` is the
    archive's option. `omissions` are forecasts on these dates that are left out, and samples with missing fields.
    `masked`: implausible values of the truth are missing.
    """

    fingerprint: str
    inputs: tuple[Variable, ...]
    targets: tuple[Variable, ...]
    lead_times: tuple[int, ...]
    static: tuple[str, ...]
    grid: Grid
    numbers: tuple[int, ...]
    moments: bool
    dates: Dates | None
    shard_samples: int
    samples: tuple[tuple[int, int], ...]
    meanings: tuple[Meaning, ...]
    target_meanings: tuple[Meaning, ...]
    other_leads: tuple[Channel, ...] = ()
    analysis: tuple[Variable, ...] = ()
    missing: MissingPolicy = "error"
    omissions: tuple[Omission, ...] = ()
    formulas: tuple[Formula, ...] = ()
    masked: bool = False

    @property
    def ledger(self) -> Ledger:
        """The numbers of forecasts that are used as samples and that are left out."""
        left_out = sum(not one.used for one in self.omissions)
        return Ledger(len(self.samples) + left_out, self.omissions)

    @property
    def ensemble_shape(self) -> tuple[int, int, int, int]:
        """Shape (M, C, H, W) of the ensemble of a sample."""
        return 2 if self.moments else len(self.numbers), len(self.channels), *self.grid.shape

    @property
    def target_shape(self) -> tuple[int, int, int, int]:
        """Shape (1, T, H, W) of the truth of a sample."""
        return 1, len(self.targets), *self.grid.shape

    @property
    def sample_bytes(self) -> int:
        """Bytes of a sample on disk."""
        return VALUE_BYTES * int(np.prod(self.ensemble_shape) + np.prod(self.target_shape))

    @property
    def bytes(self) -> int:
        """Bytes of all files, without the few kilobytes of metadata in each."""
        return len(self.samples) * self.sample_bytes + VALUE_BYTES * len(self.static) * int(np.prod(self.grid.shape))

    @property
    def shards(self) -> dict[str, range]:
        """The samples of each file, by file name."""
        count, size = len(self.samples), self.shard_samples
        return {
            f"samples-{first // size:05}.nc": range(first, min(first + size, count)) for first in range(0, count, size)
        }

    @property
    def files(self) -> list[str]:
        """The names of all NetCDF files."""
        return [STATIC_NAME, *self.shards] if self.static else [*self.shards]

    def __str__(self) -> str:
        members = f"mean and spread of {len(self.numbers)} members" if self.moments else f"{len(self.numbers)} members"
        return (
            f"{len(self.samples)} forecasts ({members} of {joined(self.channels)}; truth {joined(self.targets)}) "
            f"in {len(self.files)} files, {self.bytes / 1e9:.2f} GB"
        )

    def absent_field(self, task: Task, dates: Dates) -> tuple[Channel, int, int] | None:
        """Return a channel, a start and a lead time of `task` whose field the store lacks; None if it has all.

        Only samples of the task that are valid on `dates` count. Another channel or sample may hold the field, such as
        `2t` at 48 h for `2t+48h`, unless the field was missing there.
        """
        read = task if {*task.formulas} <= {*self.formulas} else without_formulas(task)
        stored = {channel.variable for channel in self.channels} | {*self.targets}
        # Variables that the store lacks altogether are refused when the fields are opened.
        others = [one for one in read.channels if one not in self.channels and one.variable in stored]
        if not others:
            return None
        held: set[tuple[Variable | int, ...]] = set()
        wanted, lacking = {channel.variable for channel in others}, {one.key: one.channels for one in self.omissions}
        channels = [(channel, str(channel)) for channel in self.channels if channel.variable in wanted]
        targets = [(target, f"{target} truth") for target in self.targets if target in wanted]
        for start, lead in self.samples:
            absent = lacking.get((start, lead), ())
            held |= {_field(channel, start, lead) for channel, name in channels if name not in absent}
            held |= {(target, start + 3600 * lead) for target, name in targets if name not in absent}
        mine = [(start, lead) for start, lead in self.samples if lead in task.lead_times]
        valid = dates.contains(np.array([start + 3600 * lead for start, lead in mine], "datetime64[s]"))
        for (start, lead), channel in product(compress(mine, valid), others):
            after_start = channel.origin == "analysis" or channel.lead_time(lead) >= 0
            if after_start and (channel.origin == "lead" or _field(channel, start, lead) not in held):
                return channel, start, lead
        return None

    @property
    def digest(self) -> str:
        """A hash of all attributes."""
        return hash_of(self.to_json())

    def to_json(self) -> dict[str, Any]:
        """Return JSON values from which `from_json` makes an equal plan."""
        texts = {name: [str(variable) for variable in getattr(self, name)] for name in _PARSERS}
        values = asdict(self) | texts | {"omissions": [one.to_json() for one in self.omissions]}
        values |= {name: [meaning.to_json() for meaning in getattr(self, name)] for name in _MEANINGS}
        values["dates"] = self.dates and self.dates.to_json()
        return {name: value for name, value in values.items() if value or name not in _OPTIONAL}

    @classmethod
    def from_json(cls, values: dict[str, Any]) -> StorePlan:
        """Return the plan from the values of `to_json`."""
        found: dict[str, Any] = {k: tuple(v) if isinstance(v, list) else v for k, v in values.items()}
        for name in _PARSERS:
            found[name] = tuple(map(_PARSERS[name], found.get(name, ())))
        for name in _MEANINGS:
            found[name] = tuple(map(Meaning.from_json, values[name]))
        found["dates"] = values["dates"] and Dates.from_json(values["dates"])
        found["omissions"] = tuple(Omission(*one) for one in found.get("omissions", ()))
        found["samples"] = tuple((int(start), int(lead)) for start, lead in found["samples"])
        return cls(**found | {"grid": grid_of_json(found["grid"])})

    def differences(self, other: StorePlan) -> list[str]:
        """Return the words for all attributes in which two plans differ, for error messages."""
        names = [field.name for field in fields(self) if getattr(self, field.name) != getattr(other, field.name)]
        return list(dict.fromkeys(_DESCRIPTIONS.get(name, name.replace("_", " ")) for name in names))


def _field(channel: Channel, start: int, lead: int) -> tuple[Variable | int, ...]:
    """Return the key of a field: variable, start and lead time; for an analysis, variable and time."""
    at = (start,) if channel.origin == "analysis" else (start, channel.lead_time(lead))
    return (channel.variable, *at)
