"""Recompute: blocks of a network are computed once more when their gradient is wanted, so that less must be kept.

Between the passes only the inputs of blocks are kept, not what was computed in them (Chen et al. 2016, "sublinear
memory cost", arXiv:1604.06174). Blocks are the elements of every `nn.ModuleList` that have parameters.
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
    """Let every block of `model` be computed again in the backward pass, to the same numbers."""
    found = list(blocks(model))
    if not found:
        raise InputError(
            f"trainer.activation_checkpointing=true needs a model with blocks, and {type(model).__name__} has none; "
            "set it to false"
        )
    for block in found:
        block.forward = partial(_kept_by_inputs, block, block.forward)


def blocks(module: nn.Module) -> Iterator[nn.Module]:
    """Yield the blocks of a network; blocks within blocks are part of them."""
    for child in module.children():
        if isinstance(child, nn.ModuleList):
            yield from (block for block in child if any(True for _ in block.parameters()))
        else:
            yield from blocks(child)


def _kept_by_inputs(block: nn.Module, forward: Callable[..., Any], *inputs: Any) -> Any:
    if not torch.is_grad_enabled():
        return forward(*inputs)
    # Always to the end: where one rank stopped early, others would wait for its part in an exchange.
    return checkpoint(
        forward, *inputs, use_reentrant=False, early_stop=False,
        context_fn=lambda: (nullcontext(), _once_more(block, same_masks())),
    )  # fmt: skip


@contextmanager
def _once_more(block: nn.Module, masks: AbstractContextManager[None]) -> Iterator[None]:
    """Let a block be computed as in the forward pass: with the same masks, and so that nothing counts twice."""
    counts = [layer._buffers for layer in block.modules() if isinstance(layer, _BatchNorm)]
    before = [dict(buffers) for buffers in counts]
    for buffers in counts:
        buffers.update({name: None if buffer is None else buffer.clone() for name, buffer in buffers.items()})
    with masks:
        yield
    for buffers, kept in zip(counts, before, strict=True):
        buffers.update(kept)
    # The loss of the step has got these already.
    loss_terms(block)
