"""Activation checkpointing: blocks of a network are computed again in the backward pass, which saves memory.

Between the passes only the inputs of blocks are kept, not their activations (Chen et al. 2016, "sublinear memory
cost", arXiv:1604.06174). A block is an element of an `nn.ModuleList` that has parameters.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from functools import partial
from typing import Any

import torch
from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.utils.checkpoint import checkpoint

from data_pipeline.common.errors import InputError
from models.layers.dropout import same_masks
from models.layers.loss_term import loss_terms


def checkpoint_activations(model: nn.Module) -> None:
    """Make every block of `model` recompute its activations in the backward pass, bit for bit."""
    found = list(blocks(model))
    if not found:
        raise InputError(
            f"trainer.activation_checkpointing=true needs a model with blocks, and {type(model).__name__} has none; "
            "set it to false"
        )
    for block in found:
        block.forward = partial(_checkpointed, block, block.forward)


def blocks(module: nn.Module) -> Iterator[nn.Module]:
    """Yield the outermost blocks of a network."""
    for child in module.children():
        if isinstance(child, nn.ModuleList):
            yield from (block for block in child if any(True for _ in block.parameters()))
        else:
            yield from blocks(child)


def _checkpointed(block: nn.Module, forward: Callable[..., Any], *inputs: Any) -> Any:
    if not torch.is_grad_enabled():
        return forward(*inputs)
    # No early stop: other ranks would wait for this rank's part of an exchange.
    return checkpoint(
        forward, *inputs, use_reentrant=False, early_stop=False,
        context_fn=lambda: (nullcontext(), _recomputing(block, same_masks())),
    )  # fmt: skip


@contextmanager
def _recomputing(block: nn.Module, masks: AbstractContextManager[None]) -> Iterator[None]:
    """Recompute a block as in the forward pass: same dropout masks, no second update of running means or loss terms."""
    counts = [layer._buffers for layer in block.modules() if isinstance(layer, _BatchNorm)]
    before = [dict(buffers) for buffers in counts]
    for buffers in counts:
        buffers.update({name: None if buffer is None else buffer.clone() for name, buffer in buffers.items()})
    with masks:
        yield
    for buffers, kept in zip(counts, before, strict=True):
        buffers.update(kept)
    # The forward pass has already added these terms to the loss.
    loss_terms(block)
