"""Losses in every cell; training minimises their mean over cells, targets and forecasts.

A loss is called with a forecast over (B, T, H, W), its sample in normalised units and the `normalizer` that defines
these units. It returns (B, T, H, W), or (B, 1, H, W) if it scores all targets of a cell jointly. The loss of a forecast
does not depend on the other forecasts of its batch.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal, get_args

import torch
from torch import Tensor

from data_pipeline.common.checks import check_choice, check_fraction, check_number
from data_pipeline.common.errors import InputError
from data_pipeline.sample import Sample
from models.distribution import Distribution, Normal, energy_score, threshold_weighted_crps
from models.normalizer import Normalizer

Weighting = Literal["area", "none"]


@dataclass(frozen=True, kw_only=True)
class Loss:
    """Base of the losses in `conf/loss`. Every loss is negatively oriented: smaller is better.

    `weighting` is the weight of a cell in the mean over cells: `area` is the cell's area on the sphere, `none` gives
    all cells the same weight. With `none` a regular grid over-weights the poles; ENS-10's published models were trained
    so (Ashkboos et al. 2022, arXiv:2206.14786).
    """

    weighting: Weighting = "area"
    reads_members: ClassVar[bool] = False
    """Whether the loss needs the members of the raw ensemble, not only their mean and spread."""
    joint: ClassVar[bool] = False
    """Whether the loss scores all targets of a cell jointly, and so returns (B, 1, H, W)."""

    def __post_init__(self) -> None:
        check_choice("loss.weighting", self.weighting, get_args(Weighting))

    def __call__(self, forecast: Distribution, sample: Sample, normalizer: Normalizer) -> Tensor:
        """Return the loss in every cell."""
        raise NotImplementedError

    def cell_weights(self, area: Tensor) -> Tensor:
        """Return the weight of each cell from its `area`."""
        return area if self.weighting == "area" else torch.ones_like(area)


@dataclass(frozen=True)
class CRPS(Loss):
    """Continuous ranked probability score.

    `fair` interpolates the score of an ensemble from plain (0) to fair (1), which estimates the score of infinitely
    many members. AIFS-CRPS (Lang et al. 2024, arXiv:2412.15832) is trained with 0.95. Distributions in closed form
    ignore `fair`.
    """

    fair: float = 0.0

    def __post_init__(self) -> None:
        super().__post_init__()
        check_fraction("loss.fair", self.fair)

    def __call__(self, forecast: Distribution, sample: Sample, normalizer: Normalizer) -> Tensor:
        """CRPS in every cell."""
        return forecast.crps(sample.target, self.fair)


@dataclass(frozen=True)
class GaussianCRPS(Loss):
    """CRPS of the normal distribution with the forecast's mean and standard deviation.

    The standard deviation of members is the unbiased one (divisor M - 1). PoET (Ben Bouallègue et al. 2024,
    arXiv:2303.17195) is trained on ENS-10 with this loss. For a normal forecast it equals the CRPS.
    """

    def __call__(self, forecast: Distribution, sample: Sample, normalizer: Normalizer) -> Tensor:
        """CRPS of the normal distribution in every cell."""
        members = forecast.as_members
        if members is not None and len(members) < 2:
            raise InputError("loss gaussian_crps needs at least two members, and the forecast has one; set loss=crps")
        return Normal(forecast.mean, forecast.std).crps(sample.target)


@dataclass(frozen=True)
class ThresholdWeightedCRPS(Loss):
    """`weight` times the CRPS of values above `threshold`, plus 1 - `weight` times the CRPS of all values.

    `threshold` is in physical units. The second score is needed because the first one does not depend on the forecast
    below the threshold. `fair` is defined in `CRPS`.
    """

    threshold: float
    weight: float = 0.5
    fair: float = 0.0

    def __post_init__(self) -> None:
        super().__post_init__()
        check_number("loss.threshold", self.threshold)
        check_fraction("loss.weight", self.weight)
        check_fraction("loss.fair", self.fair)

    def __call__(self, forecast: Distribution, sample: Sample, normalizer: Normalizer) -> Tensor:
        """Weighted mean of both scores in every cell."""
        truth = sample.target
        if (targets := truth.shape[1]) > 1:
            raise InputError(
                f"loss.threshold is one threshold, the task has {targets} targets; train one target at a time"
            )
        threshold = normalizer.normalise_targets(torch.full_like(truth[:1], self.threshold)).to(truth)
        threshold = threshold.expand_as(truth)
        if forecast.raised(threshold) is None:
            raise InputError(
                f"the threshold-weighted CRPS of a {forecast.name} distribution has no closed form; set loss=crps, or "
                "use a model with a normal or logistic head"
            )
        extreme = threshold_weighted_crps(forecast, truth, threshold, self.fair)
        return self.weight * extreme + (1 - self.weight) * forecast.crps(truth, self.fair)


@dataclass(frozen=True)
class EnergyScore(Loss):
    """Energy score of all targets of a cell jointly: it depends on their correlation. `fair` is defined in `CRPS`."""

    fair: float = 0.0

    joint: ClassVar[bool] = True

    def __post_init__(self) -> None:
        super().__post_init__()
        check_fraction("loss.fair", self.fair)

    def __call__(self, forecast: Distribution, sample: Sample, normalizer: Normalizer) -> Tensor:
        """Energy score in every cell, (B, 1, H, W)."""
        members = forecast.as_members
        if members is None:
            raise InputError(
                f"loss energy needs members, and this model gives a {forecast.name} distribution for each target; "
                "use a model that corrects members, such as model=transformer model.head=members, or loss=crps"
            )
        return energy_score(members, sample.target, 1, self.fair).unsqueeze(1)


@dataclass(frozen=True)
class SquaredError(Loss):
    """(mean - truth)²; the spread gets no gradient."""

    def __call__(self, forecast: Distribution, sample: Sample, normalizer: Normalizer) -> Tensor:
        """Squared error in every cell."""
        return (forecast.mean - sample.target).square()


@dataclass(frozen=True)
class SeparateMeanAndSpread(Loss):
    """(mean - truth)², plus the CRPS of the distribution around this mean, without its gradient on the mean.

    The mean learns from the squared error only, and the spread from the CRPS only, as in Deep Weather (Grönquist et al.
    2021, doi:10.1098/rsta.2020.0092).
    """

    def __call__(self, forecast: Distribution, sample: Sample, normalizer: Normalizer) -> Tensor:
        """Sum of the squared error and the CRPS in every cell."""
        # `affine` below would shift a bound too, and the mean of an ensemble has no parameter of its own.
        if forecast.bound is not None or forecast.atoms is not None:
            raise InputError(
                "loss separate needs a distribution with a mean and no bound, normal, logistic or bernstein; this "
                f"model's distribution is {forecast.name}; set loss=crps"
            )
        mean = forecast.mean
        around = forecast.affine(mean.detach() - mean, torch.ones_like(mean))
        return (mean - sample.target).square() + around.crps(sample.target)


def weighted_sum(
    loss: Loss, forecast: Distribution, sample: Sample, area: Tensor, normalizer: Normalizer
) -> tuple[Tensor, Tensor]:
    """Return the sum of weight times loss over all values (B, T, H, W) with truth, and the sum of the weights.

    `area` (H, W) are the areas of the cells. NaN in `sample.target` is missing truth.
    """
    known = torch.isfinite(sample.target)
    # Missing truth is replaced by the mean and has no weight: NaN would make the gradient NaN.
    truth = torch.where(known, sample.target, forecast.mean.detach())
    value = loss(forecast, sample._replace(target=truth), normalizer)
    weight = weights_of_cells(loss, sample.target, area)
    if value.shape[1] != weight.shape[1]:
        raise InputError(
            f"loss {type(loss).__name__} returned {value.shape[1]} values in a cell with {known.shape[1]} targets; it "
            "must return one for each target, or one for all with joint = True in the body of its class"
        )
    # The raw ensemble is NaN where a member is missing; such cells have no weight.
    return (value.where(weight > 0, 0) * weight).sum(), weight.sum()


def weights_of_cells(loss: Loss, target: Tensor, area: Tensor) -> Tensor:
    """Return the weight of each value of a loss: 0 where the normalised truth is missing."""
    known = torch.isfinite(target)
    if loss.joint:
        known = known.all(1, keepdim=True)
    return known * loss.cell_weights(area)
