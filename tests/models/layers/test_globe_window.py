"""Windows of the whole globe in one pass, against `pad`, with gradients, on every kind of grid."""

import numpy as np
import pytest
import torch

from data_pipeline.grid import Grid
from models.layers.padding import GlobeWindow, HaloPad, pad

GRIDS = {
    "poles": Grid.regular(9, 12),
    "half shifted": Grid(tuple(np.arange(87.5, -90, -25.0)), tuple(np.arange(0, 360, 40.0))),
    "area": Grid(tuple(np.arange(60.0, 35, -2.5)), tuple(np.arange(-10.0, 30, 2.5))),
}
SIDES = [(1, 1, 1, 1), (0, 0, 0, 1), (3, 2, 0, 3), (-2, 3, 1, -1), (-1, -2, -3, -1), (3, 3, 3, 3), (0, 0, 0, 0)]
FORMATS = {"rows last": torch.contiguous_format, "channels last": torch.channels_last}


@pytest.mark.parametrize("sides", SIDES, ids=str)
@pytest.mark.parametrize("grid", GRIDS.values(), ids=GRIDS)
@pytest.mark.parametrize("memory_format", FORMATS.values(), ids=FORMATS)
def test_a_window_is_the_padded_field(grid, sides, memory_format):
    """Values, the gradient, and the gradient of the gradient are those of PyTorch's own copies."""
    (H, W), (north, south, west, east) = grid.shape, sides
    torch.manual_seed(0)
    x = torch.randn(2, 3, H, W, dtype=torch.float64).to(memory_format=memory_format).requires_grad_()
    ours = GlobeWindow(grid, (-north, H + south), (-west, W + east))(x)
    theirs = pad(x, grid, north, south, west, east)
    assert torch.equal(ours, theirs)
    weights = torch.randn_like(theirs).requires_grad_()
    back = [torch.autograd.grad((y * weights).sum(), x, create_graph=True)[0] for y in (ours, theirs)]
    torch.testing.assert_close(*back, rtol=0, atol=1e-13)
    again = [torch.autograd.grad((gradient * x.detach()).sum(), weights)[0] for gradient in back]
    torch.testing.assert_close(*again, rtol=0, atol=1e-13)


@pytest.mark.parametrize("grid", GRIDS.values(), ids=GRIDS)
def test_signs_change_beyond_the_poles(grid):
    """The gradient of a wind has the sign of the copied cell; the reference are two windows without signs."""
    H, W = grid.shape
    sides = ((-2, H + 2),), ((-1, W + 3),)
    torch.manual_seed(0)
    x = torch.randn(1, 2, H, W, dtype=torch.float64, requires_grad=True)
    signed, plain = HaloPad(grid, *sides, parity=(-1, 1)).double()(x), HaloPad(grid, *sides)(x)
    turned = torch.zeros(H + 4, 1, dtype=torch.bool)
    turned[:2] = turned[-2:] = grid.across_pole(0) is not None
    expected = plain * torch.where(turned, torch.tensor([-1.0, 1.0])[:, None, None], 1.0)
    assert torch.equal(signed, expected)
    weights = torch.randn_like(expected)
    found = [torch.autograd.grad((y * weights).sum(), x)[0] for y in (signed, expected)]
    torch.testing.assert_close(*found, rtol=0, atol=1e-13)


def test_a_window_copies_the_field_once():
    """One large copy in each direction; all other copies are of the cells beyond the edges."""
    grid = Grid.regular(37, 72)
    x = torch.randn(1, 4, *grid.shape).to(memory_format=torch.channels_last).requires_grad_()
    window = GlobeWindow(grid, (-1, 38), (-1, 73))
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU], record_shapes=True) as recorded:
        window(x).sum().backward()
    copies = [event.input_shapes[0] for event in recorded.events() if event.name == "aten::copy_"]
    assert sum(shape[-2:] == list(grid.shape) for shape in copies) == 2
    assert not {event.name for event in recorded.events()} & {"aten::cat", "aten::slice_backward", "aten::zero_"}
