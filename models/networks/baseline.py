"""Baseline: the mean and spread that the head of a network corrects."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from data_pipeline.common.checks import construct
from data_pipeline.common.errors import InputError
from data_pipeline.common.progress import watched
from data_pipeline.grid import Grid
from data_pipeline.sample import Sample, select_channels
from data_pipeline.task import Task
from models.distribution import GAMMA, Distribution, LocationScale
from models.networks.climate_weights import RAW_WEIGHTS, LeftOutCase, fit_weights
from models.networks.error_climate import EnsembleClimate, ErrorClimate, error_size
from models.parallel.domain import Domain
from models.parallel.exchange import allsum
from models.statistical.cases import FitReport, Passes, lead_index
from models.statistical.crossfit import CrossFitted, single_year_note, year_folds
from models.statistical.emos import EMOS
from models.statistical.predictors import SMALLEST_SPREAD, spread

YEAR_GROUPS = 4
"""Number of groups of training years; EMOS is fitted once without each group."""
CASES_OF_CLIMATE = 10
"""Training cases that a cell needs at a lead time before the climate baseline corrects the raw ensemble there.

The three coefficients of a cell need a few more cases than three; how far they are trusted is fitted over all cells.
"""

BaselineOption = str | dict[str, Any] | None
"""Value of the option `model.baseline`."""


def make_baseline(option: BaselineOption, task: Task, grid: Grid | Domain) -> Baseline:
    """Return the baseline: `climate`, EMOS for options of `EMOS`, or the raw ensemble."""
    if option is None:
        return Baseline(task)
    if option == "climate":
        return ClimateBaseline(task, grid)
    if not isinstance(option, Mapping):
        raise InputError(
            f"model.baseline must be climate, null or options of emos such as {{shared: true}}, got {option!r}"
        )
    return EMOSBaseline(task, grid, option)


class Baseline(nn.Module):
    """Mean and spread of the raw ensemble; base class of other baselines."""

    def __init__(self, task: Task) -> None:
        super().__init__()
        self._targets = list(task.target_channels)

    def forward(self, sample: Sample, errors: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """Return mean and spread (B, T, H, W); the spread is never zero. `errors` come from `ErrorClimate`."""
        m, s = self._moments(sample, errors)
        return m, torch.sqrt(s.square() + SMALLEST_SPREAD**2)

    def normalise(self, location: Tensor, scale: Tensor) -> None:
        """Set the units (x - location)/scale of samples, if they matter."""

    def fit(self, batches: Iterable[Sample], errors: ErrorClimate | None = None) -> None:
        """Fit the past errors of the network's features, and the baseline, if it has something to fit."""
        if errors is not None:
            errors.fit(batches)

    def _moments(self, sample: Sample, errors: Tensor | None) -> tuple[Tensor, Tensor]:
        members = select_channels(sample.ensemble, self._targets, 2)
        return members.mean(1), spread(members)


