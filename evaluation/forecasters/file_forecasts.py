"""The option `forecasts`: files from other sources that are scored beside the correctors, on the same forecasts."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import torch

from data_pipeline.common.errors import InputError
from data_pipeline.sample import Sample
from data_pipeline.sources.forecast_file import ForecastFile, OpenedForecast
from evaluation.forecasters.corrector_checks import check_name
from models.distribution import Distribution, Ensemble, Normal, Quantiles
from models.parallel.domain import Domain


def parse_forecasts(option: object, correctors: Mapping[str, object]) -> dict[str, ForecastFile]:
    """Return the entries of the option `forecasts` by name; refuse names that `correctors` have too."""
    if option is None:
        return {}
    if not isinstance(option, Mapping):
        raise InputError(f"forecasts must be {{NAME: path, ...}}, got {option!r}")
    for name in map(str, option):
        check_name(name, "forecasts")
        if name in correctors or name == "emos":
            other = "is a corrector, too" if name in correctors else "is reserved for a corrector, the reference EMOS"
            raise InputError(f"forecasts.{name}: the name {name} {other}; give the forecasts another name")
    return {str(name): ForecastFile.parse(str(name), value) for name, value in option.items()}


def notes_on(opened: Mapping[str, OpenedForecast]) -> list[str]:
    """Return a sentence for each thing that evaluation cannot check about these forecasts."""
    found = []
    for name, one in opened.items():
        found.append(
            f"{name} comes from files, which do not say on which dates it was fitted: a leak cannot be ruled out"
        )
        if one.kind == "members" and one.source.drawn:
            found.append(
                f"the {len(one.fields.numbers)} members of {name} are scored as independent draws; if they are "
                f"quantiles or depend on each other, write forecasts={{{name}: {{path: ..., drawn: false}}}}"
            )
    return found


@dataclass(frozen=True)
class FileForecaster:
    """Returns the forecasts of a file as distributions, on one tile of the grid.

    Members give an ensemble; mean and standard deviation give a normal distribution.
    """

    opened: OpenedForecast
    domain: Domain
    device: torch.device | str = "cpu"

    def __call__(self, batch: Sample) -> Distribution:
        """Return the forecasts of a batch over (B, T, H, W); the members of the batch are not used."""
        starts, leads = batch.init_time.tolist(), batch.lead_time.tolist()
        read = np.ascontiguousarray(self.opened.read(starts, leads, *self.domain.tile))
        values = torch.from_numpy(read).to(self.device)
        if self.opened.kind == "normal":
            if (negative := int((values[1] < 0).sum())) > 0:
                source = self.opened.source
                raise InputError(
                    f"forecasts.{source.name}: {', '.join(source.paths)} has {negative} negative standard deviations; "
                    "check which of its variables is the standard deviation"
                )
            return Normal(values[0], values[1])
        if self.opened.kind == "members":
            return Ensemble(values)
        return Quantiles(values, torch.from_numpy(self.opened.levels).to(self.device))
