"""The dynamics against an exact solution, conservation laws and textbook balances; geography against known facts."""

import math

import numpy as np
import pytest
import torch

from data_pipeline.synthetic.twin.atmosphere import Atmosphere
from data_pipeline.synthetic.twin.climate import Climate, seasonal_cycle
from data_pipeline.synthetic.twin.diagnostics import geopotential, vertical_velocity
from data_pipeline.synthetic.twin.dynamics import F0, F1, F2, QuasiGeostrophy
from data_pipeline.synthetic.twin.earth import Earth, land_fraction, mountains
from data_pipeline.synthetic.twin.model_parameters import DAY_LENGTH, NATURE, RADIUS, ROTATION, VELOCITY
from data_pipeline.synthetic.twin.sphere import Sphere
from data_pipeline.synthetic.twin.state import State


@pytest.fixture(scope="module")
def sphere():
    return Sphere(21, torch.float64)


@pytest.fixture(scope="module")
def nature():
    return Atmosphere(NATURE, dtype=torch.float64)


def random_flow(sphere, batch=3):
    """Return a random ψ (2N, N, 3, B) with winds of about 10 m/s."""
    generator = torch.Generator().manual_seed(5)
    noise = torch.randn(*sphere.mask.shape[:2], 3, batch, generator=generator, dtype=torch.float64)
    psi = 8e-3 * noise * sphere.mask / (1 - sphere.laplacian)
    psi[:, 0] = 0
    return psi


@pytest.mark.parametrize(("n", "m", "rotation"), [(4, 3, 0.03), (12, 6, 0.0), (5, 4, 0.03)])
def test_a_rossby_haurwitz_wave_moves_at_its_phase_speed(sphere, n, m, rotation):
    """In solid rotation ω, a wave of degree n is an exact solution that moves at ω - 2(1 + ω)/(n(n + 1))."""
    flow = QuasiGeostrophy(sphere, torch.zeros(sphere.columns, sphere.rows, 1, dtype=torch.float64), 1.0)
    psi = torch.zeros(*sphere.mask.shape[:2], 3, 1, dtype=torch.float64)
    psi[0, 1] = -rotation * math.sqrt(2 / 3)
    psi[2 * m, n] = 0.01
    spectrum = flow.potential_vorticity(psi)
    for _ in range(24):
        spectrum = flow.runge_kutta(spectrum, DAY_LENGTH / 24)
    turned = m * (rotation - 2 * (1 + rotation) / (n * (n + 1))) * DAY_LENGTH
    expected = psi.clone()
    expected[2 * m, n] = 0.01 * math.cos(turned)
    expected[2 * m + 1, n] = -0.01 * math.sin(turned)
    torch.testing.assert_close(flow.streamfunction(spectrum), expected, rtol=0, atol=1e-8)


def test_a_flow_conserves_energy_and_enstrophy_and_carries_a_tracer_like_its_lowest_potential_vorticity(sphere):
    flow = QuasiGeostrophy(sphere, Earth(sphere).height, 1.0)
    q = flow.potential_vorticity(random_flow(sphere))
    start = torch.cat([q, (q + flow.planetary)[:, :, 2:]], 2)

    def invariants(spectrum):
        q = spectrum[:, :, :3]
        energy = -sphere.mean(sphere.to_grid(flow.streamfunction(q)) * sphere.to_grid(q)).sum(0) / 2
        return energy, sphere.mean(sphere.to_grid(q + flow.planetary) ** 2)

    end = start
    for _ in range(24):
        end = flow.runge_kutta(end, DAY_LENGTH / 24)
    assert (end - start).norm() > 0.1 * start.norm(), "the flow must have changed"
    assert (invariants(start)[0] > 0).all()
    for before, after in zip(invariants(start), invariants(end), strict=True):
        torch.testing.assert_close(after, before, rtol=1e-5, atol=0)
    torch.testing.assert_close(end[:, :, 3:], (end[:, :, :3] + flow.planetary)[:, :, 2:], rtol=0, atol=1e-10)


