"""The exchange: adjoint, operator, copies, errors; quantiles over tiles against numpy's."""

import gc
from contextlib import nullcontext
from itertools import pairwise

import numpy as np
import pytest
import torch
import torch.distributed as dist
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from ranks import run_on_ranks

from data_pipeline.common.errors import InputError
from data_pipeline.grid import Grid
from data_pipeline.task import Task
from models.layers.convolution import Conv2d
from models.layers.padding import pad
from models.networks.unet import UNet
from models.parallel import exchange
from models.parallel.domain import Domain
from models.parallel.exchange import Exchange, allsum, assemble, count_sent_bytes
from models.parallel.halo import plan_halo
from models.parallel.quantile import quantile

TASK = Task("toy", ["2t", "msl"], ["2t"], [24], ["lsm"])
GRIDS = {
    "poles": Grid.regular(13, 16),
    "half shifted": Grid(tuple(80.0 - 20 * k for k in range(9)), tuple(30.0 * k for k in range(12))),
    "area": Grid(tuple(60.0 - 2.5 * k for k in range(11)), tuple(2.5 * k - 10 for k in range(14))),
    "rows of half a degree": Grid.regular(361, 32),
}


@settings(max_examples=150)
@given(
    name=st.sampled_from(sorted(GRIDS)),
    bands=st.integers(1, 8),
    sectors=st.integers(1, 4),
    levels=st.integers(0, 2),
    sides=st.tuples(*[st.integers(-2, 4)] * 4),
    zero=st.booleans(),
)
def test_plans_of_all_ranks_are_consistent(name, bands, sectors, levels, sides, zero):
    """Executing the plans of all ranks in one process gives each its window of the padded globe.

    The 361 rows of half a degree are 181 and 91 rows on the coarser levels of a U-Net.
    """
    ranks = [Domain.split(GRIDS[name], bands, sectors, rank) for rank in range(bands * sectors)]
    for _ in range(levels if "half a degree" in name else 0):
        ranks = [domain.coarsen() for domain in ranks]
    grid = ranks[0].grid
    H, W = grid.shape
    north, south, west, east = sides
    rows = tuple((a - north, b + south) for a, b in pairwise(ranks[0].row_cuts))
    columns = tuple((a - west, b + east) for a, b in pairwise(ranks[0].column_cuts))
    x = torch.arange(1.0, H * W + 1).reshape(H, W)
    plans = [plan_halo(domain, (rows, columns), zero) for domain in ranks]
    big = pad(x, grid, 6, 6, 6, 6)
    if zero:
        outside = torch.ones(H + 12, W + 12, dtype=torch.bool)
        outside[6 : H + 6, (slice(None) if grid.periodic else slice(6, W + 6))] = False
        big = big.masked_fill(outside, 0)
    for domain, plan in zip(ranks, plans, strict=True):
        if min(plan.shape) <= 0:
            continue
        received = torch.cat([domain_of(x, ranks[q])[plans[q].sends[domain.rank]] for q in range(len(ranks))])
        assert len(received) == sum(plan.receives)
        window = torch.zeros(plan.shape)
        window[plan.window] = domain.cut(x)[plan.tile]
        window.view(-1)[plan.own_to] = domain_of(x, domain)[plan.own_from]
        window.view(-1)[plan.foreign_to] = received[plan.foreign_from]
        i, j = divmod(domain.rank, sectors)
        expected = big[rows[i][0] + 6 : rows[i][1] + 6, columns[j][0] + 6 : columns[j][1] + 6]
        assert torch.equal(window, expected)


def domain_of(x, domain):
    return domain.cut(x).reshape(-1)


def adjoint(rank, bands, sectors):
    """<fetch x, y> and <x, fetch' y> over all ranks, and whether joined tiles are the field."""
    domain = Domain.split(GRIDS["poles"], bands, sectors, rank, dist.group.WORLD.group_name)
    widen = [tuple((a - 2, b + 3) for a, b in pairwise(cuts)) for cuts in (domain.row_cuts, domain.column_cuts)]
    fetch = Exchange(domain, tuple(widen))
    torch.manual_seed(rank)
    x = torch.randn(2, 3, *domain.own_shape, dtype=torch.float64, requires_grad=True)
    y = torch.randn(2, 3, *fetch.plan.shape, dtype=torch.float64)
    product = (fetch(x) * y).sum()
    product.backward()
    sides = [float(allsum(value.detach(), domain)) for value in (product, (x * x.grad).sum())]
    torch.library.opcheck(torch.ops.deepweather.fetch.default, (x.detach(), fetch.number), test_utils="test_schema")
    whole = torch.randn(3, *domain.shape, generator=torch.Generator().manual_seed(1))
    joined = torch.equal(assemble(domain.cut(whole), domain), whole)
    return sides, joined


def test_the_backward_pass_is_the_adjoint_and_tiles_can_be_joined():
    for sides, joined in run_on_ranks(4, adjoint, 2, 2):
        assert sides[0] == pytest.approx(sides[1], rel=1e-13)
        assert joined


class Broken:
    """Takes the place of a message that fails while a rank waits for it."""

    def wait(self):
        raise ConnectionError("broken")


