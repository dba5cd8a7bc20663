"""Attention among members in blocks of cells, against PyTorch's attention."""

from functools import partial

import pytest
import torch
from torch import nn
from torch.nn import functional

from models.layers import cell_attention
from models.layers.attention import MemberAttention


def random_layer(channels, heads, dtype=torch.float64):
    """A layer with random weights everywhere, and small ones before the softmax."""
    torch.manual_seed(0)
    layer = MemberAttention(channels, heads).to(dtype)
    for parameter in layer.parameters():
        nn.init.normal_(parameter, std=0.5)
    return layer


def plain(layer, x, M):
    """The same with PyTorch's layer normalisation, linear layers and attention."""
    cells = x.unflatten(0, (-1, M)).permute(0, 3, 4, 1, 2)
    normal = functional.layer_norm(cells, cells.shape[-1:], layer.norm.weight, layer.norm.bias)
    parts = functional.linear(normal, layer.mix.weight, layer.mix.bias).chunk(3, -1)
    q, k, v = (part.unflatten(-1, (layer.heads, -1)).transpose(-2, -3) for part in parts)
    mixed = functional.scaled_dot_product_attention(q, k, v).transpose(-2, -3).flatten(-2)
    return x + functional.linear(mixed, layer.last.weight, layer.last.bias).permute(0, 3, 4, 1, 2).flatten(0, 1)


def results(work, layer, x, slope):
    """The output and the gradients of the input and of every parameter."""
    y = work(x)
    return [y, *torch.autograd.grad(y, [x, *layer.parameters()], slope)]


def check(layer, B, M, H, W, layout=torch.contiguous_format):
    dtype = layer.mix.weight.dtype
    x = torch.randn(B * M, layer.mix.in_features, H, W, dtype=dtype).to(memory_format=layout).requires_grad_()
    slope = torch.randn_like(x)
    wide = random_layer(layer.mix.in_features, layer.heads)
    wide.load_state_dict(layer.state_dict())
    found = results(partial(layer, M=M), layer, x, slope)
    expected = results(lambda x: plain(wide, x, M), wide, x.detach().double().requires_grad_(), slope.double())
    for one, other in zip(found, expected, strict=True):
        # Gradients of weights are sums over all cells of terms of either sign.
        scale = other.detach().abs().max() * (1 if other.ndim == 4 else (B * M * H * W) ** 0.5)
        torch.testing.assert_close(one.double(), other, rtol=0, atol=float(scale * 20 * torch.finfo(dtype).eps))


@pytest.mark.parametrize(("channels", "heads", "members"), [(6, 2, 1), (8, 1, 2), (16, 4, 50), (3, 3, 5)])
def test_values_and_gradients_are_those_of_plain_attention(channels, heads, members):
    check(random_layer(channels, heads), B=2, M=members, H=5, W=6)


@pytest.mark.parametrize("layout", [torch.contiguous_format, torch.channels_last])
@pytest.mark.parametrize("size", [1, 7, 30, 64])
def test_blocks_of_any_size_give_the_values_of_the_whole(monkeypatch, size, layout):
    """30 cells: blocks of one, blocks that do not divide them, all cells, more than there are."""
    monkeypatch.setattr(cell_attention, "SHORTEST_ROW", size)
    monkeypatch.setattr(cell_attention, "WEIGHTS_AT_ONCE", 1)
    check(random_layer(8, 2), B=2, M=4, H=5, W=6, layout=layout)


def test_single_precision():
    check(random_layer(8, 2, torch.float32), B=1, M=10, H=16, W=24)


def test_large_products_do_not_overflow():
    """Without its maximum, the exponential of such products is infinite."""
    layer = random_layer(8, 1, torch.float32)
    nn.init.normal_(layer.mix.weight, std=40)
    x = torch.randn(4, 8, 3, 4, requires_grad=True)
    y = layer(x, 4)
    y.sum().backward()
    assert torch.isfinite(y).all()
    assert torch.isfinite(x.grad).all()


def test_autocast_computes_in_single_precision():
    layer, x = random_layer(8, 2, torch.float32), torch.randn(6, 8, 4, 5)
    with torch.no_grad():
        expected = layer(x, 3)
        with torch.autocast("cpu", torch.bfloat16):
            found, halved = layer(x, 3), layer(x.bfloat16(), 3)
    torch.testing.assert_close(found, expected, rtol=0, atol=0)
    assert halved.dtype is torch.bfloat16
    torch.testing.assert_close(halved.float(), expected, rtol=0.05, atol=0.05)


def test_only_the_input_is_kept_for_the_backward_pass():
    """Not the normalised values, queries, keys, values or weights; matrices do not count."""
    layer, x, kept = random_layer(8, 2), torch.randn(6, 8, 9, 10, dtype=torch.float64, requires_grad=True), []

    def keep(tensor):
        kept.append(tensor)
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        layer(x, 3)
    large = {tensor.data_ptr() for tensor in kept if tensor.numel() > layer.mix.weight.numel()}
    assert large == {x.data_ptr()}


def test_the_operator_keeps_pytorch_s_rules():
    """Its fake results and its gradients agree with the real ones, for compilation and for computed memory."""
    layer = random_layer(4, 2)
    x = torch.randn(6, 4, 3, 5, dtype=torch.float64, requires_grad=True)
    matrices = [t.detach().requires_grad_() for t in (layer.mix.weight, layer.mix.bias, layer.last.weight)]
    offset = layer.last.bias.detach().requires_grad_()
    torch.library.opcheck(torch.ops.deepweather.attend.default, (x, *matrices, offset, 2, 3, 1e-5))
    assert torch.autograd.gradcheck(
        lambda *inputs: torch.ops.deepweather.attend(*inputs, 2, 3, 1e-5), (x, *matrices, offset), fast_mode=True
    )


def test_the_exported_form_gives_the_same_values():
    layer, x = random_layer(6, 3), torch.randn(8, 6, 4, 5, dtype=torch.float64)
    with torch.no_grad():
        torch.testing.assert_close(layer.in_standard_operators(x, 4), layer(x, 4), rtol=1e-12, atol=1e-12)
