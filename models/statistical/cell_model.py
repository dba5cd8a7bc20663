"""Base of models with a regression for each lead time, target and grid cell, or for all cells together."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

import torch
from torch import Tensor, nn

from data_pipeline.common.checks import per_target
from data_pipeline.grid import Grid
from data_pipeline.sample import Sample
from data_pipeline.task import Task
from models.parallel.domain import Domain
from models.parallel.exchange import assemble
from models.statistical.cases import FitReport, Passes, gather, season_note
from models.statistical.regression import Regression

LowerOption = float | Sequence[float | None] | None


def regressions(
    task: Task, family: str | Sequence[str], scale: str | Sequence[str], score: str, lower: LowerOption
) -> list[Regression]:
    """Return the regression of each target; raise `InputError` for a wrong option, or a family without its bound."""
    options = {"family": family, "scale": scale, "lower": lower}
    columns = [per_target(value, len(task.targets), name) for name, value in options.items()]
    found = []
    for own_family, own_scale, bound in zip(*columns, strict=True):
        found.append(Regression(own_family, own_scale, score))
        found[-1].check_lower(bound)
    return found


class LeadCases(NamedTuple):
    """The training cases of one lead time in order of time, for some rows of a tile or some cells of the grid."""

    valid: Tensor
    """(N,) valid times, seconds since 1970-01-01 UTC."""
    times: list[Tensor]
    """The `training_times`, (N, ...) each."""
    fields: list[Tensor]
    """The `training_fields`, (N, X, h, w) each, or (N, X, S) at S cells of the grid."""
    static: Tensor
    """(S, h, w) static fields of the rows."""

    def at(self, cells: Tensor) -> LeadCases:
        """Return the cases at some cells, by their index row by row."""
        return self._replace(fields=[values.flatten(-2)[..., cells] for values in self.fields])


class CellModel(nn.Module):
    """Corrects a forecast by regressions with `coefficients` (L, P, T, H, W), or (..., 1, 1) if cells share them.

    A subclass implements `forward`, `fit`, `training_times` and `training_fields`. `lower` is the lower bound of a
    bounded family in the target's units, or a list with a bound or None for each target.
    """

    coefficients: Tensor
    lower: Tensor | None
    """(T, H, W) lower bound in the units of the samples; 0 for targets without one."""
    report: FitReport

    def __init__(self, task: Task, grid: Grid | Domain, coefficients: Tensor, lower: LowerOption = None) -> None:
        super().__init__()
        self._task, self._domain, self._targets = task, Domain.of(grid), list(task.target_channels)
        self.report = FitReport()
        self.register_buffer("coefficients", coefficients)
        self._bounds = per_target(lower, len(task.targets), "lower")
        bound = torch.tensor([float(bound or 0) for bound in self._bounds])[:, None, None].expand(-1, *grid.shape)
        self.register_buffer("lower", bound.clone() if set(self._bounds) != {None} else None)
        self._area = torch.tensor(self._domain.grid.weights)[:, None].expand(grid.shape)

    def normalise(self, location: Tensor, scale: Tensor) -> None:
        """Convert the lower bound to the units of the samples, (x - location) / scale."""
        if self.lower is not None:
            bounds = torch.tensor([float(bound or 0) for bound in self._bounds]).to(location)[:, None, None]
            self.lower.copy_(assemble((bounds - location) / scale, self._domain))

    def training_times(self, sample: Sample) -> list[Tensor]:
        """Return what a fit needs of the times of a batch, (B, ...) each."""
        raise NotImplementedError

    def training_fields(self, sample: Sample) -> list[Tensor]:
        """Return what a fit needs of the fields of a batch, (B, X, h, w) each."""
        raise NotImplementedError

    def read_cases(self, passes: Passes, rows: slice, cells: Tensor | None = None) -> Iterator[LeadCases]:
        """Read some rows of this rank's tile, or `cells` (S,) of the whole grid; yield the cases of each lead time.

        With `cells`, all ranks must call this together, because each of them gets the cells of all tiles.
        """
        static, count = torch.empty(0), 0

        def pick(sample: Sample) -> tuple[Tensor, ...]:
            nonlocal static, count
            times, fields = self.training_times(sample), self.training_fields(sample)
            static, count = sample.static[0], len(times)
            if cells is not None:
                fields = [assemble(values, self._domain).flatten(-2)[..., cells] for values in fields]
            return sample.init_time + 3600 * sample.lead_time, *times, *fields

        for unordered in gather(passes, self._task, pick, rows):
            order = unordered[0].argsort(stable=True)
            valid, *others = (values[order] for values in unordered)
            yield LeadCases(valid, others[:count], others[count:], static)

    def lower_bound(self, target: int, rows: slice, cells: Tensor | None = None) -> Tensor | None:
        """Return the lower bound (K,) of a target at the cells of `read_cases`."""
        if self.lower is None or self._bounds[target] is None:
            return None
        if cells is not None:
            return self.lower[target].flatten()[cells]
        return self._domain.cut(self.lower)[target, rows].flatten()

    def cell_area(self, rows: slice, cells: Tensor | None = None) -> Tensor:
        """Return the relative area (K,), float64, of the cells of `read_cases`."""
        return self._area.flatten()[cells] if cells is not None else self._domain.cut(self._area)[rows].flatten()

    def set_report(
        self,
        fitted: Tensor,
        known: Tensor,
        penalised: Tensor,
        name: str,
        needed: Sequence[int],
        seasonal: Sequence[bool],
        notes: Sequence[str | None] = (),
    ) -> None:
        """Set `report` from masks (L, T, H, W): where there is a fit, a case, a penalised fit (`Regression.fit`).

        `needed` is the number of cases that a cell needs at each lead time, `seasonal` says where the cases cover the
        year. Raises `TooFewCasesError` for a lead time and target with cases but without a fit.
        """
        self.report = FitReport([note for note in [*notes, season_note(self._task, seasonal)] if note])
        for lead, hours in enumerate(self._task.lead_times):
            for t, target in enumerate(self._task.targets):
                where = fitted[lead, t], known[lead, t], penalised[lead, t]
                self.report.count(*where, hours, name, needed[lead], str(target))
