"""Batch normalisation on ranks with different tiles and samples, and norms with GELU in blocks, against PyTorch's."""

import copy
from unittest.mock import patch

import pytest
import torch
import torch.distributed as dist
from ranks import run_on_ranks
from torch import nn
from torch.nn import functional

from data_pipeline.grid import Grid
from models.layers import norms
from models.layers.norms import BatchNorm2d, ChannelNorm, FieldNorm
from models.parallel.exchange import count_sent_bytes
from models.parallel.mesh import arrange_mesh

GRID, CHANNELS = Grid.regular(13, 16), 6
SAMPLES = (slice(0, 2), slice(2, 5))
"""Samples of each data rank: uneven numbers."""


def tile_of_rank(x, domain, rank):
    return domain.cut(x)[SAMPLES[rank // 2]]


def hybrid():
    """The domain of a mesh of two data ranks with two tiles each, of 6 and 7 rows."""
    return arrange_mesh(2, 2).domain(GRID)


def layers(domain, dtype):
    """PyTorch's layer and ours, with the same random weights."""
    torch.manual_seed(1)
    one, many = nn.BatchNorm2d(CHANNELS).to(dtype), BatchNorm2d(domain, CHANNELS).to(dtype)
    nn.init.normal_(one.weight)
    nn.init.normal_(one.bias)
    many.load_state_dict(one.state_dict())
    return one, many


def data(mean, dtype):
    generator = torch.Generator().manual_seed(2)
    x = torch.randn(5, CHANNELS, *GRID.shape, dtype=torch.float64, generator=generator)
    # Tiles and samples have different means, so that the test sees which of them count.
    x += torch.linspace(-1, 1, 13)[:, None] + torch.arange(5.0)[:, None, None, None]
    return (x + mean).to(dtype), torch.randn(x.shape, dtype=torch.float64, generator=generator).to(dtype)


def relative(found, expected):
    return float((found - expected).detach().abs().max() / expected.detach().abs().max())


def three_steps(rank, mean, dtype):
    """Largest relative differences of outputs, gradients and statistics after three batches, then in evaluation."""
    domain = hybrid()
    one, many = layers(domain, dtype)
    x, weights = data(mean, dtype)
    differences = {}
    for step in range(3):
        theirs, ours = (
            t.clone().requires_grad_() for t in (x * (1 + step), tile_of_rank(x, domain, rank) * (1 + step))
        )
        expected, found = one(theirs), many(ours)
        one.zero_grad()
        many.zero_grad()
        (expected * weights).sum().backward()
        (found * tile_of_rank(weights, domain, rank)).sum().backward()
    differences["output"] = relative(found, tile_of_rank(expected, domain, rank))
    differences["input gradient"] = relative(ours.grad, tile_of_rank(theirs.grad, domain, rank))
    for name, parameter in many.named_parameters():
        dist.all_reduce(parameter.grad)
        differences[name] = relative(parameter.grad, one.get_parameter(name).grad)
    for name, buffer in many.named_buffers():
        differences[name] = relative(buffer.double(), one.get_buffer(name).double())
    one.eval()
    many.eval()
    with count_sent_bytes() as sent:
        differences["evaluation"] = relative(many(ours), tile_of_rank(one(theirs), domain, rank))
    assert not sent
    return differences, {name: buffer.tolist() for name, buffer in many.named_buffers()}


def large_mean(rank):
    """Relative errors in single precision, against double precision, where E[x²] - m² has no digit left."""
    domain = hybrid()
    x, weights = data(1e4, torch.float32)
    exact, ours = layers(domain, torch.float64)[0], layers(domain, torch.float32)[1]
    theirs, mine = x.double().requires_grad_(), tile_of_rank(x, domain, rank).clone().requires_grad_()
    expected, found = exact(theirs), ours(mine)
    (expected * weights).sum().backward()
    (found * tile_of_rank(weights, domain, rank)).sum().backward()
    gradient = relative(mine.grad.double(), tile_of_rank(theirs.grad, domain, rank))
    return relative(found.double(), tile_of_rank(expected, domain, rank)), gradient


def half_precision(rank):
    domain = hybrid()
    one, many = layers(domain, torch.float32)
    x, _ = data(3.0, torch.bfloat16)
    with torch.autocast("cpu", torch.bfloat16):
        expected, found = one(x), many(tile_of_rank(x, domain, rank).requires_grad_())
    found.sum().backward()
    assert found.dtype is expected.dtype is torch.bfloat16
    variance = relative(many.running_var, one.running_var)
    return relative(found.float(), tile_of_rank(expected, domain, rank).float()), variance


def messages(rank):
    """Bytes of a step's sums for batch and field normalisation, forward and backward."""
    domain, x = hybrid(), torch.randn(2, CHANNELS, 6 + rank % 2, 16, requires_grad=True)
    found = []
    for layer in (BatchNorm2d(domain, CHANNELS), FieldNorm(domain, CHANNELS)):
        with count_sent_bytes() as forward:
            y = layer(x)
        with count_sent_bytes() as backward:
            y.sum().backward()
        found.append((forward, backward))
    return found


def compiled(rank):
    domain = arrange_mesh(1, 2).domain(GRID)
    x = torch.randn(2, CHANNELS, *domain.own_shape, generator=torch.Generator().manual_seed(rank))
    net = nn.Sequential(BatchNorm2d(domain, CHANNELS), FieldNorm(domain, CHANNELS))
    results = []
    for model in (net, torch.compile(copy.deepcopy(net), fullgraph=True, backend="aot_eager")):
        model(x).square().sum().backward()
        results.append([*(p.grad for p in model.parameters()), *model.buffers()])
    return [relative(found, expected) for expected, found in zip(*results, strict=True)]


def all_checks(rank):
    steps = [three_steps(rank, mean, torch.float64) for mean in (0.0, 1e4)]
    return steps, large_mean(rank), half_precision(rank), messages(rank)


def test_ranks_give_the_results_of_one_process():
    """Only statistics are sent: mean and variance forward, two sums backward, and the unknown number of values."""
    ranks = run_on_ranks(4, all_checks)
    for steps, with_large_mean, (output, variance), (batch, field) in ranks:
        # PyTorch's own layer loses 4 of 16 digits for a mean of 1e4.
        for (found, statistics), (_, first), tolerance in zip(steps, ranks[0][0], (1e-12, 1e-10), strict=True):
            assert max(found.values()) < tolerance, found
            assert statistics == first, "statistics are equal on all ranks, bit for bit"
        assert max(with_large_mean) < 2e-6
        assert output < 2**-7, "half precision has eight significant bits"
        assert variance < 1e-5, "half precision is summed in double precision"
        assert batch == ({"sum": 8 * (2 * CHANNELS + 1)}, {"sum": 8 * 2 * CHANNELS})
        assert field == ({"sum": 8 * 2 * 2}, {"sum": 8 * 2 * 2})


def test_compiled_layers_of_two_ranks_give_the_same_numbers():
    """On two ranks: each imports PyTorch's compiler, which takes seconds."""
    for differences in run_on_ranks(2, compiled):
        assert max(differences) < 1e-6


def test_one_rank_equals_pytorch():
    one, many = layers(GRID, torch.float32)
    x, _ = data(1.0, torch.float32)
    assert torch.equal(one(x), many(x))
    assert torch.equal(one.running_var, many.running_var)


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
