"""Prescribed climate: equilibrium winds and temperatures, sea temperature, sunshine.

Seasonal functions take `day`, the day of the year as a real number: 1.0 is the start of 1 January.
"""

from __future__ import annotations

import math

import numpy as np
import torch
from torch import Tensor

from data_pipeline.synthetic.twin.earth import Earth
from data_pipeline.synthetic.twin.model_parameters import (
    GAS_CONSTANT,
    PRESSURES,
    RADIUS,
    ROTATION,
    STREAMFUNCTION,
    Parameters,
)
from data_pipeline.synthetic.twin.sphere import Sphere

SHEARS = 31.0, 26.0
"""Maximum equilibrium wind difference between 200 and 500 hPa and between 500 and 800 hPa, m s⁻¹."""
SHEAR_SEASON = 0.25
"""Relative amplitude of the seasonal cycle of the shear, which is largest in winter."""
LOG_PRESSURE_STEPS = tuple(math.log(PRESSURES[k + 1] / PRESSURES[k]) for k in (0, 1))
COLDEST_DAY, COLDEST_DAY_AT_SEA = 20.0, 45.0
FREEZING_SEA = 271.3
"""Freezing point of sea water, K."""
LAPSE_RATE = 0.0065
"""K m⁻¹"""
THERMAL_WIND = ROTATION * STREAMFUNCTION / GAS_CONSTANT
"""Temperature per unit of f (ψₖ - ψₖ₊₁) / ln(pₖ₊₁/pₖ), with f in units of Ω, K."""
LATITUDE = np.radians(np.linspace(-90, 90, 1801))
SINE = np.sin(LATITUDE)


def seasonal_cycle(day: float, coldest: float = COLDEST_DAY) -> float:
    """Return 1 in the middle of the northern winter, -1 in the middle of the northern summer."""
    return math.cos(2 * math.pi * (day - coldest) / 365.25)


class Climate:
    """Prescribed fields (W, H, 1 or B) on a sphere, and spectra of the thermal wind in equilibrium."""

    def __init__(self, sphere: Sphere, earth: Earth, parameters: Parameters) -> None:
        self.earth = earth
        self._mu = sphere.mu[:, :, 0]
        self._cos = torch.sqrt(sphere.cos2[:, :, 0])
        mu = self._mu.expand(sphere.columns, -1, -1)

        smooth = sphere.to_spectrum(earth.land[..., None]) * torch.exp(-((sphere.laplacian / 150) ** 2))
        continents = sphere.to_grid(smooth)[:, :, 0]
        continents = continents - continents.mean(0, keepdim=True)
        contrast = -parameters.land_contrast * torch.tanh(mu / 0.3) * continents

        jets = [speed * _jet(SINE) for speed in SHEARS]
        yearly = [_balanced(sphere, k, jet) for k, jet in enumerate(jets)]
        seasonal = [_balanced(sphere, k, SHEAR_SEASON * jet * np.tanh(SINE / 0.2)) for k, jet in enumerate(jets)]
        # The effect of continents is smaller aloft; 1/f is kept finite at the equator.
        over_f = mu / (mu**2 + 0.1) / 2
        land = [share * contrast * over_f * LOG_PRESSURE_STEPS[k] / THERMAL_WIND for k, share in enumerate((0.4, 1.0))]
        self._wind_mean = sphere.to_spectrum(torch.stack([psi for psi, _ in yearly], 2))
        self._wind_season = sphere.to_spectrum(
            torch.stack([psi + extra for (psi, _), extra in zip(seasonal, land, strict=True)], 2)
        )
        self._air_mean = yearly[1][1] - 14 * (mu**4 - 0.2)
        self._air_season = seasonal[1][1] + contrast - 6 * mu**3

    def thermal_wind(self, day: float) -> Tensor:
        """Return ψ₁ - ψ₂ and ψ₂ - ψ₃ in equilibrium, spectrum (2N, N, 2, 1)."""
        return self._wind_mean + seasonal_cycle(day) * self._wind_season

    def air(self, day: float) -> Tensor:
        """Return the equilibrium temperature at 850 hPa, K."""
        return 280 + self._air_mean + seasonal_cycle(day) * self._air_season

    def sea(self, day: float, anomaly: Tensor) -> Tensor:
        """Return the sea surface temperature, K, including the `anomaly` (W, H, B) of each year."""
        tilt = 0.09 * seasonal_cycle(day, COLDEST_DAY_AT_SEA)
        thermal_latitude = self._mu * math.cos(0.09) + self._cos * math.sin(tilt)
        return (301 - 36 * thermal_latitude.abs() ** 2.2 + self.earth.sea + anomaly).clamp(min=FREEZING_SEA)

    def land(self, day: float) -> Tensor:
        """Return the equilibrium temperature of dry land under mean cloud cover, K."""
        return 313 - 54 * self._mu**2 - 15 * seasonal_cycle(day) * self._mu - LAPSE_RATE * self.earth.height

    def sunshine(self, day: float) -> Tensor:
        """Return the daily sunshine, 0 to 1, (1, H, 1)."""
        return (self._cos - 0.45 * seasonal_cycle(day) * self._mu).clamp(0, 1)


def _jet(sine: np.ndarray) -> np.ndarray:
    """Return the shear as a function of sin(latitude): 0 at equator and poles, 1 at 34 degrees north and south."""
    profile = sine**2 * (1 - sine**2) ** 2.25
    return profile / profile.max()


def _balanced(sphere: Sphere, k: int, shear: np.ndarray) -> tuple[Tensor, Tensor]:
    """Return ψₖ - ψₖ₊₁ and the temperature of the layer, (W, H, 1), for a zonal shear U (m s⁻¹, at LATITUDE).

    ∂(ψₖ - ψₖ₊₁)/∂φ = -a U, and by thermal wind balance ∂T/∂φ = -f a U / (R ln(pₖ₊₁/pₖ)); both have mean zero.
    """

    def integrated(slope: np.ndarray) -> Tensor:
        steps = (slope[1:] + slope[:-1]) / 2 * np.diff(LATITUDE)
        values = np.concatenate([[0], np.cumsum(steps)])
        values -= np.average(values, weights=np.cos(LATITUDE))
        rows = np.interp(np.radians(sphere.latitudes), LATITUDE, values)
        return torch.tensor(rows, dtype=sphere.mu.dtype).view(1, -1, 1).expand(sphere.columns, -1, -1)

    coriolis = 2 * ROTATION * SINE
    temperature_slope = -coriolis * RADIUS * shear / (GAS_CONSTANT * LOG_PRESSURE_STEPS[k])
    return integrated(-RADIUS * shear / STREAMFUNCTION), integrated(temperature_slope)
