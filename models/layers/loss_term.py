"""Terms of the loss that layers contribute, such as a penalty on their weights.

loss = score + loss_terms(model) / forecasts                    # number of forecasts on all ranks
"""

from __future__ import annotations

import torch
from torch import Tensor, nn


class LossTermLayer(nn.Module):
    """Base class of layers that set `term` in each forward pass of training: their part of the loss.

    `term` is the sum over the forecasts of the batch; on a mesh, it is this rank's part of the sum.
    """

    def __init__(self) -> None:
        super().__init__()
        self.term: Tensor | None = None


def loss_terms(model: nn.Module) -> Tensor:
    """Return the sum of the terms of all layers in `model`, and reset them; call it after each forward pass."""
    found = []
    for layer in model.modules():
        if isinstance(layer, LossTermLayer) and layer.term is not None:
            found.append(layer.term)
            # A model with tensors of a past step could not be copied.
            layer.term = None
    return torch.stack(found).sum() if found else torch.zeros(())
