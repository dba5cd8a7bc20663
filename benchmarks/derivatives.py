"""Derivatives at half a degree: finite differences beside a spherical-harmonic transform, in one process.

A random field of degrees up to 120 has a known Laplacian and a known gradient. It is rounded to the steps of a 16-bit
GRIB field. Both methods differentiate the rounded field; the transform analyses it by least squares of Legendre
functions up to degree 180 and synthesises the derivatives. Errors are root mean squares over the area, relative to the
root mean square of the true derivative.

- `error_laplacian`, `error_gradient`: error of the differences divided by that of the transform.
- `time`: CPU time of the transform divided by that of the differences, for gradient and Laplacian together.
"""

from __future__ import annotations

import time

import numpy as np

from benchmarks.common import HALF_DEGREE, command_line, machine, report
from data_pipeline.formulas.sphere_derivatives import EARTH_RADIUS, Band, SphereDerivatives
from data_pipeline.grids.legendre import legendre

FIELD_DEGREE, TRANSFORM_DEGREE = 120, 180
ROUNDS = 5


class Transform:
    """Spherical harmonics up to `TRANSFORM_DEGREE` on the regular grid."""

    def __init__(self) -> None:
        phi = np.radians(HALF_DEGREE.latitudes)
        self.mu, self.cos = np.sin(phi), np.maximum(np.cos(phi), 1e-9)
        self.values = legendre(TRANSFORM_DEGREE + 1, self.mu, np.cos(phi) ** 2)
        self.degree = np.arange(TRANSFORM_DEGREE + 2)
        weights = np.sqrt(HALF_DEGREE.weights)
        size = TRANSFORM_DEGREE + 1
        self.inverse = np.zeros((size, size, len(phi)))
        for m in range(size):
            table = self.values[m, :, m:size] * weights[:, None]
            self.inverse[m, m:] = np.linalg.pinv(table, rcond=1e-8) * weights

    def analyse(self, field: np.ndarray) -> np.ndarray:
        """Return the coefficients (m, n)."""
        waves = np.fft.rfft(field, axis=1)[:, : TRANSFORM_DEGREE + 1].T / field.shape[1]
        return np.einsum("mnh,mh->mn", self.inverse, waves)

    def synthesise(self, coefficients: np.ndarray) -> np.ndarray:
        """Return the field of coefficients (m, n)."""
        size = coefficients.shape[1]
        waves = np.einsum("mhn,mn->mh", self.values[: len(coefficients), :, :size], coefficients)
        full = np.zeros((len(self.mu), HALF_DEGREE.shape[1] // 2 + 1), complex)
        full[:, : len(coefficients)] = waves.T
        return np.fft.irfft(full, HALF_DEGREE.shape[1], axis=1) * HALF_DEGREE.shape[1]

    def laplacian(self, coefficients: np.ndarray) -> np.ndarray:
        """Return the Laplacian, per square metre."""
        n = self.degree[: coefficients.shape[1]]
        return self.synthesise(-coefficients * n * (n + 1)) / EARTH_RADIUS**2

    def gradient(self, coefficients: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return the eastward and the northward derivative, per metre; not meaningful in the rows at the poles."""
        size = len(coefficients)
        m, n = np.arange(size)[:, None], self.degree[None, : size + 1]
        # (1 - mu^2) dP_n/dmu = (n + 1) e_n P_{n-1} - n e_{n+1} P_{n+1}
        epsilon = np.sqrt(np.maximum(n**2 - m**2, 0) / (4 * n**2 - 1.0))
        slopes = np.zeros((size, size + 1), complex)
        slopes[:, : size - 1] += (coefficients * (n[:, :size] + 1) * epsilon[:, :size])[:, 1:]
        slopes[:, 1:] -= coefficients * n[:, :size] * epsilon[:, 1:]
        scale = EARTH_RADIUS * self.cos[:, None]
        return self.synthesise(1j * m * coefficients) / scale, self.synthesise(slopes) / scale


def main() -> None:
    """Compare accuracy and time."""
    as_json = command_line(__doc__).parse_args().json
    transform, differences = Transform(), SphereDerivatives(HALF_DEGREE)
    random, size = np.random.default_rng(0), TRANSFORM_DEGREE + 1
    m, n = np.arange(size)[:, None], np.arange(size)[None]
    amplitude = np.where((n >= m) & (n > 0) & (n <= FIELD_DEGREE), (1.0 + n) ** -2.5, 0)
    exact = amplitude * (random.normal(size=(size, size)) + 1j * random.normal(size=(size, size)))
    exact[0] = exact[0].real
    field = transform.synthesise(exact)
    step = (field.max() - field.min()) / 65535
    rounded = np.round(field / step) * step
    rows = slice(0, HALF_DEGREE.shape[0])
    band = Band(rounded, 0)

    def by_transform() -> tuple[np.ndarray, ...]:
        coefficients = transform.analyse(rounded)
        return transform.laplacian(coefficients), *transform.gradient(coefficients)

    methods = {
        "differences": lambda: (differences.laplacian(band, rows), *differences.gradient(band, rows)),
        "transform": by_transform,
    }
    true = transform.laplacian(exact), *transform.gradient(exact)
    inner, weights = slice(1, -1), HALF_DEGREE.weights[1:-1, None]
    errors: dict[tuple[str, str], float] = {}
    seconds = dict.fromkeys(methods, float("inf"))
    for _ in range(ROUNDS):
        for name, method in methods.items():
            began = time.process_time()
            found = method()
            seconds[name] = min(seconds[name], time.process_time() - began)
            for kind, parts in (("laplacian", (0,)), ("gradient", (1, 2))):
                away = sum((weights * (found[k][inner] - true[k][inner]) ** 2).mean() for k in parts)
                errors[name, kind] = float(np.sqrt(away / sum((weights * true[k][inner] ** 2).mean() for k in parts)))
    print(f"{machine()}\nrandom field of degrees 1 to {FIELD_DEGREE}, 361 x 720 points, rounded to 16 bits")
    for name in methods:
        print(
            f"{name:<12} error of the Laplacian {errors[name, 'laplacian']:.2%}, of the gradient "
            f"{errors[name, 'gradient']:.2%}, {1000 * seconds[name]:.0f} ms CPU"
        )
    ratios = {
        f"error_{kind}": errors["differences", kind] / errors["transform", kind] for kind in ("laplacian", "gradient")
    }
    report("derivatives", ratios | {"time": seconds["transform"] / seconds["differences"]}, as_json)


if __name__ == "__main__":
    main()
