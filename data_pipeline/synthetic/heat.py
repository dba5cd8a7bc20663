"""The heat experiment: a plate whose regions conduct heat differently (Dryden & Hoefler 2022, arXiv:2211.13491).

Runs are computed when they are read; nothing is written. The raw forecast is persistence: no change since the start.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import ClassVar

import numpy as np
import xarray as xr

from data_pipeline.common.checks import check_integer
from data_pipeline.common.errors import InputError
from data_pipeline.common.identity import fingerprint_of
from data_pipeline.common.messages import joined
from data_pipeline.dates import Dates
from data_pipeline.grid import Grid
from data_pipeline.ledger import Omission
from data_pipeline.protocols import Fields, MissingPolicy, Window
from data_pipeline.task import Task, Variable
from data_pipeline.variables.meaning import Meaning

_VERSION = 1
"""Part of the fingerprint; increased whenever the equations or the random numbers change."""
HEAT = Variable("heat")
CELL_DEGREES = 0.01
"""Size of a cell. The plate lies on the equator and is so small that all cells have the same area."""
NEIGHBOUR_WEIGHT = 1 / 5
"""Fraction of 1 - 1/K that a neighbour adds to the probability of its region, see `draw_regions`."""


@dataclass(frozen=True)
class Heat:
    """One run of `steps` hours for each year from `first_year` to `last_year`, starting on 1 January.

    The plate has `rows` x `columns` cells and is surrounded by cells at 0. It has one region for each of the
    `diffusivities`; the static field `region` holds the region of each cell, the same in all years. A forecast has one
    member: at every lead time, it is the frame at the start. Random numbers depend only on `seed` and the year.
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
    missing: ClassVar[MissingPolicy] = "error"
    omissions: ClassVar[tuple[Omission, ...]] = ()
    exists: ClassVar[bool] = True

    def __post_init__(self) -> None:
        check_integer("data.archive.rows", self.rows, 3, 1000)
        check_integer("data.archive.columns", self.columns, 3, 1000)
        check_integer("data.archive.first_year", self.first_year, 1)
        check_integer("data.archive.last_year", self.last_year, self.first_year, 9999)
        check_integer("data.archive.steps", self.steps, 1, 8000)
        check_integer("data.archive.seed", self.seed, 0)
        given = self.diffusivities
        is_list = isinstance(given, Iterable) and not isinstance(given, str)
        if not is_list or not all(map(_is_diffusivity, given := tuple(given))):
            raise InputError(
                f"data.archive.diffusivities must be numbers greater than 0 and at most 0.25, "
                f"the limit of stable steps; got {given!r}"
            )
        object.__setattr__(self, "diffusivities", tuple(map(float, given)))
        if len(given) < 2 or len(np.unique(self.region)) < len(given):
            raise InputError(
                f"data.archive.diffusivities must be two or more numbers, each with a region on the plate of "
                f"{self.rows} x {self.columns} cells; got {list(given)}"
            )

    @cached_property
    def region(self) -> np.ndarray:
        """The region of each cell (H, W), as an index into `diffusivities`."""
        return draw_regions((self.rows, self.columns), len(self.diffusivities), np.random.default_rng(self.seed))

    @cached_property
    def grid(self) -> Grid:
        """Positions of the cells, degrees."""
        rows, columns = ((size - 1) / 2 - np.arange(size) for size in (self.rows, self.columns))
        return Grid(tuple(CELL_DEGREES * rows), tuple(CELL_DEGREES * columns[::-1]))

    @property
    def fingerprint(self) -> str:
        """Hash of the version and all options."""
        return fingerprint_of(_VERSION, str(self))

    @cached_property
    def static(self) -> xr.Dataset:
        """The field `region`: 0 in cells with the first diffusivity, 1 in cells with the second, and so on."""
        coordinates = {"latitude": np.array(self.grid.latitudes), "longitude": np.array(self.grid.longitudes)}
        return xr.Dataset({"region": (tuple(coordinates), self.region.astype(np.float32))}, coordinates)

    def check_available(self, task: Task, dates: Dates, moments: bool) -> None:
        """Accept all dates; years without a run have no forecasts."""

    def plan(self) -> str:
        """Return a line of text: there is nothing to prepare."""
        return f"heat: nothing to prepare; the runs of {self.first_year} to {self.last_year} are computed when read"

    def prepare(self) -> None:
        """Do nothing, because runs are computed when they are read."""

    def ensemble_fields(self, variables: Sequence[Variable], lead_times: Sequence[int]) -> Fields:
        """Open the ensemble for reading samples."""
        leads = tuple(lead_times)
        cells = np.repeat(np.arange(len(self._times))[:, None], len(leads), axis=1)
        return self._fields(variables, leads, cells)

    def analysis_fields(self, variables: Sequence[Variable]) -> Fields:
        """Open the truth for reading samples."""
        return self._fields(variables, (0,), np.arange(len(self._times))[:, None])

    def frames(self, year: int) -> np.ndarray:
        """Return the frames of a year, (steps + 1, H, W); they are computed once and cached."""
        if year not in self._frames:
            random = np.random.default_rng([self.seed, year])
            self._frames[year] = simulate_frames(self.region, self.diffusivities, self.steps, random)
        return self._frames[year]

    @cached_property
    def _frames(self) -> dict[int, np.ndarray]:
        return {}

    @cached_property
    def _times(self) -> np.ndarray:
        """Times of all frames, in the order of their numbers."""
        years = np.arange(self.first_year, self.last_year + 1) - 1970
        hours = np.arange(self.steps + 1).astype("timedelta64[h]")
        return (years.astype("datetime64[Y]").astype("datetime64[s]")[:, None] + hours).ravel()

    def _fields(self, variables: Sequence[Variable], leads: tuple[int, ...], cells: np.ndarray) -> Fields:
        if tuple(variables) != (HEAT,):
            raise InputError(f"data=heat has only the variable {HEAT}, not {joined(variables)}; use task=heat")
        meaning = Meaning.stated(HEAT, leads)
        return Fields(FrameReader(self), (HEAT,), self._times, leads, (0,), (meaning,), cells[..., None, None])


