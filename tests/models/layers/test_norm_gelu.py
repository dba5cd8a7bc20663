"""Normalisation and GELU in blocks, against PyTorch's layers one after the other."""

from unittest.mock import patch

import pytest
import torch
from torch.nn import functional

from models.layers import norms
from models.layers.norms import ChannelNorm


@pytest.mark.parametrize("memory_format", [torch.contiguous_format, torch.channels_last], ids=["rows", "channels"])
@pytest.mark.parametrize("numbers", [1, 70, 1 << 16], ids=["single cells", "uneven blocks", "one block"])
def test_blocks_are_the_layers_of_torch(numbers, memory_format):
    torch.manual_seed(0)
    layer = ChannelNorm(6, gelu=True).double()
    torch.nn.init.normal_(layer.weight)
    torch.nn.init.normal_(layer.bias)
    x = (3 * torch.randn(2, 6, 5, 7, dtype=torch.float64) + 1).to(memory_format=memory_format).requires_grad_()
    wanted = x, layer.weight, layer.bias
    gradient = torch.randn(2, 6, 5, 7, dtype=torch.float64)
    normal = functional.layer_norm(x.movedim(1, -1), (6,), layer.weight, layer.bias)
    expected = 0.5 * normal * (1 + torch.erf(normal / 2**0.5))
    theirs = torch.autograd.grad(expected.movedim(-1, 1), wanted, gradient)
    with patch.object(norms, "CACHED_NUMBERS", numbers):
        y = layer(x)
        ours = torch.autograd.grad(y, wanted, gradient)
    torch.testing.assert_close(y, expected.movedim(-1, 1), rtol=0, atol=1e-12)
    for own, other in zip(ours, theirs, strict=True):
        torch.testing.assert_close(own, other, rtol=0, atol=1e-12 * max(1.0, float(other.abs().max())))


def test_the_backward_pass_keeps_the_input_only():
    x = torch.randn(1, 16, 30, 40).to(memory_format=torch.channels_last).requires_grad_()
    kept = []
    with torch.autograd.graph.saved_tensors_hooks(lambda t: kept.append(t) or t, lambda t: t):
        y = ChannelNorm(16, gelu=True)(x)
    assert y.is_contiguous(memory_format=torch.channels_last)
    assert sum(t.numel() for t in kept) == x.numel() + 2 * 16
    assert x.data_ptr() in {t.data_ptr() for t in kept}


def test_bfloat16_is_that_of_the_separate_layers():
    layer, x = ChannelNorm(8, gelu=True), torch.randn(1, 8, 9, 12)
    with torch.autocast("cpu", torch.bfloat16):
        expected = functional.gelu(ChannelNorm(8)(x.bfloat16()))
        assert torch.equal(layer(x.bfloat16()), expected)
