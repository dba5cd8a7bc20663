"""The loss of batches in normalised units, over all ranks of a mesh; it needs no Lightning."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from itertools import pairwise

import torch
from torch import Tensor, nn

from data_pipeline.common.errors import InputError
from data_pipeline.common.progress import watched
from data_pipeline.sample import Sample, verifiable
from models.corrector import Corrector
from models.device import copy_batch
from models.distribution import Distribution
from models.parallel.mesh import Mesh
from training.optimization.loss import CRPS, Loss, weighted_sum
from training.run.trainer_options import TrainerOptions


class BatchLoss(nn.Module):
    """Sums of a loss over cells, targets and forecasts of a batch, with the cell weights of the loss.

    Cells without truth, or with a missing raw member of the target, have no weight; evaluation leaves them out too.
    The loss is computed in normalised units, so that all targets count alike.
    """

    area: Tensor

    def __init__(self, corrector: Corrector, options: TrainerOptions | None = None, mesh: Mesh | None = None) -> None:
        super().__init__()
        self.corrector, self.options, self.mesh = corrector, options or TrainerOptions(), mesh or Mesh.single()
        weights = torch.tensor(corrector.grid.weights, dtype=torch.float32)[:, None]
        self.register_buffer("area", weights.expand(corrector.grid.shape).clone(), persistent=False)
        self.micro_batch: int | None = None
        """Number of forecasts computed at a time; None for a whole batch. `training.memory.memory_plan` sets it."""

    def weighted_loss(
        self, loss: Loss, batch: Sample, model: Callable[[Sample], Distribution] | None = None
    ) -> tuple[Tensor, Tensor]:
        """Return the weighted sum of a loss over this rank's tile of a batch, and the sum of the weights.

        `model` replaces the corrector's model if it is given.
        """
        sample = self._normalised(batch)
        return self._weighted(loss, (self.corrector.model if model is None else model)(sample), sample)

    def _normalised(self, batch: Sample) -> Sample:
        """Return a batch in normalised units, with truth only in the cells that are verified."""
        truth = verifiable(batch, self.corrector.task.target_channels)
        normalised: Sample = self.corrector.normalizer(batch._replace(target=truth))
        return normalised

    def _weighted(self, loss: Loss, forecast: Distribution, sample: Sample) -> tuple[Tensor, Tensor]:
        area = self.corrector.domain.cut(self.area)
        return weighted_sum(loss, forecast, sample, area, self.corrector.normalizer)

    @torch.no_grad()
    def summed_loss(self, loss: Loss, batch: Sample, model: Callable[[Sample], Distribution] | None = None) -> Tensor:
        """Return the two sums of `weighted_loss` as one tensor in float64, computed in micro-batches."""
        parts = self._micro_batches(batch)
        return torch.stack([torch.stack(self.weighted_loss(loss, part, model)).double() for part in parts]).sum(0)

    def _micro_batches(self, batch: Sample) -> list[Sample]:
        """Return a batch in parts of at most `micro_batch` forecasts, as even as possible.

        If weights are sharded, every pass gathers them, so all ranks need the same number of parts: parts without truth
        make up the number.
        """
        if self.micro_batch is None:
            return [batch]
        forecasts = len(batch.target)
        count = -(-forecasts // self.micro_batch)
        ends = [number * forecasts // count for number in range(count + 1)]
        parts = [Sample(*(field[start:end] for field in batch)) for start, end in pairwise(ends)]
        if self.options.sharded:
            wanted = -(-self.options.batch_size // self.mesh.data)
            first = Sample(*(field[:1] for field in batch))
            empty = first._replace(target=torch.full_like(first.target, torch.nan))
            parts += [empty] * (-(-wanted // self.micro_batch) - count)
        return parts


@torch.no_grad()
def validation_crps(
    module: BatchLoss,
    batches: Iterable[Sample],
    device: torch.device | str = "cpu",
    model: Callable[[Sample], Distribution] | None = None,
) -> tuple[float, dict[int, float]]:
    """Return the area-weighted CRPS in normalised units over a whole data set, and by lead time (hours).

    It is computed on `device`. `model` replaces the corrector's model if it is given. Raises `InputError` if no cell of
    the data set can be verified, or if the CRPS is not finite.
    """
    module.to(device)
    leads = module.corrector.task.lead_times
    sums = torch.zeros(len(leads), 2, dtype=torch.float64, device=device)
    for batch in watched(batches, "validation of the result: batch"):
        own = batch.lead_time.tolist()  # before the copy to a GPU, which this would wait for
        batch = copy_batch(batch, device)
        for number, lead in enumerate(leads):
            rows = [row for row, other in enumerate(own) if other == lead]
            if rows:
                part = batch if len(rows) == len(own) else Sample(*(field[rows] for field in batch))
                sums[number] += module.summed_loss(CRPS(), part, model)
    by_lead = module.mesh.sum(sums).tolist()
    total, weight = (sum(column) for column in zip(*by_lead, strict=True))
    if weight == 0:
        raise InputError(
            "no cell of the validation dates has both an analysis and all members of the ensemble; "
            "check data.archive.analysis and data.split.val"
        )
    if not math.isfinite(total):
        raise InputError(f"the validation CRPS is {total / weight}: the model's forecasts are not finite numbers")
    return total / weight, {lead: value / own for lead, (value, own) in zip(leads, by_lead, strict=True) if own > 0}
