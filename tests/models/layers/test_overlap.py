"""Overlapping convolutions against one rank and against convolutions that wait for their halo; the rim by a search."""

from unittest.mock import patch

import numpy as np
import pytest
import torch
import torch.distributed as dist
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from layers import GRIDS
from ranks import run_on_ranks
from torch.nn import functional

from data_pipeline.grid import Grid
from models.layers import convolution, overlap
from models.layers.convolution import Conv2d, input_intervals
from models.layers.overlap import cell_count, convolve, overlapping_work, overlaps, rim
from models.layers.padding import HaloPad
from models.parallel.domain import Domain
from models.parallel.exchange import allsum, count_sent_bytes
from models.parallel.halo import plan_halo

CONVOLUTIONS = {"half shifted": [2, 3, 5], "area": [5]}
"""Kernels by grid."""


class AlwaysOverlapping(Conv2d):
    """A convolution that overlaps at any size."""

    def forward(self, x):
        return convolve(x, self.weight, self.bias, self.window.exchange)


def layer_on(domain, kernel=3, kind=Conv2d):
    torch.manual_seed(4)
    return kind(domain, 4, 6, kernel).double()


def field_on(domain):
    torch.manual_seed(3)
    return domain.cut(torch.randn(2, 4, *domain.shape, dtype=torch.float64)).clone().requires_grad_()


def differentiate_layer(layer, x):
    """Return output, gradients of input, weight and bias of a weighted sum, and the bytes sent forward and back."""
    H, W = layer.out.shape
    weights = layer.out.cut(torch.sin(torch.arange(H * W, dtype=torch.float64)).view(H, W))
    with count_sent_bytes() as sent:
        y = layer(x)
        (y * weights).sum().backward()
    return [y.detach(), x.grad, layer.weight.grad, layer.bias.grad], dict(sent)


def domain_here(rank, grid=GRIDS["odd rows"]):
    return Domain.split(grid, 2, 2, rank, dist.group.WORLD.group_name)


def against_one_rank(rank):
    """Largest differences to one rank, if all ranks overlap and if every second one does."""
    found = {}
    for title, kernels in CONVOLUTIONS.items():
        grid = GRIDS[title]
        domain = domain_here(rank, grid)
        for kernel in kernels:
            one, _ = differentiate_layer(layer_on(grid, kernel), field_on(Domain.of(grid)))
            _, least = differentiate_layer(layer_on(domain, kernel), field_on(domain))
            for road, kind in (("all", AlwaysOverlapping), ("every second", (Conv2d, AlwaysOverlapping)[rank % 2])):
                layer = layer_on(domain, kernel, kind)
                many, sent = differentiate_layer(layer, field_on(domain))
                many[2:] = [allsum(part, domain) for part in many[2:]]
                expected = [layer.out.cut(one[0]), domain.cut(one[1]), *one[2:]]
                difference = max(float((a - b).abs().max()) for a, b in zip(many, expected, strict=True))
                found[title, kernel, road] = difference, sent == least
    return found


def without_some_gradients(rank):
    """Input without gradient, frozen weight, no bias, unused output: compared with PyTorch."""
    domain, checks = domain_here(rank), {}
    layer, x = layer_on(domain), field_on(domain)
    exchange, constant = layer.window.exchange, x.detach()

    def both(x, weight, bias):
        """Return the requested gradients, ours and PyTorch's, and the bytes sent back."""
        results = []
        for function in (
            lambda: convolve(x, weight, bias, exchange),
            lambda: functional.conv2d(exchange(x), weight, bias),
        ):
            y = function()
            asked = [part for part in (x, weight, bias) if part is not None and part.requires_grad]
            with count_sent_bytes() as sent:
                results.append((torch.autograd.grad(y.square().sum(), asked), sent["halo gradient"]))
        (ours, our_bytes), (torchs, their_bytes) = results
        same = all(torch.allclose(a, b, rtol=1e-12, atol=1e-12) for a, b in zip(ours, torchs, strict=True))
        return same, our_bytes == their_bytes, our_bytes > 0

    weight, bias = layer.weight, layer.bias
    checks["constant input"] = both(constant, weight, bias)
    checks["frozen weight"] = both(x, weight.detach(), bias)
    checks["frozen bias"] = both(x, weight, bias.detach())
    checks["only the input"] = both(x, weight.detach(), bias.detach())
    checks["no bias"] = both(x, weight, None)
    return checks


