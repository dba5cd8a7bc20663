"""The test check of the heat experiment: the accuracy of a network on test runs, by region of the plate."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import permutations
from typing import Any

import numpy as np
import torch

from data_pipeline.common.checks import check_positive
from data_pipeline.dataset import ForecastDataset, batches
from data_pipeline.synthetic.heat import Heat
from models.corrector import Corrector
from models.published.heat_networks import Mixture

ABSOLUTE_TOLERANCE = 1e-8
"""Error that counts as correct where the truth is 0."""


@dataclass(frozen=True)
class HeatCheck:
    """Percentage of points with |forecast - truth| ≤ 10⁻⁸ + `tolerance` |truth|, over all points and by region.

    `scaled` multiplies the tolerance by α / max α, where α is the diffusivity of the region. `gate` is the percentage
    of cells that choose the expert of their region, for the best assignment of experts to regions.
    """

    tolerance: float = 0.01

    def __post_init__(self) -> None:
        check_positive("test_check.tolerance", self.tolerance)

    def __call__(self, corrector: Corrector, heat: Heat, samples: ForecastDataset) -> dict[str, Any]:
        """Return the percentages, the mean squared error and the number of parameters of a corrector."""
        speed = np.array(heat.diffusivities)
        strictness = torch.from_numpy((speed / speed.max())[heat.region]).float()
        hits, scaled = torch.zeros(2, *heat.region.shape)
        squares = 0.0
        with torch.no_grad():
            for batch in batches(samples, 100):
                error, truth = (corrector(batch).mean - batch.target)[:, 0], batch.target[:, 0].abs()
                hits += (error.abs() <= ABSOLUTE_TOLERANCE + self.tolerance * truth).sum(0)
                scaled += (error.abs() <= ABSOLUTE_TOLERANCE + self.tolerance * strictness * truth).sum(0)
                squares += float(error.double().square().sum())
        share = 100 * hits.double().numpy() / len(samples)
        result: dict[str, Any] = {
            "within": float(share.mean()),
            "regions": [float(share[heat.region == region].mean()) for region in range(len(speed))],
            "scaled": float(100 * scaled.double().mean() / len(samples)),
            "squared_error": squares / (len(samples) * heat.region.size),
            "parameters": sum(parameter.numel() for parameter in corrector.model.parameters()),
        }
        if isinstance(corrector.model, Mixture):
            result["gate"] = agreement(corrector.model.chosen_expert.numpy(), heat.region)
        return result


def agreement(choice: np.ndarray, kind: np.ndarray) -> float:
    """Return the percentage of cells whose expert is their region's, for the best assignment of experts to regions.

    >>> agreement(np.array([2, 2, 0, 1]), np.array([0, 0, 1, 1]))
    75.0
    """
    size = max(choice.max(), kind.max()) + 1
    together = np.zeros((size, size), int)
    np.add.at(together, (choice, kind), 1)
    most = max(together[list(pairing), range(size)].sum() for pairing in permutations(range(size)))
    return float(100 * most / kind.size)
