"""Fields with closed forms on the sphere, on grids with and without rows at the poles."""

import numpy as np

from data_pipeline.grid import Grid


def between_poles(rows, columns):
    step = 180 / rows
    return Grid(tuple(90 - step * (np.arange(rows) + 0.5)), tuple(np.arange(columns) * 360 / columns))


GRIDS = {"poles": Grid.regular(73, 144), "between": between_poles(72, 144), "odd": Grid.regular(73, 135)}


def vectors(grid):
    """Return the position on the unit sphere and the directions of east and north, (3, H, W) each."""
    phi, lam = np.radians(grid.cell_latitudes), np.radians(grid.cell_longitudes)
    phi, lam = phi + 0 * lam, lam + 0 * phi
    position = np.stack([np.cos(phi) * np.cos(lam), np.cos(phi) * np.sin(lam), np.sin(phi)])
    east = np.stack([-np.sin(lam), np.cos(lam), 0 * lam])
    return position, east, np.cross(position, east, axis=0)


def relative(found, true):
    return abs(found - true).max() / abs(true).max()
