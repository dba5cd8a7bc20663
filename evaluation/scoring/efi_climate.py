"""The climate of the ensemble, from which the extreme forecast index (EFI) of the raw members is computed."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import get_args

import numpy as np
import torch
from torch import Tensor

from data_pipeline.common.checks import check_choice
from data_pipeline.common.errors import InputError
from data_pipeline.dates import Dates, climatology_day
from data_pipeline.grid import Grid
from data_pipeline.sample import Sample, select_channels
from data_pipeline.statistics.efi import CLIMATE_PROBABILITIES, Form, extreme_forecast_index, traces
from data_pipeline.statistics.statistic_file import load_statistic, remedy_for
from data_pipeline.task import Task
from models.parallel.domain import Domain

_REMEDY = remedy_for("efi")


@dataclass(frozen=True, eq=False)
class ModelClimate:
    """Quantiles of the members of the training years on this rank's tile, (lead time, day, quantile, T, H, W).

    `days` are the days of the year on which forecasts start. Called with a batch, it returns the EFI of the raw members
    of the targets (B, T, H, W), NaN where a member or the climate is missing.
    """

    values: np.ndarray
    days: tuple[int, ...]
    task: Task
    form: Form = "exact"

    def __call__(self, batch: Sample) -> Tensor:
        """Return the EFI of the raw members of a batch."""
        starts = climatology_day(batch.init_time.cpu().numpy().astype("datetime64[s]"))
        channels, eps = self.task.target_channels, traces(self.task.targets)
        found = []
        for b, (day, lead) in enumerate(zip(starts.tolist(), batch.lead_time.tolist(), strict=True)):
            if day not in self.days:
                raise InputError(f"the climate of efi_climate has no start on day {day} of the year; {_REMEDY}")
            climate = self.values[self.task.lead_times.index(lead), self.days.index(day)]
            known, values = select_channels(batch.mask[b], channels, 0), select_channels(batch.ensemble[b], channels, 1)
            members = torch.where(known, values, torch.nan).cpu().numpy()
            found.append(extreme_forecast_index(members, climate, self.form, eps, CLIMATE_PROBABILITIES))
        return torch.from_numpy(np.stack(found)).to(batch.target.device)


def load_model_climate(
    path: str | Path, form: str, domain: Domain, task: Task, training: Dates, scored: Dates, fingerprint: str
) -> ModelClimate:
    """Read the climate that `prepare` wrote, on this rank's tile.

    Refuses a climate of `scored` dates, of other dates than the `training` dates, of other data than `fingerprint`, on
    another grid, or without a target or a lead time.
    """
    check_choice("efi_form", form, get_args(Form))
    file = load_statistic(path, "efi")
    made = json.loads(file.attrs["made_from"])
    known = Dates.from_json(made["dates"])
    if shared := known.first_shared(scored):
        raise InputError(f"efi_climate: {path} is the climate of {known}, and {shared} is a scored date; {_REMEDY}")
    if other := known.first_not_in(training):
        raise InputError(
            f"efi_climate: {path} is the climate of {known}, and {other} is not among the training dates {training}; "
            f"{_REMEDY}"
        )
    if made["data"] != fingerprint:
        raise InputError(f"efi_climate: {path} is the climate of other forecasts than those of data; {_REMEDY}")
    targets = [str(target) for target in task.targets]
    for name, wanted, there in (
        ("lead time", list(task.lead_times), file.lead_time.values.tolist()),
        ("target", targets, file.variable.values.tolist()),
    ):
        if absent := [value for value in wanted if value not in there]:
            raise InputError(f"efi_climate: {path} has no {name} {absent[0]}; {_REMEDY}")
    if not Grid(tuple(file.latitude.values), tuple(file.longitude.values)).matches(domain.grid):
        raise InputError(f"efi_climate: {path} is a climate on another grid than {domain.grid}; {_REMEDY}")
    rows, columns = domain.tile
    part = file.climate.sel(variable=targets, lead_time=list(task.lead_times)).isel(latitude=rows, longitude=columns)
    values = part.transpose("lead_time", "day", "quantile", "variable", "latitude", "longitude").values
    return ModelClimate(values, tuple(file.day.values.tolist()), task, form)  # type: ignore[arg-type]
