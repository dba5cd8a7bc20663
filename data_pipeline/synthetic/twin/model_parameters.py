"""Physical constants, and the parameters of nature and of the forecast model."""

from __future__ import annotations

import math
from dataclasses import astuple, dataclass

RADIUS = 6.371e6
"""a, metres."""
ROTATION = 7.292e-5
"""Ω, s⁻¹."""
GRAVITY = 9.80665
GAS_CONSTANT = 287.05
"""R of dry air, J kg⁻¹ K⁻¹."""

# Units: the dynamics uses a for length and 1/Ω for time; the physics uses days.
VELOCITY = RADIUS * ROTATION
"""aΩ, the unit of wind, m s⁻¹."""
STREAMFUNCTION = RADIUS * VELOCITY
"""a²Ω, the unit of ψ, m² s⁻¹."""
DAY_LENGTH = 2 * math.pi
"""One day in units of 1/Ω."""

PRESSURES = (200.0, 500.0, 800.0)
"""Levels of the three streamfunctions, hPa."""


@dataclass(frozen=True)
class Parameters:
    """Tunable parameters of an atmosphere; the defaults describe nature."""

    relaxation_days: float = 18.0
    """Relaxation time of the thermal wind to radiative equilibrium."""
    land_contrast: float = 14.0
    """Seasonal amplitude of the continents' excess equilibrium temperature, K."""
    drag_days: float = 2.0
    """Spin-down time of the lowest level over sea."""
    drag_texture: float = 1.0
    """Spatial variability of the roughness of the land."""
    drag_wind: float = 0.4
    """Fraction of the drag that is proportional to wind speed."""
    orography: float = 1.0
    """Factor on the height of the mountains in the lowest level."""
    diffusion_days: float = 0.25
    """e-folding time of the smallest resolved scale (n = 21)."""
    advection: float = 1.0
    """Factor on advecting winds; below 1, weather moves too slowly, as with coarse numerics."""
    stability: float = 1.0
    """Effect of a stable surface layer, which reduces the heat exchange of land and air."""
    cloud: float = 1.0
    """Effect of clouds on the radiation balance of land."""
    snow: float = 1.0
    """Cooling of frozen ground."""
    soil: float = 1.0
    """Spatial variability of the soil."""
    sea_flux: float = 1.0
    """Factor on the heat flux from the sea."""
    latent_heat: float = 0.3
    """Fraction of the heat of condensation that stays at 850 hPa."""

    def towards(self, other: Parameters, fraction: float) -> Parameters:
        """Return parameters interpolated between these (`fraction` 0) and `other` (`fraction` 1)."""
        return Parameters(*(a + fraction * (b - a) for a, b in zip(astuple(self), astuple(other), strict=True)))


NATURE = Parameters()
FORECAST = Parameters(
    relaxation_days=22.0, land_contrast=11.0, drag_days=2.15, drag_texture=0.3, drag_wind=0.28,
    orography=0.85, diffusion_days=0.2, advection=0.945, stability=0.75, cloud=0.45, snow=0.7, soil=0.65,
    sea_flux=0.9, latent_heat=0.2,
)  # fmt: skip
"""The imperfect model at difficulty 1. Correcting its slow advection needs values of neighbouring cells."""
