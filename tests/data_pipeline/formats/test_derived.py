"""Variables made from others: rain of a day from every form of amount, heights, wind speeds."""

from itertools import combinations, product

import numpy as np
import pytest
import xarray as xr
from hypothesis import given, settings
from hypothesis import strategies as st
from netcdf_parts import variables

from data_pipeline.common.errors import InputError
from data_pipeline.common.messages import say_once
from data_pipeline.formats.datasets import select_variable
from data_pipeline.formats.open import analysis_fields, ensemble_fields, open_analysis, open_ensemble
from data_pipeline.formats.tiling import Tiling, TimeInterval
from data_pipeline.grid import Grid
from data_pipeline.task import Task, Variable
from data_pipeline.writing import Encoder

GRID = Grid.regular(4, 6)
KEYS = {
    "centre": "ecmf", "setLocalDefinition": 1, "localDefinitionNumber": 1, "class": "od", "stream": "enfo",
    "type": "pf", "expver": "0001", "typeOfLevel": "surface", "numberOfForecastsInEnsemble": 2, "bitsPerValue": 24,
}  # fmt: skip
RAIN = 1e-3 * np.random.default_rng(1).gamma(0.5, size=(2, 3, 8, *GRID.shape))
"""Amounts (start, member, 6 hours, H, W)."""
STARTS = (20200101, 20200111)


def write(path, fields, **keys):
    """Write fields (values, keys) as GRIB."""
    encoder = Encoder(GRID, **{**KEYS, **keys})
    with path.open("wb") as file:
        for values, own in fields:
            file.write(encoder.encode(values, **own))
    return path


def since_start(rain=RAIN, hours=6):
    for (s, start), number, k in product(enumerate(STARTS), range(3), range(8)):
        yield rain[s, number, : k + 1].sum(0), {
            "shortName": "tp", "dataDate": start, "perturbationNumber": number, "stepType": "accum",
            "startStep": 0, "endStep": hours * (k + 1),
        }  # fmt: skip


def read(fields, starts=None):
    """Return the values of fields, (start, lead, member, channel, H, W), at all starts or some positions."""
    starts = range(len(fields.init_times)) if starts is None else starts
    shape = (len(starts), len(fields.lead_times), len(fields.numbers), len(fields.variables), *GRID.shape)
    out = np.empty(shape, np.float32)
    for k, lead in product(range(shape[0]), range(shape[1])):
        fields.read(fields.cells[starts[k], lead], out[k, lead])
    return out


def test_a_period_is_the_difference_of_amounts_since_the_start(tmp_path):
    path = write(tmp_path / "rain.grib", since_start())
    fields = ensemble_fields(path, variables("tp:24h", "tp:6h", "tp"), [24, 48])
    values = read(fields)
    day = RAIN.reshape(2, 3, 2, 4, *GRID.shape).sum(3).swapaxes(1, 2)
    last = RAIN[:, :, 3::4].swapaxes(1, 2)
    for channel, expected in enumerate((day, last, day.cumsum(1))):
        np.testing.assert_allclose(values[:, :, :, channel], expected, rtol=0, atol=1e-7)
    assert [meaning.intervals for meaning in fields.meanings] == [(1440, 1440), (360, 360), (1440, 2880)]
    assert {meaning.units for meaning in fields.meanings} == {"m"}
    dataset = open_ensemble(path, variables("tp:24h", "tp"), [24, 48])
    assert list(dataset) == ["tp_24h", "tp"]
    found = select_variable(dataset, Variable.parse("tp:24h")).values
    np.testing.assert_allclose(found, day, rtol=0, atol=1e-7)


