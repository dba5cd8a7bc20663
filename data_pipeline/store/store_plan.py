"""StorePlan: the contents of a store and its files; stores with equal plans are equal byte for byte."""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import asdict, dataclass, fields
from typing import Any

import numpy as np

from data_pipeline.grid import Grid
from data_pipeline.task import Channel, HasChannels, Variable

STATIC_NAME = "static.nc"
VALUE_BYTES = 4
"""Bytes of one value, a float32."""

_DESCRIPTIONS = {"fingerprint": "files of the archive", "numbers": "members", "shard_samples": "shard_bytes"}
"""Words for the attributes of a plan in error messages, where they differ from the attribute's name."""
_OPTIONAL = ("other_leads", "analysis", "left_out")
"""Attributes that are left out of the JSON when they are empty, as in stores of older versions."""
_PARSERS: dict[str, Callable[[str], Variable | Channel]] = {
    "inputs": Variable.parse, "targets": Variable.parse, "other_leads": Channel.other_lead, "analysis": Variable.parse,
}  # fmt: skip
"""Functions that read variables and channels from their text in the JSON."""


@dataclass(frozen=True)
class StorePlan(HasChannels):
    """The `samples` of a store, (initial time in seconds since 1970, lead time in hours), and their contents.

    `years` are years of valid time, None for the whole archive. A file holds `shard_samples` samples. With `moments`
    two pseudo-members represent the members `numbers`. `other_leads` and `analysis` are options of the
    task. `left_out` forecasts of these years are no samples, because one of these channels is missing.
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
            f"{len(self.samples)} forecasts ({members} of {_join(self.channels)}; truth {_join(self.targets)}) "
            f"in {len(self.files)} files, {self.bytes / 1e9:.2f} GB"
            + (f"; {self.left_out} forecasts lack one of {_join(self.further)}" if self.left_out else "")
        )

    def to_json(self) -> dict[str, Any]:
        """Return plain values from which `from_json` makes an equal plan."""
        texts = {name: [str(variable) for variable in getattr(self, name)] for name in _PARSERS}
        values = asdict(self) | texts
        return {name: value for name, value in values.items() if value or name not in _OPTIONAL}

    @classmethod
    def from_json(cls, values: dict[str, Any]) -> StorePlan:
        """Return the plan from the values of `to_json`."""
        found: dict[str, Any] = {
            name: tuple(value) if isinstance(value, list) else value for name, value in values.items()
        }
        for name in _PARSERS:
            found[name] = tuple(map(_PARSERS[name], found.get(name, ())))
        found["samples"] = tuple((int(start), int(lead)) for start, lead in found["samples"])
        return cls(**found | {"grid": Grid(**found["grid"])})

    def differences(self, other: StorePlan) -> list[str]:
        """Return the words for all attributes in which two plans differ, for error messages."""
        names = [field.name for field in fields(self) if getattr(self, field.name) != getattr(other, field.name)]
        return [_DESCRIPTIONS.get(name, name.replace("_", " ")) for name in names]


def _join(values: Collection[object]) -> str:
    return ", ".join(map(str, values))
