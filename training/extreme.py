"""EECRPS: the CRPS, weighted by how extreme the raw forecast is; a loss for those who are warned of extremes."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import ClassVar, get_args

import numpy as np
import torch
from torch import Tensor

from data_pipeline.checks import one_of
from data_pipeline.errors import InputError
from data_pipeline.grid import Grid
from data_pipeline.sample import Sample
from data_pipeline.statistics.calendar import day_of_year
from data_pipeline.statistics.efi import Form, efi
from data_pipeline.statistics.file import load
from data_pipeline.task import Task
from models.cases import lead_index
from models.distribution import Distribution
from models.normalizer import Normalizer
from models.spatial.domain import Domain
from training.loss import Loss

AGAIN = "make it with deepweather prepare 'statistics=[efi]' and the same options of data and task"


@dataclass(frozen=True)
class EECRPS(Loss):
    """|EFI| CRPS in every cell (Ashkboos et al. 2022, arXiv:2206.14786): what is usual hardly counts.

    The extreme forecast index is that of the raw members against the `climate` of their start day, the file `efi.nc`
    of `deepweather prepare`. It must know all training years and no others. That of the own tile is kept in memory.
    """

    climate: str
    form: Form = "exact"

    reads_members: ClassVar[bool] = True

    def __post_init__(self) -> None:
        super().__post_init__()
        one_of("loss.form", self.form, get_args(Form))

    def on(self, domain: Domain, task: Task, years: Sequence[int], fingerprint: str) -> WeightedByIndex:
        """Return the loss for the own tile, its climate read; refuse that of other data, years, grids or targets."""
        file = load(self.climate, "efi")
        made = json.loads(file.attrs["made_from"])
        targets = [str(target) for target in task.targets]
        there = {"lead time": file.lead_time.values.tolist(), "target": file.variable.values.tolist()}
        for name, wanted in (("lead time", task.lead_times), ("target", targets)):
            if absent := [value for value in wanted if value not in there[name]]:
                raise InputError(f"{self.climate} is a climate without the {name} {absent[0]}; {AGAIN}")
        if made["years"] != list(years):
            known, training = ("-".join(map(str, pair)) for pair in (made["years"], years))
            raise InputError(f"{self.climate} is the climate of {known}, the training years are {training}; {AGAIN}")
        if made["data"] != fingerprint:
            raise InputError(f"{self.climate} is the climate of other forecasts than those of data; {AGAIN}")
        if not Grid(tuple(file.latitude.values), tuple(file.longitude.values)).matches(domain.grid):
            raise InputError(f"{self.climate} is a climate on another grid than {domain.grid}; {AGAIN}")
        rows, columns = domain.tile
        part = file.climate.sel(variable=targets, lead_time=list(task.lead_times)).isel(
            latitude=rows, longitude=columns
        )
        values = part.transpose("lead_time", "day", "quantile", "variable", "latitude", "longitude").values
        return WeightedByIndex(
            torch.from_numpy(values), tuple(file.day.values.tolist()), task, self.form, weighting=self.weighting
        )


@dataclass(frozen=True, eq=False)
class WeightedByIndex(Loss):
    """The loss of `EECRPS`, its `climate` at hand: (lead time, day, quantile, T, H, W) in physical units."""

    climate: Tensor
    days: tuple[int, ...]
    task: Task
    form: Form

    reads_members: ClassVar[bool] = True

    def __call__(self, forecast: Distribution, sample: Sample, normalizer: Normalizer) -> Tensor:
        """|EFI| CRPS in every cell; 0 where there is no index, because a member or the climate is missing."""
        weight = torch.from_numpy(np.stack([np.abs(index) for index in self.index(sample, normalizer)]))
        weight = weight.nan_to_num(0).to(sample.target).where(sample.mask[:, list(self.task.target_channels)], 0)
        return weight * forecast.crps(sample.target)

    def index(self, sample: Sample, normalizer: Normalizer) -> Iterator[np.ndarray]:
        """Yield the index (T, H, W) of each forecast of a batch in normalised units."""
        location, scale = (tensor.cpu() for tensor in normalizer.target_scaling)
        members = sample.ensemble[:, :, list(self.task.target_channels)].cpu()
        leads = lead_index(sample.lead_time, self.task).tolist()
        starts = sample.init_time.cpu().numpy().astype("datetime64[s]")
        for own, lead, day in zip(members, leads, day_of_year(starts).tolist(), strict=True):
            if day not in self.days:
                raise InputError(f"the climate of loss.climate has no start on day {day} of the year; {AGAIN}")
            # By the same steps as the members came to these units: those that equal a quantile still do.
            climate = (self.climate[lead, self.days.index(day)].to(own) - location) / scale
            yield efi(own.numpy(), climate.numpy(), self.form)
