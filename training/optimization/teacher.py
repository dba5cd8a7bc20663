"""Distillation: a network learns from the forecasts of a trained corrector beside the truth (option `teacher`)."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor

from data_pipeline.common.checks import check_fraction
from data_pipeline.common.errors import InputError
from data_pipeline.sample import Sample
from data_pipeline.task import Task
from models.corrector import Corrector, reads_moments
from models.parallel.domain import Domain
from models.provenance.training_dates import all_seen_dates, state_fits
from training.optimization.loss import Loss

NODES = 7
"""Number of quantiles that represent the teacher's distribution. A normal distribution trained by the CRPS on this many
quantiles of another one has a standard deviation that is 0.04 % too small; with 5 quantiles, 0.14 %."""
WEIGHT = 0.5
"""The default of `teacher_weight`."""


class Teacher:
    """The corrector in the file `path`, whose forecasts a run on `task` learns, with the share `weight` of the loss.

    The loss against a predictive distribution G is the expected loss if truths were drawn from G (Hinton et al. 2015,
    arXiv:1503.02531, for classes): ∫ L(F, G⁻¹(τ)) dτ over the levels τ, by Gauss-Legendre quadrature with `NODES`
    levels. For the CRPS this loss is the integrated squared difference of the distribution functions, plus a number
    that depends on G only. Its minimum is at F = G, so the teacher may give any kind of distribution.
    """

    def __init__(self, path: str, task: Task, loss: Loss, weight: float | None = None) -> None:
        self.path, self._corrector, self._task = path, Corrector.load(path), task
        self.weight = WEIGHT if weight is None else weight
        check_fraction("teacher_weight", self.weight)
        theirs = self._corrector.task
        for title, wanted, given in (
            ("inputs", theirs.channels, task.channels),
            ("static fields", theirs.static_names, task.static_names),
            ("lead times", task.lead_times, theirs.lead_times),
        ):
            if lacking := [str(each) for each in wanted if each not in given]:
                who = "the teacher" if title == "lead times" else "this run"
                raise InputError(f"teacher: {who} has no {', '.join(lacking)} among its {title}, and {path} needs the "
                                 "same task; add it, or choose another teacher")  # fmt: skip
        if theirs.targets != task.targets:
            names = ", ".join(map(str, theirs.targets))
            raise InputError(f"teacher: {path} predicts {names}; give task.targets the same, in this order")
        if loss.joint:
            raise InputError(
                f"teacher: loss {type(loss).__name__} scores all targets of a cell together, and a teacher gives the "
                "quantiles of each; choose another loss"
            )
        self.moments = reads_moments(self._corrector.spec, self._corrector.task)
        """Whether the teacher needs only mean and spread of the ensemble."""
        nodes, shares = np.polynomial.legendre.leggauss(NODES)
        self._levels, self._shares = torch.tensor((nodes + 1) / 2), [float(share) / 2 for share in shares]

    def __deepcopy__(self, memo: dict[int, object]) -> Teacher:
        """Return the teacher itself: no training changes it."""
        return self

    @property
    def provenance(self) -> Mapping[str, Any]:
        """The provenance of the teacher."""
        return self._corrector.provenance

    def place(self, domain: Domain) -> None:
        """Move the teacher to this rank's tile of `domain`."""
        if domain.grid != self._corrector.grid:
            raise InputError(
                f"teacher: {self.path} is on {self._corrector.grid} and the data on {domain.grid}; choose a teacher "
                "on the grid of the data"
            )
        self._corrector = self._corrector.on(domain).eval()

    def state(self, provenance: dict[str, Any]) -> None:
        """Write run and weight of the teacher, and the dates that it has seen, to the `provenance` of a network."""
        provenance["teacher"] = {"run": self._corrector.provenance.get("run"), "weight": self.weight}
        state_fits(provenance, {"distillation": all_seen_dates(self.provenance)})

    def describe(self) -> str:
        """Return a line for the user: the teacher's share in the loss, and what it costs."""
        kind = type(self._corrector.model).__name__
        return (
            f"teacher: {self.path}, a {kind}, has a share of {self.weight:g} in the loss; each step computes its "
            "forecasts too, without gradients"
        )

    @torch.no_grad()
    def quantiles(self, batch: Sample) -> Tensor:
        """Return the quantiles (K, B, T, H, W) of the teacher's forecasts of a batch, in physical units."""
        device = batch.ensemble.device
        if self._corrector.static.device != device:
            self._corrector.to(device)
        # Quantiles need single precision.
        with torch.autocast(device.type, enabled=False):
            forecast = self._corrector.bind(self._task)(batch)
            return forecast.quantile(self._levels.to(batch.ensemble))

    def mixed(self, of_truth: Tensor, loss_of: Callable[[Tensor], Tensor], quantiles: Tensor, truth: Tensor) -> Tensor:
        """Return the weighted mean of the truth's loss and the teacher's: `weight` for the mean over its quantiles.

        `loss_of` returns the loss for a target like `truth` (B, T, H, W); `quantiles` (K, B, T, H, W) have the units of
        `truth`. Cells without truth do not count. Where the teacher has no forecast, its quantiles are replaced by the
        truth.
        """
        of_teacher = torch.zeros_like(of_truth)
        for share, values in zip(self._shares, quantiles, strict=True):
            values = torch.where(values.isfinite() & truth.isfinite(), values, truth)
            of_teacher = of_teacher + share * loss_of(values)
        return (1 - self.weight) * of_truth + self.weight * of_teacher
