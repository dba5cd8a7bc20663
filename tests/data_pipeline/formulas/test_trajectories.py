"""Trajectories in rigid rotations of the whole air, whose places and changes have closed forms."""

import numpy as np
import pytest
from sphere_fields import GRIDS, relative, vectors

from data_pipeline.formulas.formula import Formula
from data_pipeline.formulas.formula_values import FormulaValues
from data_pipeline.formulas.sphere_derivatives import EARTH_RADIUS
from data_pipeline.formulas.trajectories import Trajectories

DAY = 86400
AXIS = np.array([2.0, -1.0, 2.0]) / 3
"""Of a rotation that carries air across both poles."""


def wind_of_rotation(grid, radians_per_day):
    """Return the components of a rotation round `AXIS`, and of the unit vectors of east and north."""
    position, east, north = vectors(grid)
    velocity = np.cross(AXIS, position, axisb=0).transpose(2, 0, 1) * EARTH_RADIUS * radians_per_day / DAY
    return (velocity * east).sum(0), (velocity * north).sum(0)


def turned(position, angle):
    """Return places (3, H, W) turned round `AXIS` (Rodrigues' formula)."""
    along = np.tensordot(AXIS, position, 1) * AXIS[:, None, None]
    return (
        along
        + np.cos(angle) * (position - along)
        + np.sin(angle) * np.cross(AXIS, position, axisb=0).transpose(2, 0, 1)
    )


@pytest.mark.parametrize("name", GRIDS)
def test_air_in_a_rigid_rotation_comes_from_where_the_rotation_took_it(name):
    grid = GRIDS[name]
    wind = wind_of_rotation(grid, 0.5)
    found = Trajectories(grid).departures(wind, wind, DAY)
    assert abs(found - turned(vectors(grid)[0], -0.5)).max() < 2e-3
    assert np.allclose((found**2).sum(0), 1)


def test_the_wind_between_two_times_is_their_mean():
    """A rotation that slows down from 0.6 to 0.2 radians a day turns by 0.4 radians in a day."""
    grid = GRIDS["poles"]
    found = Trajectories(grid).departures(wind_of_rotation(grid, 0.2), wind_of_rotation(grid, 0.6), DAY)
    assert abs(found - turned(vectors(grid)[0], -0.4)).max() < 2e-3


@pytest.mark.parametrize("name", GRIDS)
def test_values_between_points_also_at_the_poles(name):
    grid = GRIDS[name]
    position = vectors(grid)[0]
    places = turned(position, 0.3)
    x, y, z = position
    at_x, at_y, at_z = places
    found = Trajectories(grid).values(x * y + z**3 - 2 * x, places)
    assert relative(found, at_x * at_y + at_z**3 - 2 * at_x) < 5e-5


def test_the_change_of_carried_air_is_the_change_that_it_does_not_owe_to_the_flow():
    """A field is carried by the rotation and warms by 1.5 K everywhere; without the flow it changes by up to 10 K."""
    grid, formula = GRIDS["between"], Formula.parse("lagrangian_change(t@850, 24)")
    u, v = wind_of_rotation(grid, 0.5)
    position = vectors(grid)[0]

    def temperature(place):
        return 270 + 10 * place[0] * place[1] + 10 * place[2]

    fields = {
        "t@850": temperature(turned(position, -0.5)) + 1.5, "t@850-24h": temperature(position),
        "u@850": u, "v@850": v, "u@850-24h": u, "v@850-24h": v,
    }  # fmt: skip
    values = FormulaValues(grid)
    for rows in (slice(0, grid.shape[0]), slice(5, 9)):
        found = values.compute(formula, rows, lambda leaf, wide: fields[str(leaf)][wide])
        assert abs(found - 1.5).max() < 0.03
    assert abs(fields["t@850"] - fields["t@850-24h"]).max() > 5


def test_missing_values():
    grid, formula = GRIDS["poles"], Formula.parse("lagrangian_change(sst, 24, u@850, v@850)")
    fields = {str(leaf): np.zeros(grid.shape) for leaf in formula.leaves}
    fields["sst-24h"][20, 30] = np.nan

    def change():
        return FormulaValues(grid).compute(formula, slice(0, grid.shape[0]), lambda leaf, rows: fields[str(leaf)][rows])

    missing = np.argwhere(np.isnan(change()))
    assert 0 < len(missing) <= 25
    assert (abs(missing - [20, 30]) <= 2).all()
    fields["u@850-24h"][0, 0] = np.nan
    assert np.isnan(change()).all(), "air from everywhere may have passed there"
