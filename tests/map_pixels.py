"""Reading drawn maps back: the value that a map shows at a place, by a second way to the projection."""

import math

import numpy as np


def mollweide(longitude, latitude):
    """x and y of a place on a globe of radius one, by Newton's method for 2 θ + sin 2θ = π sin φ."""
    phi = math.radians(latitude)
    theta = phi
    for _ in range(200):
        slope = 2 + 2 * math.cos(2 * theta)
        if slope < 1e-12:
            break
        theta -= (2 * theta + math.sin(2 * theta) - math.pi * math.sin(phi)) / slope
    return 2 * math.sqrt(2) / math.pi * math.radians(longitude) * math.cos(theta), math.sqrt(2) * math.sin(theta)


def shown_at(ax, x, y):
    """The value of a map's image at a point of the map, NaN where nothing is shown."""
    image = ax.images[0]
    left, right, bottom, top = image.get_extent()
    values = np.ma.filled(np.ma.asarray(image.get_array()).astype(float), np.nan)
    rows, columns = values.shape
    return values[int((y - bottom) / (top - bottom) * rows), int((x - left) / (right - left) * columns)]


def globe_values(panel, grid):
    """The values (H, W) of a map of the globe, its colours and their limits; read near both sides of each cell."""
    ax = panel.figure.axes[0]
    found = np.full(grid.shape, np.nan)
    near_edge = 0.4 * 360 / len(grid.longitudes)
    for i, latitude in enumerate(grid.latitudes):
        for j, longitude in enumerate(grid.longitudes):
            east, west = ((longitude + part + 180) % 360 - 180 for part in (near_edge, -near_edge))
            found[i, j], other = (shown_at(ax, *mollweide(x, max(-84, min(84, latitude)))) for x in (east, west))
            np.testing.assert_equal(found[i, j], other, "a cell has one value from its western to its eastern edge")
    return found, ax.images[0].get_cmap().name, ax.images[0].get_clim()
