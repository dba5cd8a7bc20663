"""Diagnose the archived variables from the state of the twin atmosphere.

The state holds ψ on three levels, one temperature and one humidity. All other variables follow from textbook relations,
so that they are consistent with each other, as in real forecasts.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from data_pipeline.synthetic.twin.atmosphere import MAX_BATCH, Atmosphere
from data_pipeline.synthetic.twin.dynamics import F0
from data_pipeline.synthetic.twin.model_parameters import GAS_CONSTANT, GRAVITY, ROTATION, VELOCITY
from data_pipeline.synthetic.twin.physics import cloud_cover, saturation, to_surface
from data_pipeline.synthetic.twin.state import State
from data_pipeline.task import Variable

ACCUMULATED_NAMES = frozenset({"tp", "cp"})
"""Amounts since the start of a forecast. They are interpolated linearly, so that cp stays below tp and tp never
decreases with time.

cp is a share of tp that depends on the temperature at the valid time. It may decrease, so there is no `cp:24h`.
"""

MEAN_HEIGHTS = 11800.0, 5570.0, 1950.0
"""Geopotential height of 200, 500 and 800 hPa, mean over the globe, m."""
LAYER_DEPTH = 3e4
"""Depth of the layers between 50, 350 and 650 hPa, Pa."""


def diagnose(atmosphere: Atmosphere, state: State) -> dict[Variable, Tensor]:
    """Return all archived variables of a state, (W, H, B) on the Gaussian grid, in the units of GRIB."""
    batches = range(0, state.batch, MAX_BATCH)
    parts = [_diagnose(atmosphere, state.take(slice(first, first + MAX_BATCH))) for first in batches]
    return {variable: torch.cat([part[variable] for part in parts], -1) for variable in parts[0]}


def geopotential(atmosphere: Atmosphere, psi: Tensor) -> Tensor:
    """Return Φ at 200, 500 and 800 hPa, (W, H, 3, B) in m² s⁻², in linear balance with ψ: ∇²Φ = ∇·(f ∇ψ)."""
    sphere = atmosphere.sphere
    _, north = sphere.gradient(psi)
    divergence = sphere.to_spectrum(2 * sphere.mu * sphere.to_grid(sphere.laplacian * psi) + 2 * north)
    phi = torch.zeros_like(divergence)
    phi[:, 1:] = divergence[:, 1:] / sphere.laplacian[:, 1:]
    mean = GRAVITY * torch.tensor(MEAN_HEIGHTS, dtype=psi.dtype).view(1, 1, 3, 1)
    return sphere.to_grid(phi) * VELOCITY**2 + mean


def vertical_velocity(atmosphere: Atmosphere, state: State, psi: Tensor) -> tuple[Tensor, Tensor]:
    """Return ω at 350 and 650 hPa, Pa s⁻¹, from the change of vorticity by stretching.

    D(ζ + f)/Dt = f ∂ω/∂p in each layer, with ω = 0 at 50 hPa; 1/f is kept finite at the equator.
    """
    sphere, flow = atmosphere.sphere, atmosphere.flow
    tendency = sphere.to_grid(sphere.laplacian * flow.streamfunction(flow.advect(state.spectrum)[:, :, :3]))
    coriolis = sphere.to_spectrum(2 * sphere.mu.expand(sphere.columns, -1, 3, 1))
    psi_east, psi_north = sphere.gradient(psi)
    vorticity_east, vorticity_north = sphere.gradient(sphere.laplacian * psi + coriolis)
    spin = tendency + (psi_east * vorticity_north - psi_north * vorticity_east) / sphere.cos2
    over_f = sphere.mu / torch.sqrt(sphere.mu**2 + 0.05) / F0
    upper, middle, _ = (LAYER_DEPTH * ROTATION * spin * over_f).unbind(2)
    return upper, upper + middle


def saturation_humidity(temperature: Tensor, pressure: float) -> Tensor:
    """Return the specific humidity of saturated air, kg kg⁻¹, by the formula of Tetens; pressure in hPa."""
    vapour_pressure = 6.11 * torch.exp(17.3 * (temperature - 273.16) / (temperature - 35.9))
    return 0.622 * vapour_pressure / pressure


def _diagnose(atmosphere: Atmosphere, state: State) -> dict[Variable, Tensor]:
    sphere, physics, earth = atmosphere.sphere, atmosphere.physics, atmosphere.earth
    psi = atmosphere.flow.streamfunction(state.spectrum[:, :, :3])
    z200, z500, z800 = geopotential(atmosphere, psi).unbind(2)
    air, vapour = sphere.to_grid(state.spectrum[:, :, 3:]).unbind(2)
    vapour = vapour.clamp(min=0.2)
    humidity = (vapour / saturation(air)).clamp(max=1.1)
    clouds = cloud_cover(humidity)

    t350 = (z200 - z500) / GAS_CONSTANT / math.log(500 / 200)
    t650 = (z500 - z800) / GAS_CONSTANT / math.log(800 / 500)
    weight = math.log(500 / 350) / math.log(650 / 350)
    t500 = weight * t650 + (1 - weight) * t350
    z850 = z800 - GAS_CONSTANT * air * math.log(850 / 800)
    z1000 = z850 - GAS_CONSTANT * (air + 5) * math.log(1000 / 850)

    w350, w650 = vertical_velocity(atmosphere, state, psi)
    u, v = physics.wind(psi)
    u500, v500 = u[:, :, 1], v[:, :, 1]
    u850, v850 = (1.15 * x[:, :, 2] - 0.15 * x[:, :, 1] for x in (u, v))
    # Friction turns the surface wind towards low pressure.
    turn = 0.2 * torch.sign(sphere.mu[:, :, 0])

    sea = physics.sea_temperature(state)
    surface = physics.surface_temperature(state)
    ground_air = to_surface(air, earth.height)
    share = 0.5 + 0.15 * earth.land
    convective = 0.5 * torch.sigmoid((air - 285) / 3)
    metres = state.rain / 1000
    fields = {
        "z@500": z500, "t@500": t500, "u@500": u500, "v@500": v500,
        "q@500": 0.7 * humidity * saturation_humidity(t500, 500),
        "w@500": (w350 + w650) / 2, "d@500": (w350 - w650) / LAYER_DEPTH,
        "z@850": z850, "t@850": air, "u@850": u850, "v@850": v850,
        "q@850": humidity * saturation_humidity(air, 850),
        "w@850": 0.6 * w650, "d@850": w650 / LAYER_DEPTH,
        "sst": sea, "tcw": vapour * (1 + 0.03 * clouds), "tcwv": vapour,
        "msl": 101300 + 0.85 * z1000, "tcc": clouds,
        "10u": 0.6 * u850 - turn * v850, "10v": 0.6 * v850 + turn * u850,
        "2t": share * surface + (1 - share) * ground_air, "skt": surface,
        "tp": metres, "cp": convective * metres,
    }  # fmt: skip
    return {Variable.parse(name): field for name, field in fields.items()}
