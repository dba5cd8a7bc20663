"""docs/recipes/euppbench.md on stores in the layout of the station data of EUPPBench."""

import numpy as np
import pytest
import xarray as xr
from followed_page import follow_recipe
from recipe_weather import ERROR, SPREADS, Weather, moments

pytestmark = pytest.mark.long

IDS = [44, 183, 198, 400, 722, 867]
WEATHER = Weather((len(IDS),))
LEADS, YEARS = [0, 24, 48], range(1, 21)
RUNS = moments("2017-01-02T00", "2017-04-03T00", "2017-07-06T00", "2017-10-05T00")
NEW = moments("2018-01-02T00", "2018-07-06T00")
K = {"GRIB_shortName": "2t", "GRIB_stepType": "instant", "units": "K", "standard_name": "unknown"}


def past(run, year):
    """The start of a reforecast: year 1 is 20 years before the run, year 20 the year before it."""
    return np.datetime64(f"{int(str(run)[:4]) - 21 + year}{str(run)[4:]}", "h")


def stations(prefix):
    """Coordinates of stations, without attributes; forecasts also have the position of their grid point."""
    random = np.random.default_rng(0)
    own = {
        "latitude": random.uniform(48, 54, len(IDS)), "longitude": random.uniform(7, 14, len(IDS)),
        "altitude": random.uniform(0, 800, len(IDS)), "land_usage": np.full(len(IDS), 12),
    }  # fmt: skip
    found = {f"{prefix}{name}": ("station_id", values) for name, values in own.items()}
    if prefix:
        found |= {f"model_{name}": ("station_id", own[name] + 0.05) for name in ("latitude", "longitude", "altitude")}
    names = ("station_id", [f"Station {each}" for each in IDS])
    return {"station_id": ("station_id", IDS), "station_name": names, **found}


def times(starts, dimension_of_runs, **more):
    return {
        "time": ("time", np.array(dimension_of_runs, "M8[ns]"), {"standard_name": "forecast_reference_time"}),
        "step": ("step", LEADS, {"units": "hours", "standard_name": "forecast_period"}),
        **more,
    }


def valid_times(starts):
    """Valid times (..., step) of starts."""
    return (np.array(starts)[..., None] + np.array(LEADS, "timedelta64[h]")).astype("M8[ns]")


def members(starts, count):
    """Members (station, number, *starts, step, surface)."""
    starts = np.array(starts)
    fields = [[[WEATHER.member("2t", s, lead, n) for lead in LEADS] for s in starts.ravel()] for n in range(count)]
    values = np.array(fields, np.float32).reshape(count, *starts.shape, len(LEADS), len(IDS))
    return np.moveaxis(values, -1, 0)[..., None]


@pytest.fixture(scope="module")
def project(tmp_path_factory):
    """A folder of stores, in which the page was followed."""
    folder = tmp_path_factory.mktemp("euppbench")
    starts = [[past(run, year) for year in YEARS] for run in RUNS]
    valid, year = valid_times(starts), ("year", [*YEARS])
    at = {"valid_time": (("time", "year", "step"), valid, {"standard_name": "time"})}
    number = {"number": ("number", range(3), {"standard_name": "realization"}), "surface": ("surface", [0.0])}
    values = members(starts, 3).transpose(0, 2, 1, 3, 4, 5)
    order = ("station_id", "time", "number", "year", "step", "surface")
    coordinates = times(starts, RUNS, year=year, **at, **number, **stations("station_"))
    xr.Dataset({"t2m": (order, values, K)}, coordinates).to_zarr(folder / "reforecasts.zarr", zarr_format=2)

    truth = np.array([WEATHER.truth("2t", time.astype("M8[h]")) for time in valid.ravel()], np.float32)
    truth[5, 2] = np.nan
    pairs = {"t2m": (("time", "year", "step", "station_id"), truth.reshape(*valid.shape, -1), {"units": "K"})}
    observed = xr.Dataset(pairs, times(starts, RUNS, year=year, **stations("")))
    observed.to_zarr(folder / "reforecast-observations.zarr", zarr_format=2)

    at = {"valid_time": (("time", "step"), valid_times(NEW), {"standard_name": "time"})}
    number = {"number": ("number", range(5), {"standard_name": "realization"}), "surface": ("surface", [0.0])}
    new = {"t2m": (("station_id", "number", "time", "step", "surface"), members(NEW, 5), K)}
    coordinates = times(NEW, NEW, **at, **number, **stations("station_"))
    xr.Dataset(new, coordinates).to_zarr(folder / "forecasts.zarr", zarr_format=2)
    return folder, follow_recipe("euppbench.md", folder)


def test_the_years_are_starts(project):
    _, outputs = project
    said = outputs["deepweather prepare"]
    assert "starts       80, 1997-01-02T00:00 to 2016-10-05T00:00 UTC" in said
    assert "grid         6 stations" in said
    assert "task euppbench: 160 of 160 forecasts are used" in said


def test_stations_have_their_own_position_and_number(project):
    folder, _ = project
    with xr.open_dataset(folder / "corrected.nc") as found:
        assert found.station_id.values.tolist() == [str(each) for each in IDS]
        np.testing.assert_allclose(found.latitude, stations("station_")["station_latitude"][1])
        assert found.number.values.tolist() == [0, 1, 2, 3, 4]


def test_forecasts_of_every_station_are_nearer_to_the_truth(project):
    folder, _ = project
    with xr.open_dataset(folder / "corrected.nc") as found:
        mean = found.t2m.mean("number").values
    truth = [[WEATHER.truth("2t", start + np.timedelta64(lead, "h")) for lead in (24, 48)] for start in NEW]
    assert abs((mean - np.array(truth)).mean((0, 1))).max() < 0.7 * 2 * ERROR * SPREADS["2t"]
    assert abs((mean - np.array(truth)).mean()) < 0.3 * 2 * ERROR * SPREADS["2t"]
