"""Constants, and the numbers in which the forecast model differs from nature."""

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

# The dynamics measures length in a and time in 1/Ω; the physics measures time in days.
VELOCITY = RADIUS * ROTATION
"""aΩ in m s⁻¹: one unit of wind."""
STREAMFUNCTION = RADIUS * VELOCITY
"""a²Ω in m² s⁻¹: one unit of ψ."""
DAY = 2 * math.pi
"""One day in units of 1/Ω."""

PRESSURES = (200.0, 500.0, 800.0)
"""Levels of the three streamfunctions, hPa."""


@dataclass(frozen=True)
class Parameters:
    """What a modeller would tune. The defaults are nature's values."""

    relaxation_days: float = 18.0
    """Time in which the thermal winds relax to radiative equilibrium."""
    land_contrast: float = 14.0
    """Winter-to-summer amplitude of the continents' excess equilibrium temperature, K."""
    drag_days: float = 2.0
    """Spin-down time of the lowest level over sea."""
    drag_texture: float = 1.0
    """How strongly the roughness of the land varies from place to place."""
    drag_wind: float = 0.4
    """Share of the drag that is proportional to wind speed."""
    orography: float = 1.0
    """Height of the mountains that the lowest level feels."""
    diffusion_days: float = 0.25
    """e-folding time of the smallest resolved scale (n = 21)."""
    advection: float = 1.0
    """Factor on every advecting wind; less than 1 makes weather lag behind, as coarse numerics do."""
    stability: float = 1.0
    """How much a stable surface layer cuts off the land from the air."""
    cloud: float = 1.0
    """Effect of clouds on the land's radiation balance."""
    snow: float = 1.0
    """Cooling of frozen ground."""
    soil: float = 1.0
    """How strongly the soil varies from place to place."""
    sea_flux: float = 1.0
    """Heat flux from the sea."""
    latent_heat: float = 0.3
    """Share of the heat of condensation that stays at 850 hPa."""

    def towards(self, other: Parameters, fraction: float) -> Parameters:
        """Return the parameters that lie `fraction` of the way from these to `other`."""
        return Parameters(*(a + fraction * (b - a) for a, b in zip(astuple(self), astuple(other), strict=True)))


NATURE = Parameters()
FORECAST = Parameters(
    relaxation_days=22.0, land_contrast=11.0, drag_days=2.15, drag_texture=0.3, drag_wind=0.28,
    orography=0.85, diffusion_days=0.2, advection=0.945, stability=0.75, cloud=0.45, snow=0.7, soil=0.65,
    sea_flux=0.9, latent_heat=0.2,
)  # fmt: skip
"""The imperfect model at difficulty 1. Only a look at the neighbours can mend the lag of its advection."""
