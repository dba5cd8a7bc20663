"""Places in words, and the largest cells of a field, by brute force."""

import numpy as np
import pytest

from data_pipeline.grid import Grid
from data_pipeline.points import Points
from evaluation.explanation.places import APART, largest_cells, place_name, region_name

GRID = Grid.regular(19, 36)


def distance(first, second):
    """Degrees between two cells of GRID, by their unit vectors."""
    vectors = []
    for row, column in (first, second):
        phi, lam = np.radians(GRID.latitudes[row]), np.radians(GRID.longitudes[column])
        vectors.append([np.cos(phi) * np.cos(lam), np.cos(phi) * np.sin(lam), np.sin(phi)])
    one, two = np.array(vectors)
    return np.degrees(np.arctan2(np.linalg.norm(np.cross(one, two)), one @ two))


def test_largest_cells_are_those_of_a_greedy_search():
    field = np.random.default_rng(5).normal(size=GRID.shape)
    field[3, 4] = np.nan
    found = []
    ordered = sorted(np.ndindex(field.shape), key=lambda cell: -abs(np.nan_to_num(field[cell])))
    for cell in ordered:
        if all(distance(cell, other) >= APART - 1e-9 for other in found) and len(found) < 6:
            found.append(cell)
    assert largest_cells(field, GRID, 6) == found


def test_one_storm_has_one_line():
    field = np.zeros(GRID.shape)
    field[9, 10], field[9, 11], field[0, :] = 5, 4.9, 3
    cells = largest_cells(field, GRID, 6)
    assert cells[0] == (9, 10)
    assert sum(row == 0 for row, _ in cells) == 1
    assert largest_cells(np.full(GRID.shape, np.nan), GRID, 6) == []


def test_stations_may_be_near_each_other():
    stations = Points((50.0, 50.01, -3.0), (8.0, 8.01, 20.0), ids=("a", "b", "c"))
    field = np.array([[1.0], [-2.0], [0.5]])
    assert largest_cells(field, stations, 3) == [(1, 0), (0, 0), (2, 0)]
    assert place_name(stations, (2, 0)) == "c, 3°S 20°E"


@pytest.mark.parametrize(
    ("latitude", "longitude", "expected"),
    [
        (52.0, 13.0, "land, Europe"),
        (50.0, 350.0, "sea, Europe"),
        (0.0, 25.0, "land, tropics"),
        (45.0, 180.0, "sea, north of the tropics"),
        (-80.0, 90.0, "land, south of the tropics"),
    ],
)
def test_regions_of_known_places(latitude, longitude, expected):
    assert region_name(Grid((latitude,), (longitude,)), (0, 0), earth=True) == expected


def test_another_planet_has_its_own_land_and_no_europe():
    grid = Grid((52.0,), (13.0,))
    assert region_name(grid, (0, 0), earth=False) == "north of the tropics"
    assert region_name(grid, (0, 0), earth=False, land=np.zeros((1, 1))) == "sea, north of the tropics"
