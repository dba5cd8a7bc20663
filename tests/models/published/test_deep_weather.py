"""Deep Weather's networks against the published figures, and against the same nets written in plain PyTorch."""

import pytest
import torch
from torch import nn

from data_pipeline.dataset import batches
from data_pipeline.grid import Grid
from data_pipeline.task import Task
from models.published.deep_weather import BiasNet, DeepWeather, ParallelKernels, ResNet2d, ResNet2dSimple, UpConvolution
from models.published.ens10 import ConvNormReLU
from models.statistical.predictors import SMALLEST_SPREAD
from training.optimization.loss import CRPS, SeparateMeanAndSpread, SquaredError

FIELDS = [f"{name}@500" for name in ("z", "t", "q", "w", "d", "u", "v")]
EARLIER = [f"{name}+{lead}h" for lead in (0, 24) for name in FIELDS]
PUBLISHED = Task("z500", FIELDS, ["z@500"], [48], [], EARLIER, FIELDS)
Z500 = Task("z500", FIELDS, ["z@500"], [48])
TOY = Task("toy", ["sst", "2t", "msl"], ["2t", "msl"], [48])
WIDER = Task("wider", ["sst", "2t", "msl"], ["2t", "msl"], [48], [], ["2t+0h", "10u+24h"], ["2t", "10u"])
GRID = Grid.regular(13, 16)


