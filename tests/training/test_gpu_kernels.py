"""The kernels of GPUs give the numbers of PyTorch's operators: in a step of every network, in every window, in scores.

They run on the stand-in of `tests/standin_triton.py`, or with `DEEPWEATHER_DEVICE=cuda` on a GPU.
"""

from contextlib import nullcontext
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, strategies
from specs import SPECS
from standin_triton import MODULES, with_kernels, without_kernels
from tested_device import TESTED
from torch.utils.data import default_collate
from training_parts import GRID, module

from data_pipeline.grid import Grid
from data_pipeline.sample import Sample
from data_pipeline.task import Task
from evaluation.kernels.ensemble_scores import ensemble_scores
from evaluation.scores.score import Binned
from evaluation.scoring import aggregation
from models.corrector import build_model
from models.layers.dropout import Dropout
from models.layers.norms import ChannelNorm
from models.layers.padding import GlobeWindow
from models.layers.resolution import BilinearUpsample, Downsample, Upsample
from models.parallel.mesh import Mesh
from training.memory.step_cost import computed_bytes
from training.network_training import matmul_precision

TASK = Task("toy", ["2t", "msl", "sst"], ["2t"], [48])
LIKE = ("bqn", "transformer_independent")
"""Networks with the layers of others."""
NETWORKS = {
    name: spec
    for name, spec in SPECS.items()
    if name not in LIKE and any(weight.requires_grad for weight in build_model(spec, TASK, GRID).parameters())
}


@pytest.fixture(autouse=True, scope="module")
def _on_the_tested_device():
    with torch.device(TESTED), matmul_precision("highest", torch.device(TESTED)):
        yield


def test_a_step_of_every_network_has_the_same_gradients(toy):
    assert len(NETWORKS) > 8
    for name, spec in NETWORKS.items():
        with torch.device("cpu"):
            net, train, _ = module(toy, Mesh.single(), torch.float32, spec, of=TASK)
            batch = default_collate([train[k] for k in range(2)])
        batch = Sample(*(tensor.to(TESTED) for tensor in batch))
        weights = [weight for weight in net.train().to(TESTED).parameters() if weight.requires_grad]
        with torch.no_grad():
            for weight in weights:  # so that no gradient is zero because the last layer is
                weight.add_(0.02 * torch.randn_like(weight))

        def step(net=net, batch=batch, weights=weights):
            torch.manual_seed(3)
            buffers = {key: value.clone() for key, value in net.named_buffers()}
            loss = net.training_step(batch, 0)["loss"]
            found = torch.autograd.grad(loss, weights, allow_unused=True)
            for key, value in net.named_buffers():
                value.copy_(buffers[key])
            return loss, [torch.zeros(()) if one is None else one for one in found]

        with without_kernels():
            loss, expected = step()
        with with_kernels():
            again, found = step()
        torch.testing.assert_close(again, loss, rtol=1e-5, atol=0, msg=name)
        size = max(one.abs().max() for one in expected)
        for one, other in zip(found, expected, strict=True):
            torch.testing.assert_close(one, other, rtol=1e-4, atol=3e-5 * float(size), msg=name)


def test_the_memory_plan_computes_without_kernels_and_values(toy):
    with torch.device("cpu"):
        net, train, _ = module(toy, Mesh.single(), torch.float32, SPECS["unet"], of=TASK)
        batch = default_collate([train[k] for k in range(2)])
    with without_kernels():
        expected = computed_bytes(net.train(), batch, nullcontext)
    with with_kernels():
        assert computed_bytes(net, batch, nullcontext) == expected > 0


def drawn_grids():
    globe = strategies.tuples(strategies.integers(4, 7), strategies.integers(2, 5).map(lambda n: 2 * n))
    area = Grid(np.linspace(60, 40, 5), np.linspace(0, 20, 6))
    return strategies.one_of(globe.map(lambda shape: Grid.regular(*shape)), strategies.just(area))


