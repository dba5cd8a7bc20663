"""RawForecast: one forecast of the input, as a corrector reads it; SharedReading reads it for several correctors.

A corrector needs the raw members of its targets in double precision and all of its inputs in single precision; its
targets are usually among its inputs, and other correctors read the same inputs.
"""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass
from itertools import groupby

import numpy as np

from data_pipeline.protocols import Fields
from data_pipeline.samples.pseudo_members import complete_cells
from data_pipeline.samples.selection import absent_systems
from data_pipeline.task import Task
from models.parallel.domain import Domain


@dataclass(frozen=True)
class RawForecast:
    """One start and lead time of the input in physical units, on this rank's tile (h, w) of the grid."""

    ensemble: np.ndarray
    """(M, C, h, w) float32; any value where `mask` is False."""
    mask: np.ndarray
    """(C, h, w) True where all members have a value."""
    raw: np.ndarray
    """(M, T, h, w) float64: the exact raw members of the targets, NaN where missing."""
    init_time: np.datetime64
    lead_time: int
    """Hours."""
    numbers: tuple[int, ...]
    """The numbers of the members M."""
    absent: tuple[str, ...] = ()
    """The groups of `Task.systems` without a member."""


class SharedReading:
    """Keeps every channel (M, h, w) of a forecast that it read, so that each field of the files is decoded once.

    Read double precision first: it can be rounded to single precision, not the reverse. Arrays that were filled must
    not be changed as long as this object reads.
    """

    def __init__(self) -> None:
        self._kept: dict[Hashable, np.ndarray] = {}
        self._exact: dict[int, np.ndarray] = {}

    def exact(self, fields: Fields, init: int, lead: int, domain: Domain) -> np.ndarray:
        """Return this rank's tile of a forecast in double precision (M, V, h, w); same array for same fields."""
        if id(fields) not in self._exact:
            out = np.empty((len(fields.numbers), len(fields.variables), *domain.own_shape), np.float64)
            self.read(fields, init, lead, out, domain)
            self._exact[id(fields)] = out
        return self._exact[id(fields)]

    def read(self, fields: Fields, init: int, lead: int, out: np.ndarray, domain: Domain) -> None:
        """Fill `out` (M, V, h, w), float32 or float64, with the own tile of a forecast."""
        wanted, tile = fields.cells[init, lead], tuple((part.start, part.stop) for part in domain.tile)
        found = [fields.identity(numbers) for numbers in wanted.T]
        identities = [None if one is None else (one, tile) for one in found]
        known = [self._known(identity, out.dtype) for identity in identities]
        for is_known, group in groupby(range(len(known)), lambda channel: known[channel] is not None):
            channels = [*group]
            if is_known:
                for channel in channels:
                    out[:, channel] = known[channel]
            else:
                part = slice(channels[0], channels[-1] + 1)
                fields.read(wanted[:, part], out[:, part], domain.tile)
        for channel, identity in enumerate(identities):
            if identity is not None and known[channel] is None:
                self._kept[identity] = out[:, channel]

    def _known(self, identity: Hashable | None, dtype: np.dtype) -> np.ndarray | None:
        """Return the values of a channel that was read in at least the precision of `dtype`."""
        values = None if identity is None else self._kept.get(identity)
        return values if values is not None and values.dtype.itemsize >= dtype.itemsize else None


def read_forecast(
    inputs: Fields, raw: Fields, domain: Domain, init: int, lead: int, reading: SharedReading, task: Task
) -> RawForecast:
    """Read this rank's tile of the forecast at the positions `init` and `lead` of `inputs` and `raw`.

    The forecast has the members of the groups that it does not lack.
    """
    # In single precision, different members may become equal and lose their order.
    exact = reading.exact(raw, init, lead, domain)
    ensemble = np.empty((len(inputs.numbers), len(inputs.variables), *domain.own_shape), np.float32)
    reading.read(inputs, init, lead, ensemble, domain)
    start = inputs.init_times[init].astype("datetime64[s]")
    numbers, absent = inputs.numbers, absent_systems(task, inputs, (init, lead))
    if len(there := task.present(numbers, absent)) < len(numbers):
        ensemble, exact, numbers = ensemble[there], exact[there], tuple(numbers[k] for k in there)
    mask = complete_cells(ensemble)
    return RawForecast(ensemble, mask, exact, start, int(inputs.lead_times[lead]), numbers, absent)
