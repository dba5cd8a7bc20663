"""CubeFields: read the fields of a cube directly into the caller's array, for samples."""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from data_pipeline.formats.catalog import SINGLE, Catalog, FieldReader, IdentifiedReader, MomentReader
from data_pipeline.formats.cube import Cube, Missing
from data_pipeline.grid import Grid
from data_pipeline.meaning import UNKNOWN, Meaning
from data_pipeline.protocols import ALL, MissingFields
from data_pipeline.pseudo_members import reduce_members
from data_pipeline.task import Variable
from data_pipeline.units import normalize_units


@dataclass(frozen=True, eq=False)
class CubeFields:
    """Implements `protocols.Fields`; `cells` (init, lead, member, channel) holds rows of the catalog, -1 if missing."""

    reader: FieldReader
    variables: tuple[Variable, ...]
    init_times: np.ndarray
    lead_times: tuple[int, ...]
    numbers: tuple[int, ...]
    meanings: tuple[Meaning, ...]
    cells: np.ndarray
    incomplete: Mapping[tuple[int, int], MissingFields] = field(default_factory=dict)

    @classmethod
    def forecasts(cls, catalog: Catalog, lead_times: Sequence[int], missing: Missing) -> CubeFields:
        """Open the forecasts of a catalog at `lead_times` (hours)."""
        cube = Cube.forecasts(catalog, lead_times, missing)
        return cls._of(cube, cube.axes["init_time"], cube.axes["lead_time"], cube.axes["number"])

    @classmethod
    def analyses(cls, catalog: Catalog, missing: Missing) -> CubeFields:
        """Open the analyses of a catalog as forecasts of lead time 0 with one member; their start is the valid time."""
        cube = Cube.analyses(catalog, missing)
        return cls._of(cube, cube.axes["time"], np.zeros(1, np.int64), np.zeros(1, np.int64))

    @classmethod
    def _of(cls, cube: Cube, starts: np.ndarray, lead_times: np.ndarray, numbers: np.ndarray) -> CubeFields:
        wanted = cube.catalog.wanted
        by_variable = cube.cells.reshape(len(wanted), len(starts), len(lead_times), len(numbers))
        meanings = tuple(
            Meaning(
                variable, normalize_units(cube.catalog.units(variable.name)[0]), _intervals(cube.catalog, rows), level
            )
            for variable, rows, level in zip(wanted, by_variable, cube.levels, strict=True)
        )
        cells = np.ascontiguousarray(np.moveaxis(by_variable, 0, -1))
        return cls(
            cube.catalog.reader,
            wanted,
            starts.astype("datetime64[s]"),
            tuple(lead_times.tolist()),
            tuple(numbers.tolist()),
            meanings,
            cells,
            _incomplete(cube, cells, numbers),
        )

    @property
    def grid(self) -> Grid:
        """Latitudes and longitudes of the values; north first, west to east."""
        return self.reader.grid

    def read(
        self, init: int, lead: int, out: np.ndarray, rows: slice = ALL, members: Sequence[int] | None = None
    ) -> None:
        """Fill `out` (M, C, h, W) with the forecast at positions `init` and `lead`; see `Fields`."""
        self.reader.read(self._wanted(init, lead, members), out, (rows, ALL))

    def read_moments(
        self, init: int, lead: int, out: np.ndarray, rows: slice = ALL, members: Sequence[int] | None = None
    ) -> None:
        """Fill `out` (2, C, h, W) with the pseudo-members of the forecast; see `ReducingFields`."""
        wanted = self._wanted(init, lead, members)
        if isinstance(self.reader, MomentReader) and out.dtype == SINGLE:
            self.reader.read_moments(wanted, out, rows)
        else:
            reduce_members(lambda values: self.reader.read(wanted, values, (rows, ALL)), len(wanted), out)

    def _wanted(self, init: int, lead: int, members: Sequence[int] | None) -> np.ndarray:
        """Return the fields (M, C) of a forecast."""
        cells: np.ndarray = self.cells[init, lead]
        return cells if members is None else cells[np.array(members, np.intp)]

    def only(self, channel: int) -> CubeFields:
        """Return the fields of one channel."""
        one = slice(channel, channel + 1)
        cells = self.cells[..., one]
        return replace(self, variables=self.variables[one], meanings=self.meanings[one], cells=cells, incomplete={})

    def identity(self, init: int, lead: int, channel: int) -> Hashable | None:
        """Return a value that is the same for fields with the same values, for one channel of all members.

        None if they cannot be compared: the format has no `IdentifiedReader`, or a field is missing.
        """
        wanted = self.cells[init, lead, :, channel]
        if not isinstance(self.reader, IdentifiedReader) or (wanted < 0).any():
            return None
        return self.reader.identity(wanted)


def _intervals(catalog: Catalog, cells: np.ndarray) -> tuple[int, ...]:
    """Return the interval of `cells` (init, lead, member) at each lead time; `UNKNOWN` if the intervals differ."""
    intervals = catalog.rows["interval"]
    found = (np.unique(intervals[rows[rows >= 0]]) for rows in np.moveaxis(cells, 1, 0))
    return tuple(int(values[0]) if len(values) == 1 else UNKNOWN for values in found)


def _incomplete(cube: Cube, cells: np.ndarray, numbers: np.ndarray) -> dict[tuple[int, int], MissingFields]:
    """Describe the missing fields of each forecast of `cells` (init, lead, member, channel) that lacks one."""
    absent = cells < 0
    found: dict[tuple[int, int], MissingFields] = {}
    for init, lead in np.argwhere(absent.any((2, 3))).tolist():
        own = absent[init, lead]
        channels = np.flatnonzero(own.any(0)).tolist()
        number, file = int(numbers[own[:, channels[0]].argmax()]), str(cube.nearest_file(channels[0], init))
        names = tuple(str(cube.catalog.wanted[channel]) for channel in channels)
        found[init, lead] = MissingFields(names, number, file, int(own.sum()), own.size)
    return found
