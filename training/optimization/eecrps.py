"""EECRPS: the CRPS weighted by how extreme the raw forecast is, for users who warn of extremes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import torch
from torch import Tensor

from data_pipeline.common.errors import InputError
from data_pipeline.dates import DAYS_PER_YEAR, Dates, climatology_day
from data_pipeline.sample import Sample, select_channels
from data_pipeline.statistics.efi import CLIMATE_PROBABILITIES, index_of_shares, traces
from data_pipeline.statistics.statistic_file import load_for_run, remedy_for
from data_pipeline.task import Task
from models.distribution import Distribution
from models.normalizer import Normalizer
from models.parallel.domain import Domain
from models.statistical import predictors
from models.statistical.cases import lead_index
from training.optimization.loss import Loss

_REMEDY = remedy_for("efi")


@dataclass(frozen=True)
class EECRPS(Loss):
    """|EFI| CRPS in every cell (Ashkboos et al. 2022, arXiv:2206.14786): forecasts near climatology have little weight.

    The extreme forecast index (EFI) compares the raw members with the `climate` of their start day, the file `efi.nc`
    of `deepweather prepare`. The climate must cover all training dates and no other dates.
    """

    climate: str | None = None

    reads_members: ClassVar[bool] = True

    def load(self, domain: Domain, task: Task, dates: Dates, fingerprint: str) -> WeightedByIndex:
        """Return the loss with the climate of this rank's tile; refuse one of other data, dates, grid or targets."""
        if self.climate is None:
            raise InputError(
                "loss=eecrps needs a climate: set loss.climate to a file efi.nc, or statistics to its folder; "
                + _REMEDY
            )
        file = load_for_run(self.climate, "efi", dates, fingerprint, domain.grid)
        targets = [str(target) for target in task.targets]
        there = {"lead time": file.lead_time.values.tolist(), "target": file.variable.values.tolist()}
        for name, wanted in (("lead time", task.lead_times), ("target", targets)):
            if absent := [value for value in wanted if value not in there[name]]:
                raise InputError(f"{self.climate} is a climate without the {name} {absent[0]}; {_REMEDY}")
        rows, columns = domain.tile
        part = file.climate.sel(variable=targets, lead_time=list(task.lead_times)).isel(
            latitude=rows, longitude=columns
        )
        values = part.transpose("lead_time", "day", "quantile", "variable", "latitude", "longitude").values
        return WeightedByIndex(
            torch.from_numpy(values), tuple(file.day.values.tolist()), task, dates.days, weighting=self.weighting
        )


@dataclass(frozen=True, eq=False)
class WeightedByIndex(Loss):
    """`EECRPS` with its `climate` in memory: (lead time, day, quantile, T, H, W), physical units, forecasts on `dates`.

    The climate is copied to the device of the samples once and kept there.
    """

    climate: Tensor
    days: tuple[int, ...]
    task: Task
    dates: Dates = Dates(())  # noqa: RUF009 (Dates are frozen)

    reads_members: ClassVar[bool] = True

    def __post_init__(self) -> None:
        super().__post_init__()
        position = torch.full((DAYS_PER_YEAR + 1,), -1)
        position[list(self.days)] = torch.arange(len(self.days))
        eps = torch.from_numpy(traces(self.task.targets))
        object.__setattr__(self, "_tables", {self.climate.device: (self.climate, position, eps)})

    def __deepcopy__(self, memo: dict[int, Any]) -> WeightedByIndex:
        """Return the object itself: it is immutable, and its climate is large."""
        return self

    def check_starts(self, starts: np.ndarray) -> None:
        """Refuse forecasts that start on a day of the year that the climate does not have."""
        if absent := sorted(set(climatology_day(starts).tolist()) - set(self.days)):
            raise InputError(f"the climate of loss.climate has no start on day {absent[0]} of the year; {_REMEDY}")

    def __call__(self, forecast: Distribution, sample: Sample, normalizer: Normalizer) -> Tensor:
        """|EFI| CRPS in every cell; 0 where a member or the climate is missing, because the EFI is unknown there."""
        known = select_channels(sample.mask, self.task.target_channels, 1)
        weight = self.index(sample, normalizer).abs().nan_to_num(0).to(sample.target)
        # A start day without climate is an error, not a missing value: its loss is NaN, which ends the run.
        lost = (self._positions(sample) < 0)[:, None, None, None]
        return weight.where(known, 0).masked_fill(lost, torch.nan) * forecast.crps(sample.target)

    def index(self, sample: Sample, normalizer: Normalizer) -> Tensor:
        """Return the index (B, T, H, W) of a batch; NaN where a member or the climate is missing."""
        members = select_channels(sample.ensemble, self.task.target_channels, 2)
        climate, _, eps = self._on(members.device)
        # Normalised by the same operations as the members, so that a member equal to a quantile stays equal to it.
        chosen = climate[lead_index(sample.lead_time, self.task), self._positions(sample).clamp(min=0)]
        return efi(members, normalizer.normalise_targets(chosen.to(members)), chosen > eps)

    def _positions(self, sample: Sample) -> Tensor:
        """Return the positions (B,) of the start days in the climate, -1 for a day that it lacks."""
        return self._on(sample.init_time.device)[1][start_day(sample.init_time)]

    def _on(self, device: torch.device) -> tuple[Tensor, ...]:
        """Return the climate, the positions of days in it, and the eps of the targets on a device."""
        tables: dict[torch.device, tuple[Tensor, ...]] = self.__dict__["_tables"]
        if device not in tables:
            tables[device] = tuple(table.to(device) for table in tables[self.climate.device])
        return tables[device]


def efi(members: Tensor, climate: Tensor, wet: Tensor) -> Tensor:
    """Return the extreme forecast index (B, ...) of members (B, M, ...) against quantiles of the climate (B, Q, ...).

    The same as the exact `data_pipeline.statistics.efi.extreme_forecast_index`, on any device, also for transformed
    values: `wet` (B, Q, ...) is True where a quantile is above its eps.
    """
    missing = ~(members.isfinite().all(1) & climate.isfinite().all(1))
    quantiles = climate[:, :, None].unbind(1)
    below = ((members < quantile).double().mean(1) for quantile in quantiles)
    equal = ((members == quantile).double().mean(1) for quantile in quantiles)
    index = index_of_shares(below, equal, wet.double().unbind(1), CLIMATE_PROBABILITIES)
    return index.masked_fill(missing, torch.nan)


def start_day(init_time: Tensor) -> Tensor:
    """Return the day of the year of each start (B,), 1 to 365, for 1901 to 2099: 29 February counts as the 28th.

    >>> start_day(torch.tensor([1456704000, 1456790400]))  # 29 February and 1 March 2016
    tensor([59, 60])
    """
    day = predictors.day_of_year(init_time, torch.zeros_like(init_time))
    days = init_time.div(predictors.SECONDS_PER_DAY, rounding_mode="floor")
    cycle = (days + predictors.EPOCH).remainder(predictors.FOUR_YEARS)
    leap = cycle >= 3 * 365
    return day - (leap & (day > 59)).to(day)
