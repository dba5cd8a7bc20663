"""The raw ensemble at the altitude of stations as a reference: temperature falls by 6.5 K for each kilometre."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from data_pipeline.common.errors import InputError
from data_pipeline.grids.points import station_fields
from data_pipeline.sample import Sample
from data_pipeline.task import Task
from models.distribution import Ensemble
from models.parallel.domain import Domain
from models.statistical.raw import Raw

KELVIN_PER_METRE = 0.0065
"""Kelvin per metre, that of the standard atmosphere (ISO 2533)."""
TEMPERATURES = ("2t", "2d", "mx2t", "mn2t", "mx2t3", "mn2t3", "mx2t6", "mn2t6")
"""Variables that follow the altitude."""


@dataclass(frozen=True)
class LapseRate:
    """Adds `shift` (T, h, w), in kelvin, to the members of the targets."""

    raw: Raw
    shift: Tensor

    @classmethod
    def at(cls, task: Task, domain: Domain) -> LapseRate:
        """Return the reference for stations; an `InputError` where altitudes are unknown or no target is one."""
        if "height_difference" not in (known := station_fields(domain.grid)):
            raise InputError("the altitudes of the stations and of the forecast model are not known")
        follows = [target.name in TEMPERATURES and not target.level for target in task.targets]
        if not any(follows):
            raise InputError(f"none of its targets is a temperature near the ground ({', '.join(TEMPERATURES)})")
        difference = torch.from_numpy(known["height_difference"]).float()[None, :, None]
        shift = -KELVIN_PER_METRE * difference * torch.tensor(follows)[:, None, None]
        return cls(Raw(task, domain), domain.cut(shift))

    def __call__(self, batch: Sample) -> Ensemble:
        """Return the moved members, over (B, T, H, W)."""
        return Ensemble(self.raw(batch).members + self.shift.to(batch.ensemble.device))
