"""Start dates, chains, members and random numbers: which results depend on which options."""

from datetime import date, timedelta
from functools import cache
from itertools import pairwise

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from data_pipeline.synthetic.twin import simulation
from data_pipeline.synthetic.twin.atmosphere import Atmosphere, run_in_batches
from data_pipeline.synthetic.twin.model_parameters import NATURE
from data_pipeline.synthetic.twin.noise import NoisePurpose, normal_noise
from data_pipeline.synthetic.twin.simulation import simulate
from data_pipeline.synthetic.twin.start_pairs import LEAD_TIMES, MAX_DATES, STARTS, StartPair, start_pairs
from data_pipeline.synthetic.twin.state import State
from data_pipeline.task import Variable


@pytest.fixture
def short_spin_up(monkeypatch):
    """Shorten the spin-up from 32 days to two: the flow is not yet weather, which these tests do not need."""
    monkeypatch.setattr(simulation, "COARSE_DAYS", 1)
    monkeypatch.setattr(simulation, "FINE_DAYS", 1)
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    with torch.inference_mode():
        yield
    torch.set_num_threads(threads)


@cache
def first_day(years, members=2, difficulty=1.0, seed=0):
    """Return the fields of the first start date after 24 h."""
    pair = StartPair(start_pairs(2)[0], years, years, members, difficulty, seed)
    snapshots = simulate(pair)
    next(snapshots)
    return next(snapshots)


def test_start_dates_are_those_of_ens10():
    """All Mondays and Thursdays of 2018."""
    days = [date(2018, 1, 1) + timedelta(days=k) for k in range(365)]
    assert [*STARTS] == [day for day in days if day.weekday() in (0, 3)]
    default = "0108 0111 0222 0226 0409 0412 0524 0528 0709 0712 0823 0827 1008 1011 1122 1126"
    assert " ".join(f"{first:%m%d} {second:%m%d}" for first, second in start_pairs(16)) == default


