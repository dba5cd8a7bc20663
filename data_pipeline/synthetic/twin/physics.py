"""Exchange of heat, momentum and water between air, sun, sea and land, and the temperature of the land.

Rates are per day, temperatures in K, water in kg m⁻², winds in m s⁻¹, fields (W, H, B).
"""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor

from data_pipeline.synthetic.twin.climate import LAPSE_RATE, LOG_PRESSURE_STEPS, THERMAL_WIND, Climate
from data_pipeline.synthetic.twin.dynamics import F1, F2, QuasiGeostrophy
from data_pipeline.synthetic.twin.earth import Earth
from data_pipeline.synthetic.twin.model_parameters import RADIUS, VELOCITY, Parameters
from data_pipeline.synthetic.twin.state import State

PLANETARY_DAYS = 5.0
"""Damping time of planetary eddies (n ≲ 6), whose energy otherwise grows for months."""
AIR_DAYS = 3.0
"""Relaxation time of the temperature at 850 hPa to thermal wind balance."""
LAND_DAYS = 2.0
"""Relaxation time of the land surface temperature to radiative equilibrium."""
DIFFUSION_SCALE = 21 * 22
"""n(n + 1) of the scale whose damping time is `Parameters.diffusion_days`."""


def to_surface(temperature: Tensor, height: Tensor) -> Tensor:
    """Return the surface air temperature for a temperature at 850 hPa."""
    return temperature + 9 - LAPSE_RATE * height


def from_surface(temperature: Tensor, height: Tensor) -> Tensor:
    """Return the temperature at 850 hPa for a surface air temperature, the inverse of `to_surface`."""
    return temperature - 9 + LAPSE_RATE * height


def saturation(temperature: Tensor) -> Tensor:
    """Return the water vapour of a saturated column with the given temperature at 850 hPa, kg m⁻²."""
    return 48 * torch.exp(0.065 * (temperature - 293))


def cloud_cover(humidity: Tensor) -> Tensor:
    """Return the cloud cover, 0 to 1, for the relative humidity of a column."""
    return torch.sigmoid((humidity - 0.72) / 0.08)


