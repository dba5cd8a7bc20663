"""Terms of the loss that layers know of themselves, besides what is made of their output.

loss = score + terms(model) / forecasts                    # forecasts: those on other ranks included
"""

from __future__ import annotations

import torch
from torch import Tensor, nn


class Termed(nn.Module):
    """A layer that leaves in `term` what the loss must contain, summed over the forecasts that it has seen.

    On a mesh it leaves the share of its tile.
    """

    def __init__(self) -> None:
        super().__init__()
        self.term: Tensor | None = None


def terms(model: nn.Module) -> Tensor:
    """Return the terms of all layers in `model`; to be asked after each forward pass in training."""
    found = []
    for layer in model.modules():
        if isinstance(layer, Termed) and layer.term is not None:
            found.append(layer.term)
            # A layer keeps nothing of a step that is over: it could not be copied.
            layer.term = None
    return torch.stack(found).sum() if found else torch.zeros(())
