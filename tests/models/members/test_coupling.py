"""The order of members: ties by drawn numbers, and in every cell against a sort of tuples cell by cell."""

import math

import numpy as np
import pytest
import torch
from hypothesis import example, given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from data_pipeline.grid import Grid
from data_pipeline.sample import Sample
from data_pipeline.task import Task
from models.distribution import CensoredNormal, Ensemble, Normal
from models.members.coupling import member_values, written_members
from models.members.member_order import member_order
from models.members.named_draws import splitmix64
from models.members.options import CorrectionOptions

TASK = Task("one", ["10u"], ["10u"], [24])
RAIN = Task("rain", ["10u", "tp"], ["tp", "10u"], [24])
GRID = Grid.regular(40, 50)


def batch(members, task=TASK, starts=(1_000_000_000,)):
    """Return a batch with these members (M, B, C, H, W); the mask is True where none of them is NaN."""
    ensemble = members.movedim(0, 1)
    B, _, _, *cells = ensemble.shape
    return Sample(
        ensemble, ~ensemble.isnan().any(1), torch.zeros(B, 3, *cells), torch.zeros(B, len(task.targets), *cells),
        torch.tensor(starts), torch.full((B,), 24),
    )  # fmt: skip


def test_equal_raw_members_get_the_highest_rank_equally_often():
    """With 3 dry members, each ranks highest in a third of the cells, in other cells for another seed or start."""
    dry = torch.zeros(3, 2, 2, *GRID.shape)
    drizzle = torch.full((2, 2, *GRID.shape), 0.1)
    rain = CensoredNormal(0 * drizzle, drizzle, torch.tensor(0.0))  # no more than one of three members is wet

    def wettest(seed=0, starts=(0, 86_400)):
        found = written_members(rain, batch(dry, RAIN, starts), RAIN, GRID, CorrectionOptions(seed=seed)).members
        assert ((found > 0).sum(0) == 1).all()
        return found.argmax(0)

    found = wettest()
    assert torch.equal(found, wettest())
    first, later, other = found[0, 0], found[1, 0], found[0, 1]
    others = [later, other, first.roll(1, 0), first.roll(1, 1), wettest(seed=1)[0, 0], wettest(starts=(1, 2))[0, 0]]
    N = first.numel()
    for member in range(3):
        assert (first == member).sum() == pytest.approx(N / 3, abs=4 * (N * 2 / 9) ** 0.5)
    for each in others:
        assert (first == each).sum() == pytest.approx(N / 3, abs=4 * (N * 2 / 9) ** 0.5)


def test_member_values_are_the_members_in_increasing_order():
    raw = torch.randn(5, 1, 2, *GRID.shape, generator=torch.Generator().manual_seed(3))
    for forecast in (Normal(raw[0], raw[1].exp()), Ensemble(raw), Ensemble(raw[:3])):
        values = member_values(forecast, RAIN, 5).members
        members = written_members(forecast, batch(raw, RAIN), RAIN, GRID).members
        assert torch.equal(values, members.sort(0).values)


def test_the_hash_that_breaks_ties_is_splitmix64():
    """Published outputs of SplitMix64 for the seed 1234567; its state grows by 0x9E3779B97F4A7C15 at each call."""
    published = [6457827717110365317, 3203168211198807973, 9817491932198370423, 4593380528125082431]
    states = [(1234567 + call * 0x9E3779B97F4A7C15) % 2**64 for call in range(4)]
    assert splitmix64(np.array(states, np.uint64)).tolist() == published


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


def test_draws_decide_to_their_last_bit_also_among_missing_values_of_either_sign():
    values = np.zeros((6, 1))
    draws = np.array([[7], [5], [6], [-1], [-2], [-3]])
    assert member_order(values, lambda cells: draws[:, cells].view(np.uint64)).tolist() == [[5, 4, 3, 1, 2, 0]]
    values = np.array([[np.nan], [1.0], [np.copysign(np.nan, -1)], [-np.inf], [np.nan]])
    draws = np.array([[3], [9], [2], [8], [1]])
    assert member_order(values, lambda cells: draws[:, cells].view(np.uint64)).tolist() == [[3, 1, 4, 2, 0]]


def test_many_cells_and_more_than_256_members():
    values = np.random.default_rng(1).integers(0, 40, (300, 2100)).astype(float)
    values[:, ::7] += np.random.default_rng(2).normal(size=values[:, ::7].shape)
    draws = draws_like(values, 3)
    found = member_order(values, lambda cells: draws[:, cells].view(np.uint64))
    np.testing.assert_array_equal(found, np.lexsort((draws, values), axis=0).T)
