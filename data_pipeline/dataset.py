"""ForecastDataset: the samples of a task from a data source, as a PyTorch data set."""

from __future__ import annotations

import copy
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import replace

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset

from data_pipeline.common.errors import InputError
from data_pipeline.common.identity import fingerprint_of
from data_pipeline.dates import Dates, epoch_seconds
from data_pipeline.ledger import Ledger, Omission
from data_pipeline.prefetch.loader import Prefetcher
from data_pipeline.prefetch.order import SampleOrder
from data_pipeline.prefetch.tiers import Tiers
from data_pipeline.protocols import ALL, DataSource
from data_pipeline.sample import Sample
from data_pipeline.samples.inputs import open_task
from data_pipeline.samples.pseudo_members import MOMENTS_VERSION
from data_pipeline.samples.sample_reader import Buffers, read_sample
from data_pipeline.samples.selection import present_members, select_forecasts
from data_pipeline.task import Task


class ForecastDataset(Dataset[Sample]):
    """The forecasts of a task that are valid on `dates` (or years) and can be used, by start and lead time.

    `members` is the number of members, or their positions. `rows` and `columns` (step 1) select a tile of ensemble,
    mask, static fields and target; `grid` is always the full grid. `moments` replaces the ensemble by the two
    pseudo-members of `samples.pseudo_members`. Only the selection is read, but always full rows. `ledger` counts
    the forecasts that are left out, and says why, by the rules of `data_pipeline.samples.selection`. A forecast without
    a group of members has the members of the others.

    The class is thread-safe. Every access reads the sample again, and reuses the memory of unreferenced samples.
    """

    def __init__(
        self,
        source: DataSource,
        task: Task,
        dates: Dates | Iterable[int],
        *,
        members: int | Sequence[int] | None = None,
        rows: slice = ALL,
        columns: slice = ALL,
        moments: bool = False,
    ) -> None:
        dates = Dates.of(dates)
        opened = open_task(source, task, dates, moments and members is None)
        self.task, self._ensemble, self._truth = task, opened.inputs, opened.truth
        self.grid = self._ensemble.grid
        self.meanings = self._ensemble.meanings
        """Units and intervals of the task's channels."""
        self.rows, self.columns = (bounded_slice(*pair) for pair in zip((rows, columns), self.grid.shape, strict=True))
        self.static = torch.from_numpy(opened.static)[:, self.rows, self.columns].contiguous()
        self._keys, self.ledger = select_forecasts(source, task, opened, dates)
        self._members = select_members(members, count := len(self._ensemble.numbers))
        if len(self._members) < count and (groups := [str(one) for one in task.formulas if one.members]):
            raise InputError(
                f"members={members} leaves out {count - len(self._members)} of {count} members, and {groups[0]} "
                "describes a group of all members; leave out members, or the groups of the task"
            )
        self.present = present_members(task, self._ensemble.numbers, self.ledger)
        """The positions of the members of each forecast that lacks a group, by start and lead time."""
        self._stored_moments = source.moments is not None
        self.numbers = source.moments or tuple(self._ensemble.numbers[k] for k in self._members)
        """Numbers of the members of the ensemble, even if only its moments are read."""
        self._buffers = Buffers()
        self._moments = moments
        subset_members = None if self._members == tuple(range(count)) else self._members
        tile = [self.rows.start, self.rows.stop, self.columns.start, self.columns.stop]
        exceptions = [(one.start, one.lead, one.reason) for one in self.ledger.omissions]
        subset = [task.to_json(), dates.to_json(), exceptions, subset_members, tile, moments and MOMENTS_VERSION]
        self.fingerprint = fingerprint_of(source.fingerprint, subset)
        """Hash of files and selection: two data sets with the same fingerprint have the same samples."""

    @property
    def members(self) -> int:
        """Number of members of the ensemble, even if only its moments are read."""
        return len(self.numbers)

    @property
    def nbytes(self) -> int:
        """Bytes of one sample in memory, without the static fields, which all samples share."""
        cells = (self.rows.stop - self.rows.start) * (self.columns.stop - self.columns.start)
        inputs, targets = len(self.task.channels), len(self.task.targets)
        members = 2 if self._moments else len(self._members)
        return cells * (4 * members * inputs + inputs + 4 * targets) + 2 * 8

    def times(self) -> tuple[Tensor, Tensor]:
        """Return start (N,) in seconds and lead time (N,) in hours of all samples; reads no field."""
        starts = epoch_seconds(self._ensemble.init_times)
        leads = np.array(self._ensemble.lead_times, np.int64)
        inits, places, _ = np.array(self._keys).T
        return torch.from_numpy(starts[inits]), torch.from_numpy(leads[places])

    def band(self, rows: slice) -> ForecastDataset:
        """Return the same samples cut to the `rows` of the tile; other rows are not read."""
        other, rows = copy.copy(self), bounded_slice(rows, self.rows.stop - self.rows.start)
        other.rows = slice(self.rows.start + rows.start, self.rows.start + rows.stop)
        other.static, other._buffers = self.static[:, rows].contiguous(), Buffers()
        other.fingerprint = f"{self.fingerprint} rows {rows.start}-{rows.stop}"
        return other

    def with_all_groups(self) -> ForecastDataset:
        """Return the samples that have members of all groups (`Task.systems`); the ledger counts the others."""
        lacking = self.ledger.by_reason.get("without_group", [])
        if len(lacking) == len(self):
            raise InputError(f"no forecast has members of all groups, the first is {lacking[0]}; change task.groups")
        return self.without([replace(one, reason="no_group") for one in lacking]) if lacking else self

    @property
    def groups_present(self) -> np.ndarray:
        """A number for each sample (N,), equal for samples that have the same groups of members."""
        keys = zip(*(times.tolist() for times in self.times()), strict=True)
        known: dict[tuple[int, ...], int] = {(): 0}
        return np.array([known.setdefault(tuple(self.present.get(key, ())), len(known)) for key in keys])

    def without(self, omissions: Sequence[Omission]) -> ForecastDataset:
        """Return the same samples without the forecasts `omissions`; the new ledger counts them as left out."""
        other, gone = copy.copy(self), {one.key: one for one in omissions}
        keys = zip(*(times.tolist() for times in self.times()), strict=True)
        other._keys = [place for place, key in zip(self._keys, keys, strict=True) if key not in gone]
        kept = [one for one in self.ledger.omissions if one.key not in gone]
        other.ledger = Ledger(self.ledger.forecasts, tuple(sorted([*kept, *omissions])))
        other.fingerprint = fingerprint_of(self.fingerprint, "without", sorted(gone))
        return other

    @property
    def starts(self) -> np.ndarray:
        """The different starts of the forecasts, in increasing order."""
        times: np.ndarray = np.unique(self._ensemble.init_times[[start for start, _, _ in self._keys]])
        return times

    def __len__(self) -> int:
        return len(self._keys)

    def __getitem__(self, index: int) -> Sample:
        init, lead, truth = self._keys[index]
        reduce = self._moments and not self._stored_moments
        start, hours = int(epoch_seconds(self._ensemble.init_times[init])), int(self._ensemble.lead_times[lead])
        members = self._members
        if (start, hours) in self.present and not self._stored_moments:
            members = tuple(k for k in self.present[start, hours] if k in members) or members
        target = np.empty((1, len(self.task.targets), *self.static.shape[1:]), np.float32)
        self._truth.read(self._truth.cells[truth, 0], target, (self.rows, self.columns))
        return read_sample(
            self._ensemble, self.static, torch.from_numpy(target[0]), init, lead,
            self.rows, self.columns, members, reduce, self._buffers,
        )  # fmt: skip


def bounded_slice(points: slice, size: int) -> slice:
    """Return a slice of an axis of `size` with explicit ends; the step must be 1."""
    start, stop, step = points.indices(size)
    if step != 1 or stop <= start:
        raise ValueError(f"rows and columns must be consecutive, got {points}")
    return slice(start, stop)


def select_members(members: int | Collection[int] | None, count: int) -> tuple[int, ...]:
    """Return the positions of the selected `members` among `count`."""
    wanted = range(count) if members is None else range(members) if type(members) is int else members
    positions = tuple(wanted) if isinstance(wanted, Collection) else ()
    if not positions or len(set(positions)) < len(positions) or not set(positions) <= set(range(count)):
        raise InputError(
            f"members must be a number from 1 to {count} or different positions from 0 to {count - 1}, got {members!r}"
        )
    return positions


def batches(dataset: Dataset[Sample], size: int) -> Iterator[Sample]:
    """Yield all samples once, in order, as batches (B, ...); samples from `Tiers` are prefetched."""
    if isinstance(dataset, Tiers):
        with Prefetcher(dataset, SampleOrder(len(dataset), size, shuffle=False)) as prefetched:
            yield from prefetched
    else:
        yield from DataLoader(dataset, batch_size=size)
