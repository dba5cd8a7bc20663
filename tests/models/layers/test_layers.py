"""Layers against smooth functions on the sphere, whose values are known beyond every edge; windows, interpolation,
weights of cells and patches against PyTorch's copies, formulas, loops and slices."""

import numpy as np
import pytest
import torch
import torch.distributed as dist
from ranks import run_on_ranks
from torch.nn import functional

from data_pipeline.common.errors import InputError
from data_pipeline.grid import Grid
from models.layers.convolution import Conv2d
from models.layers.locally_connected import LocallyConnected
from models.layers.loss_term import loss_terms
from models.layers.padding import GlobeWindow, HaloPad, pad
from models.layers.patches import Patches
from models.layers.resolution import LINEAR_SHARES, QUARTER_SHARES, Downsample, Upsample, _interpolate
from models.parallel.domain import Domain

GRIDS = {
    "poles": Grid.regular(33, 64),
    "half shifted": Grid(tuple(np.arange(87.5, -90, -5)), tuple(np.arange(0, 360, 5.0))),
    "odd rows, odd coarse columns": Grid.regular(29, 50),
    "area": Grid(tuple(np.arange(60.0, 35, -2.5)), tuple(np.arange(-10.0, 30, 2.5))),
}
GLOBAL = [name for name in GRIDS if name != "area"]


def on_sphere(latitudes, longitudes):
    """A smooth function of the point on the unit sphere, which does not depend on the choice of coordinates."""
    lat, lon = np.radians(latitudes)[:, None], np.radians(longitudes)[None, :]
    x, y, z = np.cos(lat) * np.cos(lon), np.cos(lat) * np.sin(lon), np.sin(lat) + 0 * lon
    return torch.tensor(np.exp(0.5 * x + 0.3 * y * z) + z * x)


@pytest.mark.parametrize("name", GLOBAL)
def test_padding_continues_the_sphere(name):
    grid, width = GRIDS[name], 3
    step_lat, step_lon = grid.latitudes[0] - grid.latitudes[1], grid.longitudes[1] - grid.longitudes[0]
    before, after = np.arange(-width, 0), np.arange(1, width + 1)
    lat = np.concatenate([grid.latitudes[0] - before * step_lat, grid.latitudes, grid.latitudes[-1] - after * step_lat])
    lon = np.concatenate(
        [grid.longitudes[0] + before * step_lon, grid.longitudes, grid.longitudes[-1] + after * step_lon]
    )
    x = on_sphere(grid.latitudes, grid.longitudes)
    torch.testing.assert_close(pad(x, grid, *(4 * [width])), on_sphere(lat, lon))


def test_padding_of_an_area_repeats_its_edge():
    grid = GRIDS["area"]
    x = torch.randn(2, *grid.shape)
    expected = torch.nn.functional.pad(x, (2, 2, 2, 2), mode="replicate")
    torch.testing.assert_close(pad(x, grid, 2, 2, 2, 2), expected)


@pytest.mark.parametrize("grid", GRIDS.values(), ids=GRIDS)
def test_zeros_lie_beyond_edges_only(grid):
    """Columns of a periodic grid have no edge, so that its first column has neighbours in the last."""
    layer, x = Conv2d(grid, 2, 3, beyond_zero=True).double(), torch.randn(2, 2, *grid.shape, dtype=torch.float64)
    H, W = grid.shape
    expected = layer.bias.detach()[:, None, None].repeat(2, 1, H, W).view(2, 3, H, W)
    for i, j in np.ndindex(3, 3):
        seen = torch.zeros_like(x)
        for row, column in np.ndindex(H, W):
            at, along = row + i - 1, column + j - 1
            along = along % W if grid.periodic else along
            if 0 <= at < H and 0 <= along < W:
                seen[..., row, column] = x[..., at, along]
        expected = expected + torch.einsum("oc,bchw->bohw", layer.weight[..., i, j].detach(), seen)
    torch.testing.assert_close(layer(x).detach(), expected)


@pytest.mark.parametrize("grid", GRIDS.values(), ids=GRIDS)
def test_resampling_keeps_constants(grid):
    x = torch.full((1, 1, *grid.shape), 7.0, dtype=torch.float64)
    coarse = Downsample(grid)(x)
    torch.testing.assert_close(coarse, torch.full_like(coarse, 7.0))
    torch.testing.assert_close(Upsample(grid)(coarse), x)


@pytest.mark.parametrize("grid", [Grid.regular(181, 360), Grid.regular(180, 360)], ids=["odd", "even"])
def test_resampling_keeps_smooth_fields(grid):
    x = on_sphere(np.array(grid.latitudes), np.array(grid.longitudes))[None, None]
    coarse = grid.coarsen()
    expected = on_sphere(np.array(coarse.latitudes), np.array(coarse.longitudes))[None, None]
    torch.testing.assert_close(Downsample(grid)(x), expected, atol=1e-3, rtol=0)
    # The last row of an even grid has a coarse row beyond it only if the grid is mirrored there.
    rows = slice(None) if grid.shape[0] % 2 else slice(None, -1)
    torch.testing.assert_close(Upsample(grid)(expected)[..., rows, :], x[..., rows, :], atol=1e-3, rtol=0)


