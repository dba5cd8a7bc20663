"""Data source to samples: the only border between fields of a source and tensors."""

from __future__ import annotations

import copy
import hashlib
import json
from collections.abc import Collection, Iterable, Iterator, Sequence

import numpy as np
import torch
import xarray as xr
from torch import Tensor
from torch.utils.data import DataLoader, Dataset

from data_pipeline.archive import grid_of
from data_pipeline.buffers import Buffers
from data_pipeline.common.errors import InputError
from data_pipeline.grid import Grid
from data_pipeline.inputs import input_fields, left_out
from data_pipeline.moments import pseudo_members
from data_pipeline.prefetch.loader import Prefetcher
from data_pipeline.prefetch.order import SampleOrder
from data_pipeline.prefetch.tiers import Tiers
from data_pipeline.protocols import ALL, DataSource, Fields
from data_pipeline.sample import Sample
from data_pipeline.split import valid_in, verified, year_of
from data_pipeline.task import POSITION, Task


class ForecastDataset(Dataset[Sample]):
    """The forecasts of a task that are valid in `years` and have a verifying analysis, by start and lead time.

    `members` takes the first so many, or those at the positions listed. `rows` and `columns` (step 1) take a tile:
    of ensemble, mask, static fields and target alike, while `grid` stays the whole grid. `moments` puts the two
    pseudo-members of `data_pipeline.moments` in place of the ensemble. No more is read than is asked for, but rows are
    read as a whole. `left_out` counts the forecasts of these years that lack an input at another lead time or the
    analysis at their start.

    Samples may be read from several threads at once; each is read anew, into memory of samples that nobody holds any
    more where there is some.
    """

    def __init__(
        self,
        source: DataSource,
        task: Task,
        years: Iterable[int],
        *,
        members: int | Sequence[int] | None = None,
        rows: slice = ALL,
        columns: slice = ALL,
        moments: bool = False,
    ) -> None:
        years = set(years)
        source.check_available(years, moments and members is None, task.further)
        self.task = task
        self._ensemble = input_fields(source, task)
        self._truth = source.analysis_fields(task.targets)
        self.grid = self._ensemble.grid
        if not self.grid.matches(other := self._truth.grid):
            raise InputError(f"the ensemble has {self.grid}, the analysis {other}; bring both to one grid first")
        self.rows, self.columns = (part(*given) for given in zip((rows, columns), self.grid.shape, strict=True))
        self.static = static_fields(self.grid, task, source.static)[:, self.rows, self.columns].contiguous()
        self._keys = verified(self._ensemble.init_times, task.lead_times, self._truth.init_times, years)
        self.left_out = valid_in(left_out(self._ensemble), task.lead_times, years)
        self._members = chosen(members, count := len(self._ensemble.numbers))
        self._stored_moments = source.moments
        self._buffers = Buffers()
        self._moments = moments
        some = None if self._members == tuple(range(count)) else self._members
        tile = [self.rows.start, self.rows.stop, self.columns.start, self.columns.stop]
        subset = [task.to_json(), sorted(years), some, tile, moments]
        digest = hashlib.sha256(f"{source.fingerprint} {json.dumps(subset)}".encode())
        self.fingerprint = digest.hexdigest()[:16]
        """Of the data and of what is taken of them: two data sets that share it have the same samples."""

    @property
    def members(self) -> int:
        """Number of members of the ensemble, also where only its moments are read."""
        return self._stored_moments or len(self._members)

    @property
    def nbytes(self) -> int:
        """Size of one sample in memory; the static fields, which all samples share, are not counted."""
        cells = (self.rows.stop - self.rows.start) * (self.columns.stop - self.columns.start)
        inputs, targets = len(self.task.channels), len(self.task.targets)
        members = 2 if self._moments else len(self._members)
        return cells * (4 * members * inputs + inputs + 4 * targets) + 2 * 8

    def times(self) -> tuple[Tensor, Tensor]:
        """Return start (N,) and lead time (N,) of all samples, as samples have them, without reading any field."""
        starts = self._ensemble.init_times.astype("datetime64[s]").astype(np.int64)
        leads = np.array(self._ensemble.lead_times, np.int64)
        inits, places, _ = np.array(self._keys).T
        return torch.from_numpy(starts[inits]), torch.from_numpy(leads[places])

    def band(self, rows: slice) -> ForecastDataset:
        """Return the same samples of some `rows` of the tile, counted from its first: only these are read."""
        other, rows = copy.copy(self), part(rows, self.rows.stop - self.rows.start)
        other.rows = slice(self.rows.start + rows.start, self.rows.start + rows.stop)
        other.static, other._buffers = self.static[:, rows].contiguous(), Buffers()
        other.fingerprint = f"{self.fingerprint} rows {rows.start}-{rows.stop}"
        return other

    @property
    def omission(self) -> str:
        """A sentence that says how many forecasts were left out, empty where there are none."""
        if not self.left_out:
            return ""
        wanted = ", ".join(map(str, self.task.further))
        return f"{self.left_out} forecasts left out: their start lacks one of {wanted}"

    @property
    def valid_years(self) -> tuple[int, int]:
        """First and last year in which a sample is valid."""
        times = self._truth.init_times[[k for _, _, k in self._keys]]
        return year_of(times.min()), year_of(times.max())

    @property
    def starts(self) -> np.ndarray:
        """Starts of the forecasts, each once, in their order."""
        times: np.ndarray = np.unique(self._ensemble.init_times[[start for start, _, _ in self._keys]])
        return times

    def __len__(self) -> int:
        return len(self._keys)

    def __getitem__(self, index: int) -> Sample:
        init, lead, truth = self._keys[index]
        reduce = self._moments and not self._stored_moments
        sample = read_sample(
            self._ensemble, self.task, self.static, init, lead,
            self.rows, self.columns, self._members, reduce, self._buffers,
        )  # fmt: skip
        target = np.empty((1, *sample.target.shape), np.float32)
        read_tile(self._truth, truth, 0, target, self.rows, self.columns)
        return sample._replace(target=torch.from_numpy(target[0]))


