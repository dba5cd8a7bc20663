"""Gates against closed forms of spherical harmonics, on several grids and tiles."""

import numpy as np
import pytest
import torch
from scipy.special import sph_harm_y

from data_pipeline.common.errors import InputError
from data_pipeline.grid import Grid
from models.layers.gate import LatentGate, SphereGate
from models.parallel.domain import Domain

DEGREE = 5


def fields(grid):
    """The field of each harmonic, ((degree + 1)², H, W)."""
    gate = SphereGate(grid, 1, (DEGREE + 1) ** 2, DEGREE).double()
    gate.weight.data.copy_(torch.eye(len(gate.weight)))
    return gate(None)[0].detach().numpy()


def test_a_latent_gate_prefers_no_expert_before_training():
    torch.manual_seed(0)
    weight = LatentGate(Grid.regular(91, 180), 1, 3).weight.detach()
    assert weight.abs().max() == pytest.approx(3, abs=1e-2)
    assert weight.argmax(0).unique(return_counts=True)[1].tolist() == pytest.approx([5460] * 3, rel=0.03)


def test_harmonics_have_the_signs_and_sizes_of_scipys():
    """Coefficients then have the meaning of scipy's."""
    grid = Grid.regular(7, 12)
    colatitude, longitude = np.radians(90 - np.array(grid.latitudes))[:, None], np.radians(grid.longitudes)[None]
    found = iter(fields(grid))
    for degree in range(DEGREE + 1):
        for order in range(-degree, degree + 1):
            whole = np.sqrt(4 * np.pi) * sph_harm_y(degree, abs(order), colatitude, longitude)
            part = whole.real if order == 0 else np.sqrt(2) * (whole.imag if order < 0 else whole.real)
            np.testing.assert_allclose(next(found), part, rtol=0, atol=1e-12)


def test_a_sphere_gate_does_not_depend_on_grid_and_tile():
    torch.manual_seed(3)
    fine = SphereGate(Grid.regular(13, 16), 2, 4, DEGREE)
    coarse = SphereGate(Grid.regular(7, 8), 2, 4, DEGREE)
    coarse.load_state_dict(fine.state_dict())
    torch.testing.assert_close(coarse(None), fine(None)[..., ::2, ::2])
    domain = Domain.split(Grid.regular(13, 16), 2, 3, 4)
    tile = SphereGate(domain, 2, 4, DEGREE)
    tile.load_state_dict(fine.state_dict())
    torch.testing.assert_close(tile(None), domain.cut(fine(None)))


def test_initial_variances_of_sphere_and_latent_gate_are_equal():
    torch.manual_seed(4)
    field = SphereGate(Grid.regular(19, 36), 2, 600, 8)(None).detach()
    assert field.std() == pytest.approx((600 / 2) ** 0.5, rel=0.03)
    for row in (0, 9):
        assert field[:, :, row].std() == pytest.approx((600 / 2) ** 0.5, rel=0.1), (
            "the variance is equal at the pole and at the equator"
        )


def test_a_field_without_a_degree_is_refused():
    with pytest.raises(InputError, match=r"model.degree must be a whole number of at least 0, got -1"):
        SphereGate(Grid.regular(7, 8), 1, 2, -1)
