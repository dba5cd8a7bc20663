"""Associated Legendre functions: comparison with scipy, orthonormality."""

import numpy as np
import pytest
from scipy.special import sph_harm_y_all

from data_pipeline.grids.legendre import legendre


@pytest.mark.parametrize("degree", [0, 1, 8, 100])
def test_values_equal_those_of_scipy(degree):
    """Up to norm and sign; at both poles, near them, and at every half degree."""
    latitudes = np.concatenate([np.linspace(90, -90, 361), [89.99, -89.99]])
    found = legendre(degree, np.sin(np.radians(latitudes)), np.cos(np.radians(latitudes)) ** 2)
    theirs = sph_harm_y_all(degree, degree, np.radians(90 - latitudes), 0.0).real[:, : degree + 1]
    expected = np.sqrt(2 * np.pi) * theirs.transpose(1, 2, 0) * (-1.0) ** np.arange(degree + 1)[:, None, None]
    np.testing.assert_allclose(found, expected, rtol=0, atol=1e-12)
