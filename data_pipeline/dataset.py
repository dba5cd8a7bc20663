"""Archive to samples: split by whole years of valid time, the only border between xarray and tensors."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import torch
import xarray as xr
from torch.utils.data import DataLoader, Dataset

from data_pipeline.archive import Archive, grid_of
from data_pipeline.errors import InputError
from data_pipeline.grib import select
from data_pipeline.grid import Grid
from data_pipeline.sample import Sample
from data_pipeline.task import POSITION, Task, Variable

SPLITS = ("train", "val", "test")


@dataclass(frozen=True)
class Split:
    """First and last year of training, validation and test; a forecast belongs where it is valid."""

    train: tuple[int, int]
    val: tuple[int, int]
    test: tuple[int, int]

    def __post_init__(self) -> None:
        seen: set[int] = set()
        for name in SPLITS:
            years = tuple(getattr(self, name))
            if len(years) != 2 or any(type(year) is not int for year in years) or years[0] > years[1]:
                raise InputError(f"data.split.{name} must be [first year, last year], got {list(years)}")
            object.__setattr__(self, name, years)
            if shared := seen & set(self.years(name)):
                raise InputError(f"data.split.{name} shares {min(shared)} with another split; years must not overlap")
            seen |= set(self.years(name))

    def years(self, name: str) -> range:
        """Return all years of the split `name`."""
        if name not in SPLITS:
            raise InputError(f"there is no split {name!r}; choose one of {', '.join(SPLITS)}")
        first, last = getattr(self, name)
        return range(first, last + 1)


class ForecastDataset(Dataset[Sample]):
    """The forecasts of a task that are valid in `years` and have a verifying analysis, by start and lead time.

    Samples that have been read stay in memory up to `memory` bytes: a small archive is read once.
    """

    def __init__(self, archive: Archive, task: Task, years: Iterable[int], memory: int = 2**31) -> None:
        self.task = task
        self._forecasts = archive.forecasts(task.inputs, task.lead_times)
        self._analyses = archive.analyses(task.targets)
        self.grid = grid_of(self._forecasts)
        if not self.grid.matches(other := grid_of(self._analyses)):
            raise InputError(f"the ensemble has {self.grid}, the analysis {other}; bring both to one grid first")
        self.static = static_fields(self.grid, task, archive.static)
        self._keys = self._select(set(years))
        self._cache: dict[int, Sample] = {}
        self._free = memory

    def _select(self, years: set[int]) -> list[tuple[int, int, int]]:
        """Positions (start, lead, analysis) of the forecasts of those years."""
        starts = self._forecasts.init_time.values.astype("datetime64[s]")
        position = {time: k for k, time in enumerate(self._analyses.time.values.astype("datetime64[s]"))}
        keys, unverified = [], 0
        for i, start in enumerate(starts):
            for j, lead in enumerate(self.task.lead_times):
                valid = start + np.timedelta64(lead, "h")
                if valid.astype("datetime64[Y]").astype(int) + 1970 in years:
                    if valid in position:
                        keys.append((i, j, position[valid]))
                    else:
                        unverified += 1
        if not keys:
            raise InputError(
                f"no forecast is valid in {_span(years)} and has an analysis: the ensemble starts between "
                f"{starts.min()} and {starts.max()}, {unverified} forecasts of those years lack an analysis; "
                "change data.split or add files"
            )
        return keys

    @property
    def members(self) -> int:
        """Number of ensemble members."""
        return self._forecasts.sizes["number"]

    @property
    def valid_years(self) -> tuple[int, int]:
        """First and last year in which a sample is valid."""
        times = self._analyses.time.values[[k for _, _, k in self._keys]].astype("datetime64[Y]").astype(int) + 1970
        return int(times.min()), int(times.max())

    def __len__(self) -> int:
        return len(self._keys)

    def __getitem__(self, index: int) -> Sample:
        if index in self._cache:
            return self._cache[index]
        i, j, k = self._keys[index]
        sample = read_sample(self._forecasts, self.task, self.static, i, j)
        truth = [field_of(self._analyses, target, time=k) for target in self.task.targets]
        sample = sample._replace(target=torch.from_numpy(np.stack(truth)))
        size = sum(tensor.nbytes for tensor in sample if tensor is not self.static)
        if size <= self._free:
            self._free -= size
            self._cache[index] = sample
        return sample


def read_sample(forecasts: xr.Dataset, task: Task, static: torch.Tensor, init: int, lead: int) -> Sample:
    """Read one forecast by its positions in `forecasts`; its target is unknown (NaN)."""
    ensemble = torch.from_numpy(
        np.stack([field_of(forecasts, variable, init_time=init, lead_time=lead) for variable in task.inputs], axis=1)
    )
    start = forecasts.init_time.values[init].astype("datetime64[s]").astype(np.int64)
    return Sample(
        ensemble=ensemble,
        mask=torch.isfinite(ensemble).all(0),
        static=static,
        target=torch.full((len(task.targets), *ensemble.shape[-2:]), torch.nan),
        init_time=torch.tensor(int(start)),
        lead_time=torch.tensor(int(forecasts.lead_time.values[lead])),
    )


def static_fields(grid: Grid, task: Task, archive: xr.Dataset) -> torch.Tensor:
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
    """Yield all samples once, in order, as batches with a leading B."""
    yield from DataLoader(dataset, batch_size=size)


def field_of(dataset: xr.Dataset, variable: Variable, **positions: int) -> np.ndarray:
    """Read the fields of a variable at `positions` along named dimensions."""
    return select(dataset, variable).isel(positions).values


def _span(years: Sequence[int] | set[int]) -> str:
    return f"{min(years)}-{max(years)}" if years else "no year"