@given(st.integers(1, MAX_DATES // 2))
def test_pairs_are_neighbouring_dates_that_verify_before_the_next_pair(pairs):
    dates = [day for pair in start_pairs(2 * pairs) for day in pair]
    assert len(dates) == 2 * pairs
    for day, following in pairwise(dates):
        assert day + timedelta(hours=LEAD_TIMES[-1]) < following
    assert all((second - first).days in (3, 4) for first, second in start_pairs(2 * pairs))
    assert (dates[-1] + timedelta(hours=LEAD_TIMES[-1])).year == 2018


def test_a_start_that_is_left_out_changes_nothing_of_the_other(short_spin_up):
    """After an interruption, the starts that are written are left out."""
    pair = StartPair(start_pairs(2)[0], (2016, 2017), (2017,), 2, 1.0, 0)
    whole = list(simulate(pair))
    for without in pair.starts:
        found = list(simulate(pair, [without]))
        expected = [snapshot for snapshot in whole if snapshot.start != without]
        assert [(each.start, each.lead) for each in found] == [(each.start, each.lead) for each in expected]
        for ours, theirs in zip(found, expected, strict=True):
            for kind in ("truth", "members", "oracle"):
                fields = getattr(theirs, kind)
                assert fields
                assert all(torch.equal(getattr(ours, kind)[name], fields[name]) for name in fields)
    assert list(simulate(pair, pair.starts)) == []


def test_a_year_does_not_depend_on_other_years(short_spin_up):
    alone, among = first_day((2017,)), first_day((2016, 2017))
    for variable, values in alone.truth.items():
        # Rounding, which depends on the machine, grows to 1e-3 in a day; another year differs by about 1.
        scale = 1e-2 * among.truth[variable].std()
        assert (values[..., 0] - among.truth[variable][..., 1]).abs().max() <= scale, variable
        assert (alone.members[variable] - among.members[variable][..., 2:]).abs().max() <= scale, variable
        assert (alone.oracle[variable] - among.oracle[variable][..., 2:]).abs().max() <= scale, variable
    z500 = among.truth[Variable("z", 500)]
    assert (z500[..., 0] - z500[..., 1]).std() > 10


def test_truth_and_first_oracle_members_do_not_depend_on_the_number_of_members(short_spin_up):
    few, many = first_day((2016, 2017)), first_day((2016, 2017), members=3)
    for variable in (Variable("z", 500), Variable("2t")):
        scale = 1e-2 * many.truth[variable].std()
        assert (few.truth[variable] - many.truth[variable]).abs().max() <= scale
        assert (few.oracle[variable] - many.oracle[variable][..., [0, 1, 3, 4]]).abs().max() <= scale


def test_difficulty_changes_only_the_forecasts_and_the_seed_the_truth(short_spin_up):
    perfect, usual = first_day((2017,), difficulty=0.0), first_day((2017,))
    z500 = Variable("z", 500)
    assert torch.equal(perfect.truth[z500], usual.truth[z500])
    assert torch.equal(perfect.oracle[z500], usual.oracle[z500])
    assert (perfect.members[z500] - usual.members[z500]).abs().max() > 10
    assert (usual.truth[z500] - first_day((2017,), seed=1).truth[z500]).std() > 10
    # With a perfect model, the ensemble mean follows the oracle's mean, apart from weak nonlinearity in one day.
    means = [fields[z500].mean(-1) for fields in (perfect.members, perfect.oracle)]
    assert (means[0] - means[1]).std() < 0.2 * perfect.oracle[z500].std(-1).mean()


def test_large_and_small_batches_are_split_and_filled_up():
    nature = Atmosphere(NATURE)
    noise = normal_noise((44, 22, 1, 70), 3, NoisePurpose.START)
    state = nature.initial_state(noise, torch.zeros(64, 32, 70), 100.0)
    sizes = []

    def record_size(part):
        sizes.append(part.batch)
        return part

    again = run_in_batches(record_size, state)
    assert sizes == [24, 23, 23]
    assert torch.equal(again.spectrum, state.spectrum)
    assert again.day == state.day
    sizes.clear()
    assert torch.equal(run_in_batches(record_size, state.take(slice(3))).skin, state.skin[..., :3])
    assert sizes == [16]


def test_contraction_keeps_the_mean_and_scales_the_deviations():
    spectrum = normal_noise((4, 2, 5, 6), 0, NoisePurpose.START)
    skin, rain, anomaly = (normal_noise((3, 2, 6), 0, NoisePurpose.SEA, member=k) for k in range(3))
    state = State(spectrum, skin, rain, anomaly, day=1.0)
    contracted = state.contract(3, 0.85)
    for group in (slice(0, 3), slice(3, 6)):
        before, after = state.skin[..., group], contracted.skin[..., group]
        torch.testing.assert_close(after.mean(-1), before.mean(-1))
        torch.testing.assert_close(after.std(-1), 0.85 * before.std(-1))
    assert contracted.rain is state.rain


def test_noise_is_standard_normal_and_repeatable():
    noise = normal_noise((1000, 200), 7, NoisePurpose.MEMBER, year=1998, date=1231, member=9)
    assert torch.equal(noise, normal_noise((1000, 200), 7, NoisePurpose.MEMBER, year=1998, date=1231, member=9))
    assert abs(noise.mean()) < 0.01
    assert abs(noise.std() - 1) < 0.01
    assert abs((noise**4).mean() - 3) < 0.1


NAMES = st.fixed_dictionaries(
    {
        "seed": st.integers(0, 2**32 - 1),
        "purpose": st.sampled_from(NoisePurpose),
        "year": st.integers(1900, 2100),
        "date": st.integers(0, 1231),
        "member": st.integers(0, 250),
    }
)


@given(NAMES, NAMES)
def test_noise_of_different_names_is_uncorrelated(one, other):
    noises = [normal_noise((500,), **name) for name in (one, other)]
    if one == other:
        assert torch.equal(*noises)
    else:
        # Five standard deviations of the sample correlation of independent numbers.
        assert abs(torch.corrcoef(torch.stack(noises))[0, 1]) < 5 / 500**0.5
