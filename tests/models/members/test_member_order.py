"""The order of members in every cell, against a sort of tuples cell by cell."""

import math

import numpy as np
from hypothesis import example, given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from models.members.member_order import member_order

NEXT = math.nextafter(1.0, 2.0)
SPECIAL = st.sampled_from([0.0, -0.0, 1.0, NEXT, -NEXT, math.inf, -math.inf, math.nan, 5e-324, -5e-324])
VALUES = hnp.arrays(np.float64, st.tuples(st.integers(1, 9), st.integers(1, 5)), elements=st.floats() | SPECIAL)


def brute_force(values, draws):
    """Sort tuples of each cell: NaN last, then value, then the draw as a signed number."""
    key = lambda m, n: (math.isnan(values[m, n]), 0 if math.isnan(values[m, n]) else values[m, n], draws[m, n])  # noqa: E731
    return [sorted(range(len(values)), key=lambda m: key(m, n)) for n in range(values.shape[1])]


def draws_like(values, seed, largest=2**63 - 1):
    return np.random.default_rng(seed).permuted(
        np.random.default_rng(seed).integers(-largest, largest, values.shape), axis=0
    )


@given(VALUES, st.integers(0, 99))
@example(np.array([[0.0], [-0.0], [NEXT], [1.0], [np.nan]]), 0)
def test_members_are_in_the_order_of_value_then_draw(values, seed):
    draws = draws_like(values, seed)
    found = member_order(values, lambda cells: draws[:, cells].view(np.uint64))
    assert found.tolist() == brute_force(values, draws)


def test_draws_that_differ_in_their_last_bit_only_are_told_apart():
    values = np.zeros((6, 1))
    draws = np.array([[7], [5], [6], [-1], [-2], [-3]])
    assert member_order(values, lambda cells: draws[:, cells].view(np.uint64)).tolist() == [[5, 4, 3, 1, 2, 0]]


def test_many_cells_and_more_than_256_members():
    values = np.random.default_rng(1).integers(0, 40, (300, 2100)).astype(float)
    values[:, ::7] += np.random.default_rng(2).normal(size=values[:, ::7].shape)
    draws = draws_like(values, 3)
    found = member_order(values, lambda cells: draws[:, cells].view(np.uint64))
    np.testing.assert_array_equal(found, np.lexsort((draws, values), axis=0).T)


def test_missing_values_of_either_sign_are_last_and_in_the_order_of_their_draws():
    values = np.array([[np.nan], [1.0], [np.copysign(np.nan, -1)], [-np.inf], [np.nan]])
    draws = np.array([[3], [9], [2], [8], [1]])
    assert member_order(values, lambda cells: draws[:, cells].view(np.uint64)).tolist() == [[3, 1, 4, 2, 0]]
