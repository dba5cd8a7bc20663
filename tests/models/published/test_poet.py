"""PoET against its published figures, against the same network in plain PyTorch, and its attention against loops."""

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional

from data_pipeline.dataset import batches
from data_pipeline.grid import Grid
from data_pipeline.task import Task
from models.published.poet import EnsembleAttention, PoET

T850 = Task("t850", [f"{name}@850" for name in ("z", "t", "q", "w", "d", "u", "v")], ["t@850"], [24, 48])
TOY = Task("toy", ["sst", "2t", "msl"], ["2t"], [48], ["lsm"])
AREA = Grid(tuple(60 - 0.5 * k for k in range(24)), tuple(0.5 * k for k in range(40)))
"""An area: its edges are repeated, as PyTorch can pad. Rows and columns can be halved evenly."""
SMALL = {"widths": [4, 6, 5], "heads": 3, "attention_resolutions": 2}


def with_random_weights(model):
    """The same model in double precision with random weights in all layers."""
    torch.manual_seed(0)
    for parameter in model.double().parameters():
        nn.init.normal_(parameter, std=0.3)
    return model.eval()


def batch(toy, grid, members=4, count=2):
    """Normalised forecasts in double precision."""
    sample = next(batches(toy(TOY, grid, count, members, seed=7), count))
    ensemble, target = ((part.double() - 280) / 10 for part in (sample.ensemble, sample.target))
    return sample._replace(ensemble=ensemble, target=target)


@pytest.mark.parametrize(
    ("options", "total", "normalisation"),
    [({}, 3.92, 3.63), ({"widths": [16, 32, 64, 128], "attention_resolutions": 4}, 16.7, 15.6)],
    ids=["published", "large"],
)
def test_has_the_published_parameters(options, total, normalisation):
    """On 360 rows, because the original drops the last of 361."""
    with torch.device("meta"):
        model, taller, other = (
            PoET(T850, Grid.regular(rows, 720), **options, norm=norm)
            for rows, norm in ((360, "field"), (361, "field"), (360, "channel"))
        )
    count, norms = (
        sum(p.numel() for name, p in model.named_parameters() if part in name) / 1e6 for part in ("", ".norm.")
    )
    assert float(f"{count:.3g}") == total
    assert float(f"{norms:.3g}") == normalisation
    if not options:
        assert round(count - norms, 3) == 0.295
    widths = options.get("widths", [8, 16, 32, 64])[-options.get("attention_resolutions", 3) :]
    row = sum(2 * width * 720 // 2 ** (3 - k) for k, width in enumerate(reversed(widths)))
    assert sum(p.numel() for p in taller.parameters()) - round(count * 1e6) == row, "these tensors have one more row"
    assert sum(p.numel() for p in other.parameters()) == round((count - norms) * 1e6) + 2 * sum(widths)


def pairs(count):
    return [(i, j) for i in range(count) for j in range(count)]


def attention_by_loops(layer, x, M):
    """The attention by loops over forecasts, heads and members, with convolutions of stride 3."""
    heads, C = layer.value.weight.shape[:2]
    normal = functional.layer_norm(x, x.shape[1:], layer.norm.weight, layer.norm.bias)
    keys, queries = (
        functional.conv2d(normal, part.weight.view(heads, C, 3, 3), stride=3).relu()
        for part in (layer.key, layer.query)
    )
    values = functional.conv2d(normal, layer.value.weight)
    found = torch.zeros_like(values)
    for b in range(len(x) // M):
        own = slice(b * M, b * M + M)
        for head in range(heads):
            K, Q, V = (part[own, head] for part in (keys, queries, values))
            scores = np.zeros((M, M))
            for i, j in pairs(M):
                scores[i, j] = float((K[i] * Q[j]).sum()) / np.sqrt(K[i].numel())
            weights = np.exp(scores - scores.max(0))
            weights /= weights.sum(0)
            for j in range(M):
                found[b * M + j, head] = V[j] + sum(weights[i, j] * (V[i] - V.mean(0)) for i in range(M))
    return (x + functional.conv2d(found, layer.last.weight, layer.last.bias)).relu()


@pytest.mark.parametrize("grid", [AREA, Grid.regular(13, 17), Grid.regular(8, 6)], ids=lambda grid: str(grid.shape))
def test_attention_follows_the_formula(grid):
    layer = with_random_weights(EnsembleAttention(grid, 4, 3, "field"))
    x = torch.randn(2 * 5, 4, *grid.shape, dtype=torch.float64)
    with torch.no_grad():
        found, expected = layer(x, 5), attention_by_loops(layer, x, 5)
    assert (found - (x + layer.last.bias[:, None, None]).relu()).abs().max() > 0.1
    torch.testing.assert_close(found, expected, rtol=1e-11, atol=1e-11)


def published_forecast(model, sample):
    """The published network on an area, in plain PyTorch."""

    def convolved(layer, x):
        reach = (layer.kernel_size[0] - 1) // 2
        x = functional.pad(x, 4 * [reach], mode="replicate")
        return functional.conv2d(x, layer.weight, layer.bias).relu()

    M = sample.ensemble.shape[1]
    x, levels = sample.ensemble.flatten(0, 1), []
    for level, stage in enumerate(model.encoder):
        x = functional.max_pool2d(x, 2) if level else x
        for layer in stage[::2]:
            x = convolved(layer, x)
        levels.append(x)
    for k in range(1, len(model.attention) + 1):
        levels[-k] = attention_by_loops(model.attention[-k], levels[-k], M)
    x = levels.pop()
    for stage in reversed(model.decoder):
        x = functional.conv_transpose2d(convolved(stage[0], x), stage[2].weight, stage[2].bias, stride=2).relu()
        x = torch.cat([x, levels.pop()], dim=1)
    output = functional.conv2d(convolved(model.finest[0], x), model.last.weight, model.last.bias)
    return (sample.ensemble[:, :, [1]] + output.unflatten(0, (-1, M))).movedim(1, 0)


def test_equals_the_published_network_in_plain_pytorch(toy):
    model, sample = with_random_weights(PoET(TOY, AREA, **SMALL)), batch(toy, AREA)
    with torch.no_grad():
        found, expected = model(sample).members, published_forecast(model, sample)
    assert (found - sample.ensemble[:, :, [1]].movedim(1, 0)).std() > 0.1
    torch.testing.assert_close(found, expected, rtol=1e-10, atol=1e-10)


def test_a_single_member_works(toy):
    grid = Grid.regular(13, 16)
    model, sample = with_random_weights(PoET(TOY, grid, **SMALL)), batch(toy, grid, 1)
    found = model(sample)
    found.crps(sample.target).mean().backward()
    assert torch.isfinite(found.mean).all()
    assert all(torch.isfinite(parameter.grad).all() for parameter in model.parameters())


def test_attention_weights_are_accurate_in_half_precision():
    """Products of whole fields are large and nearly equal: rounding them to bfloat16 would destroy the weights."""
    grid = Grid.regular(91, 180)
    torch.manual_seed(0)
    layer = EnsembleAttention(grid, 8, 8, "field")
    x = torch.randn(1, 8, *grid.shape) + 0.1 * torch.randn(4, 8, *grid.shape)
    with torch.no_grad():
        expected = layer.weights(x, 4)
        with torch.autocast("cpu", torch.bfloat16):
            found = layer.weights(x, 4)
    assert (found - expected).abs().max() < 0.3 * (expected - 1 / 4).abs().mean()
