"""Global grids of each kind, and smooth fields on them."""

import eccodes
import numpy as np

from data_pipeline.grid import Grid
from data_pipeline.grids.reduced_grid import ReducedGrid


def gaussian(half: int) -> tuple[float, ...]:
    """Gaussian latitudes with `half` rows between a pole and the equator."""
    return tuple(eccodes.codes_get_gaussian_latitudes(half))


def octahedral(half: int) -> ReducedGrid:
    """The octahedral grid with `half` rows between a pole and the equator."""
    return ReducedGrid.gaussian(gaussian(half), [20 + 4 * min(k, 2 * half - 1 - k) for k in range(2 * half)])


GRIDS = {
    "pole to pole": Grid.regular(37, 72),
    "without rows at the poles": Grid(tuple(np.arange(87.5, -90, -5)), tuple(np.arange(2.5, 360, 5))),
    "from 180 degrees west": Grid(tuple(np.linspace(90, -90, 25)), tuple(np.arange(-180, 180, 7.5))),
    "regular Gaussian": Grid(gaussian(24), tuple(np.arange(96) * 3.75)),
    "octahedral": octahedral(32),
    "HEALPix": ReducedGrid.healpix(16),
}


def points(grid):
    """Latitudes and longitudes (radians) of all points, in the order of a flat field."""
    if isinstance(grid, ReducedGrid):
        longitudes = np.concatenate([grid.longitudes_of(row) for row in range(len(grid.counts))])
        return np.radians(np.repeat(grid.latitudes, grid.counts)), np.radians(longitudes)
    latitudes, longitudes = np.meshgrid(grid.latitudes, grid.longitudes, indexing="ij")
    return np.radians(latitudes.ravel()), np.radians(longitudes.ravel())


def smooth(grid):
    """A sum of spherical harmonics of degrees 1 and 2, as a flat field."""
    latitude, longitude = points(grid)
    sine, cosine = np.sin(latitude), np.cos(latitude)
    return 3 * sine + cosine * np.cos(longitude) + cosine**2 * np.sin(2 * longitude) + sine * cosine * np.sin(longitude)
