"""Splits by years, dates and folds: every day belongs to one split, and borders keep their distance."""

from datetime import date, timedelta
from itertools import combinations, pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from data_pipeline.common.errors import InputError
from data_pipeline.dates import DAY, Dates
from data_pipeline.split import Split

LEADS = (24, 72)
DAYS = [date(2018, 1, 1) + k * DAY for k in range(365)]


def days(dates, excluded=False):
    """Return the days of 2018 of some dates, one by one."""
    times = np.array(DAYS, "datetime64[D]") + np.timedelta64(23, "h")
    inside = dates.excludes(times) if excluded else dates.contains(times)
    return {day for day, there in zip(DAYS, inside, strict=True) if there}


SPANS = st.lists(st.tuples(st.sampled_from(DAYS), st.integers(0, 60)), max_size=4).map(
    lambda found: tuple((first, first + timedelta(days=length)) for first, length in found)
)


@given(SPANS, SPANS, SPANS)
def test_dates_are_sets_of_days(ours, theirs, gaps):
    """Compared with Python's sets."""
    one, other = Dates(ours, gaps), Dates(theirs)
    brute = {day for day in DAYS if any(a <= day <= b for a, b in ours)}
    left_out = {day for day in brute if any(a <= day <= b for a, b in gaps)}
    assert days(one) == brute - left_out
    assert days(one, excluded=True) == left_out
    assert days(one.without(other)) == days(one) - days(other)
    assert days(one.days) == days(Dates.from_json(one.to_json())) == days(one)
    first, shared = one.first_shared(other), days(one) & days(other)
    assert first == min(shared, default=first)
    assert (first is None) == (not shared) or first > DAYS[-1]
    assert one.covers(one.days)
    assert one.covers(other) == (not other.without(one).spans)
    assert str(Dates(((DAYS[0], DAYS[303]),))) == "2018-01-01 to 2018-10-31"


def test_dates_keep_the_longest_lead_time_between_splits():
    split = Split(["2018-01-01", "2018-08-31"], ["2018-09-01", "2018-10-31"], ["2018-11-01", "2018-12-31"])
    train, val, test = (split.dates(name, LEADS) for name in ("train", "val", "test"))
    assert (max(days(train)), min(days(val))) == (date(2018, 8, 28), date(2018, 9, 1))
    assert (max(days(val)), min(days(test))) == (date(2018, 10, 28), date(2018, 11, 1))
    assert days(train, excluded=True) == {date(2018, 8, d) for d in (29, 30, 31)}
    assert not days(test, excluded=True)
    assert len(days(test)) == 61


@pytest.mark.parametrize(("gap", "last"), [(0, 31), (1, 30), (20, 11)])
def test_the_gap_can_be_chosen(gap, last):
    split = Split(["2018-01-01", "2018-08-31"], None, ["2018-09-01", "2018-12-31"], gap_days=gap)
    assert max(days(split.dates("train", LEADS))) == date(2018, 8, last)


@pytest.mark.parametrize(("leads", "gap"), [((24, 72), 10), ((24, 360), 15)])
def test_years_keep_ten_days_or_the_longest_lead_time_between_them(leads, gap):
    """Counted day by day: only the days before New Year 2018 and 2019 are left out, of training and validation."""
    split = Split([2017, 2017], [2018, 2018], [2019, 2019])
    every = np.arange("2016-12-01", "2020-02-01", dtype="datetime64[D]")
    parts = [every[split.dates(name, leads).contains(every)] for name in ("train", "val", "test")]
    assert [len(part) for part in parts] == [365 - gap, 365 - gap, 365]
    for part, later in pairwise(parts):
        assert (later.min() - part.max()).astype(int) == gap + 1


@settings(max_examples=30)
@given(st.integers(2, 12), st.integers(0, 10), st.booleans())
def test_every_day_is_held_out_by_one_fold_and_never_near_its_training(folds, gap, validate):
    folds = max(folds, 3) if validate else folds
    split = Split(["2018-01-01", "2018-12-31"], "next_fold" if validate else None, folds=folds, fold=1, gap_days=gap)
    held_out = []
    for fold in range(1, folds + 1):
        one = split.leave_out(fold)
        train, *others = (days(one.dates(name, LEADS)) for name in ("train", "held_out", "val")[: 2 + validate])
        for ours, theirs in combinations([train, *others], 2):
            assert not ours & theirs
        assert not [a for a in train for b in set().union(*others) if abs((a - b).days) <= gap]
        held_out.append(others[0])
        of_validation = days(Dates(one.dates("val", LEADS).spans)) if validate else set()
        left_out = days(one.dates("train", LEADS), excluded=True)
        assert train | left_out == set(DAYS) - others[0] - of_validation
    assert sum(map(len, held_out)) == 365
    assert set().union(*held_out) == set(DAYS)
    assert max(map(len, held_out)) - min(map(len, held_out)) <= 1


def test_as_many_folds_as_years_leave_out_one_year_each():
    split = Split([1998, 2017], folds=20, gap_days=0)
    assert split.dates("held_out", LEADS) == Dates.of_years(range(1998, 2018))
    for fold, year in enumerate(range(1998, 2018), 1):
        one = split.leave_out(fold)
        assert one.dates("held_out", LEADS) == Dates.of_years([year])
        assert one.dates("train", LEADS) == Dates.of_years(set(range(1998, 2018)) - {year})
    validated = Split([1998, 2017], "next_fold", folds=10, fold=10, gap_days=0)
    assert validated.dates("held_out", LEADS) == Dates.of_years([2016, 2017])
    assert validated.dates("val", LEADS) == Dates.of_years([1998, 1999])


def test_wrong_options_are_refused():
    for options, sentence in (
        ({"train": [2018]}, r"data.split.train must be \[first year, last year\] or \[first date, last date\]"),
        ({"train": ["2018-10-31", "2018-01-01"]}, "data.split.train must be"),
        ({"train": ["2018-13-01", "2018-12-31"]}, "data.split.train must be"),
        ({"val": ["2018-06-01", 2019]}, "data.split.val shares 2018-06-01 with another split"),
        ({"folds": 1}, "data.split.folds must be a whole number from 2 to 365"),
        ({"fold": 1}, "data.split.fold=1 needs data.split.folds"),
        ({"folds": 4, "fold": 5}, "data.split.fold must be a whole number from 1 to 4"),
        ({"val": "next_fold"}, "data.split.val=next_fold needs data.split.folds"),
        ({"val": "next_fold", "folds": 2}, "data.split.folds must be a whole number from 3"),
        ({"gap_days": -1}, "data.split.gap_days must be a whole number of at least 0"),
    ):
        with pytest.raises(InputError, match=sentence):
            Split(**({"train": ["2018-01-01", "2018-12-31"]} | options))


def test_absent_splits_are_refused():
    split = Split([2016, 2018], folds=3)
    with pytest.raises(InputError, match="there is no split 'dev'; choose one of train, val, test, held_out"):
        split.dates("dev", LEADS)
    with pytest.raises(InputError, match=r"data.split.test has no value; give it as data.split.test=\[first, last\]"):
        split.dates("test", LEADS)
    with pytest.raises(InputError, match=r"needs data\.split\.fold, the fold that is left out of training; train one"):
        split.check_fold()
    with pytest.raises(InputError, match=r"the split held_out needs data\.split\.folds"):
        Split([2016, 2018]).dates("held_out", LEADS)