class ClimateBaseline(Baseline):
    """Mean and spread of the raw ensemble, corrected by the error climate that networks read as features.

    With the mean m and the spread s of the ensemble, the expected error b (bias with an annual cycle), the size R of
    the remaining errors (`ErrorClimate`) and the mean k of m in past years (`EnsembleClimate`), the mean is
    m + λ b - κ (m - k) and the variance α s² + β R² + γ. All cells share the five `weights`, which are fitted to
    left-out years (`fit_weights`): with few cases λ is small, and for an ensemble without skill κ is one, the
    climatology. So a network need not learn what a mean over past cases shows, and its outputs are in units of the
    expected errors. In training the climates are those of the other years. A cell with fewer than `CASES_OF_CLIMATE`
    cases keeps the raw ensemble.
    """

    known: Tensor
    weights: Tensor
    """λ, κ, α, β, γ for each lead time and target, (5, L, T)."""

    def __init__(self, task: Task, grid: Grid | Domain) -> None:
        super().__init__(task)
        self._task, self._domain = task, Domain.of(grid)
        L, T = len(task.lead_times), len(task.targets)
        self.climate = EnsembleClimate(task, grid)
        self.register_buffer("known", torch.zeros(L, T, *grid.shape))
        self.register_buffer("weights", torch.tensor(RAW_WEIGHTS)[:, None, None].expand(-1, L, T).contiguous())
        self.report = FitReport()

    @torch.no_grad()
    def fit(self, batches: Iterable[Sample], errors: ErrorClimate | None = None) -> None:
        """Fit past errors, ensemble climate and weights; `report` has a note if no cell has enough cases."""
        assert errors is not None
        passes = Passes.of(batches)
        cases = errors.fit(passes, self.climate)
        self.known.copy_(cases >= CASES_OF_CLIMATE)
        most = int(cases.max())
        self.report = FitReport(
            []
            if most >= CASES_OF_CLIMATE
            else [
                f"model.baseline=climate needs {CASES_OF_CLIMATE} training cases of a cell, and there are {most}: "
                "training starts at the raw ensemble; add years, or set 'model.baseline={shared: true}' to start at "
                "an EMOS that all cells share"
            ]
        )
        area = torch.tensor(self._domain.grid.weights)[:, None].expand(self._domain.grid.shape)
        self.weights.copy_(
            fit_weights(
                watched(passes, "fit of the baseline: batch"),
                lambda sample: self._case(sample, errors),
                self._domain.cut(area),
                lambda sample: lead_index(sample.lead_time, self._task),
                len(self._task.lead_times),
                lambda sums: allsum(sums, self._domain),
            )
        )

    def corrected(self, values: Tensor, sample: Sample, errors: Tensor) -> Tensor:
        """Return values (B, ..., T, H, W) of the ensemble, its mean or members, corrected like the mean."""
        lam, kappa, *_ = self._weights(sample)
        shift = lam * errors.chunk(2, dim=1)[0]
        climate = self.climate(sample)
        if values.ndim > climate.ndim:
            shift, kappa, climate = shift[:, None], kappa[:, None], climate[:, None]
        return values + shift - kappa * (values - climate)

    def _case(self, sample: Sample, errors: ErrorClimate) -> LeftOutCase:
        """Return the errors of a batch and the climates of the other years; cells with too few cases have no error."""
        m, s = super()._moments(sample, None)
        known = self._known(sample) & select_channels(sample.mask, self._targets, 1)
        bias, size = errors(sample, held_out=True).chunk(2, dim=1)
        error = (sample.target - m).where(known, torch.nan)
        return LeftOutCase(error, bias, m - self.climate(sample, held_out=True), s, error_size(size))

    def _known(self, sample: Sample) -> Tensor:
        return self._domain.cut(self.known)[lead_index(sample.lead_time, self._task)] > 0

    def _weights(self, sample: Sample) -> tuple[Tensor, ...]:
        """Return λ, κ, α, β and γ, (B, T, H, W) each; those of the raw ensemble where there are too few cases."""
        known = self._known(sample)
        chosen = self.weights[:, lead_index(sample.lead_time, self._task), :, None, None]
        return tuple(torch.where(known, weight, raw) for weight, raw in zip(chosen, RAW_WEIGHTS, strict=True))

    def _moments(self, sample: Sample, errors: Tensor | None) -> tuple[Tensor, Tensor]:
        if errors is None:
            raise TypeError("the baseline climate needs the maps of ErrorClimate: head(output, sample, errors)")
        m, s = super()._moments(sample, errors)
        _, _, alpha, beta, gamma = self._weights(sample)
        size = error_size(errors.chunk(2, dim=1)[1])
        return self.corrected(m, sample, errors), torch.sqrt(alpha * s.square() + beta * size.square() + gamma)


class EMOSBaseline(Baseline):
    """Mean and spread of EMOS, which is fitted before the network is trained.

    Use it when there are few training cases, or when climatology beats the raw ensemble: far from the truth, gradient
    descent takes many steps and fits noise as well. In training mode a sample gets the EMOS that was fitted without
    its group of years (`CrossFitted`). There are `YEAR_GROUPS` groups, because one fit per year takes too long.
    """

    def __init__(self, task: Task, grid: Grid | Domain, options: dict[str, Any]) -> None:
        super().__init__(task)
        self.emos = construct("EMOS", partial(EMOS, task, grid), dict(options))
        if any(form.has_shift for form in self.emos.regressions):
            raise InputError(
                f"model.baseline has no family={GAMMA}: networks correct location and scale; set "
                "family=censored_logistic in model.baseline"
            )
        self.without = CrossFitted(Domain.of(grid), per_cell=self.emos.shared is not True)
        self.report = FitReport()
        self._task = task

    def normalise(self, location: Tensor, scale: Tensor) -> None:
        """Pass the units of samples to EMOS, which has a physical bound in them."""
        self.emos.normalise(location, scale)

    def fit(self, batches: Iterable[Sample], errors: ErrorClimate | None = None) -> None:
        """Fit EMOS to all samples, and without each group of years."""
        passes = Passes.of(batches)
        super().fit(passes, errors)
        ends = year_folds(passes, YEAR_GROUPS)
        table = self.emos.fit(passes, ends)
        assert table is not None
        self.without.set(table.flatten(0, 1), ends)
        self.report = FitReport([note for note in [single_year_note(passes)] if note])

    def _moments(self, sample: Sample, errors: Tensor | None) -> tuple[Tensor, Tensor]:
        if self.training and self.without.fitted:
            place = self.without.fold(sample) * len(self._task.lead_times) + lead_index(sample.lead_time, self._task)
            corrected = self.emos.predict(sample, self.without.table, place)
        else:
            corrected = self.emos(sample)
        return corrected.scored(lambda part: _moments(part)[0]), corrected.scored(lambda part: _moments(part)[1])


def _moments(part: Distribution) -> tuple[Tensor, Tensor]:
    """Return mean and standard deviation of a family before it is censored or truncated."""
    assert isinstance(part, LocationScale)
    return part.mu, part.sigma * part.standard.std
