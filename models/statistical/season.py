"""Season: a regression without the ensemble, as a part of an average with EMOS."""

from __future__ import annotations

import torch
from torch import Tensor

from data_pipeline.sample import Sample
from models.statistical.emos import EMOS


class Season(EMOS):
    """EMOS whose predictors are the seasons alone: climatology in the family of the forecast.

    A weighted average with EMOS shrinks the forecast towards climatology, as few cases or a late lead time demand.
    Before a fit the forecast has the mean 0 and the spread 1 of normalised values.
    """

    any_groups = False

    def _subsets(self) -> list[tuple[int, ...]]:
        return []

    def _predictors(self, sample: Sample) -> list[Tensor]:
        mean, std, *terms = super()._predictors(sample)
        return [torch.zeros_like(mean), torch.ones_like(std), *terms]