@pytest.mark.parametrize("others", [0, 1])
def test_fields_of_the_period_are_taken_as_they_are(tmp_path, others):
    """Also beside fields of other intervals; an analysis starts when it is valid."""
    rows = [
        (RAIN[s, number, 4 * k : 4 * k + 4].sum(0), {
            "dataDate": start, "perturbationNumber": number, "startStep": 24 * k, "endStep": 24 * k + 24})
        for (s, start), number, k in product(enumerate(STARTS), range(3), range(2))
    ]  # fmt: skip
    rows += [(RAIN[0, 0, 0], {"dataDate": STARTS[0], "perturbationNumber": 0, "startStep": 0, "endStep": 6})] * others
    path = write(tmp_path / "rain.grib", rows, shortName="tp", stepType="accum")
    day = RAIN.reshape(2, 3, 2, 4, *GRID.shape).sum(3).swapaxes(1, 2)
    found = ensemble_fields(path, variables("tp:24h"), [24, 48])
    np.testing.assert_allclose(read(found)[:, :, :, 0], day, rtol=0, atol=1e-7)
    assert found.meanings[0].intervals == (1440, 1440)
    alone = [(values, {**own, "type": "fc"}) for values, own in rows if own["perturbationNumber"] == 0]
    analyses = analysis_fields(
        write(tmp_path / "truth.grib", alone, shortName="tp", stepType="accum"), variables("tp:24h")
    )
    times = [f"2020-01-{date:02}" for date in (2, 3, 12, 13)]
    assert [str(time)[:10] for time in analyses.init_times] == times
    np.testing.assert_allclose(read(analyses)[:, 0, 0, 0].reshape(2, 2, *GRID.shape), day[:, :, 0], rtol=0, atol=1e-7)


def test_a_period_that_cannot_be_made_is_refused(tmp_path):
    path = write(tmp_path / "rain.grib", since_start())
    with pytest.raises(InputError, match=r"cannot give tp:4h: it has tp over intervals of 6, 12, .* add up to 4 h"):
        ensemble_fields(path, variables("tp:4h"), [24])
    with pytest.raises(InputError, match="tp:48h begins before the start of a forecast of 24 h"):
        Task("rain", ["tp:48h"], ["tp:48h"], [24, 48])


def test_amounts_that_decrease_are_refused_but_rounding_is_not(tmp_path):
    falling = RAIN.copy()
    falling[0, 0, 5] = -0.05
    fields = ensemble_fields(write(tmp_path / "a.grib", since_start(falling)), variables("tp:24h"), [48])
    with pytest.raises(InputError, match=r"a.grib: tp:24h would be -0.04.* m somewhere, because the amounts decrease"):
        read(fields)
    steady = np.zeros_like(RAIN)
    steady[..., 0, 0], steady[:, :, 0, 1:] = 0.3, 0.1  # in 8 bits, 0.1 m becomes less when the largest amount grows
    steady[:, :, 0] += RAIN[:, :, 0]
    coarse = write(tmp_path / "b.grib", since_start(steady), bitsPerValue=8)
    stored = read(ensemble_fields(coarse, variables("tp"), [24, 48]))
    assert (stored[:, 1] < stored[:, 0]).any()
    assert read(ensemble_fields(coarse, variables("tp:24h"), [48])).min() == 0


@pytest.mark.parametrize(("asked", "there", "factor"), [("z@500", "gh", 9.80665), ("gh@500", "z", 1 / 9.80665)])
def test_geopotential_and_height_stand_for_each_other(tmp_path, asked, there, factor):
    heights = 5000 + 100 * np.random.default_rng(0).standard_normal((3, *GRID.shape))
    rows = [(heights[k], {"dataDate": 20200101, "perturbationNumber": k, "endStep": 24}) for k in range(3)]
    path = write(tmp_path / "h.grib", rows, shortName=there, typeOfLevel="isobaricInhPa", level=500)
    fields = ensemble_fields(path, variables(asked), [24])
    np.testing.assert_allclose(read(fields)[0, 0, :, 0], factor * heights, rtol=1e-5)
    assert fields.meanings[0].units == {"z@500": "m2 s-2", "gh@500": "gpm"}[asked]
    with pytest.raises(InputError, match=f"has no {asked[:-4]}@850; it has {there}@500"):
        ensemble_fields(path, variables(f"{asked[:-4]}@850"), [24])


def test_wind_speed_is_the_norm_of_its_components_member_by_member(tmp_path):
    wind = np.random.default_rng(0).standard_normal((2, 3, *GRID.shape))
    rows = [
        (wind[c, k], {"shortName": name, "dataDate": 20200101, "perturbationNumber": k, "endStep": 24})
        for c, name in enumerate(("10u", "10v"))
        for k in range(3)
    ]
    fields = ensemble_fields(write(tmp_path / "w.grib", rows), variables("10si", "10u"), [24])
    np.testing.assert_allclose(read(fields)[0, 0, :, 0], np.sqrt((wind**2).sum(0)), atol=1e-6)
    with pytest.raises(InputError, match="has no 10si"):
        ensemble_fields(write(tmp_path / "u.grib", rows[:3]), variables("10si"), [24])