class Published3d(nn.Module):
    """The published bias network, with its third dimension of size one and zeros beyond all edges."""

    def __init__(self, inputs, outputs, width, depth):
        super().__init__()
        widths = [2 * width * 2**level for level in range(depth + 1)]
        self.down = nn.ModuleList(
            self.pair(before, w // 2, w) for before, w in zip([inputs, *widths], widths, strict=False)
        )
        self.up = nn.ModuleList(nn.Conv3d(w, w, (1, 3, 3), padding=(0, 1, 1)) for w in widths[1:])
        self.across = nn.ModuleList(
            self.pair(w + coarse, w, w) for w, coarse in zip(widths, widths[1:] or [0], strict=False)
        )
        self.last = nn.Conv3d(2 * width, outputs, 1)
        self.twice = nn.Upsample(scale_factor=(1, 2, 2), mode="trilinear")

    @staticmethod
    def pair(inputs, inner, outputs):
        return nn.Sequential(
            nn.Conv3d(inputs, inner, 3, padding=1), nn.BatchNorm3d(inner), nn.ReLU(),
            nn.Conv3d(inner, outputs, 3, padding=1), nn.BatchNorm3d(outputs), nn.ReLU(),
        )  # fmt: skip

    def forward(self, x):
        levels = [x := self.down[0](x[:, :, None])]
        for block in self.down[1:]:
            levels.append(x := block(nn.functional.max_pool3d(x, (1, 2, 2))))
        if not self.up:
            x = self.across[0](x)
        for level in reversed(range(len(self.up))):
            x = self.across[level](torch.cat([levels[level], self.up[level](self.twice(x))], dim=1))
        return self.last(x)[:, :, 0]


class PublishedInception(nn.Module):
    """One batch normalisation for the three parallel convolutions together."""

    def __init__(self, inputs, outputs):
        super().__init__()
        quarter = outputs // 4
        self.branches = nn.ModuleList(nn.Conv2d(inputs, quarter, k, padding=k // 2) for k in (3, 5, 7))
        self.norm, self.one = nn.BatchNorm2d(3 * quarter), nn.Conv2d(inputs, quarter, 1)

    def forward(self, x):
        wide = torch.relu(self.norm(torch.cat([branch(x) for branch in self.branches], dim=1)))
        return torch.cat([wide, self.one(x)], dim=1)


class Published2d(nn.Module):
    """The published uncertainty network, with zeros beyond all edges; the first input is the spread of the target."""

    def __init__(self, inputs, width):
        super().__init__()
        before, widths = 3 * width + 1, [k * width for k in (4, 5, 7, 7, 5, 4)]
        self.stem = nn.Sequential(
            nn.Conv2d(inputs, 2 * width, 3, padding=1), nn.BatchNorm2d(2 * width), nn.ReLU(),
            nn.Conv2d(2 * width, 3 * width, 3, padding=1), nn.BatchNorm2d(3 * width), nn.ReLU(),
        )  # fmt: skip
        self.blocks = nn.Sequential(
            *(PublishedInception(a, b) for a, b in zip([before, *widths], widths, strict=False))
        )
        self.last = nn.Conv2d(widths[-1] + 1, 1, 1)

    def forward(self, x):
        y = self.blocks(torch.cat([x[:, :1], self.stem(x)], dim=1))
        return self.last(torch.cat([x[:, :1], y], dim=1)).abs()


class PublishedBottleneck(nn.Module):
    """A block of RESNET2D: its input is the block before and the 24 channels of the first convolution."""

    def __init__(self, inputs, width):
        super().__init__()
        self.branches = nn.ModuleList(nn.Conv2d(inputs, width, k, padding=k // 2) for k in (3, 5, 7))
        self.norm, self.mix = nn.BatchNorm2d(3 * width), nn.Conv2d(3 * width + inputs, width, 1)

    def forward(self, x):
        wide = torch.relu(self.norm(torch.cat([branch(x) for branch in self.branches], dim=1)))
        return self.mix(torch.cat([wide, x], dim=1))


class PublishedResNet2d(nn.Module):
    """RESNET2D with zeros beyond all edges; spreads come first, that of the target before all others."""

    def __init__(self, spreads, width):
        super().__init__()
        self.squeeze = nn.Sequential(nn.Conv2d(spreads, 3, 1), nn.BatchNorm2d(3), nn.ReLU())
        seen, widths = 3 + spreads, [width + width // 16 * i for i in range(10)]
        self.first = nn.Sequential(nn.Conv2d(seen, width, 3, padding=1), nn.BatchNorm2d(width), nn.ReLU())
        before = [width, *widths[:-1]]
        self.blocks = nn.ModuleList(PublishedBottleneck(n + seen, w) for n, w in zip(before, widths, strict=True))
        self.eight = nn.Sequential(nn.Conv2d(widths[-1] + width, 8, 3, padding=1), nn.BatchNorm2d(8), nn.ReLU())
        self.four, self.one = nn.Conv2d(8, 4, 1), nn.Conv2d(5, 1, 1)

    def forward(self, x):
        spreads, fields = x.chunk(2, dim=1)
        seen = torch.cat([self.squeeze(fields), spreads], dim=1)
        y = first = self.first(seen)
        for block in self.blocks:
            y = block(torch.cat([y, seen], dim=1))
        y = self.four(self.eight(torch.cat([y, first], dim=1)))
        return self.one(torch.cat([x[:, :1], y], dim=1)).abs()


def parameter_count(*parts):
    return sum(p.numel() for part in parts for p in (part.parameters() if isinstance(part, nn.Module) else [part]))


def convolutions(module):
    """Weight and bias of every convolution; ours keep the bias before a normalisation apart."""
    beside = {
        layer.convolution: layer.bias for layer in module.modules() if isinstance(layer, ConvNormReLU | UpConvolution)
    }
    for block in (block for block in module.modules() if isinstance(block, ParallelKernels)):
        beside |= dict(zip(block.wide, block.bias.chunk(len(block.wide)), strict=True))
    kinds = nn.Conv2d, nn.Conv3d
    return [(layer.weight, beside.get(layer, layer.bias)) for layer in module.modules() if isinstance(layer, kinds)]


def norms(module, name):
    """The tensor `name` of all batch normalisations."""
    kinds = nn.BatchNorm2d, nn.BatchNorm3d
    return [getattr(layer, name) for layer in module.modules() if isinstance(layer, kinds)]


@torch.no_grad()
def with_equal_parameters(ours, theirs):
    """Give both networks the same random parameters, in double precision and evaluation mode."""
    torch.manual_seed(0)
    for weight, bias in convolutions(ours):
        nn.init.kaiming_normal_(weight)
        nn.init.normal_(bias)
    for (weight, bias), (to_weight, to_bias) in zip(convolutions(ours), convolutions(theirs), strict=True):
        # Parameters that only multiply zero padding may have any value.
        nn.init.normal_(to_weight)
        same = to_weight if weight.ndim == to_weight.ndim else to_weight[:, :, to_weight.shape[2] // 2]
        same.copy_(weight)
        to_bias.copy_(bias)
    for name in ("weight", "bias", "running_mean", "running_var"):
        for tensor in norms(ours, name):
            nn.init.uniform_(tensor, 0.5, 1.5)
        to = norms(theirs, name)
        for tensor, part in zip(to, torch.cat(norms(ours, name)).split([len(each) for each in to]), strict=True):
            tensor.copy_(part)
    return ours.double().eval(), theirs.double().eval()


def assert_same_inside(found, expected, reach):
    """Assert that results are equal away from edges, and differ near them."""
    inside = ..., slice(reach, -reach), slice(reach, -reach)
    assert expected[inside].numel()
    assert expected[inside].std() > 0.1
    torch.testing.assert_close(found[inside], expected[inside], rtol=1e-9, atol=1e-9)
    assert not torch.allclose(found[..., :2, :], expected[..., :2, :], rtol=1e-3), (
        "the published network has zeros beyond the pole"
    )
    assert not torch.allclose(found[..., :2], expected[..., :2], rtol=1e-3), (
        "the published network has zeros beyond the date line"
    )


@pytest.mark.parametrize(("depth", "published"), [(0, 289_703), (1, 990_823), (2, 4_679_399), (3, 19_429_351)])
def test_the_bias_network_has_the_published_parameters_except_those_on_zero_padding(depth, published):
    theirs, ours = Published3d(14, 7, 32, depth), BiasNet(Grid.regular(33, 64), 14, 7, 32, depth)
    idle = sum(weight.numel() * 2 // 3 for weight, _ in convolutions(theirs) if weight.shape[2] == 3)
    assert parameter_count(theirs) == published
    assert parameter_count(ours) == published - idle


def test_the_uncertainty_networks_and_the_local_layer_have_the_published_parameters():
    """3.76 million, and 7.40 million with blocks of 64, 68, ..., 100 channels; 7 analyses and 7 means of the bias."""
    assert parameter_count(Published2d(42, 32)) == 3_762_530
    assert parameter_count(PublishedResNet2d(21, 64)) == 7_397_986
    simple = DeepWeather(PUBLISHED, GRID, 32, 1, "resnet2d_simple", 32)
    assert parameter_count(simple.uncertainty_net) == 3_762_530
    assert parameter_count(simple.bias_net) == parameter_count(BiasNet(GRID, 14, 7, 32, 1))
    assert parameter_count(DeepWeather(PUBLISHED, GRID, 1, 0, "resnet2d", 64).uncertainty_net) == 7_397_986
    grid = Grid(tuple(90 - 0.5 * k for k in range(360)), tuple(0.5 * k for k in range(720)))
    model = DeepWeather(Z500, grid, bias_width=1, bias_depth=0)
    assert parameter_count(model.local, model.gain) == 2_073_601


@pytest.mark.parametrize(("depth", "reach"), [(0, 4), (1, 12), (2, 32)])
def test_the_bias_network_equals_the_published_network_away_from_edges(depth, reach):
    grid = Grid.regular(4 * (reach // 2 + 2), 4 * (reach // 2 + 3))
    ours, theirs = with_equal_parameters(BiasNet(grid, 6, 3, 2, depth), Published3d(6, 3, 2, depth))
    x = torch.randn(2, 6, *grid.shape, dtype=torch.float64)
    with torch.no_grad():
        assert_same_inside(ours(x), theirs(x), reach)


@pytest.mark.parametrize(
    ("kind", "published", "reach"), [(ResNet2dSimple, Published2d(4, 4), 20), (ResNet2d, PublishedResNet2d(2, 16), 32)]
)
def test_the_uncertainty_networks_equal_the_published_networks_away_from_edges(kind, published, reach):
    grid, width = Grid.regular(2 * reach + 4, 2 * reach + 8), 4 if kind is ResNet2dSimple else 16
    ours, theirs = with_equal_parameters(kind(grid, 4, 1, width), published)
    x = torch.randn(1, 4, *grid.shape, dtype=torch.float64)
    with torch.no_grad():
        assert_same_inside(ours(x, x[:, :1]), theirs(x), reach)


def normal_sample(toy, task=TOY, count=3, members=5):
    """A batch with the statistics of normalised samples; the analysis is equal for all members."""
    sample = next(batches(toy(task, GRID, count, members), count))
    ensemble = (sample.ensemble - 280) / 10
    for channel in range(len(task.channels) - len(task.analysis), len(task.channels)):
        ensemble[:, :, channel] = ensemble[:, :1, channel]
    return sample._replace(ensemble=ensemble, target=(sample.target - 280) / 10)


@pytest.mark.parametrize("uncertainty", ["resnet2d_simple", "resnet2d"])
@pytest.mark.parametrize(("task", "forecasts", "beside"), [(TOY, 3, None), (WIDER, 5, [5, 6])], ids=["toy", "wider"])
def test_the_forecast_follows_the_formula(toy, task, forecasts, beside, uncertainty):
    """μ = m + g (Σ w f + b) in every cell, f of analysis and mean; σ of the spreads and the first member.

    The targets are the second and third input; the analysis comes after the forecasts of the inputs and of the other
    lead times. Without analysis the bias network reads the spread of the inputs.
    """
    torch.manual_seed(0)
    model, sample = DeepWeather(task, GRID, 8, 1, uncertainty).eval(), normal_sample(toy, task)
    for parameter in (*model.local.parameters(), model.gain, model.uncertainty_net.last.weight):
        nn.init.normal_(parameter)
    nn.init.normal_(model.standardization.mean)
    nn.init.uniform_(model.standardization.std, 0.5, 2)
    with torch.no_grad():
        found = model(sample)
        members = sample.ensemble[:, :, :forecasts]
        mean, s = members.mean(1)[:, :3], torch.sqrt(members.var(1) + SMALLEST_SPREAD**2)
        maps = model.bias_net(torch.cat([s[:, :3] if beside is None else sample.ensemble[:, 0, beside], mean], dim=1))
        weight, bias = model.local.weight, model.local.bias
        for t, channel in enumerate((1, 2)):
            added = sum(weight[t, c] * maps[:, c] for c in range(3)) + bias[t]
            torch.testing.assert_close(found.mu[:, t], mean[:, channel] + model.gain[t] * added)
        first = (members[:, 0] - model.standardization.mean[0]) / model.standardization.std[0]
        sigma = model.uncertainty_net(torch.cat([s, first], dim=1), s[:, 1:3])
        torch.testing.assert_close(found.sigma, sigma)
        assert (sigma > 0).all()


def test_winds_of_every_lead_time_and_of_the_analysis_change_sign_across_a_pole():
    """With an odd number of rows and an even one of columns, the row beyond the pole is the last but one, rotated."""
    model = DeepWeather(WIDER, GRID, uncertainty="resnet2d_simple")
    bias, sigma = (net[0].convolution.window.parity for net in (model.bias_net.encoder[0], model.uncertainty_net.stem))
    assert bias.tolist() == [1, -1, 1, 1, 1]
    assert sigma.tolist() == [1] * 5 + [1, 1, 1, 1, -1]
    assert DeepWeather(WIDER, GRID, uncertainty="resnet2d").uncertainty_net.first.convolution.window.parity is None


def test_each_stage_trains_one_network(toy):
    torch.manual_seed(0)
    sample = normal_sample(toy, WIDER, 4)
    for trained in ("bias", "uncertainty"):
        model = DeepWeather(WIDER, GRID, trained_networks=trained)
        nn.init.normal_(model.local.weight)
        before = {name: value.clone() for name, value in model.state_dict().items()}
        optimizer = torch.optim.AdamW([p for p in model.parameters() if p.requires_grad], lr=1e-2)
        loss = (SquaredError() if trained == "bias" else CRPS())(model(sample), sample, None).mean()
        loss.backward()
        optimizer.step()
        assert all(parameter.grad is not None for parameter in model.parameters() if parameter.requires_grad)
        changed = {name for name, value in model.state_dict().items() if not torch.equal(value, before[name])}
        of_sigma = {name.startswith("uncertainty_net") for name in changed}
        assert of_sigma == {trained == "uncertainty"}, "also the statistics of batch normalisation"
        model.eval()
        s = torch.sqrt(sample.ensemble[:, :, [1, 2]].var(1) + SMALLEST_SPREAD**2)
        assert torch.allclose(model(sample).sigma, s) == (trained == "bias")


def test_the_separate_loss_trains_each_network_with_its_score(toy):
    """The gradient of the bias network is that of the squared error, the other one that of the CRPS."""
    torch.manual_seed(0)
    model, sample = DeepWeather(TOY, GRID), normal_sample(toy, TOY, 4)
    nn.init.normal_(model.local.weight)

    def gradients(loss):
        model.zero_grad()
        loss(model(sample), sample, None).mean().backward()
        return {name: parameter.grad for name, parameter in model.named_parameters() if parameter.grad is not None}

    separate, error, crps = (gradients(loss) for loss in (SeparateMeanAndSpread(), SquaredError(), CRPS()))
    of_sigma = {name for name in separate if name.startswith("uncertainty_net")}
    assert separate.keys() == crps.keys() > of_sigma
    for name, gradient in separate.items():
        torch.testing.assert_close(gradient, (crps if name in of_sigma else error)[name], rtol=1e-4, atol=1e-7)