def repeated_after_a_failure(rank):
    """For each operator that exchanges messages: its result, and the same again after a call that failed on rank 0."""
    domain = Domain.split(GRIDS["poles"], 2, 1, rank, dist.group.WORLD.group_name)
    fetch = Exchange(domain, (tuple((a - 1, b + 1) for a, b in pairwise(domain.row_cuts)), ((-1, 17),)))
    (H, W), (h, w) = domain.own_shape, fetch.plan.shape
    weight, operators = torch.ones(2, 2, 3, 3), torch.ops.deepweather
    calls = {
        "fetch": lambda x: operators.fetch(x[..., :H, :W], fetch.number),
        "fetch_adjoint": lambda x: operators.fetch_adjoint(x[..., :h, :w], fetch.number),
        "convolve": lambda x: operators.convolve(x[..., :H, :W], weight, None, fetch.number)[0],
        "convolve_backward": lambda x: operators.convolve_backward(
            x[..., : h - 2, : w - 2], x[..., :h, :w], weight, fetch.number, [True, False, False]
        )[0],
        "redistribute": lambda x: operators.redistribute(
            x[..., :7, :], 1, [0, 1, 2], 2, [0, 7, 14], dist.group.WORLD.group_name, 2, rank, "channels"
        ),
    }  # fmt: skip
    fields = [torch.randn(1, 2, 20, 20, generator=torch.Generator().manual_seed(seed + rank)) for seed in (1, 5)]
    found, send = {}, dist.batch_isend_irecv
    for name, call in calls.items():
        expected = call(fields[0])
        if rank == 0:
            dist.batch_isend_irecv = lambda messages: [Broken(), *send(messages)]
        with pytest.raises(ConnectionError, match="broken") if rank == 0 else nullcontext():
            call(fields[1])
        dist.batch_isend_irecv = send
        gc.collect()
        found[name] = expected, call(fields[0])
    return found, len(exchange._UNDER_WAY)


def test_a_failure_while_messages_are_under_way_does_not_change_the_next_exchange():
    """Their buffers must stay, or the next exchange receives the cells that were sent for the one that failed."""
    ranks = run_on_ranks(2, repeated_after_a_failure, timeout=60)
    assert [kept for _, kept in ranks] == [len(ranks[0][0]), 0], "only messages of failed exchanges are kept"
    for found, _ in ranks:
        for name, (expected, repeated) in found.items():
            assert expected.equal(repeated), name
            assert expected.abs().max() > 0.1


def sum_on_rank(rank):
    """The sum over ranks of a tensor with another memory order on each rank, and its gradient."""
    domain = Domain.split(Grid.regular(8, 12), 2, 1, rank, dist.group.WORLD.group_name)
    x = torch.arange(6.0).view(2, 3)
    x = (x if rank else x.T.contiguous().T).requires_grad_()
    total = allsum(x, domain)
    (total * torch.arange(6.0).view(2, 3)).sum().backward()
    return total.detach(), x.grad


def test_a_sum_does_not_depend_on_the_order_in_memory():
    for total, gradient in run_on_ranks(2, sum_on_rank):
        assert total.equal(2 * torch.arange(6.0).view(2, 3))
        assert gradient.equal(2 * torch.arange(6.0).view(2, 3))


def test_wrong_splits_are_refused():
    grid = GRIDS["poles"]
    with pytest.raises(InputError, match=r"14 ranks cannot share the 13 rows of 13 x 16 points.*take fewer ranks"):
        Domain.split(grid, 14)
    with pytest.raises(InputError, match=r"5 ranks cannot share the 4 columns of 4 x 4 points.*fewer coarse levels"):
        Domain.split(grid, 4, 5).coarsen().coarsen()
    with pytest.raises(ValueError, match=r"rank 1 of 2 has a field of \(5, 16\) cells where its tile .* has \(7, 16\)"):
        Exchange(Domain.split(grid, 2, 1, 1), (((0, 6), (6, 13)), ((0, 16),)))(torch.zeros(1, 5, 16))


def test_every_rank_refuses_a_mesh_with_one_message():
    for build, bands, message in (
        (
            lambda domain: UNet(TASK, domain, width=1, depth=3),
            5,
            r"5 ranks cannot share the 4 rows of 4 x 8 points.*\(tiles end at \[1, 2, 2, 3, 4\]\); take fewer ranks",
        ),
        (lambda domain: Conv2d(domain, 1, 1, 31), 2, "beyond the opposite pole of 13 x 32 points"),
    ):
        messages = set()
        for rank in range(bands):
            with pytest.raises(InputError, match=message) as refused:
                build(Domain.split(Grid.regular(13, 32), bands, 1, rank))
            messages.add(str(refused.value))
        assert len(messages) == 1


COARSE = Grid.regular(5, 8)
SIZES = st.floats(0, 2.0**100, width=32)


@given(arrays(np.float32, (2, 3, 5, 8), elements=st.one_of(SIZES, st.sampled_from([0.0, 1.0, 1e-42]))), st.floats(0, 1))
def test_quantiles_equal_those_of_numpy(values, share):
    found = quantile(torch.from_numpy(values), share, Domain.of(COARSE)).numpy()
    expected = np.quantile(values.astype(float).reshape(2, -1), share, axis=1)
    np.testing.assert_allclose(found, expected, rtol=2e-6, atol=1e-42)


SHARES = (0.0, 0.3, 0.5, 0.77, 0.999)


def on_tiles(rank, bands, sectors):
    domain = Domain.split(Grid.regular(29, 50), bands, sectors, rank, dist.group.WORLD.group_name)
    x = torch.rand(3, 2, 29, 50, generator=torch.Generator().manual_seed(0)) ** 4
    with count_sent_bytes() as sent:
        found = [quantile(domain.cut(x), share, domain).tolist() for share in SHARES]
    return found, [quantile(x, share, Domain.of(domain.grid)).tolist() for share in SHARES], sent


def test_quantiles_on_tiles_equal_those_of_the_whole_globe():
    for found, expected, sent in run_on_ranks(2, on_tiles, 2, 1):
        assert found == expected
        # Three rounds of counts of 4 bytes; from the second round on, for two values of each sample.
        assert sent == {"sum": len(SHARES) * 4 * 3 * (2048 + 2 * 2048 + 2 * 1024)}