@dataclass(frozen=True)
class FrameReader:
    """Reader of single frames; frames are numbered from 0 in the order of time."""

    heat: Heat

    @property
    def grid(self) -> Grid:
        """Positions of the cells, degrees."""
        return self.heat.grid

    def read(self, wanted: np.ndarray, out: np.ndarray, window: Window) -> None:
        """Read the `window` of each frame in `wanted` (...) into `out` (..., h, w)."""
        for index, number in np.ndenumerate(wanted):
            year, frame = divmod(int(number), self.heat.steps + 1)
            out[index] = self.heat.frames(self.heat.first_year + year)[frame][window[0]][..., window[1]]


def draw_regions(shape: tuple[int, int], count: int, random: np.random.Generator) -> np.ndarray:
    """Return the region of each cell (H, W), drawn row by row in coherent patches.

    Each of the K = `count` regions has probability 1/K at first. Each neighbour that is already drawn (west,
    north-west, north, north-east) adds (1 - 1/K)/5 to the probability of its region; the probabilities of the other
    regions fall by equal parts of it.
    """
    rows, columns = shape
    gain = NEIGHBOUR_WEIGHT * (1 - 1 / count)
    padded = np.full((rows + 1, columns + 2), -1)  # with a border of cells without a region
    for i in range(1, rows + 1):
        for j in range(1, columns + 1):
            neighbours = padded[[i, i - 1, i - 1, i - 1], [j - 1, j - 1, j, j + 1]]
            votes = np.bincount(neighbours[neighbours >= 0], minlength=count)
            chance = 1 / count + gain * votes - gain * (votes.sum() - votes) / (count - 1)
            padded[i, j] = np.searchsorted(chance.cumsum(), random.random() * chance.sum(), side="right")
    return padded[1:, 1:-1]


def diffuse(field: np.ndarray, diffusivity: np.ndarray) -> np.ndarray:
    """Return `field` (..., H, W) after one step, x + α (sum of the four neighbours - 4 x), with zeros beyond the edges.

    α is the diffusivity of the cell, so heat is not conserved across borders of regions. Up to α = 1/4 the maximum
    never grows.
    """
    neighbours = np.zeros_like(field)
    neighbours[..., 1:, :] += field[..., :-1, :]
    neighbours[..., :-1, :] += field[..., 1:, :]
    neighbours[..., 1:] += field[..., :-1]
    neighbours[..., :-1] += field[..., 1:]
    return (1 - 4 * diffusivity) * field + diffusivity * neighbours


def simulate_frames(
    region: np.ndarray, diffusivities: Sequence[float], steps: int, random: np.random.Generator
) -> np.ndarray:
    """Return the frames (steps + 1, H, W), float32, of a plate whose cells belong to `region` (H, W).

    The first frame is noise from 0 to 0.1 with one to three hot points of value 1, the same number in each region.
    """
    frames = np.empty((steps + 1, *region.shape), np.float32)
    frames[0] = random.uniform(0, 0.1, region.shape)
    points = random.integers(1, 4)
    for number in range(len(diffusivities)):
        frames[0].flat[random.choice(np.flatnonzero(region == number), points)] = 1
    diffusivity = np.array(diffusivities, np.float32)[region]
    for step in range(steps):
        frames[step + 1] = diffuse(frames[step], diffusivity)
    return frames


def _is_diffusivity(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and 0 < value <= 0.25
