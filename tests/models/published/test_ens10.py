"""ENS-10's U-Net against the published figures, and against the same network in plain PyTorch."""

import pytest
import torch
from torch import nn

from data_pipeline.dataset import batches
from data_pipeline.grid import Grid
from data_pipeline.task import Task
from models.published.ens10 import ENS10UNet

T2M = Task("t2m", ["sst", "tcw", "tcwv", "cp", "msl", "tcc", "10u", "10v", "2t", "tp", "skt"], ["2t"], [48])
T850 = Task("t850", [f"{name}@850" for name in ("z", "t", "q", "w", "d", "u", "v")], ["t@850"], [48])
TOY = Task("toy", ["sst", "2t", "msl"], ["2t"], [48], ["lsm"])
REACH = 36
"""Cells in each direction on which the published network depends."""


def two_convolutions(inputs, outputs):
    """Two convolutions as in ENS-10, with zero padding."""
    widths = (inputs, *outputs)
    layers = [
        (nn.Conv2d(a, b, 3, padding=1), nn.BatchNorm2d(b), nn.ReLU()) for a, b in zip(widths, outputs, strict=False)
    ]
    return nn.Sequential(*(part for layer in layers for part in layer))


class Published(nn.Module):
    """The published network: zero padding, pooling and bilinear interpolation of PyTorch."""

    def __init__(self, inputs):
        super().__init__()
        self.down = nn.ModuleList(
            [two_convolutions(inputs, (32, 32)), two_convolutions(32, (64, 64)), two_convolutions(64, (128, 128))]
        )
        self.up = nn.ModuleList(
            [two_convolutions(128, (128, 64)), two_convolutions(128, (64, 32)), two_convolutions(64, (32, 32))]
        )
        self.last = nn.Conv2d(32, 2, 3, padding=1)
        self.pool, self.twice = nn.MaxPool2d(2), nn.Upsample(scale_factor=2, mode="bilinear")

    def forward(self, x):
        x = self.down[0](x)
        y = self.down[1](self.pool(x))
        z = self.up[0](self.down[2](self.pool(y)))
        y = self.up[1](torch.cat([y, self.twice(z)], dim=1))
        return self.last(self.up[2](torch.cat([x, self.twice(y)], dim=1)))


def parts(model):
    """Weights, biases and running statistics in the order of the layers, equal for ours and the published network."""
    for layer in model.modules():
        if isinstance(layer, nn.Conv2d):
            yield layer.weight
        if isinstance(layer, nn.BatchNorm2d):
            yield from (layer.weight, layer.bias, layer.running_mean, layer.running_var)


def biases(model):
    """Biases of convolutions in the order of the layers."""
    if isinstance(model, Published):
        return [layer.bias for layer in model.modules() if isinstance(layer, nn.Conv2d)]
    return [value for name, value in model.named_parameters() if name.endswith("bias") and "norm" not in name]


@pytest.mark.parametrize(("task", "count"), [(T850, 633_698), (T2M, 636_002)], ids=["T850", "T2m"])
def test_has_the_published_parameters(task, count):
    ours, published = ENS10UNet(task, Grid.regular(33, 64)), Published(2 * len(task.inputs))
    assert sum(parameter.numel() for parameter in ours.parameters()) == count
    assert sorted(p.shape for p in ours.parameters()) == sorted(p.shape for p in published.parameters())


def test_equals_the_published_network_away_from_edges(toy):
    """With equal weights in double precision, on a grid whose numbers of rows and columns divide by four."""
    torch.manual_seed(0)
    grid = Grid.regular(88, 92)
    ours, published = ENS10UNet(TOY, grid).double().eval(), Published(6).double().eval()
    with torch.no_grad():
        for to, value in zip(parts(published), parts(ours), strict=True):
            value.copy_(nn.init.uniform_(value, 0.5, 1.5) if value.ndim == 1 else nn.init.kaiming_normal_(value))
            to.copy_(value)
        for to, value in zip(biases(published), biases(ours), strict=True):
            to.copy_(nn.init.normal_(value))
        sample = next(batches(toy(TOY, grid, 1), 1))
        ensemble = (sample.ensemble.double() - 280) / 10
        sample = sample._replace(ensemble=ensemble)
        mean, std = ensemble.mean(1), ensemble.std(1)
        # Mean and log spread in turn.
        seen = torch.stack([mean, torch.log(std + 0.01) + 2], dim=2).flatten(1, 2)
        output = published(seen)
        scale = torch.sqrt(std[:, [1]] ** 2 + 1e-6)
        expected = mean[:, [1]] + scale * output[:, :1], scale * output[:, 1:].clamp(-8, 8).exp()
        found = ours(sample)
    inside = slice(REACH, -REACH)
    assert output[..., inside, inside].std() > 0.1
    for one, other in zip((found.mu, found.sigma), expected, strict=True):
        torch.testing.assert_close(one[..., inside, inside], other[..., inside, inside], rtol=1e-9, atol=1e-9)
        assert not torch.allclose(one[..., :2, :], other[..., :2, :], rtol=1e-3), (
            "the published network has zeros beyond the pole"
        )
        assert not torch.allclose(one[..., :2], other[..., :2], rtol=1e-3), (
            "the published network has zeros beyond the date line"
        )


def test_biases_before_a_normalisation_have_a_zero_gradient(toy):
    """Rounding errors in their place would move them with every step of Adam."""
    grid = Grid.regular(13, 16)
    model, sample = ENS10UNet(TOY, grid), next(batches(toy(TOY, grid, 2), 2))
    nn.init.normal_(model.last.weight)
    sample = sample._replace(ensemble=(sample.ensemble - 280) / 10, target=(sample.target - 280) / 10)
    model(sample).crps(sample.target).mean().backward()
    *within, last = biases(model)
    assert len(within) == 12
    assert not any(bias.grad.any() for bias in within)
    assert (last.grad != 0).all()