def test_inversion_of_the_written_out_potential_vorticity(sphere):
    flow = QuasiGeostrophy(sphere, Earth(sphere).height, 1.0)
    psi = random_flow(sphere)
    upper, middle, lower = (sphere.laplacian * psi).unbind(2)
    psi1, psi2, psi3 = psi.unbind(2)
    by_hand = torch.stack(
        [upper - F1 * (psi1 - psi2), middle + F1 * (psi1 - psi2) - F2 * (psi2 - psi3), lower + F2 * (psi2 - psi3)], 2
    )
    torch.testing.assert_close(flow.potential_vorticity(psi), by_hand, rtol=0, atol=1e-10)
    torch.testing.assert_close(flow.streamfunction(by_hand), psi, rtol=0, atol=1e-12)


@pytest.mark.parametrize("day", [15.0, 196.0])
def test_equilibrium_winds_are_westerly_aloft_in_both_hemispheres(nature, day):
    shear, _ = nature.physics.wind(nature.climate.thermal_wind(day))
    zonal = shear.mean(0)[:, :, 0]
    latitude = torch.tensor(nature.sphere.latitudes)
    for hemisphere in (latitude > 0, latitude < 0):
        jet = zonal[hemisphere & (latitude.abs() > 20) & (latitude.abs() < 60)]
        assert (jet > 3).all()
        assert (jet.amax(0) > 15).all()
    # Thermal wind: westerlies increase with height where temperature falls towards the pole, most in winter.
    air = nature.climate.air(day).mean(0)[:, 0]
    contrast = {side: float(air[latitude.abs() < 10].mean() - air[side].mean()) for side in (0, -1)}
    assert min(contrast.values()) > 20
    assert (contrast[0] > contrast[-1]) == (day < 100)


def test_a_zonal_flow_is_in_geostrophic_balance(nature):
    sphere = nature.sphere
    psi = random_flow(sphere)
    psi[1:] = 0
    u, v = nature.physics.wind(psi)
    phi = geopotential(nature, psi)
    assert v.abs().max() < 1e-9
    # f u = -∂Φ/(a ∂φ), with the derivative as finite differences between rows.
    latitude = torch.deg2rad(torch.tensor(sphere.latitudes))
    slope = torch.gradient(phi, spacing=(latitude,), dim=1)[0] / RADIUS
    coriolis = 2 * ROTATION * sphere.mu
    error = (coriolis * u + slope)[:, 2:-2]
    assert error.square().mean() < 0.03 * slope[:, 2:-2].square().mean()


def test_rising_air_spins_up(nature):
    """D(ζ + f)/Dt = f ∂ω/∂p: the change of vorticity in the next minutes equals the diagnosed stretching."""
    sphere, flow = nature.sphere, nature.flow
    psi = random_flow(sphere, batch=1)
    spectrum = torch.cat([flow.potential_vorticity(psi), torch.zeros_like(psi[:, :, :2])], 2)
    zeros = torch.zeros(sphere.columns, sphere.rows, 1, dtype=torch.float64)
    upper, _ = vertical_velocity(nature, State(spectrum, zeros, zeros, zeros, 1.0), psi)
    step = DAY_LENGTH / 240
    later = flow.streamfunction(flow.runge_kutta(spectrum, step)[:, :, :3])
    earlier = flow.streamfunction(flow.runge_kutta(spectrum, -step)[:, :, :3])
    growth = sphere.to_grid(sphere.laplacian * (later - earlier))[:, :, 0] / (2 * step)
    zeta = sphere.laplacian * psi
    zeta[0, 1] += 2 * math.sqrt(2 / 3)
    east, north = sphere.gradient(zeta[:, :, 0])
    u, v = nature.physics.wind(psi[:, :, 0])
    cos = torch.sqrt(sphere.cos2[..., 0])
    spin = growth + (u * east + v * north) / VELOCITY / cos
    row = int(abs(torch.tensor(sphere.latitudes) - 45).argmin())
    mu = float(sphere.mu[0, row])
    expected = spin * ROTATION**2 * 3e4 / (F0 * ROTATION * math.sqrt(mu**2 + 0.05) / mu)
    torch.testing.assert_close(upper[:, row], expected[:, row], rtol=1e-3, atol=1e-6)


# Geography and climate against known facts about the Earth

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
