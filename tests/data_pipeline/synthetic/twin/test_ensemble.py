"""Chains, kicks and random numbers: who depends on whom."""

import re
from collections.abc import Iterator
from datetime import timedelta
from itertools import pairwise

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from data_pipeline.synthetic.twin import ensemble
from data_pipeline.synthetic.twin.atmosphere import Atmosphere, in_batches
from data_pipeline.synthetic.twin.ensemble import Snapshot, simulate
from data_pipeline.synthetic.twin.layout import Block
from data_pipeline.synthetic.twin.noise import Stream, normal
from data_pipeline.synthetic.twin.parameters import NATURE
from data_pipeline.synthetic.twin.starts import LEADS, MOST, STARTS, start_pairs
from data_pipeline.synthetic.twin.state import State
from data_pipeline.task import Variable

ENS10 = re.findall(
    r"\d{4}",
    """
    0101 0104 0108 0111 0115 0118 0122 0125 0129 0201 0205 0208 0212 0215 0219 0222 0226 0301 0305 0308
    0312 0315 0319 0322 0326 0329 0402 0405 0409 0412 0416 0419 0423 0426 0430 0503 0507 0510 0514 0517
    0521 0524 0528 0531 0604 0607 0611 0614 0618 0621 0625 0628 0702 0705 0709 0712 0716 0719 0723 0726
    0730 0802 0806 0809 0813 0816 0820 0823 0827 0830 0903 0906 0910 0913 0917 0920 0924 0927 1001 1004
    1008 1011 1015 1018 1022 1025 1029 1101 1105 1108 1112 1115 1119 1122 1126 1129 1203 1206 1210 1213
    1217 1220 1224 1227 1231
    """,
)
"""The start dates of ENS-10, from its own list."""


