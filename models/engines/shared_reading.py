"""SharedReading: reads one forecast for several correctors; each field of the files is decoded once.

A corrector needs the raw members of its targets in double precision and all of its inputs in single precision; its
targets are usually among its inputs, and other correctors read the same inputs.
"""

from __future__ import annotations

from collections.abc import Hashable

import numpy as np

from data_pipeline.formats.fields import CubeFields
from data_pipeline.inputs import BEFORE_START, ChannelSource, InputFields
from data_pipeline.protocols import Fields
from data_pipeline.tile_reader import read_tile
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
        """Fill `out` (M, V, h, w), float32 or float64, with this rank's tile of a forecast."""
        if isinstance(fields, InputFields):
            for part in fields.parts(init, lead):
                self._read_part(part, out[:, part.channels], domain)
        elif isinstance(fields, CubeFields):
            self._read_channels(fields, init, lead, out, domain)
        else:
            read_tile(fields, init, lead, out, *domain.tile)

    def _read_part(self, part: ChannelSource, out: np.ndarray, domain: Domain) -> None:
        if part.lead == BEFORE_START:
            out[...] = np.nan
        elif part.members is None:
            analysis = np.empty((1, *out.shape[1:]), out.dtype)
            self.read(part.fields, part.init, part.lead, analysis, domain)
            out[...] = analysis
        elif part.members == tuple(range(len(part.fields.numbers))):
            self.read(part.fields, part.init, part.lead, out, domain)
        else:
            read_tile(part.fields, part.init, part.lead, out, *domain.tile, part.members)

    def _read_channels(self, fields: CubeFields, init: int, lead: int, out: np.ndarray, domain: Domain) -> None:
        tile = tuple((part.start, part.stop) for part in domain.tile)
        identities = [
            None if (found := fields.identity(init, lead, channel)) is None else (found, tile)
            for channel in range(len(fields.variables))
        ]
        known = [self._known(identity, out.dtype) for identity in identities]
        if all(values is None for values in known):
            read_tile(fields, init, lead, out, *domain.tile)
        else:
            for channel, values in enumerate(known):
                if values is not None:
                    out[:, channel] = values
                else:
                    read_tile(fields.only(channel), init, lead, out[:, channel : channel + 1], *domain.tile)
        for channel, identity in enumerate(identities):
            if identity is not None and known[channel] is None:
                self._kept[identity] = out[:, channel]

    def _known(self, identity: Hashable | None, dtype: np.dtype) -> np.ndarray | None:
        """Return the values of a channel that was read in at least the precision of `dtype`."""
        values = None if identity is None else self._kept.get(identity)
        return values if values is not None and values.dtype.itemsize >= dtype.itemsize else None
