"""Intervals and units that options state where files do not: `data.archive.intervals` and names as `tp:24h in mm`."""

from functools import partial

import numpy as np
import pytest
from netcdf_parts import START, VALID, ramp, read, variables

from data_pipeline.archive import Archive
from data_pipeline.common.errors import InputError
from data_pipeline.formats.open import analysis_fields, ensemble_fields

SINCE = {"units": "hours since 2000-01-01"}
HOURLY = {"valid_time": (("valid_time",), np.arange(1.0, 49.0), {**SINCE, "standard_name": "time"})}
RAIN = np.random.default_rng(5).gamma(0.4, 1e-3, (48, 4, 6)).astype(np.float32)
ACCUMULATION = {"tp": {"units": "m", "GRIB_shortName": "tp", "GRIB_stepType": "accum"}}


@pytest.fixture
def hourly(file):
    """Hourly rain as in ERA5 files: neither cell_methods nor bounds."""
    return file(HOURLY, {"tp": (("valid_time", "lat", "lon"), RAIN, {"units": "m"})}, "hourly.nc")


@pytest.fixture
def ensemble(plain, tmp_path):
    """Amounts of three members since the start, at 24 and 48 h, as cfgrib writes them."""
    return plain.cfgrib(tmp_path / "ensemble.nc", ACCUMULATION, starts=(0,), steps=(0, 24, 48))


@pytest.fixture
def archive(hourly, ensemble):
    """A function that returns an archive with some value of the option."""
    return lambda intervals: Archive([str(ensemble)], [str(hourly)], intervals=intervals)


def test_hourly_amounts_become_amounts_of_a_day(archive):
    fields = archive({"analysis": {"tp": "1h"}}).analysis_fields(variables("tp:24h"))
    assert len(fields.init_times) == 25
    assert fields.init_times[0].astype("datetime64[h]") == np.datetime64("2000-01-02T00")
    for day in (0, 1):
        expected = RAIN.astype(float)[24 * day : 24 * day + 24].sum(0)
        np.testing.assert_allclose(read(fields, 24 * day)[0, 0], expected, rtol=1e-6)
    assert fields.meanings[0].intervals == (1440,)


def test_a_length_without_a_part_holds_for_both(archive):
    both = archive({"tp": "24h"})
    assert both.ensemble_fields(variables("tp"), [0, 24, 48]).meanings[0].intervals == (-1, 1440, 1440)
    assert both.analysis_fields(variables("tp")).meanings[0].intervals == (1440,)
    assert archive(None).ensemble_fields(variables("tp"), [24]).meanings[0].intervals == (-1,)
    fields = archive({"ensemble": {"tp": "since_start"}}).ensemble_fields(variables("tp:24h", "tp"), [24, 48])
    assert [meaning.intervals for meaning in fields.meanings] == [(1440, 1440), (1440, 2880)]


def test_a_file_is_not_overruled(file, archive):
    coordinates = {
        "time": (("time",), [24.0, 48.0], {**SINCE, "standard_name": "time", "bounds": "cells"}),
        "cells": (("time", "bnds"), [[0.0, 24.0], [24.0, 48.0]], {}),
    }
    daily = file(coordinates, {"tp": (("time", "lat", "lon"), ramp(2, 4, 6), {"units": "m"})}, "daily.nc")
    stating = Archive([str(daily)], [str(daily)], intervals={"analysis": {"tp": "1h"}})
    with pytest.raises(InputError, match=r"daily.nc states the intervals of tp, .* does not overrule files"):
        stating.analysis_fields(variables("tp"))
    later = {"time": (("time",), [72.0], {**SINCE, "standard_name": "time"})}
    some = file(later, {"tp": (("time", "lat", "lon"), ramp(1, 4, 6), {"units": "m"})}, "later.nc")
    mixed = Archive([str(daily)], [str(daily), str(some)], intervals={"analysis": {"tp": "12h"}})
    days = mixed.analysis_fields(variables("tp:24h")).init_times.astype("datetime64[D]")
    assert days.astype(str).tolist() == ["2000-01-02", "2000-01-03"]


@pytest.mark.parametrize(
    ("intervals", "part", "wanted", "sentence"),
    [
        (None, "analysis", "tp:24h", "does not state .*'data.archive.intervals={analysis: {tp: 1h}}'"),
        (None, "ensemble", "tp:24h", "'data.archive.intervals={ensemble: {tp: since_start}}'"),
        ({"ensemble": {"tp": "48h"}}, "ensemble", "tp", "states 48 h .*, longer than its lead time of 24 h"),
        ({"analysis": {"tp": "since_start"}}, "analysis", "tp", "tp has no lead times, so .* cannot be since_start"),
    ],
)
def test_a_length_that_is_missing_or_that_files_contradict_is_refused(archive, intervals, part, wanted, sentence):
    stated = archive(intervals)
    fields = stated.analysis_fields if part == "analysis" else partial(stated.ensemble_fields, lead_times=[24])
    with pytest.raises(InputError, match=sentence):
        fields(variables(wanted))


