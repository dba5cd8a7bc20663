"""Layers against smooth functions on the sphere, whose values are known beyond every edge of the grid."""

import numpy as np
import pytest
import torch

from data_pipeline.grid import Grid
from models.layers.convolution import Conv2d
from models.layers.norms import ChannelNorm
from models.layers.padding import pad
from models.layers.resolution import Downsample, Upsample

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


def test_convolution_away_from_edges_is_that_of_pytorch():
    grid = GRIDS["poles"]
    layer = Conv2d(grid, 2, 3)
    x = torch.randn(1, 2, *grid.shape)
    plain = torch.nn.functional.conv2d(x, layer.weight, layer.bias)
    torch.testing.assert_close(layer(x)[..., 1:-1, 1:-1], plain)


def test_channel_norm_depends_on_one_cell():
    norm = ChannelNorm(4)
    x = torch.randn(2, 4, 5, 6) * 3 + 1
    cell = norm(x)[1, :, 2, 3].detach()
    assert cell.mean() == pytest.approx(0, abs=1e-6)
    assert cell.std(correction=0) == pytest.approx(1, abs=1e-4)
