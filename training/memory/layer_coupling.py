"""Find a layer in which the forecasts of a batch influence each other, such as batch normalisation.

Only a model without such layers gives the same result if a batch is computed in micro-batches.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor, nn
from torch.utils.data import default_collate

from data_pipeline.sample import Sample
from models.layers.dropout import draw_step_key, masks_for
from models.layers.loss_term import loss_terms
from training.step.correction_module import CorrectionModule
from training.step.unchanged import unchanged_buffers

SUM_ROUNDING = 1e-4
"""Relative difference that rounding may cause between two sums over the output of a layer."""


@torch.no_grad()
def find_coupled_layer(module: CorrectionModule, first: Sample, second: Sample) -> str:
    """Return the name of the first layer whose output for `second` depends on `first` in the batch; "" if none does.

    All layers of the model are compared, not only its result, because the last layer of many networks is zero before
    training. PyTorch's own dropout counts as coupled: its mask depends on the position in the batch. The samples are on
    the device of the module, which is left unchanged.
    """
    with torch.random.fork_rng(), unchanged_buffers(module):
        step, seed = draw_step_key(), torch.initial_seed()
        sums: list[dict[tuple[str, int], Tensor]] = []
        for samples in ([second], [first, second]):
            batch: Sample = default_collate(samples)
            torch.manual_seed(seed)
            with _sums_of_outputs(module.corrector.model, len(samples)) as found, masks_for(batch, step):
                module.weighted_loss(module.loss, batch)
            loss_terms(module.corrector.model)
            sums.append(found)
    alone, beside = sums
    for name, call in filter(beside.__contains__, alone):
        if not torch.isclose(alone[name, call], beside[name, call], rtol=SUM_ROUNDING, atol=0.0, equal_nan=True):
            return f"{name} ({type(module.corrector.model.get_submodule(name)).__name__})"
    return ""


@contextmanager
def _sums_of_outputs(model: nn.Module, forecasts: int) -> Iterator[dict[tuple[str, int], Tensor]]:
    """Inside the block, collect the sum of absolute values of each layer's output for the last forecast of a batch.

    The keys are the name of a layer and the number of its call.
    """
    found: dict[tuple[str, int], Tensor] = {}
    calls: Counter[str] = Counter()

    def collect(name: str, output: object) -> None:
        calls[name] += 1
        if isinstance(output, Tensor) and output.ndim > 1 and output.is_floating_point():
            rows = output.shape[0] // forecasts
            # An output that all forecasts share, such as a latent gate's, belongs to none of them.
            if rows * forecasts == output.shape[0]:
                found[name, calls[name]] = output[-rows:].double().abs().sum()

    handles = [
        layer.register_forward_hook(lambda _, __, output, name=name: collect(name, output))
        for name, layer in model.named_modules()
        if name
    ]
    try:
        yield found
    finally:
        for handle in handles:
            handle.remove()