@pytest.fixture
def short_spin_up(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Two days instead of 32: the flow is not yet weather, but everything else is as it is."""
    monkeypatch.setattr(ensemble, "COARSE_DAYS", 1)
    monkeypatch.setattr(ensemble, "FINE_DAYS", 1)
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    with torch.inference_mode():
        yield
    torch.set_num_threads(threads)


def first_day(years: tuple[int, ...], members: int = 2, difficulty: float = 1.0, seed: int = 0) -> Snapshot:
    """What the first start date of a block shows after 24 h."""
    block = Block(start_pairs(2)[0], years, years, members, difficulty, seed)
    snapshots = simulate(block)
    next(snapshots)
    return next(snapshots)


def test_the_start_dates_are_those_of_ens10() -> None:
    assert [f"{day:%m%d}" for day in STARTS] == ENS10
    default = "0108 0111 0222 0226 0409 0412 0524 0528 0709 0712 0823 0827 1008 1011 1122 1126"
    assert " ".join(f"{first:%m%d} {second:%m%d}" for first, second in start_pairs(16)) == default


@given(st.integers(1, MOST // 2))
def test_start_dates_are_different_neighbours_and_verify_before_the_next_block(pairs: int) -> None:
    dates = [day for pair in start_pairs(2 * pairs) for day in pair]
    assert len(dates) == 2 * pairs
    for day, following in pairwise(dates):
        assert day + timedelta(hours=LEADS[-1]) < following
    assert all((second - first).days in (3, 4) for first, second in start_pairs(2 * pairs))
    assert (dates[-1] + timedelta(hours=LEADS[-1])).year == 2018


def test_a_year_does_not_know_of_the_others(short_spin_up: None) -> None:
    alone, among = first_day((2017,)), first_day((2015, 2016, 2017))
    for variable, values in alone.truth.items():
        # A day of chaos makes a thousandth of the last digit, which depends on the machine; another year would be all.
        scale = 1e-2 * among.truth[variable].std()
        assert (values[..., 0] - among.truth[variable][..., 2]).abs().max() <= scale, variable
        assert (alone.members[variable] - among.members[variable][..., 4:]).abs().max() <= scale, variable
        assert (alone.oracle[variable] - among.oracle[variable][..., 4:]).abs().max() <= scale, variable
    z500 = among.truth[Variable("z", 500)]
    assert (z500[..., 0] - z500[..., 1]).std() > 10


def test_more_members_leave_the_truth_and_the_oracles_first_members_alone(short_spin_up: None) -> None:
    few, many = first_day((2016, 2017), members=2), first_day((2016, 2017), members=3)
    for variable in (Variable("z", 500), Variable("2t")):
        scale = 1e-2 * many.truth[variable].std()
        assert (few.truth[variable] - many.truth[variable]).abs().max() <= scale
        assert (few.oracle[variable] - many.oracle[variable][..., [0, 1, 3, 4]]).abs().max() <= scale


def test_difficulty_changes_the_forecasts_only(short_spin_up: None) -> None:
    perfect, usual = first_day((2017,), difficulty=0.0), first_day((2017,))
    z500 = Variable("z", 500)
    assert torch.equal(perfect.truth[z500], usual.truth[z500])
    assert torch.equal(perfect.oracle[z500], usual.oracle[z500])
    assert (perfect.members[z500] - usual.members[z500]).abs().max() > 10
    # A perfect model takes the mean of the oracle on, but for the little that is not linear in a day.
    means = [fields[z500].mean(-1) for fields in (perfect.members, perfect.oracle)]
    assert (means[0] - means[1]).std() < 0.2 * perfect.oracle[z500].std(-1).mean()


def test_another_seed_is_another_world(short_spin_up: None) -> None:
    z500 = Variable("z", 500)
    one, other = (first_day((2017,), seed=seed).truth[z500] for seed in (0, 1))
    assert (one - other).std() > 10


def test_a_batch_is_worked_on_in_parts_that_do_not_matter() -> None:
    nature = Atmosphere(NATURE)
    noise = normal((44, 22, 1, 70), 3, Stream.START)
    state = nature.start(noise, torch.zeros(64, 32, 70), 100.0)
    sizes = []

    def remember(part: State) -> State:
        sizes.append(part.batch)
        return part

    again = in_batches(remember, state)
    assert sizes == [24, 23, 23]
    assert torch.equal(again.spectrum, state.spectrum)
    assert again.day == state.day
    sizes.clear()
    assert torch.equal(in_batches(remember, state.take(slice(3))).skin, state.skin[..., :3])
    assert sizes == [16]


def test_contraction_keeps_the_mean_and_scales_the_deviations() -> None:
    spectrum = normal((4, 2, 5, 6), 0, Stream.START)
    skin, rain, anomaly = (normal((3, 2, 6), 0, Stream.SEA, member=k) for k in range(3))
    state = State(spectrum, skin, rain, anomaly, day=1.0)
    drawn = state.contract(3, 0.85)
    for group in (slice(0, 3), slice(3, 6)):
        before, after = state.skin[..., group], drawn.skin[..., group]
        torch.testing.assert_close(after.mean(-1), before.mean(-1))
        torch.testing.assert_close(after.std(-1), 0.85 * before.std(-1))
    assert drawn.rain is state.rain


def test_noise_is_normal_and_named() -> None:
    noise = normal((1000, 200), 7, Stream.MEMBER, year=1998, date=1231, member=9)
    assert torch.equal(noise, normal((1000, 200), 7, Stream.MEMBER, year=1998, date=1231, member=9))
    assert abs(noise.mean()) < 0.01
    assert abs(noise.std() - 1) < 0.01
    assert abs((noise**4).mean() - 3) < 0.1


NAMES = st.fixed_dictionaries(
    {
        "seed": st.integers(0, 2**32 - 1),
        "stream": st.sampled_from(Stream),
        "year": st.integers(1900, 2100),
        "date": st.integers(0, 1231),
        "member": st.integers(0, 250),
    }
)


@given(NAMES, NAMES)
def test_different_names_are_different_noise(one: dict, other: dict) -> None:
    noises = [normal((500,), **name) for name in (one, other)]
    if one == other:
        assert torch.equal(*noises)
    else:
        # Five standard deviations of the correlation of independent numbers.
        assert abs(torch.corrcoef(torch.stack(noises))[0, 1]) < 5 / 500**0.5
