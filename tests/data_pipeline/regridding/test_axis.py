"""Weights along one axis against numpy's interpolation and against a count of small parts."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from data_pipeline.regridding.axis import interpolate, overlap


def apply(weights, values):
    return np.where(weights.weight > 0, values[weights.position] * weights.weight, 0).sum(0)


@given(st.lists(st.floats(-80, 80), min_size=1, max_size=5), st.integers(2, 9))
def test_interpolation_is_that_of_numpy(wanted, count):
    points = np.linspace(-90, 90, count) + 0.1 * np.sin(np.arange(count))
    values = np.cos(3.0 * np.arange(count))
    np.testing.assert_allclose(
        apply(interpolate(points, np.array(wanted)), values), np.interp(wanted, points, values), atol=1e-5
    )


def test_a_period_joins_the_last_point_and_the_first():
    weights = interpolate(np.arange(0.0, 360, 90), np.array([-45.0, 315.0, 675.0, 360.0]), 360.0)
    np.testing.assert_allclose(apply(weights, np.array([4.0, 1.0, 1.0, 8.0])), [6, 6, 6, 4])


def test_a_point_of_both_axes_takes_no_position_of_a_neighbour():
    weights = interpolate(np.arange(5.0), np.array([1.0, 3.0 + 1e-9, 4.0]))
    np.testing.assert_array_equal(weights.position, [[1, 3, 4]] * 2)


@pytest.mark.parametrize("start", [-170.0, 0.0, 355.0])
def test_overlap_counts_small_parts(start):
    """Each degree of a circle belongs to one cell; an interval's weights are its shares of degrees."""
    edges, low = np.array([0.0, 30, 100, 101, 359, 360]), start + np.array([0.0, 25, 90, 180])
    weights = overlap(edges, low, low + 50, 360.0)
    found = np.zeros((4, 5))
    np.add.at(found, (np.arange(4)[None], weights.position), weights.weight)
    middles = (low[:, None] + np.arange(50) + 0.5) % 360
    cells = np.searchsorted(edges, middles) - 1
    wanted = np.stack([(cells == k).mean(1) for k in range(5)], axis=1)
    np.testing.assert_allclose(found, wanted, atol=1e-12)


def test_weights_of_a_partly_covered_interval_sum_to_one():
    weights = overlap(np.array([0.0, 1, 2]), np.array([-1.0, 1.5]), np.array([0.5, 4.0]))
    np.testing.assert_allclose(weights.weight.sum(0), 1)
    assert apply(weights, np.array([5.0, 7.0])).tolist() == [5, 7]


def test_an_interval_beyond_all_cells_is_an_error():
    with pytest.raises(ValueError, match="overlaps no cell"):
        overlap(np.array([0.0, 1, 2]), np.array([3.0]), np.array([4.0]))
