"""Losses: what training makes small, in every cell; the mean over cells, targets and forecasts is taken by the trainer.

A loss is called with a forecast over (B, T, H, W) and its sample in normalised units, and the `normalizer` that made
them so. It returns (B, T, H, W), or (B, 1, H, W) if it judges all targets of a cell together. `LossClaims` is
what it may say of itself.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from typing import Protocol

import torch
from torch import Tensor

from data_pipeline.checks import number, share
from data_pipeline.errors import InputError
from data_pipeline.sample import Sample
from models.distribution import Distribution, Ensemble, Logistic, Normal, energy_score, threshold_weighted_crps
from models.normalizer import Normalizer


class Loss(Protocol):
    """What `conf/loss` chooses from; every one is negatively oriented: the smaller, the better."""

    def __call__(self, forecast: Distribution, sample: Sample, normalizer: Normalizer) -> Tensor:
        """Return the loss in every cell."""
        ...


@dataclass(frozen=True)
class LossClaims:
    """What a loss says of itself, each by a class attribute of the same name that is True or False."""

    reads_members: bool = False
    """It reads the members of the raw ensemble, so that their mean and spread do not suffice as samples."""


@dataclass(frozen=True)
class CRPS:
    """Continuous ranked probability score; a closed form has no members, so `fair` changes nothing of it.

    With `fair` 1 an ensemble is judged as if it had infinitely many members, with 0 as it is. In between lies the
    almost fair score, with which AIFS-CRPS (Lang et al. 2024, arXiv:2412.15832) is trained at 0.95.
    """

    fair: float = 0.0

    def __post_init__(self) -> None:
        share("loss.fair", self.fair)

    def __call__(self, forecast: Distribution, sample: Sample, normalizer: Normalizer) -> Tensor:
        """CRPS in every cell."""
        return forecast.crps(sample.target, self.fair)


@dataclass(frozen=True)
class ThresholdWeightedCRPS:
    """CRPS that looks only at values above `above`, in physical units: for extremes. `fair` as for the CRPS.

    `weight` is that of this score, and 1 - `weight` that of the CRPS of all values; alone it would leave open what is
    forecast below the threshold.
    """

    above: float
    weight: float = 0.5
    fair: float = 0.0

    def __post_init__(self) -> None:
        number("loss.above", self.above)
        share("loss.weight", self.weight)
        share("loss.fair", self.fair)

    def __call__(self, forecast: Distribution, sample: Sample, normalizer: Normalizer) -> Tensor:
        """Weighted mean of both scores in every cell."""
        location, scale = normalizer.target_scaling
        truth = sample.target
        if len(location) > 1:
            raise InputError(f"loss.above is one threshold, the task has {len(location)} targets; train one at a time")
        threshold = ((self.above - location) / scale).to(truth)
        try:
            extreme = threshold_weighted_crps(forecast, truth, threshold.expand_as(truth), self.fair)  # type: ignore[arg-type]
        except TypeError as error:
            raise InputError(f"{error}; take loss=crps, or a model whose head is normal or logistic") from None
        return self.weight * extreme + (1 - self.weight) * forecast.crps(truth, self.fair)


@dataclass(frozen=True)
class EnergyScore:
    """Energy score of all targets of a cell together: it also sees how members combine them. `fair` as for the CRPS."""

    fair: float = 0.0

    def __post_init__(self) -> None:
        share("loss.fair", self.fair)

    def __call__(self, forecast: Distribution, sample: Sample, normalizer: Normalizer) -> Tensor:
        """Energy score in every cell, (B, 1, H, W)."""
        if not isinstance(forecast, Ensemble):
            raise InputError(
                f"loss energy judges members, and this model gives a {_words(forecast)} distribution for each target; "
                "take a model that corrects members, such as model=transformer model.head=members, or loss=crps"
            )
        return energy_score(forecast.members, sample.target, 1, self.fair).unsqueeze(1)


@dataclass(frozen=True)
class SquaredError:
    """(mean - truth)²: of the mean alone, so that nothing is learnt about doubt."""

    def __call__(self, forecast: Distribution, sample: Sample, normalizer: Normalizer) -> Tensor:
        """Squared error in every cell."""
        return (forecast.mean - sample.target).square()


@dataclass(frozen=True)
class Apart:
    """(mean - truth)², plus the CRPS of what is left around this mean, of which the mean hears nothing.

    So Deep Weather learns (Grönquist et al. 2021, doi:10.1098/rsta.2020.0092): the mean as if there were no doubt,
    the doubt as if the mean were given.
    """

    def __call__(self, forecast: Distribution, sample: Sample, normalizer: Normalizer) -> Tensor:
        """Sum of both in every cell."""
        # Only where `mu` is the mean can one be held while the other parameters learn.
        if not isinstance(forecast, Normal | Logistic):
            raise InputError(
                "loss apart is for distributions whose mean is a parameter of its own, normal and logistic, and this "
                f"model's is {_words(forecast)}; take loss=crps"
            )
        left = replace(forecast, mu=forecast.mu.detach())
        return (forecast.mean - sample.target).square() + left.crps(sample.target)


def weighted(
    loss: Loss, forecast: Distribution, sample: Sample, area: Tensor, normalizer: Normalizer
) -> tuple[Tensor, Tensor]:
    """Return the sum of the loss weighted by `area` (H, W) over all (B, T, H, W) with a truth, and that of weights."""
    known = torch.isfinite(sample.target)
    # The loss of an unknown truth is taken at the mean and given no weight: NaN would poison the gradient.
    truth = torch.where(known, sample.target, forecast.mean.detach())
    value = loss(forecast, sample._replace(target=truth), normalizer)
    if value.shape[1] < known.shape[1]:
        known = known.all(1, keepdim=True)
    weight = known * area
    return (value * weight).sum(), weight.sum()


def _words(forecast: Distribution) -> str:
    return re.sub(r"(?<!^)(?=[A-Z])", " ", type(forecast).__name__).lower()
