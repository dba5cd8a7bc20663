"""Geography and climate against known facts about the Earth."""

import numpy as np
import pytest
import torch

from data_pipeline.synthetic.twin.climate import Climate, seasonal_cycle
from data_pipeline.synthetic.twin.earth import Earth, land_fraction, mountains
from data_pipeline.synthetic.twin.model_parameters import NATURE
from data_pipeline.synthetic.twin.sphere import Sphere

SPHERE = Sphere(21)
EARTH = Earth(SPHERE)
CLIMATE = Climate(SPHERE, EARTH, NATURE)
NO_ANOMALY = torch.zeros(SPHERE.columns, SPHERE.rows, 1)


LAND = {
    "Siberia": (60, 100), "Sahara": (20, 10), "Amazonia": (-10, 300), "Kansas": (40, 262), "Australia": (-25, 135),
    "South Pole": (-89, 0),
}  # fmt: skip
SEA = {"North Pole": (89, 0), "Tahiti": (-17, 210), "Azores": (38, 330), "Southern Ocean": (-58, 120)}


def test_known_places_are_land_or_sea_and_mountains_are_highest_in_tibet():
    lon, lat = np.arange(360.0), np.arange(-89.5, 90.0)
    share = land_fraction(lon, lat)
    for name, (latitude, longitude) in (LAND | SEA).items():
        assert share[longitude, abs(lat - latitude).argmin()] == (name in LAND), name
    assert SPHERE.mean(EARTH.land).item() == pytest.approx(0.29, abs=0.04)
    height = mountains(lon, lat)
    east, north = np.unravel_index(height.argmax(), height.shape)
    assert (lon[east], lat[north]) == (pytest.approx(88, abs=3), pytest.approx(33, abs=3))
    assert 4500 < height.max() < 6500
    assert (EARTH.height[EARTH.land == 0] == 0).all()


def test_january_is_winter_in_the_north_and_summer_in_the_south():
    assert seasonal_cycle(20.0) == 1
    assert seasonal_cycle(20 + 365.25 / 2) == pytest.approx(-1)
    north = SPHERE.latitudes > 30
    for field in (CLIMATE.land, CLIMATE.air, CLIMATE.sunshine, lambda day: CLIMATE.sea(day, NO_ANOMALY)):
        january, july = (field(day).mean(0)[:, 0].numpy() for day in (20.0, 202.6))
        assert january[north].mean() < july[north].mean()
        assert january[north[::-1]].mean() > july[north[::-1]].mean()