class NoGradient(torch.autograd.Function):
    """Returns no gradient, not even zeros."""

    @staticmethod
    def forward(ctx, x):
        return x.clone()

    @staticmethod
    def backward(ctx, gradient):
        return None


def two_branches(rank):
    """Two parallel layers, the output of one unused; every second rank overlaps."""
    domain, gradients = domain_here(rank), []
    for kind in (Conv2d, (Conv2d, AlwaysOverlapping)[rank % 2]):
        x, first, second, lost = field_on(domain), *(layer_on(domain, kernel, kind=kind) for kernel in (3, 5, 3))
        (first(x) * second(x) + NoGradient.apply(lost(x))).sum().backward()
        gradients.append([x.grad, first.weight.grad, second.weight.grad])
    return [torch.allclose(a, b, rtol=1e-12, atol=1e-12) for a, b in zip(*gradients, strict=True)]


def in_half_precision(rank):
    """Under autocast, halos have its data type and gradients that of the weights."""
    domain = domain_here(rank)
    results = []
    for kind in (Conv2d, AlwaysOverlapping):
        layer, x = layer_on(domain, kind=kind).float(), field_on(domain).detach().float().requires_grad_()
        with count_sent_bytes() as sent:
            with torch.autocast("cpu", dtype=torch.bfloat16):
                y = layer(x)
            y.float().square().sum().backward()
        results.append(([y, x.grad, layer.weight.grad, layer.bias.grad], dict(sent)))
    (waiting, least), (meanwhile, sent) = results
    close = [
        a.dtype == b.dtype and float((a - b).abs().max()) <= 0.02 * float(b.abs().max())
        for a, b in zip(meanwhile, waiting, strict=True)
    ]
    cells = layer.window.exchange.plan.cells_sent
    return [y.dtype == torch.bfloat16, sent == least, sent["halo"] == cells * 2 * 4 * 2, *close]


def for_compilers(rank):
    """PyTorch's checks of an operator, whose fake results give the memory of a step on tiles."""
    domain = domain_here(rank)
    layer, x = layer_on(domain, kind=AlwaysOverlapping), field_on(domain)
    number = layer.window.exchange.number
    y, window = torch.ops.deepweather.convolve(x, layer.weight, layer.bias, number)
    torch.library.opcheck(torch.ops.deepweather.convolve.default, (x, layer.weight, layer.bias, number))
    torch.library.opcheck(
        torch.ops.deepweather.convolve_backward.default,
        (y.detach(), window, layer.weight.detach(), number, [True, False, True]),
        test_utils=("test_schema", "test_faketensor"),
    )


def order_of_events(rank):
    """The order of events, forward and backward; waiting twice for a message is an error."""
    domain, events, begin = domain_here(rank), [], dist.batch_isend_irecv

    class Once:
        def __init__(self, work):
            self.work = work

        def wait(self):
            events.append("wait")
            self.work.wait()
            self.work = None

    def sending(messages):
        events.append("send")
        return [Once(work) for work in begin(messages)]

    def computing(window, *others, compute=functional.conv2d, **options):
        events.append("compute" if window.isfinite().all() else "compute with what was in memory")
        return compute(window, *others, **options)

    def differentiating(*arguments, differentiate=overlap.convolution_gradients):
        events.append("differentiate")
        return differentiate(*arguments)

    layer, x = layer_on(domain, kind=AlwaysOverlapping), field_on(domain)
    torch.use_deterministic_algorithms(True)  # fills new memory with NaN
    with (
        patch.object(dist, "batch_isend_irecv", sending),
        patch.object(functional, "conv2d", computing),
        patch.object(overlap, "convolution_gradients", differentiating),
    ):
        y = layer(x)
        forward = events.copy()
        events.clear()
        y.sum().backward()
    torch.use_deterministic_algorithms(False)
    return len(rim(layer.window.exchange.plan, 3)), shorten(forward), shorten(events)


def shorten(events):
    """Return the events with counts of repetitions, except those of waiting, once for each message."""
    runs = []
    for event in events:
        if not runs or runs[-1][0] != event:
            runs.append([event, 0])
        runs[-1][1] += event != "wait"
    return runs


