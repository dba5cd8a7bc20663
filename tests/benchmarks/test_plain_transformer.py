"""The former operators of the transformer, the peer of `benchmarks/step.py`, compute the same network."""

from contextlib import nullcontext

import torch

from benchmarks.mesh.plain_transformer import PlainTransformer
from benchmarks.step_memory import random_batch, shipped_corrector
from data_pipeline.grid import Grid
from data_pipeline.sample import Sample
from training.memory.step_cost import forward_and_backward
from training.step.correction_module import CorrectionModule


def test_loss_gradients_are_those_of_the_former_operators():
    """In double precision; no weight is zero, so that every layer has a gradient."""
    torch.manual_seed(0)
    corrector = shipped_corrector("transformer", Grid.regular(17, 24), baseline=None).double()
    for weight in corrector.model.parameters():
        torch.nn.init.normal_(weight, std=0.2)
    plain = PlainTransformer(corrector.task, corrector.grid).double()
    plain.load_state_dict(corrector.model.state_dict())
    batch = Sample(*(part.double() if part.is_floating_point() else part for part in random_batch(corrector, 2)))
    found = []
    for network in (corrector.model, plain):
        corrector.model = network
        module = CorrectionModule(corrector).eval()
        forward_and_backward(module, batch, nullcontext)
        found.append({name: weight.grad for name, weight in network.named_parameters()})
    assert found[0].keys() == found[1].keys()
    for name, gradient in found[1].items():
        assert gradient.abs().max() > 0, name
        torch.testing.assert_close(found[0][name], gradient, rtol=1e-8, atol=1e-10 * gradient.abs().max().item())