def read_sample(
    ensemble: Fields,
    task: Task,
    static: Tensor,
    init: int,
    lead: int,
    rows: slice = ALL,
    columns: slice = ALL,
    members: Sequence[int] | None = None,
    moments: bool = False,
    buffers: Buffers | None = None,
) -> Sample:
    """Read one forecast by its positions in `ensemble`; its target is unknown (NaN).

    `static` are the static fields of the tile; with `moments` two pseudo-members are made of the `members`. The
    memory comes from `buffers`, if there are any.
    """
    count, inputs = len(ensemble.numbers if members is None else members), len(ensemble.variables)
    values = (buffers or Buffers()).empty((count, inputs, *static.shape[1:]))
    read_tile(ensemble, init, lead, values, rows, columns, members)
    if moments:
        values = pseudo_members(values)
    return Sample(
        ensemble=torch.from_numpy(values),
        mask=torch.from_numpy(complete(values)),
        static=static,
        target=torch.full((len(task.targets), *static.shape[1:]), torch.nan),
        init_time=torch.tensor(int(ensemble.init_times[init].astype("datetime64[s]").astype(np.int64))),
        lead_time=torch.tensor(int(ensemble.lead_times[lead])),
    )


def read_tile(
    fields: Fields,
    init: int,
    lead: int,
    out: np.ndarray,
    rows: slice = ALL,
    columns: slice = ALL,
    members: Sequence[int] | None = None,
) -> None:
    """Fill `out` (M, V, h, w) with rows and columns of a field: files are read by whole rows."""
    if out.shape[-1] == (width := fields.grid.shape[1]):
        fields.read(init, lead, out, rows, members)
        return
    whole = np.empty((*out.shape[:-1], width), out.dtype)
    fields.read(init, lead, whole, rows, members)
    out[...] = whole[..., columns]


def complete(members: np.ndarray) -> np.ndarray:
    """Return where all members (M, ...) have a value."""
    with np.errstate(over="ignore", invalid="ignore"):
        # Most samples miss nothing, which a sum finds out at the speed of memory: what is missing stays in it.
        if np.isfinite(members.sum()):
            return np.ones(members.shape[1:], bool)
    return np.logical_and.reduce([np.isfinite(member) for member in members])


def part(points: slice, size: int) -> slice:
    """Return `points` of an axis of `size` with both ends named."""
    start, stop, step = points.indices(size)
    if step != 1 or stop <= start:
        raise ValueError(f"rows and columns must be some that follow one another, got {points}")
    return slice(start, stop)


def chosen(members: int | Collection[int] | None, count: int) -> tuple[int, ...]:
    """Return the positions of the `members` asked for among `count`."""
    wanted = range(count) if members is None else range(members) if type(members) is int else members
    positions = tuple(wanted) if isinstance(wanted, Collection) else ()
    if not positions or len(set(positions)) < len(positions) or not set(positions) <= set(range(count)):
        raise InputError(
            f"members must be a number from 1 to {count} or different positions from 0 to {count - 1}, got {members!r}"
        )
    return positions


def static_fields(grid: Grid, task: Task, archive: xr.Dataset) -> Tensor:
    """Return the static channels of a task, (S, H, W): the point on the unit sphere, then what `archive` holds."""
    lat = np.radians(np.array(grid.latitudes))[:, None]
    lon = np.radians(np.array(grid.longitudes))[None, :]
    known = dict(
        zip(POSITION, (np.sin(lat) + 0 * lon, np.cos(lat) * np.cos(lon), np.cos(lat) * np.sin(lon)), strict=True)
    )
    for name in task.static:
        if name not in archive:
            raise InputError(
                f"task {task.name} wants the static field {name}, the data source has "
                f"{', '.join(map(str, archive)) or 'none'}; "
                "name its file in data.archive.static_fields or drop it from task.static"
            )
        if not grid.matches(other := grid_of(archive)):
            raise InputError(f"the static field {name} has {other}, the ensemble {grid}; bring both to one grid first")
        known[name] = archive[name].values
    return torch.from_numpy(np.stack([known[name] for name in task.static_names]).astype(np.float32))


def batches(dataset: Dataset[Sample], size: int) -> Iterator[Sample]:
    """Yield all samples once, in order, as batches with a leading B; read ahead where they come through tiers."""
    if isinstance(dataset, Tiers):
        yield from Prefetcher(dataset, SampleOrder(len(dataset), size, shuffle=False))
    else:
        yield from DataLoader(dataset, batch_size=size)
