"""Training cases of a fit: all samples of one lead time, read in blocks of rows that fit into memory."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from data_pipeline.common.errors import InputError
from data_pipeline.protocols import ALL
from data_pipeline.sample import Sample, select_rows
from data_pipeline.task import Task
from models.statistical.predictors import YEAR, day_of_year

CASES_BYTES = 2**27
"""Bytes of training cases that a fit keeps at a time; twice as many while they are concatenated."""
LONGEST_GAP = 120
"""Days without a case across which an annual cycle is still interpolated.

The variance of a regression on 1, cos and sin is at most 3σ²/N if the N cases cover the whole year, 9.6σ²/N within a
gap of 120 days and 29σ²/N within a gap of half a year. With k harmonics, gaps must be k times shorter.
"""
SHARED_CASES = 2**22
"""Approximate upper limit of cases to which coefficients shared by all cells are fitted.

Shared coefficients are few: with 4 million cases of which one in a hundred is independent, the standard error of the
bias is half a per cent of the error's standard deviation. Newton's method keeps about 100 bytes for each case.
"""


class TooFewCasesError(InputError):
    """No cell has enough training cases for a fit."""


@dataclass
class FitReport:
    """Notes about a fit, and the number of regressions without a fit."""

    notes: list[str] = field(default_factory=list)
    """Sentences for the user."""
    regressions: int = 0
    """Number of all regressions, one for each lead time, target and cell with training cases."""
    penalised: Counter[str] = field(default_factory=Counter)
    """Number of regressions of each target with a penalised fit (`Regression.fit`)."""
    unfitted: Counter[str] = field(default_factory=Counter)
    """Number of regressions of each target without a fit."""
    choices: list[dict[str, Any]] = field(default_factory=list)
    """What an average chose: `forecast` (target and lead time), `crps` of all that was tried, `chosen`."""

    def count(
        self, fitted: Tensor, known: Tensor, penalised: Tensor, lead: int, name: str, needed: int, target: str
    ) -> None:
        """Count the cells of one lead time and target from masks (H, W): where there is a fit, a case, a penalised fit.

        Raises `TooFewCasesError` if there are cases but no cell has a fit.
        """
        unfitted, regressions = int((known & ~fitted).sum()), int(known.sum())
        if regressions and unfitted == regressions:
            raise TooFewCasesError(
                f"{name} cannot be fitted in any cell at lead time {lead} h: a cell needs {needed} training cases "
                "whose truth varies; add training years"
            )
        self.regressions += regressions
        self.unfitted[target] += unfitted
        self.penalised[target] += int(penalised.sum())


def count_unfitted(reports: Iterable[FitReport]) -> dict[str, Any]:
    """Return the number of regressions without a fit as `cells` and of all as `of`; {} if there are no regressions.

    `targets` has the number of unfitted and `penalised` of penalised regressions of each target, if there are any.
    """
    reports = list(reports)
    if not (of := sum(report.regressions for report in reports)):
        return {}
    targets, penalised = Counter[str](), Counter[str]()
    for report in reports:
        targets += report.unfitted  # an addition of counters leaves out zeros
        penalised += report.penalised
    further = {name: dict(counts) for name, counts in (("targets", targets), ("penalised", penalised)) if counts}
    return {"cells": targets.total(), "of": of} | further


def add_unfitted(counts: Iterable[Mapping[str, Any]]) -> dict[str, Any]:
    """Return the sum of several `count_unfitted`."""
    total: dict[str, Any] = {}
    for one in counts:
        for name, value in one.items():
            old = total.get(name, 0)
            total[name] = old + value if isinstance(value, int) else dict(Counter(old or {}) + Counter(value))
    return total


@dataclass(frozen=True)
class Passes(Iterable[Sample]):
    """Batches of all training samples, which a fit can read several times, as whole tiles or as some rows of them."""

    begin: Callable[[slice], Iterator[Sample]]
    """Starts a pass that reads these rows of this rank's tile."""
    rows: int
    """Number of rows of this rank's tile."""
    init_time: Tensor
    """(N,) initial times of all samples, seconds since 1970-01-01 UTC."""
    lead_time: Tensor
    """(N,) lead times of all samples in hours."""

    @classmethod
    def of(cls, batches: Iterable[Sample]) -> Passes:
        """Return passes as they are, and other batches as passes over copies in memory."""
        if isinstance(batches, Passes):
            return batches
        kept = list(batches)
        times = (torch.cat([getattr(batch, name) for batch in kept]) for name in ("init_time", "lead_time"))
        return cls(lambda rows: (select_rows(batch, rows) for batch in kept), kept[0].target.shape[-2], *times)

    def __iter__(self) -> Iterator[Sample]:
        return self.begin(ALL)

    def blocks(self, row_bytes: int) -> list[slice]:
        """Return blocks of rows of about `CASES_BYTES` each, where the cases of one row take `row_bytes`."""
        size = max(1, CASES_BYTES // max(row_bytes, 1))
        return [slice(first, min(first + size, self.rows)) for first in range(0, self.rows, size)]

    def check_lead_times(self, task: Task) -> None:
        """Raise `InputError` for a sample whose lead time is not in the task, and for a lead time without samples."""
        found = set(self.lead_time.tolist())
        check_lead_times(torch.tensor(sorted(found)), task)
        for lead in task.lead_times:
            if lead not in found:
                raise InputError(
                    f"no training sample has the lead time {lead} h of task {task.name}; add years, or remove this "
                    "lead time from the task"
                )

    def days(self, lead: int) -> Tensor:
        """Return the days of the year (1 to 366) of the valid times of all samples with this lead time."""
        own = self.lead_time == lead
        return day_of_year(self.init_time[own], self.lead_time[own])


def gather(
    passes: Passes, task: Task, pick: Callable[[Sample], tuple[Tensor, ...]], rows: slice = ALL
) -> list[tuple[Tensor, ...]]:
    """Read all samples; return for each lead time of the task the tensors (N, ...) that `pick` returns.

    `pick` gets a batch of these rows and returns tensors with the same first dimension B. Nothing else is kept in
    memory.
    """
    passes.check_lead_times(task)
    parts: list[list[tuple[Tensor, ...]]] = [[] for _ in task.lead_times]
    for batch in passes.begin(rows):
        picked = pick(batch)
        index = lead_index(batch.lead_time, task)
        for lead in index.unique().tolist():
            parts[lead].append(tuple(tensor[index == lead] for tensor in picked))
    return [tuple(torch.cat(tensors) for tensors in zip(*found, strict=True)) for found in parts]


def shared_fit_cells(starts: int, shape: tuple[int, int]) -> Tensor:
    """Return the indices (S,), row by row, of the cells to which shared coefficients are fitted.

    These are all cells, or every n-th cell if there would be more than `SHARED_CASES` cases. n has no factor in common
    with the number of columns, so that the cells lie on all meridians alike.

    >>> shared_fit_cells(2, (3, 4))
    tensor([ 0,  1,  2,  3,  4,  5,  6,  7,  8,  9, 10, 11])
    """
    H, W = shape
    step = max(1, math.ceil(starts * H * W / SHARED_CASES))
    while math.gcd(step, W) > 1:
        step += 1
    return torch.arange(0, H * W, step)


def shared_fit_note(cells: Tensor | None, shape: tuple[int, int]) -> str | None:
    """Return a note for the user if shared coefficients are fitted to some cells of the grid only."""
    H, W = shape
    if cells is None or len(cells) == H * W:
        return None
    return (
        f"the coefficients that all cells share are fitted to {len(cells)} of {H * W} cells, spread evenly over the "
        "grid, to save memory"
    )


def lead_index(lead_time: Tensor, task: Task) -> Tensor:
    """Return the index (B,) of each lead time (B,) in the task, and L for a lead time that the task lacks.

    Indexing a table of L lead times with L fails. Nothing is read back from the device; `check_lead_times` does that.
    """
    leads = task.lead_times
    index = sum(((lead_time > lead).long() for lead in leads), torch.zeros_like(lead_time))
    known = sum(((lead_time == lead).long() for lead in leads), torch.zeros_like(lead_time))
    return torch.where(known > 0, index, len(leads))


def check_lead_times(lead_time: Tensor, task: Task) -> None:
    """Raise `InputError` for lead times (B,) that the task lacks; reads the values, so pass a tensor on the CPU."""
    for lead in lead_time.tolist():
        if lead not in task.lead_times:
            known = ", ".join(map(str, task.lead_times))
            raise InputError(f"lead time {lead} h is not one of task {task.name} ({known} h)")


def longest_gap(days: Tensor) -> float:
    """Return the longest time without a case, in days, for days of the year (N,) from 1 to 366.

    >>> longest_gap(torch.tensor([1, 11, 31]))
    335.25
    """
    ordered = days.unique().double()
    return float(torch.cat([ordered.diff(), ordered[:1] + YEAR - ordered[-1:]]).max())


def covers_year(days: Tensor, harmonics: int = 1) -> bool:
    """Return whether cases on these days of the year (N,) determine an annual cycle with so many harmonics."""
    return longest_gap(days) * max(harmonics, 1) <= LONGEST_GAP


def of_one_season(valid: Tensor) -> bool:
    """Return whether cases (N,) with these valid times, seconds since 1970, are of one part of a single year.

    >>> of_one_season(86400 * torch.arange(90)), of_one_season(86400 * torch.arange(400))
    (True, False)
    """
    if not len(valid):
        return False
    one_year = int(valid.max() - valid.min()) < 86400 * 1.5 * YEAR
    return one_year and not covers_year(day_of_year(valid, torch.zeros_like(valid)))


def season_note(task: Task, covered: Sequence[bool]) -> str | None:
    """Return a note for the user if the cases of some lead time do not cover the year."""
    if all(covered):
        return None
    leads = ", ".join(str(lead) for lead, all_year in zip(task.lead_times, covered, strict=True) if not all_year)
    return (
        f"the training cases do not cover the year (lead time {leads} h): the fit has no annual cycle and may be wrong "
        "in the missing seasons; add training cases of the whole year"
    )