def all_checks(rank):
    checks = (
        against_one_rank, order_of_events, without_some_gradients, two_branches, in_half_precision, for_compilers,
    )  # fmt: skip
    return {check.__name__: check(rank) for check in checks}


@pytest.fixture(scope="module")
def four_ranks():
    """The result of `all_checks` on two by two tiles."""
    return run_on_ranks(4, all_checks)


def test_overlapped_convolutions_equal_one_rank_and_send_no_more_bytes(four_ranks):
    """Also with waiting ranks, without some gradients, and in half precision."""
    for found in four_ranks:
        for case, (difference, same_bytes) in found["against_one_rank"].items():
            assert difference < 1e-12, (case, difference)
            assert same_bytes, case
    for found in four_ranks:
        for case, (same, same_bytes, some_bytes) in found["without_some_gradients"].items():
            assert same, case
            assert same_bytes, case
            assert some_bytes == (case != "constant input"), case
    assert all(all(found["two_branches"]) for found in four_ranks)
    assert all(all(found["in_half_precision"]) for found in four_ranks)


def test_computing_and_sending_overlap(four_ranks):
    for found in four_ranks:
        strips, forward, backward = found["order_of_events"]
        assert strips >= 2
        assert forward == [["send", 1], ["compute", 1], ["wait", 0], ["compute", strips]]
        assert backward == [["differentiate", strips], ["send", 1], ["differentiate", 1], ["wait", 0]]


def work(bands, kernel=3, rank=1):
    """The work of a layer of 16 channels that can overlap."""
    layer = Conv2d(Domain.split(Grid.regular(181, 360), bands, 1, rank), 16, 16, kernel)
    return overlapping_work(layer.window.exchange, layer.weight)


def test_work_is_counted_for_layers_that_can_overlap():
    assert work(2) == 91 * 360 * 16 * 16 * 9
    assert work(2, kernel=1) == 0, "a kernel of 1 x 1 has no halo"
    assert work(9) == 20 * 360 * 16 * 16 * 9
    assert work(10) == 0, "two of 18 rows would be computed twice"
    assert work(10, rank=0) == 18 * 360 * 16 * 16 * 9, "one of 18 rows"
    assert overlapping_work(None, torch.zeros(1)) == 0, "one rank has no halo"


def test_a_layer_overlaps_if_its_batch_is_large_enough():
    layer = Conv2d(Domain.split(Grid.regular(181, 360), 2), 16, 16)
    each = overlapping_work(layer.window.exchange, layer.weight)
    with (
        patch.object(convolution, "convolve", return_value="meanwhile") as meanwhile,
        patch.object(HaloPad, "forward", lambda self, x: x),
        patch.dict(overlap.WORTHWHILE, cpu=2 * each),
    ):
        assert layer(torch.zeros(1, 16, 90, 360)).shape == (1, 16, 88, 358), "a small batch waits for its halo"
        assert layer(torch.zeros(2, 16, 90, 360)) == "meanwhile"
    assert meanwhile.call_count == 1
    assert not overlaps(10**20, torch.device("meta")), "overlap is not measured on this device"


@settings(max_examples=150)
@given(
    title=st.sampled_from(sorted(GRIDS)),
    bands=st.integers(1, 8),
    sectors=st.integers(1, 11),
    kernel=st.integers(1, 7),
    data=st.data(),
)
def test_the_rim_depends_on_cells_of_other_ranks(title, bands, sectors, kernel, data):
    """No output outside the rim depends on cells of other ranks, and each strip has one that does."""
    assume(bands * sectors > 1)
    domain = Domain.split(GRIDS[title], bands, sectors, data.draw(st.integers(0, bands * sectors - 1)))
    plan = plan_halo(domain, (input_intervals(domain.row_cuts, kernel), input_intervals(domain.column_cuts, kernel)))
    foreign = np.zeros(plan.shape, bool)
    foreign.flat[plan.foreign_to] = True
    h, w = domain.own_shape
    sees = np.array([[foreign[i : i + kernel, j : j + kernel].any() for j in range(w)] for i in range(h)])
    times = np.zeros((h, w), int)
    for block in rim(plan, kernel):
        assert sees[block].any()
        assert sees[block].size == cell_count(block), "beyond the end"
        times[block] += 1
    assert (times[sees] == 1).all()
    assert times.max() <= 1
