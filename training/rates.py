"""Rates: how fast a network learns at each step, as a share of `trainer.learning_rate`.

A rate is a function of where the run stands and keeps nothing between steps, so a run that goes on is the same run.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol

from data_pipeline.checks import between, positive, share, whole


class Pace(NamedTuple):
    """The learning rate of a step as a share of the largest, and how much of past gradients counts (Adam's β₁)."""

    rate: float
    momentum: float = 0.9


class Rate(Protocol):
    """What `conf/trainer/rate` chooses from."""

    def __call__(self, step: int, steps: int, scores: Sequence[float]) -> Pace:
        """Return the pace of step number `step` of `steps`, after epochs with these validation scores."""
        ...


@dataclass(frozen=True)
class OneCycle:
    """Up from 1/25 for the share `rising` of all steps, then down to 1/250000, in half waves of a cosine.

    Momentum goes from 0.95 down to 0.85 and up again (Smith & Topin 2019, arXiv:1708.07120); as PyTorch's OneCycleLR.
    """

    rising: float = 0.3

    def __post_init__(self) -> None:
        share("trainer.rate.rising", self.rising)

    def __call__(self, step: int, steps: int, scores: Sequence[float]) -> Pace:
        """Pace by the step alone."""
        peak, last = self.rising * steps - 1, steps - 1
        if step < peak:
            part = step / peak
            return Pace(_wave(1 / 25, 1, part), _wave(0.95, 0.85, part))
        part = (step - peak) / (last - peak) if last > peak else 0.0
        return Pace(_wave(1, 1 / 250_000, part), _wave(0.85, 0.95, part))


@dataclass(frozen=True)
class Cosine:
    """Up in even steps for the share `rising` of all steps, then down to 0 in half a wave of a cosine.

    So transformers are usually trained (Loshchilov & Hutter 2017, arXiv:1608.03983, without restarts).
    """

    rising: float = 0.05

    def __post_init__(self) -> None:
        between("trainer.rate.rising", self.rising, 0, 1)

    def __call__(self, step: int, steps: int, scores: Sequence[float]) -> Pace:
        """Pace by the step alone."""
        rising = math.floor(self.rising * steps)
        if step < rising:
            return Pace((step + 1) / (rising + 1))
        return Pace(_wave(1, 0, (step - rising) / (steps - rising)))


@dataclass(frozen=True)
class Constant:
    """Always the same."""

    def __call__(self, step: int, steps: int, scores: Sequence[float]) -> Pace:
        """Pace by nothing."""
        return Pace(1.0)


@dataclass(frozen=True)
class Plateau:
    """Times `factor` whenever more than `patience` epochs have brought no better validation score; never below `least`.

    As PyTorch's ReduceLROnPlateau with a threshold of 0.
    """

    factor: float = 0.1
    patience: int = 10
    least: float = 0.0

    def __post_init__(self) -> None:
        positive("trainer.rate.factor", self.factor)
        between("trainer.rate.factor", self.factor, 0, 1)
        whole("trainer.rate.patience", self.patience, 0)
        share("trainer.rate.least", self.least)

    def __call__(self, step: int, steps: int, scores: Sequence[float]) -> Pace:
        """Pace by the scores alone."""
        rate, best, waited = 1.0, math.inf, 0
        for score in scores:
            waited = 0 if score < best else waited + 1
            best = min(best, score) if not math.isnan(score) else best
            if waited > self.patience:
                rate, waited = max(rate * self.factor, self.least), 0
        return Pace(rate)


def _wave(start: float, end: float, part: float) -> float:
    """Return what lies `part` of the way from start to end, along half a wave of a cosine."""
    return end + (start - end) / 2 * (1 + math.cos(math.pi * part))
