"""Training cases for models that are fitted at once: by lead time, in blocks of rows that fit into memory."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from data_pipeline.bands import rows_of
from data_pipeline.common.errors import InputError
from data_pipeline.protocols import ALL
from data_pipeline.sample import Sample
from data_pipeline.task import Task
from models.statistical.predictors import YEAR, day_of_year

MEMORY = 2**27
"""Bytes of training cases that a fit keeps at a time; twice as many while they are put together."""
LARGEST_GAP = 120
"""Days without a case for which an annual cycle is still interpolated.

The variance of a regression on 1, cos and sin is at most 3σ²/N if the N cases cover the whole year, 9.6σ²/N within a
gap of 120 days and 29σ²/N within one of half a year. With k harmonics gaps must be k times shorter.
"""


SHARED_CASES = 2**22
"""About the most cases to which coefficients that all cells share are fitted.

They are a few numbers: with 4 million cases of which one in a hundred is independent, the standard error of the bias
is half a per cent of the error's standard deviation. Newton's method keeps some 100 bytes for each case.
"""


class TooFewCasesError(InputError):
    """A model that is fitted at once has too few training cases in every cell."""


@dataclass
class Report:
    """What a fit left out."""

    notes: list[str] = field(default_factory=list)
    """Sentences for the user."""
    cells: int = 0
    """How many regressions (one for each lead time, target and cell with training cases) could not be fitted."""
    of: int = 0
    """How many there are; 0 for a model without regressions."""

    def count(self, fitted: Tensor, known: Tensor, lead: int, what: str, needed: int) -> None:
        """Count the cells of one lead time and target, given where (H, W) there is a fit and where there are cases.

        Raises `TooFewCasesError` if there are cases but no cell was fitted.
        """
        cells, of = int((known & ~fitted).sum()), int(known.sum())
        if of and cells == of:
            raise TooFewCasesError(
                f"{what} cannot be fitted in any cell at lead time {lead} h: a cell needs {needed} training cases "
                "whose truth varies; add training years"
            )
        self.cells, self.of = self.cells + cells, self.of + of


@dataclass(frozen=True)
class Passes(Iterable[Sample]):
    """Batches of the training samples, which can be read as often as a fit needs, whole or by rows.

    `begin(rows)` starts a pass that reads these rows of the own tile; `rows` says how many the tile has, and
    `init_time` and `lead_time` (N,) are those of all samples.
    """

    begin: Callable[[slice], Iterator[Sample]]
    rows: int
    init_time: Tensor
    lead_time: Tensor

    @classmethod
    def of(cls, batches: Iterable[Sample]) -> Passes:
        """Return passes as they are, any other batches as passes over memory."""
        if isinstance(batches, Passes):
            return batches
        kept = list(batches)
        times = (torch.cat([getattr(batch, name) for batch in kept]) for name in ("init_time", "lead_time"))
        return cls(lambda rows: (rows_of(batch, rows) for batch in kept), kept[0].target.shape[-2], *times)

    def __iter__(self) -> Iterator[Sample]:
        return self.begin(ALL)

    def blocks(self, row_bytes: int) -> list[slice]:
        """Cut the rows into blocks of about `MEMORY` bytes, if one row takes `row_bytes` in all."""
        size = max(1, MEMORY // max(row_bytes, 1))
        return [slice(first, min(first + size, self.rows)) for first in range(0, self.rows, size)]

    def check_leads(self, task: Task) -> None:
        """Refuse samples of other lead times than the task's, and a lead time without samples."""
        found = set(self.lead_time.tolist())
        known = ", ".join(map(str, task.lead_times))
        for lead in sorted(found - set(task.lead_times)):
            raise InputError(f"lead time {lead} h is not one of task {task.name} ({known} h)")
        for lead in task.lead_times:
            if lead not in found:
                raise InputError(
                    f"no training sample has the lead time {lead} h of task {task.name}; add years or drop it"
                )

    def days(self, lead: int) -> Tensor:
        """Return the days of the year, 1 to 366, on which the samples of a lead time are valid."""
        own = self.lead_time == lead
        return day_of_year(self.init_time[own], self.lead_time[own])


