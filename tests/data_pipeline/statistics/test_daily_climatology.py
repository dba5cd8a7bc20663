"""Climatology against a loop over days, and days of the year against Python's calendar."""

from datetime import date, timedelta

import numpy as np
import pytest

from data_pipeline.calendar import climatology_day, days_in_window
from data_pipeline.common.errors import InputError
from data_pipeline.statistics.daily_climatology import DailyClimatology


def test_climatology_days_equal_those_of_a_common_year():
    first = date(2015, 1, 1)
    for day in (first + timedelta(days=k) for k in range(3 * 365)):
        of_a_common_year = day.replace(year=2015) if (day.month, day.day) != (2, 29) else date(2015, 2, 28)
        (found,) = climatology_day(np.array([day], "datetime64[s]"))
        assert found == of_a_common_year.timetuple().tm_yday


def test_windows_continue_across_the_turn_of_the_year():
    days = [1, 3, 180, 360, 364]
    assert days_in_window(days, 1, 5) == [0, 1, 4]
    assert days_in_window(days, 364, 9) == [0, 1, 3, 4]
    assert days_in_window(days, 180, 1) == [2]


@pytest.mark.parametrize(("window", "memory"), [(31, 2_000_000_000), (7, 1)])
def test_maps_equal_a_loop_over_days(toy, computed, training, window, memory):
    statistic = DailyClimatology(window_days=window, memory_bytes=memory)
    found = computed(statistic)
    (bands,) = {len(statistic._bands(training, found["day"], 2))}
    assert bands == (1 if memory > 1 else 2)  # 19 rows, at least 16 at a time
    times = sorted(time for time in toy.truth if 2010 <= time.item().year <= 2013)
    assert found["hour"] == [0]
    assert found["day"] == sorted({min(t.item().timetuple().tm_yday, 365) for t in times if t.item().year % 4})
    for d, day in enumerate(found["day"]):
        near = []
        for time in times:
            distance = abs(int(climatology_day(np.array([time]))[0]) - day)
            if min(distance, 365 - distance) <= window // 2:
                near.append(toy.truth[time])
        assert np.allclose(found["mean"][0, 0, d], np.mean(near, 0), rtol=1e-5)
        assert np.allclose(found["std"][0, 0, d], np.std(near, 0), rtol=1e-3, atol=1e-3)


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"window_days": 30}, "climatology.window_days must be odd"),
        ({"window_days": 366}, "climatology.window_days must be a whole number from 1 to 365"),
        ({"memory_bytes": 0}, "climatology.memory_bytes must be a number greater than 0"),
    ],
)
def test_wrong_options_are_refused(options, sentence):
    with pytest.raises(InputError, match=sentence):
        DailyClimatology(**options)
