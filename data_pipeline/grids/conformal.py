"""Conformal map projections: Lambert conformal conic, polar stereographic and Mercator, on a sphere or an ellipsoid."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

Pair = tuple[np.ndarray, np.ndarray]


@dataclass(frozen=True)
class Conformal:
    """A conformal projection with the constant `cone` n: 1 or -1 at a pole, 0 for Mercator, else Lambert's cone.

    With ψ, the isometric latitude, a point has the distance ρ = a `scale` exp(-n ψ) / n from the cone's apex, and the
    polar angle n (λ - λ0). Its coordinates (m) are x = ρ sin(angle) and y = -ρ cos(angle), from the apex. With n = 0
    they are x = a `scale` (λ - λ0) and y = a `scale` ψ (Snyder 1987, doi:10.3133/pp1395, pages 41 to 44, 104 to 110 and
    154 to 163).
    """

    radius: float
    """Semi-major axis a of the Earth (m)."""
    e2: float
    """Its eccentricity squared."""
    meridian: float
    """λ0 (degrees)."""
    cone: float
    scale: float

    @classmethod
    def lambert(cls, radius: float, e2: float, meridian: float, first: float, second: float) -> Conformal:
        """Return Lambert's projection with two standard parallels (degrees), which may be equal."""
        south, north = sorted((first, second))
        lower, upper = np.log(_parallel(south, e2)), np.log(_parallel(north, e2))
        psi = _isometric(np.array([south, north]), e2)
        cone = float((lower - upper) / (psi[1] - psi[0])) if north - south > 1e-9 else float(np.sin(np.radians(south)))
        return cls(radius, e2, meridian, cone, float(np.exp(lower + cone * psi[0])))

    @classmethod
    def stereographic(cls, radius: float, e2: float, meridian: float, standard: float) -> Conformal:
        """Return the projection about the pole of the hemisphere of its standard parallel (degrees)."""
        if abs(standard) > 90 - 1e-9:
            e = e2**0.5
            return cls(radius, e2, meridian, np.sign(standard), 2 / ((1 + e) ** (1 + e) * (1 - e) ** (1 - e)) ** 0.5)
        psi = abs(_isometric(np.array(standard), e2))
        return cls(radius, e2, meridian, np.sign(standard), float(_parallel(standard, e2) * np.exp(psi)))

    @classmethod
    def mercator(cls, radius: float, e2: float, meridian: float, standard: float) -> Conformal:
        """Return Mercator's projection with the true scale at a parallel (degrees)."""
        return cls(radius, e2, meridian, 0.0, _parallel(standard, e2))

    def project(self, latitude: np.ndarray, longitude: np.ndarray) -> Pair:
        """Return the coordinates x and y (m) of points."""
        psi, east = _isometric(latitude, self.e2), np.radians((longitude - self.meridian + 180) % 360 - 180)
        if not self.cone:
            return self.radius * self.scale * east, self.radius * self.scale * psi
        rho = self.radius * self.scale / self.cone * np.exp(-self.cone * psi)
        return rho * np.sin(self.cone * east), -rho * np.cos(self.cone * east)

    def positions(self, x: np.ndarray, y: np.ndarray) -> Pair:
        """Return latitude and longitude (-180 to 180 degrees) of points: the inverse of `project`."""
        if not self.cone:
            psi, east = y / (self.radius * self.scale), x / (self.radius * self.scale)
        else:
            sign = np.sign(self.cone)
            with np.errstate(divide="ignore"):  # the pole has an infinite ψ
                psi = -np.log(np.hypot(x, y) * abs(self.cone) / (self.radius * self.scale)) / self.cone
            east = np.arctan2(sign * x, -sign * y) / self.cone
        e, sine = self.e2**0.5, np.tanh(psi)
        for _ in range(8 if e else 0):  # each step gains two digits and more
            sine = np.tanh(psi + e * np.arctanh(e * sine))
        return np.degrees(np.arcsin(sine)), (np.degrees(east) + self.meridian + 180) % 360 - 180


def _isometric(latitude: np.ndarray, e2: float) -> np.ndarray:
    """Return the isometric latitude of latitudes (degrees); a parallel has the width cos on Mercator's map."""
    sine, e = np.sin(np.radians(latitude)), e2**0.5
    with np.errstate(divide="ignore"):
        return np.asarray(np.arctanh(sine) - e * np.arctanh(e * sine))


def _parallel(latitude: float, e2: float) -> float:
    """Return the radius of a parallel (degrees), divided by the Earth's."""
    phi = np.radians(latitude)
    return float(np.cos(phi) / np.sqrt(1 - e2 * np.sin(phi) ** 2))