def gather(
    passes: Passes, task: Task, pick: Callable[[Sample], tuple[Tensor, ...]], rows: slice = ALL
) -> list[tuple[Tensor, ...]]:
    """Return, for each lead time of the task, what `pick` takes of its samples: tensors (N, ...).

    `pick` gets a batch of these rows and returns tensors with its leading B: only these stay in memory.
    """
    passes.check_leads(task)
    parts: list[list[tuple[Tensor, ...]]] = [[] for _ in task.lead_times]
    for batch in passes.begin(rows):
        picked = pick(batch)
        index = lead_index(batch.lead_time, task)
        for lead in index.unique().tolist():
            parts[lead].append(tuple(tensor[index == lead] for tensor in picked))
    return [tuple(torch.cat(tensors) for tensors in zip(*found, strict=True)) for found in parts]


def sharing_cells(starts: int, shape: tuple[int, int]) -> Tensor:
    """Return the numbers (S,) of the cells, row by row, to which coefficients that all share are fitted.

    Those are all, or every n-th if they would make more than `SHARED_CASES` cases. n has no factor in common with the
    number of columns, so that the cells lie on all meridians alike.

    >>> sharing_cells(2, (3, 4))
    tensor([ 0,  1,  2,  3,  4,  5,  6,  7,  8,  9, 10, 11])
    """
    H, W = shape
    step = max(1, math.ceil(starts * H * W / SHARED_CASES))
    while math.gcd(step, W) > 1:
        step += 1
    return torch.arange(0, H * W, step)


def sharing_note(cells: Tensor | None, shape: tuple[int, int]) -> str | None:
    """Return a sentence for the user if only some of the cells of the grid share in the fit of what all share."""
    H, W = shape
    if cells is None or len(cells) == H * W:
        return None
    return (
        f"the coefficients that all cells share are fitted to {len(cells)} of {H * W} cells, spread evenly over the "
        "grid, to save memory"
    )


def lead_index(lead_time: Tensor, task: Task) -> Tensor:
    """Return the position (B,) of each lead time (B,) in the task.

    A lead time that the task lacks has the position L, which no table of L lead times has: indexing fails. Nothing is
    read back from the device; a refusal in words is up to `check_leads`.
    """
    leads = task.lead_times
    index = sum(((lead_time > lead).long() for lead in leads), torch.zeros_like(lead_time))
    known = sum(((lead_time == lead).long() for lead in leads), torch.zeros_like(lead_time))
    return torch.where(known > 0, index, len(leads))


def check_leads(lead_time: Tensor, task: Task) -> None:
    """Refuse lead times (B,) that the task lacks; reads them, so that it belongs where forecasts come in."""
    for lead in lead_time.tolist():
        if lead not in task.lead_times:
            known = ", ".join(map(str, task.lead_times))
            raise InputError(f"lead time {lead} h is not one of task {task.name} ({known} h)")


def largest_gap(days: Tensor) -> float:
    """Return the longest time without a case, in days, for days of the year (N,) from 1 to 366.

    >>> largest_gap(torch.tensor([1, 11, 31]))
    335.25
    """
    ordered = days.unique().double()
    return float(torch.cat([ordered.diff(), ordered[:1] + YEAR - ordered[-1:]]).max())


def covers_year(days: Tensor, harmonics: int = 1) -> bool:
    """Return whether cases on these days of the year (N,) tell an annual cycle of so many harmonics."""
    return largest_gap(days) * max(harmonics, 1) <= LARGEST_GAP


def not_seasonal(task: Task, covered: Sequence[bool]) -> str | None:
    """Return a sentence for the user about lead times whose cases do not cover the year, if there are any."""
    if all(covered):
        return None
    leads = ", ".join(str(lead) for lead, all_year in zip(task.lead_times, covered, strict=True) if not all_year)
    return (
        f"the training cases do not cover the year (lead time {leads} h): what is fitted beforehand has no annual "
        "cycle, and knows nothing of the seasons that are missing"
    )
