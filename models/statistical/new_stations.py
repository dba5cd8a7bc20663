"""NewStations: forecasts at stations that a corrector was not trained at."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor, nn

from data_pipeline.sample import Sample
from data_pipeline.task import Task
from models.distribution import Distribution, Patched
from models.parallel.domain import Domain
from models.statistical.cases import lead_index


class NewStations(nn.Module):
    """Widens forecasts at new stations, and replaces them by the raw ensemble at stations far from all known ones.

    `about` has the positions of the stations `new` and `far`, and the additional `error` of each lead time and target:
    a standard deviation in physical units, or relative to that of the forecast for the targets that are `relative`.
    """

    error: Tensor
    """(L, T, H, W); zero at the stations of the training."""
    relative: Tensor
    """(T, 1, 1)"""
    near: Tensor
    """(H, W) False at far stations."""

    def __init__(self, task: Task, domain: Domain, about: Mapping[str, Any]) -> None:
        super().__init__()
        self._task, self._domain, self._any_far = task, domain, bool(about["far"])
        error = torch.zeros(len(task.lead_times), len(task.targets), *domain.grid.shape)
        error[:, :, about["new"], 0] = torch.tensor(about["error"])[..., None]
        near = torch.ones(domain.grid.shape, dtype=torch.bool)
        near[about["far"]] = False
        self.register_buffer("error", error, persistent=False)
        self.register_buffer("near", near, persistent=False)
        self.register_buffer("relative", torch.tensor(about["relative"])[:, None, None], persistent=False)

    def forward(self, corrected: Distribution, sample: Sample, raw: Callable[[], Distribution]) -> Distribution:
        """Return the forecasts (B, T, H, W) of a batch, from the corrected ones and the raw ensemble."""
        error = self._domain.cut(self.error)[lead_index(sample.lead_time, self._task)]
        wide = corrected.map(lambda part: part.widened(error * torch.where(self.relative, part.std, 1)))
        return Patched(self._domain.cut(self.near), wide, raw()) if self._any_far else wide