SMALL_GRIDS = {
    "poles": Grid.regular(9, 12),
    "half shifted": Grid(tuple(np.arange(87.5, -90, -25.0)), tuple(np.arange(0, 360, 40.0))),
    "area": Grid(tuple(np.arange(60.0, 35, -2.5)), tuple(np.arange(-10.0, 30, 2.5))),
}
SIDES = [(1, 1, 1, 1), (0, 0, 0, 1), (3, 2, 0, 3), (-2, 3, 1, -1), (-1, -2, -3, -1), (3, 3, 3, 3), (0, 0, 0, 0)]
FORMATS = {"rows last": torch.contiguous_format, "channels last": torch.channels_last}


@pytest.mark.parametrize("sides", SIDES, ids=str)
@pytest.mark.parametrize("grid", SMALL_GRIDS.values(), ids=SMALL_GRIDS)
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


@pytest.mark.parametrize("grid", SMALL_GRIDS.values(), ids=SMALL_GRIDS)
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


AREA = Grid((50.0, 45.0, 40.0), (0.0, 5.0, 10.0, 15.0))


def unlike(field, periodic):
    """Mean difference of neighbours in a map, along columns and along rows."""
    H, W = len(field), len(field[0])
    south = [abs(field[i + 1][j] - field[i][j]) for i in range(H - 1) for j in range(W)]
    last = W if periodic else W - 1
    east = [abs(field[i][(j + 1) % W] - field[i][j]) for i in range(H) for j in range(last)]
    return (sum(south) / len(south) + sum(east) / len(east)) / 2


@pytest.mark.parametrize("grid", [Grid.regular(5, 6), AREA], ids=["globe", "area"])
def test_differences_between_neighbours_are_a_term_of_the_loss(grid):
    torch.manual_seed(0)
    layer = LocallyConnected(grid, 2, 3, smoothness_penalty=0.7).double()
    torch.nn.init.normal_(layer.bias)
    layer(torch.zeros(4, 2, *grid.shape, dtype=torch.float64))
    weight, bias = ([unlike(m.tolist(), grid.periodic) for m in p.flatten(0, -3)] for p in (layer.weight, layer.bias))
    expected = 4 * 0.7 * (sum(weight) / 6 + sum(bias) / 3) / 2
    assert float(loss_terms(layer).detach()) == pytest.approx(expected, rel=1e-12)


@pytest.mark.parametrize(("roughness", "training"), [(0.0, True), (0.7, False)])
def test_there_is_no_term_without_the_option_or_in_evaluation(roughness, training):
    layer = LocallyConnected(AREA, 2, 3, roughness).train(training)
    layer(torch.zeros(4, 2, *AREA.shape))
    assert layer.term is None
    assert float(loss_terms(layer)) == 0


GRID = Grid.regular(11, 16)
"""3 x 5 patches of 3 x 3 cells; 2 rows and one column belong to no patch."""
WHOLE = torch.randn(2, 2, *GRID.shape, dtype=torch.float64, generator=torch.Generator().manual_seed(4))


def slice_patches(first, last, left, right):
    """The patches from one row and column to another, by slices."""
    found = [
        WHOLE[..., 3 * i : 3 * i + 3, 3 * j : 3 * j + 3].flatten(1)
        for i in range(first, last)
        for j in range(left, right)
    ]
    return torch.stack(found, 1) if found else WHOLE.new_zeros(2, 0, 18)


@pytest.mark.parametrize("size", [1, 2, 5])
def test_a_linear_layer_on_patches_is_a_convolution_of_their_stride(size):
    weight = torch.randn(4, 2, size, size, dtype=torch.float64)
    found = (Patches(GRID, size)(WHOLE) @ weight.flatten(1).T).movedim(-1, 1)
    torch.testing.assert_close(found, functional.conv2d(WHOLE, weight, stride=size).flatten(2))


MESHES = [(4, 1), (2, 2)]
"""Bands and sectors; the last of four bands has no patch."""


def patches_of_rank(rank):
    """For each mesh: the patches of a rank, and the gradient of a sum of their squares."""
    found = []
    for mesh in MESHES:
        domain = Domain.split(GRID, *mesh, rank, dist.group.WORLD.group_name)
        x, layer = domain.cut(WHOLE).clone().requires_grad_(), Patches(domain, 3)
        patches = layer(x)
        patches.square().sum().backward()
        found.append((patches.detach(), x.grad, layer.count))
    return found


def test_every_patch_has_one_rank():
    for mesh, ranks in zip(MESHES, zip(*run_on_ranks(4, patches_of_rank), strict=True), strict=True):
        for rank, (found, gradient, count) in enumerate(ranks):
            rows, columns = Domain.split(GRID, *mesh).tile_of(rank)
            first, last = (min(-(-row // 3), 3) for row in (rows.start, rows.stop))
            left, right = (min(-(-column // 3), 5) for column in (columns.start, columns.stop))
            assert found.equal(slice_patches(first, last, left, right))
            expected = 2 * WHOLE
            expected[..., 9:, :] = expected[..., 15:] = 0
            assert gradient.equal(expected[..., rows, columns])
            assert count == 15
        counts = [found.shape[1] for found, *_ in ranks]
        assert sum(counts) == 15
        assert (0 in counts) == (mesh == (4, 1))


def test_a_grid_without_a_whole_patch_is_refused():
    with pytest.raises(InputError, match=r"patches of 12 x 12 cells needs 12 rows and columns or more, got 11 x 16"):
        Patches(GRID, 12)
