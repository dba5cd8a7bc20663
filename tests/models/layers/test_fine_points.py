"""Interpolation to the finer grid: values from the formula, and a gradient that is the transpose of the values."""

import pytest
import torch

from models.layers.resolution import LINEAR_SHARES, QUARTER_SHARES, _interpolate


def matrix(shares, first, size, coarse):
    """Shares of the coarse points in the fine points `first` to `first + size - 1`, written out."""
    found = torch.zeros(size, coarse, dtype=torch.float64)
    for row in range(size):
        if shares == LINEAR_SHARES:
            at = (first + row) / 2
        else:
            # Fine points 2j + 1 and 2j + 2 of the globe lie a quarter from coarse points j and j + 1.
            pair, which = divmod(row + 1 - first, 2)
            at = pair + (0.25, 0.75)[which]
        low = int(at)
        found[row, low] += 1 - (at - low)
        if at > low:
            found[row, low + 1] += at - low
    return found


@pytest.mark.parametrize("first", [(0, 0), (1, 0), (0, 1), (1, 1)], ids=str)
@pytest.mark.parametrize(
    ("coarse", "memory_format"), [((2, 3), torch.contiguous_format), ((5, 4), torch.channels_last)], ids=str
)
@pytest.mark.parametrize("shares", [LINEAR_SHARES, QUARTER_SHARES], ids=["linear", "quarters"])
@pytest.mark.parametrize("less", [0, 1])
def test_interpolation_and_its_gradient(shares, coarse, first, less, memory_format):
    longest = [
        2 * n - 1 - one if shares == LINEAR_SHARES else 2 * n - 3 + one for n, one in zip(coarse, first, strict=True)
    ]
    size = [max(n - less, 1) for n in longest]
    rows, columns = (matrix(shares, *part) for part in zip(first, size, coarse, strict=True))
    torch.manual_seed(0)
    x = torch.randn(2, 3, *coarse, dtype=torch.float64).to(memory_format=memory_format).requires_grad_()
    y = _interpolate(x, shares, first, tuple(size))
    torch.testing.assert_close(y, rows @ x @ columns.T, rtol=0, atol=1e-13)
    gradient = torch.randn_like(y)
    y.backward(gradient)
    torch.testing.assert_close(x.grad, rows.T @ gradient @ columns, rtol=0, atol=1e-13)
