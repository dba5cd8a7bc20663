"""EMOS as a reference for a network's validation: `summary.json` records when the network became better than EMOS."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from data_pipeline.common.errors import InputError, InterruptedRunError
from data_pipeline.common.messages import say
from data_pipeline.dates import Dates
from data_pipeline.protocols import DataSource
from data_pipeline.sample import Sample, select_channels
from data_pipeline.task import Task
from models.corrector import Corrector, narrow
from models.distribution import Distribution
from models.parallel.mesh import Mesh
from models.reference_emos import emos_spec, fit_emos
from training.run.trainer_options import TrainerOptions


class EMOSInUnits(nn.Module):
    """Forecasts of the corrector `emos` in the normalised units of `corrector`, from batches in these units.

    Both normalisers must take the same power of the targets.
    """

    own_scale: Tensor
    own_location: Tensor
    emos_scale: Tensor
    emos_location: Tensor

    def __init__(self, emos: Corrector, corrector: Corrector) -> None:
        super().__init__()
        self._from, self._to, self.model = corrector.task, emos.task, emos.model
        self._targets = list(emos.task.target_channels)
        for name, each in (("own", corrector), ("emos", emos)):
            location, scale = each.normalizer.target_scaling
            self.register_buffer(f"{name}_location", location.clone())
            self.register_buffer(f"{name}_scale", scale.clone())

    def forward(self, sample: Sample) -> Distribution:
        """Return the distribution (B, T, H, W)."""
        sample = narrow(sample, self._from, self._to)
        ensemble, mask = sample.ensemble.clone(), select_channels(sample.mask, self._targets, 1)[:, None]
        members = select_channels(ensemble, self._targets, 2) * self.own_scale + self.own_location
        members = torch.where(mask, (members - self.emos_location) / self.emos_scale, 0)
        for target, channel in enumerate(self._targets):
            ensemble[:, :, channel] = members[:, :, target]
        forecast: Distribution = self.model(sample._replace(ensemble=ensemble))
        shift = (self.emos_location - self.own_location) / self.own_scale
        return forecast.affine(shift, self.emos_scale / self.own_scale)


def fit_emos_reference(
    source: DataSource, task: Task, dates: Dates, members: int | None, corrector: Corrector, options: TrainerOptions,
    mesh: Mesh,
) -> EMOSInUnits | None:  # fmt: skip
    """Return EMOS fitted on the training dates, in the units of `corrector`; print why and return None without a fit.

    The fit is the same as in `evaluate`, which later reads it from the cache.
    """
    if not options.emos_minutes:
        return None
    own_power = corrector.normalizer.power
    try:
        if (power := emos_spec(task).get("power", 1.0)) != own_power:
            raise InputError(
                f"it is for the power {power:g} of the targets, and the model has model.power={own_power:g}"
            )
        emos = fit_emos(source, task, dates, members, corrector.domain, mesh, options.emos_minutes).on(corrector.domain)
    except InterruptedRunError:
        raise
    except InputError as error:
        # A mark for comparison never ends a run.
        say(f"the validation is not compared with emos: {error}")
        return None
    return EMOSInUnits(emos, corrector).eval()