class Physics:
    """All processes except advection."""

    def __init__(self, flow: QuasiGeostrophy, earth: Earth, climate: Climate, parameters: Parameters) -> None:
        self.sphere = sphere = flow.sphere
        self.flow, self.earth, self.climate, self.parameters = flow, earth, climate, parameters
        self._cos = torch.sqrt(sphere.cos2[:, :, 0])
        self._sea = 1 - earth.land

        roughness = torch.exp(0.45 * parameters.drag_texture * earth.roughness * earth.land)
        obstacles = 1 + 0.5 * earth.land + 0.5 * (1 - torch.exp(-earth.height / 1000))
        drag = sphere.to_spectrum((obstacles * roughness / parameters.drag_days)[:, :, None])
        self._drag = sphere.to_grid(drag)[:, :, 0]
        self._drag_east, self._drag_north = self._slope(drag)
        height = sphere.to_spectrum(earth.height[:, :, None])
        self._height_east, self._height_north = (slope / RADIUS for slope in self._slope(height))

        damping = torch.exp(-((sphere.laplacian / 30) ** 2)) / PLANETARY_DAYS
        # The zonal mean flow is not damped, because the thermal forcing controls it.
        self._planetary = (damping * sphere.laplacian).repeat(len(sphere.mask), 1, 1, 1)
        self._planetary[:2] = 0
        self._soil_exchange = 1.2 * torch.exp(0.8 * parameters.soil * earth.soil)
        self._kelvin = 2 * sphere.mu[:, :, 0] * THERMAL_WIND / LOG_PRESSURE_STEPS[1]

    def diffuse(self, spectrum: Tensor, days: float) -> Tensor:
        """Return the spectrum after ∇⁸ diffusion, with e-folding times ∝ (n(n + 1))⁻⁴."""
        rate = (self.sphere.laplacian / DIFFUSION_SCALE) ** 4 / self.parameters.diffusion_days
        return spectrum * torch.exp(-days * rate)

    def sea_temperature(self, state: State) -> Tensor:
        """Return the sea surface temperature, including the anomaly of each simulation."""
        return self.climate.sea(state.day, state.sea_anomaly)

    def surface_temperature(self, state: State) -> Tensor:
        """Return the surface temperature, the mean of land and sea weighted by their fractions."""
        return self.earth.land * state.skin + self._sea * self.sea_temperature(state)

    def wind(self, streamfunction: Tensor) -> tuple[Tensor, Tensor]:
        """Return the wind components u and v on the grid from ψ (2N, N, ..., B)."""
        east, north = self.sphere.gradient(streamfunction)
        cos = self._cos.view(1, -1, *[1] * (east.ndim - 2))
        return north / cos * -VELOCITY, east / cos * VELOCITY

    def step(self, state: State, days: float) -> State:
        """Return the state after `days` of physics; the attribute `day` does not change."""
        sphere, climate, parameters, height = self.sphere, self.climate, self.parameters, self.earth.height
        psi = self.flow.streamfunction(state.spectrum[:, :, :3])
        excess = psi[:, :, :2] - psi[:, :, 1:] - climate.thermal_wind(state.day)
        zeta, shear, air, vapour = sphere.to_grid(
            torch.cat([sphere.laplacian * psi[:, :, 2:], excess[:, :, 1:], state.spectrum[:, :, 3:]], 2)
        ).unbind(2)
        u, v = self.wind(psi[:, :, 2])
        speed = torch.sqrt(u * u + v * v)
        vapour = vapour.clamp(min=0)
        capacity = saturation(air)
        surface = self.surface_temperature(state)

        gust = 1 + parameters.drag_wind * (speed / 8 - 1)
        friction = -self._drag * gust * zeta - (self._drag_east * v - self._drag_north * u) / VELOCITY

        upslope = (self._height_east * u + self._height_north * v).clamp(min=0)
        rain = (vapour - 0.85 * capacity).clamp(min=0) / (0.25 + days) + 0.3456 * vapour * upslope
        drying = (0.8 * saturation(from_surface(surface, height)) - vapour).clamp(min=0)
        evaporation = 0.5 * (1 - 0.65 * self.earth.land) * (0.4 + speed / 10) * drying

        warmer = from_surface(surface, height) - air
        exchange = 0.35 * self.earth.land + 0.8 * parameters.sea_flux * self._sea
        convection = exchange * (0.5 + speed / 12) * (0.25 + 0.75 * torch.sigmoid(warmer))
        aloft = climate.air(state.day) + self._kelvin * shear
        heating = (aloft - air) / AIR_DAYS + convection * warmer + 0.83 * parameters.latent_heat * rain

        change = self._radiation(psi, excess)
        change[:, :, 2:] += sphere.to_spectrum(torch.stack([friction, heating, evaporation - rain], 2))
        return replace(
            state,
            spectrum=self.diffuse(state.spectrum + days * change, days),
            skin=self._land(state, air, speed, vapour / capacity, days),
            rain=state.rain + days * rain,
        )

    def _radiation(self, psi: Tensor, excess: Tensor) -> Tensor:
        """Return the tendency (2N, N, 5, B) of q by relaxation of the thermal wind and damping of planetary eddies."""
        upper, lower = (excess / self.parameters.relaxation_days).unbind(2)
        change = torch.zeros_like(psi[:, :, :1]).repeat(1, 1, 5, 1)
        change[:, :, 0] = F1 * upper
        change[:, :, 1] = F2 * lower - F1 * upper
        change[:, :, 2] = -F2 * lower
        change[:, :, :3] -= self._planetary * psi
        return change

    def _land(self, state: State, air: Tensor, speed: Tensor, humidity: Tensor, days: float) -> Tensor:
        """Return the land temperature after an implicit step towards radiative equilibrium and the air temperature."""
        parameters, climate, skin = self.parameters, self.climate, state.skin
        sunshine = climate.sunshine(state.day)
        clouds = 0.55 + parameters.cloud * (cloud_cover(humidity) - 0.55)
        snow = parameters.snow * torch.sigmoid((268 - skin) / 2) * sunshine.clamp(min=0.2)
        equilibrium = (
            climate.land(state.day) + clouds * (13 - 30 * sunshine) - 6 * snow + parameters.soil * self.earth.soil
        )
        air = to_surface(air, self.earth.height)
        stable = 0.5 + parameters.stability * (torch.sigmoid(air - skin) - 0.5)
        exchange = self._soil_exchange * (1 - 0.8 * stable) * (0.5 + speed / 12)
        return (skin + days * (equilibrium / LAND_DAYS + exchange * air)) / (1 + days * (1 / LAND_DAYS + exchange))

    def _slope(self, spectrum: Tensor) -> tuple[Tensor, Tensor]:
        """Return the eastward and northward derivatives (W, H, 1) of one field, per radian, from its spectrum."""
        east, north = self.sphere.gradient(spectrum[:, :, 0])
        return east / self._cos, north / self._cos