def hourly(path, days, method="sum", name="tp", **attributes):
    """Write hourly statistics as CF NetCDF; return them, (hour, H, W)."""
    values = 1e-3 * np.random.default_rng(2).gamma(0.3, size=(24 * days, *GRID.shape)).astype(np.float32)
    ends = np.datetime64("2019-01-01T01", "ns") + np.arange(24 * days) * np.timedelta64(1, "h")
    bounds = np.stack([ends - np.timedelta64(1, "h"), ends], axis=1)
    dataset = xr.Dataset(
        {
            name: (("time", "latitude", "longitude"), values, {"cell_methods": f"time: {method}", **attributes}),
            "time_bnds": (("time", "bnds"), bounds),
        },
        {
            "time": ("time", ends, {"standard_name": "time", "bounds": "time_bnds"}),
            "latitude": ("latitude", np.array(GRID.latitudes), {"units": "degrees_north"}),
            "longitude": ("longitude", np.array(GRID.longitudes), {"units": "degrees_east"}),
        },
    )
    dataset.to_netcdf(path, encoding={"time": {"units": "hours since 2019-01-01"}})
    return values


def test_amounts_means_and_extremes_are_joined_hour_by_hour(tmp_path):
    for method, name, asked, join in (
        ("sum", "tp", "tp:24h", np.sum), ("mean", "t2m", "2t:24h-mean", np.mean),
        ("maximum", "t2m", "mx2t:24h", np.max), ("minimum", "t2m", "2t:24h-minimum", np.min),
    ):  # fmt: skip
        values = hourly(tmp_path / f"{method}.nc", 2, method, name, units="m" if name == "tp" else "K")
        fields = analysis_fields(tmp_path / f"{method}.nc", variables(asked))
        found = read(fields, [0, 24])[:, 0, 0, 0]
        np.testing.assert_allclose(found, join(values.reshape(2, 24, *GRID.shape), axis=1), rtol=1e-6)


def test_one_variable_over_two_intervals_must_be_named(tmp_path):
    of_6_hours = [(values, {**keys, "startStep": keys["endStep"] - 6}) for values, keys in since_start()]
    path = write(tmp_path / "both.grib", [*since_start(), *(row for row in of_6_hours if row[1]["startStep"])])
    with pytest.raises(InputError, match=r"hold tp for the same time over intervals of .* write tp:6h or tp:24h in"):
        ensemble_fields(path, variables("tp"), [24])


def test_analyses_of_amounts_are_short_forecasts(tmp_path):
    amounts = 1e-3 * np.random.default_rng(0).gamma(0.5, size=(4, *GRID.shape))
    rows = [
        (amounts[2 * day + half], {"dataDate": 20200101 + day, "dataTime": 600 + 1200 * half, "endStep": 12})
        for day in range(2)
        for half in range(2)
    ]
    path = write(tmp_path / "era.grib", rows, shortName="tp", type="fc", stream="oper", stepType="accum", startStep=0)
    dataset = open_analysis(path, variables("tp:24h"))
    times = dataset.time.values.astype("datetime64[h]").astype(str).tolist()
    assert times == ["2020-01-02T06", "2020-01-02T18", "2020-01-03T06"]
    np.testing.assert_allclose(dataset["tp_24h"].values, amounts[:-1] + amounts[1:], atol=1e-7)


def test_analyses_that_are_long_forecasts_are_counted(tmp_path, capsys):
    """Of 6-hour amounts up to 48 h after two starts, those from 24 h on; none of the first day."""
    path = write(tmp_path / "rain.grib", (row for row in since_start() if row[1]["perturbationNumber"] == 0))
    for period, count, last in (("6h", "8 of 16", "42-48"), ("24h", "2 of 10", "24-48")):
        say_once.cache_clear()
        analysis_fields(path, variables(f"tp:{period}"))
        told = capsys.readouterr().err
        assert f"warning: {path}: {count} analyses of tp:{period} are forecasts that begin a day or more" in told
        assert f"up to {last} h in {path} (byte " in told
    say_once.cache_clear()
    assert len(analysis_fields(path, variables("tp:48h")).init_times) == 2
    assert capsys.readouterr().err == ""


# Joining time intervals: sums of a known rain rate, and a search through all combinations

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
