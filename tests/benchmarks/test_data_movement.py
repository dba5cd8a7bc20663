"""The bytes that operators move, against counts by hand."""

import torch
from torch.nn import functional

from benchmarks.data_movement import CACHED_BYTES, TrafficMeter

CELLS = 2 * CACHED_BYTES // 4
FIELD = 4 * CELLS


def count(work):
    with TrafficMeter() as meter:
        work()
    return meter.moved.total(), meter.least


def test_operators_read_and_write_each_tensor_once():
    x, y, small = torch.zeros(CELLS), torch.zeros(CELLS), torch.zeros(8)
    assert count(lambda: x + y) == (3 * FIELD, 0)
    assert count(lambda: x.add_(y)) == (3 * FIELD, 0)
    assert count(lambda: x.copy_(y)) == (2 * FIELD, 0)
    assert count(lambda: x.zero_()) == (FIELD, 0)
    assert count(lambda: torch.mul(x, 2, out=y)) == (2 * FIELD, 0)
    assert count(lambda: x.sum()) == (FIELD, 0)
    # Views, memory without values and small tensors move nothing; of an expanded tensor only its memory is read.
    assert count(lambda: (x.view(2, -1).T, torch.empty(CELLS), small + small)) == (0, 0)
    assert count(lambda: x[: CELLS // 4] * 1.0) == (FIELD // 4, 0)
    assert count(lambda: (x.expand(3, -1), x[None].expand(3, -1).sum())) == (FIELD, 0)


def test_the_least_is_that_of_products_and_convolutions_across_channels():
    x, kernel = torch.zeros(1, 4, 512, 512, requires_grad=True), torch.zeros(8, 4, 3, 3, requires_grad=True)
    field = 4 * 512 * 512
    assert count(lambda: functional.conv2d(x.detach(), kernel.detach(), padding=1)) == (12 * field, 12 * field)
    _, least = count(lambda: functional.conv2d(x, kernel, padding=1).sum().backward())
    # Forward 4 + 8 channels; backward the gradient of 8, which is one expanded number, the input and its gradient.
    assert least == 12 * field + 8 * field
    each = torch.zeros(4, 1, 3, 3)
    assert count(lambda: functional.conv2d(x.detach(), each, padding=1, groups=4))[1] == 0
    wide = torch.zeros(1024, 1024)
    assert count(lambda: wide @ wide) == (12 * 2**20, 12 * 2**20)
