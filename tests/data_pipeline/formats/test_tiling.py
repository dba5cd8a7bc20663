"""Joining time intervals: sums of a known rain rate, and a search through all combinations."""

from itertools import combinations, product

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from data_pipeline.formats.tiling import Tiling, TimeInterval

spans = st.lists(
    st.tuples(st.integers(0, 3), st.integers(0, 5), st.integers(1, 4)).map(
        lambda s: TimeInterval(s[1], s[1] + s[2], s[0])
    ),
    min_size=1,
    max_size=7,
    unique=True,
)
RATE = np.random.default_rng(0).gamma(1.0, size=12)


def amount(begin, end):
    return RATE[begin:end].sum()


@settings(max_examples=100)
@given(spans, st.integers(0, 6), st.integers(1, 6), st.booleans())
def test_a_tiling_has_the_amount_of_its_interval(spans, begin, length, differences):
    found = Tiling(tuple(spans), differences).find(begin, begin + length)
    if found is not None:
        total = sum(sign * amount(spans[k].begin, spans[k].end) for k, sign in found)
        assert np.isclose(total, amount(begin, begin + length), rtol=0, atol=1e-12)
        assert differences or all(sign == 1 for _, sign in found)
        assert all(spans[k].begin >= begin for k, sign in found if not differences)


@settings(max_examples=100)
@given(spans, st.integers(0, 4), st.integers(1, 5))
def test_a_tiling_is_found_wherever_one_exists_and_has_the_fewest_fields(spans, begin, length):
    tiles = [
        len(chosen)
        for count in range(1, len(spans) + 1)
        for chosen in combinations(spans, count)
        if sorted(t for span in chosen for t in range(span.begin, span.end)) == list(range(begin, begin + length))
    ]
    found = Tiling(tuple(spans), False).find(begin, begin + length)
    assert (found is None) == (not tiles)
    assert found is None or len(found) == min(tiles)


def test_amounts_since_the_start_of_two_forecasts_make_a_day():
    # ERA5 before 2019: forecasts at 06 and 18 UTC, amounts since the start up to 18 hours.
    forecasts = tuple(
        TimeInterval(start, start + hour, start) for start, hour in product((-6, 6, 18, 30), range(1, 19))
    )
    for end in range(24, 40):
        terms = Tiling(forecasts, True).find(end - 24, end)
        hours = np.zeros(80)
        for k, sign in terms:
            hours[20 + forecasts[k].begin : 20 + forecasts[k].end] += sign
        assert hours[20 + end - 24 : 20 + end].tolist() == [1] * 24
        assert abs(hours).sum() == 24


def test_of_two_forecasts_the_later_one_is_taken():
    late, early = TimeInterval(0, 6, 0), TimeInterval(0, 6, -12)
    assert Tiling((early, late), True).find(0, 6) == ((1, 1),)