@given(drawn_grids(), strategies.tuples(*[strategies.integers(-2, 3)] * 4), strategies.booleans())
def test_a_window_and_its_gradient_are_those_of_the_patches(grid, beyond, signed):
    (H, W), (north, south, west, east) = grid.shape, beyond
    window = GlobeWindow(grid, (-north, H + south), (-west, W + east))
    x, parity = torch.randn(2, 3, H, W), torch.tensor([1.0, -1.0, 1.0]) if signed else None
    with without_kernels():
        expected = window.gather(x, parity)
        gradient = torch.randn_like(expected)
        back = window.scatter(gradient, parity, H, W)
    with with_kernels():
        assert torch.equal(window.gather(x, parity), expected)
        torch.testing.assert_close(window.scatter(gradient, parity, H, W), back)
    window._tables.clear()


@pytest.mark.parametrize(
    ("layer", "shape"),
    [
        (ChannelNorm(5), (7, 10)), (ChannelNorm(5, gelu=True), (7, 10)),
        (Downsample(Grid.regular(7, 10)), (7, 10)), (Downsample(Grid.regular(6, 9)), (6, 9)),
        (Upsample(Grid.regular(13, 20)), (7, 10)), (Upsample(Grid.regular(14, 19)), (7, 10)),
        (BilinearUpsample(Grid.regular(14, 19)), (7, 10)),
    ],
)  # fmt: skip
def test_a_layer_and_its_gradients_are_the_same(layer, shape):
    x = torch.randn(3, 5, *shape, requires_grad=True)

    def results():
        y = layer(x)
        return y, *torch.autograd.grad(y, (x, *layer.parameters()), torch.cos(torch.arange(y.numel())).view(y.shape))

    layer.to(TESTED)
    with without_kernels():
        expected = results()
    with with_kernels():
        torch.testing.assert_close(results(), expected, rtol=1e-5, atol=1e-5)


def test_masks_of_channels_are_the_same_numbers():
    layer, x = Dropout(Grid.regular(4, 6), 0.4, channels=True).train(), torch.ones(6, 19, 4, 6)

    def factors():
        torch.manual_seed(1)
        return layer.channel_factors(x, 19)

    with without_kernels():
        expected = factors()
    with with_kernels():
        assert torch.equal(factors(), expected)
    assert expected.unique().tolist() == [0, pytest.approx(1 / 0.6, rel=1e-4)]


@pytest.mark.parametrize("M", [1, 2, 5, 50])
def test_scores_of_members_and_sums_in_bins_are_those_of_the_cpu(M):
    members = torch.round(4 * (280 + 3 * torch.randn(2, M, 1, 5, 7))) / 4
    truth = torch.round(4 * (280 + 3 * torch.randn(2, 1, 5, 7))) / 4
    truth[1, 0, 3, 3] = torch.nan
    members = members.movedim(1, 0)
    expected = ensemble_scores(members.cpu().numpy(), truth.cpu().numpy())
    index, valid = torch.randint(-1, 8, (2, 3, 5, 7)), torch.rand(2, 3, 5, 7) > 0.2
    binned, weights = Binned(index, 7, (torch.rand(2, 3, 5, 7), torch.rand(2, 3, 5, 7))), torch.rand(4, 5, 7).double()
    with without_kernels():
        sums = aggregation._by_bin_and_region(binned, valid, weights)
    with with_kernels():
        from evaluation.kernels.gpu_scores import member_scores

        found = member_scores(members, truth)
        torch.testing.assert_close(aggregation._by_bin_and_region(binned, valid, weights), sums)
    known = ~truth.isnan().cpu().numpy()
    for name, one, other in zip(expected._fields, found, expected, strict=True):
        np.testing.assert_allclose(one.cpu().numpy()[known], other[known], rtol=1e-6, atol=1e-6, err_msg=name)
        assert name in ("below", "equal") or one[1, 0, 3, 3].isnan()


def test_all_kernels_are_tested():
    """A module with kernels that `MODULES` does not name would not run here."""
    root = Path(__file__).parents[2]
    found = {
        ".".join(path.relative_to(root).with_suffix("").parts)
        for part in ("models", "evaluation", "training")
        for path in (root / part).rglob("*.py")
        if "@triton.jit" in path.read_text(encoding="utf-8")
    }
    assert found == set(MODULES)
