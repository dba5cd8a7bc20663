"""SharedReading: reads one forecast for several correctors; each field of the files is decoded once.

A corrector needs the raw members of its targets in double precision and all of its inputs in single precision; its
targets are usually among its inputs, and other correctors read the same inputs.
"""

from __future__ import annotations

from collections.abc import Hashable
from itertools import groupby

import numpy as np

from data_pipeline.protocols import Fields
from models.parallel.domain import Domain


class SharedReading:
    """Keeps every channel (M, h, w) of a forecast that it read, to copy it where it is wanted again.

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
