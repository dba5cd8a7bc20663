"""Three-level quasi-geostrophic flow on the sphere: advection of vorticity, temperature and moisture.

This is the model of Marshall and Molteni (1993, doi:10.1175/1520-0469(1993)050<1792:TADUOP>2.0.CO;2). With the
streamfunctions ψ₁, ψ₂, ψ₃ at 200, 500 and 800 hPa, the potential vorticities are

    q₁ = ∇²ψ₁ - R₁⁻²(ψ₁ - ψ₂)
    q₂ = ∇²ψ₂ + R₁⁻²(ψ₁ - ψ₂) - R₂⁻²(ψ₂ - ψ₃)
    q₃ = ∇²ψ₃ + R₂⁻²(ψ₂ - ψ₃)
    ∂qₖ/∂t = -J(ψₖ, qₖ + fₖ) + ...,   f₁ = f₂ = 2μ,   f₃ = 2μ (1 + h/H₀)

in units of the Earth's radius and rotation. There are no gravity waves: noise in q is balanced, and steps of four hours
are stable.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from data_pipeline.synthetic.twin.model_parameters import RADIUS
from data_pipeline.synthetic.twin.sphere import Sphere

ROSSBY_RADII = 700e3, 450e3
"""R₁ and R₂, metres."""
SCALE_HEIGHT = 9000.0
"""H₀, metres."""
F0 = math.sqrt(2)
"""f at 45°, which quasi-geostrophic stretching takes as constant."""
F1, F2 = ((RADIUS / radius) ** 2 for radius in ROSSBY_RADII)
STRETCHING = ((-F1, F1, 0.0), (F1, -F1 - F2, F2), (0.0, F2, -F2))
"""Coefficients of ψ in q, besides ∇²ψ."""


class QuasiGeostrophy:
    """Inversion of potential vorticity, and advection.

    `height` is the orography (W, H, 1) in metres; `advection` is a factor on the advecting winds.
    """

    def __init__(self, sphere: Sphere, height: Tensor, advection: float) -> None:
        self.sphere = sphere
        self.advection = advection
        dtype = sphere.mu.dtype
        operator = torch.tensor(STRETCHING, dtype=torch.float64) + sphere.laplacian.double().view(-1, 1, 1) * torch.eye(
            3
        )
        inverse = torch.zeros_like(operator)
        inverse[1:] = torch.linalg.inv(operator[1:])
        # The global mean of ψ has no effect; the global mean of q is zero.
        operator[0] = 0
        self._operator, self._inverse = operator.to(dtype), inverse.to(dtype)
        coriolis = 2 * sphere.mu.expand(sphere.columns, -1, 3, -1).clone()
        coriolis[:, :, 2] *= 1 + height / SCALE_HEIGHT
        self.planetary = sphere.to_spectrum(coriolis)
        """Spectrum (2N, N, 3, 1) of f₁, f₂, f₃."""

    def streamfunction(self, vorticity: Tensor) -> Tensor:
        """Return ψ (2N, N, 3, B) from q (2N, N, 3, B)."""
        return torch.einsum("nkl,mnlb->mnkb", self._inverse, vorticity)

    def potential_vorticity(self, streamfunction: Tensor) -> Tensor:
        """Return q from ψ."""
        return torch.einsum("nkl,mnlb->mnkb", self._operator, streamfunction)

    def advect(self, spectrum: Tensor) -> Tensor:
        """Return the advective tendency of q₁, q₂, q₃ and of tracers; the wind of the lowest level carries the tracers.

        -J(ψ, q) = (∂ψ/∂μ ∂q/∂λ - ∂ψ/∂λ ∂q/∂μ), spectra (2N, N, 3 + tracers, B).
        """
        psi = self.streamfunction(spectrum[:, :, :3])
        carried = spectrum.clone()
        carried[:, :, :3] += self.planetary
        east, north = self.sphere.gradient(torch.cat([psi, carried], 2))
        psi_east, psi_north, east, north = east[:, :, :3], north[:, :, :3], east[:, :, 3:], north[:, :, 3:]
        change = torch.empty_like(east)
        for level, advected in ((slice(0, 3), slice(0, 3)), (slice(2, 3), slice(3, None))):
            torch.mul(psi_north[:, :, level], east[:, :, advected], out=change[:, :, advected])
            change[:, :, advected].addcmul_(psi_east[:, :, level], north[:, :, advected], value=-1)
        # Both products have an extra factor 1 - μ².
        return self.advection * self.sphere.to_spectrum(change, over_cos2=True)

    def runge_kutta(self, spectrum: Tensor, step: float) -> Tensor:
        """Return the spectrum after `step` (units of 1/Ω) of advection, by the classical fourth-order method."""
        k1 = self.advect(spectrum)
        k2 = self.advect(torch.add(spectrum, k1, alpha=step / 2))
        k3 = self.advect(torch.add(spectrum, k2, alpha=step / 2))
        k4 = self.advect(torch.add(spectrum, k3, alpha=step))
        return spectrum + (k1 + 2 * k2 + 2 * k3 + k4) * (step / 6)