def test_a_malformed_option_is_refused_at_once():
    for intervals, sentence in (
        ("1h", r"must be {VARIABLE: INTERVAL"),
        ({"analysis": "1h"}, r"must be {VARIABLE: INTERVAL"),
        ({"analysis": {"tp": "1h"}, "tp": "1h"}, "has tp beside parts of the archive"),
        ({"tq": "1h"}, "tq is not a known GRIB shortName"),
        ({"2t": "1h"}, "2t is instantaneous and has no interval"),
        ({"tp:24h": "1h"}, "without a period; write tp"),
        ({"mx2t6": "6h"}, "the name mx2t6 states its interval of 6 h"),
        *(({"tp": text}, f"intervals of tp is {text!r}; write whole hours") for text in ("0h", "1.5h", "day", 6, None)),
    ):
        with pytest.raises(InputError, match=sentence):
            Archive(["ensemble.nc"], ["analysis.nc"], intervals=intervals)


def test_another_interval_is_another_fingerprint(archive):
    options = None, {"tp": "1h"}, {"analysis": {"tp": "1h"}}, {"analysis": {"tp": "6h"}}
    prints = [archive(intervals).fingerprint for intervals in options]
    assert len(set(prints)) == 4
    parts = {"ensemble": {"tp": "1h"}, "analysis": {"tp": "1h"}}
    assert archive(parts).fingerprint == prints[1]


# Names that state more than the shortName

MILLIMETRES = np.random.default_rng(3).gamma(0.4, 5.0, (2, 4, 6)).astype(np.float32)
DIMENSIONS = ("time", "lat", "lon")


@pytest.mark.parametrize(
    ("units", "hours", "stated", "expected"),
    [
        ({}, 0, "tp:24h in mm", 1e-3),
        ({"units": "m"}, 0, "tp:24h in metres", 1),
        ({}, 6, "tp:6h in mm", 1e-3),
        ({"units": "m"}, 0, "tp:24h in mm", r"in 'm', not in mm as data.archive.variable_names says; leave"),
        ({}, 6, "tp:24h in mm", r"covers 6 h according to the bounds of its times, not 24 h; write"),
    ],
)
def test_stated_units_and_intervals_are_used_and_may_not_contradict_the_file(file, units, hours, stated, expected):
    ends = np.array(VALID[1])
    time = (("time",), ends, VALID[2] | ({"bounds": "cells"} if hours else {}))
    fields = {"rain": (DIMENSIONS, MILLIMETRES, units | ({"cell_methods": "time: sum"} if hours else {}))}
    fields |= {"cells": (("time", "side"), np.stack([ends - hours, ends], 1), {})} if hours else {}
    path, wanted = file({"time": time}, fields), variables(stated.split()[0])
    if isinstance(expected, str):
        with pytest.raises(InputError, match=rf"\(rain\) .*{expected}"):
            analysis_fields(path, wanted, names={"rain": stated})
        return
    fields = analysis_fields(path, wanted, names={"rain": stated})
    np.testing.assert_allclose(read(fields)[0, 0], MILLIMETRES[0] * expected, rtol=1e-6)
    assert fields.meanings[0].intervals == (60 * (hours or 24),)


def test_a_forecast_before_the_end_of_its_interval_has_none(file):
    """At 24 h the interval of 48 hours would begin before the start."""
    path = file({"time": VALID, "start": START}, {"rain": (DIMENSIONS, MILLIMETRES, {})})
    fields = ensemble_fields(path, variables("tp:24h"), [24], names={"rain": "tp:24h in mm"})
    np.testing.assert_allclose(read(fields)[0, 0], MILLIMETRES[1] / 1000, rtol=1e-6)
    with pytest.raises(InputError, match="tp"):
        ensemble_fields(path, variables("tp:48h"), [24], names={"rain": "tp:48h in mm"})


def test_two_variables_with_one_name_are_refused(file):
    path = file({"time": VALID}, {name: (DIMENSIONS, MILLIMETRES, {"units": "K"}) for name in ("MY_T2", "t2m")})
    with pytest.raises(InputError, match=r"MY_T2 and t2m could both be 2t; .*variable_names={t2m: other}"):
        analysis_fields(path, variables("2t"), names={"MY_T2": "2t"})
    fields = analysis_fields(path, variables("2t"), names={"MY_T2": "2t", "t2m": "skt"})
    np.testing.assert_array_equal(read(fields)[0, 0], MILLIMETRES[0])
