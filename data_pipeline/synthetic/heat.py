"""Heat: runs of a plate as a data source; the raw forecast is that nothing will change."""

from __future__ import annotations

import hashlib
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import ClassVar

import numpy as np
import xarray as xr
from xarray.core import indexing

from data_pipeline.common.checks import check_integer
from data_pipeline.common.errors import InputError
from data_pipeline.formats.catalog import Window
from data_pipeline.formats.datasets import FieldArray
from data_pipeline.formats.fields import CubeFields
from data_pipeline.grid import Grid
from data_pipeline.protocols import Chunks
from data_pipeline.synthetic.heat.plate import regions, run
from data_pipeline.task import Channel, Variable

VERSION = 1
"""Of the experiment; a change of its equations or its random numbers is another one."""
HEAT = Variable("heat")
CELL = 0.01
"""Degrees; the plate lies on the equator, so small that all of its cells are of one size."""


@dataclass(frozen=True)
class Heat:
    """A run every year from `first_year` to `last_year`: it starts on 1 January, and a step takes an hour.

    The plate of `rows` x `columns` cells, which surroundings at 0 cool, has a region for each of the `diffusivities`,
    the same in all years; `region` is the static field that tells where. A forecast has one member, the frame at its
    start, whatever its lead time. The numbers of each run are named by `seed` and year: other years leave it as it is.
    """

    rows: int = 64
    columns: int = 64
    first_year: int = 1900
    last_year: int = 2039
    steps: int = 100
    diffusivities: tuple[float, ...] = (0.0025, 0.025, 0.25)
    seed: int = 42

    moments: ClassVar[None] = None
    oracle: ClassVar[None] = None
    is_there: ClassVar[bool] = True

    def __post_init__(self) -> None:
        check_integer("data.archive.rows", self.rows, 3, 1000)
        check_integer("data.archive.columns", self.columns, 3, 1000)
        check_integer("data.archive.first_year", self.first_year, 1)
        check_integer("data.archive.last_year", self.last_year, self.first_year, 9999)
        check_integer("data.archive.steps", self.steps, 1, 8000)
        check_integer("data.archive.seed", self.seed, 0)
        given = self.diffusivities
        if isinstance(given, str) or not isinstance(given, Iterable) or not all(map(_conducts, given := tuple(given))):
            raise InputError(
                f"data.archive.diffusivities must be numbers greater than 0 and at most 0.25, beyond which heat would "
                f"grow out of nothing, got {given!r}"
            )
        object.__setattr__(self, "diffusivities", tuple(map(float, given)))
        if len(given) < 2 or len(np.unique(self.kind)) < len(given):
            raise InputError(
                f"data.archive.diffusivities must be two or more, and a plate of {self.rows} x {self.columns} cells "
                f"have room for a region of each; got {list(given)}"
            )

    @cached_property
    def kind(self) -> np.ndarray:
        """Which of the diffusivities each cell has, (H, W)."""
        return regions((self.rows, self.columns), len(self.diffusivities), np.random.default_rng(self.seed))

    @cached_property
    def grid(self) -> Grid:
        """Where the cells lie."""
        rows, columns = ((size - 1) / 2 - np.arange(size) for size in (self.rows, self.columns))
        return Grid(tuple(CELL * rows), tuple(CELL * columns[::-1]))

    @property
    def fingerprint(self) -> str:
        """Changes with every option."""
        return hashlib.sha256(f"{VERSION} {self}".encode()).hexdigest()[:16]

    @cached_property
    def static(self) -> xr.Dataset:
        """The field `region`: 0 where the first of the diffusivities is at home, 1 for the second, and so on."""
        coordinates = {"latitude": np.array(self.grid.latitudes), "longitude": np.array(self.grid.longitudes)}
        return xr.Dataset({"region": (tuple(coordinates), self.kind.astype(np.float32))}, coordinates)

    def refuse(self, years: Collection[int], moments: bool, further: Collection[Channel] = ()) -> None:
        """Refuse nothing: years in which nothing runs are found to be empty."""

    def plan(self) -> str:
        """Say what there is to prepare."""
        return f"heat: the runs of {self.first_year} to {self.last_year} are made when they are read, not before"

    def prepare(self) -> None:
        """Nothing is written."""

    def forecasts(self, variables: Sequence[Variable], lead_times: Sequence[int], chunks: Chunks = None) -> xr.Dataset:
        """Open the ensemble as (init_time, lead_time, number, latitude, longitude)."""
        fields = self.ensemble_fields(variables, lead_times)
        axes = {"init_time": fields.init_times, "lead_time": np.array(fields.lead_times), "number": np.array([0])}
        return self._opened(fields, axes, chunks)

    def analyses(self, variables: Sequence[Variable], chunks: Chunks = None) -> xr.Dataset:
        """Open the truth as (time, latitude, longitude)."""
        fields = self.analysis_fields(variables)
        return self._opened(fields, {"time": fields.init_times}, chunks)

    def ensemble_fields(self, variables: Sequence[Variable], lead_times: Sequence[int]) -> CubeFields:
        """Open the ensemble to read samples from."""
        leads = tuple(lead_times)
        cells = np.repeat(np.arange(len(self._times))[:, None], len(leads), axis=1)
        return self._fields(variables, leads, cells)

    def analysis_fields(self, variables: Sequence[Variable]) -> CubeFields:
        """Open the truth to read samples from."""
        return self._fields(variables, (0,), np.arange(len(self._times))[:, None])

    def run(self, year: int) -> np.ndarray:
        """Return the frames of a year, (steps + 1, H, W); they are kept."""
        if year not in self._runs:
            generator = np.random.default_rng([self.seed, year])
            self._runs[year] = run(self.kind, self.diffusivities, self.steps, generator)
        return self._runs[year]

    @cached_property
    def _runs(self) -> dict[int, np.ndarray]:
        return {}

    @cached_property
    def _times(self) -> np.ndarray:
        """The times of all frames, which are counted in this order."""
        years = np.arange(self.first_year, self.last_year + 1) - 1970
        hours = np.arange(self.steps + 1).astype("timedelta64[h]")
        return (years.astype("datetime64[Y]").astype("datetime64[s]")[:, None] + hours).ravel()

    def _fields(self, variables: Sequence[Variable], leads: tuple[int, ...], cells: np.ndarray) -> CubeFields:
        if tuple(variables) != (HEAT,):
            raise InputError(f"data=heat has nothing but {HEAT}, got {', '.join(map(str, variables))}; take task=heat")
        return CubeFields(Frames(self), (HEAT,), self._times, leads, (0,), cells[..., None, None])

    def _opened(self, fields: CubeFields, axes: dict[str, np.ndarray], chunks: Chunks) -> xr.Dataset:
        cells = fields.cells.reshape([len(values) for values in axes.values()])
        array = indexing.LazilyIndexedArray(FieldArray(fields.source, cells))
        places = {"latitude": np.array(self.grid.latitudes), "longitude": np.array(self.grid.longitudes)}
        dataset = xr.Dataset({HEAT.name: ((*axes, *places), array)}, axes | places)
        if not chunks:
            return dataset
        times = {name: 1 for name in ("init_time", "lead_time", "time") if name in axes}
        return dataset.chunk(times, token=f"{self.fingerprint} {fields.lead_times}")


@dataclass(frozen=True)
class Frames:
    """The frames of all years, counted from 0 in the order of time."""

    heat: Heat

    @property
    def grid(self) -> Grid:
        """Where the cells of the plate lie."""
        return self.heat.grid

    def read(self, wanted: np.ndarray, out: np.ndarray, window: Window) -> None:
        """Read the `window` of each frame in `wanted` (...) into `out` (..., h, w)."""
        for place, number in np.ndenumerate(wanted):
            year, frame = divmod(int(number), self.heat.steps + 1)
            out[place] = self.heat.run(self.heat.first_year + year)[frame][window[0]][..., window[1]]


def _conducts(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and 0 < value <= 0.25
