"""docs/recipes/weatherbench2.md on stores in that layout."""

import hashlib
import json

import numpy as np
import pytest
import xarray as xr
from followed_page import follow_recipe
from recipe_weather import ERROR, SPREADS, Weather, moments, monthly

pytestmark = pytest.mark.long

LATITUDES, LONGITUDES = np.array([-67.5, -22.5, 22.5, 67.5]), np.arange(0, 360, 45.0)
WEATHER = Weather((len(LONGITUDES), len(LATITUDES)))
LEADS = [0, 6, 12, 18, 24, 30, 36, 42, 48]
NEW = moments("2020-07-01T00", "2020-07-02T00")
KELVIN = {"units": "K", "long_name": "2 metre temperature", "short_name": "t2m"}
METRES = {"units": "m", "long_name": "Total precipitation", "short_name": "tp"}


def rain(start, lead, number, hours):
    """An amount in m that is right on average, missing at lead times that are shorter than its interval."""
    if lead < hours:
        return np.full(WEATHER.shape, np.nan)
    return 0.59 * WEATHER.rain_of_member(start, lead - hours, lead, number) / 1000


def write_ensemble(path, starts, members):
    """Lead times are whole hours; derived amounts have no units."""
    order = ("time", "prediction_timedelta", "number", "longitude", "latitude")

    def array(value, **attributes):
        numbers = range(1, members + 1)
        fields = [[[value(start, lead, number) for number in numbers] for lead in LEADS] for start in starts]
        return order, np.array(fields, np.float32), attributes

    xr.Dataset(
        {
            "2m_temperature": array(lambda start, lead, number: WEATHER.member("2t", start, lead, number), **KELVIN),
            "total_precipitation": array(lambda start, lead, number: rain(start, lead, number, lead), **METRES),
            "total_precipitation_6hr": array(lambda start, lead, number: rain(start, lead, number, 6)),
            "total_precipitation_24hr": array(lambda start, lead, number: rain(start, lead, number, 24)),
        },
        {
            "time": np.array(starts, "M8[ns]"),
            "prediction_timedelta": ("prediction_timedelta", LEADS, {"units": "hours"}),
            "number": np.arange(1, members + 1),
            "longitude": LONGITUDES,
            "latitude": LATITUDES,
        },
    ).to_zarr(path, zarr_format=2, consolidated=True)


def write_truth(path, times):
    order = ("time", "longitude", "latitude")
    temperature = np.array([WEATHER.truth("2t", time) for time in times], np.float32)
    day, hour = (np.array([WEATHER.rain(time, hours) / 1000 for time in times], np.float32) for hours in (24, 1))
    xr.Dataset(
        {
            "2m_temperature": (order, temperature, KELVIN),
            "total_precipitation": (order, hour, METRES),
            "total_precipitation_24hr": (order, day),
        },
        {"time": np.array(times, "M8[ns]"), "longitude": LONGITUDES, "latitude": LATITUDES},
    ).to_zarr(path, zarr_format=2, consolidated=True)


@pytest.fixture(scope="module")
def project(tmp_path_factory):
    """A folder of stores, in which the page was followed."""
    folder = tmp_path_factory.mktemp("weatherbench2")
    starts = monthly(2018, 2019)[::2]
    write_ensemble(folder / "ifs_ens.zarr", starts, 3)
    write_ensemble(folder / "new.zarr", NEW, 5)
    write_truth(folder / "era5.zarr", [start + np.timedelta64(lead, "h") for start in starts for lead in LEADS])
    return folder, follow_recipe("weatherbench2.md", folder)


def test_the_stated_interval_and_units_are_used(project):
    _, outputs = project
    said = outputs["deepweather prepare"]
    assert "tp is total_precipitation_24hr" in said
    assert "intervals    tp accumulation over 24 h" in said
    assert "task weatherbench2: 48 of 48 forecasts are used" in said


def test_the_corrected_file_has_the_starts_and_members_of_the_store(project):
    folder, _ = project
    with xr.open_dataset(folder / "corrected.nc") as found:
        assert found.t2m.dims == ("forecast_reference_time", "forecast_period", "number", "latitude", "longitude")
        assert found.number.values.tolist() == [1, 2, 3, 4, 5]
        np.testing.assert_array_equal(found.forecast_reference_time.values, np.array(NEW, "M8[ns]"))
        truth = [[WEATHER.truth("2t", start + np.timedelta64(lead, "h")) for lead in (24, 48)] for start in NEW]
        truth = np.array(truth)[:, :, None].swapaxes(-1, -2)[..., ::-1, :]
        assert abs((found.t2m.values - truth).mean()) < 0.3 * 2 * ERROR * SPREADS["2t"]
        day = WEATHER.rain(NEW[0] + np.timedelta64(48, "h"), 24) / 1000
        assert abs(found.tp_24h.values[0, 1].mean() - day.mean()) < 0.05 * day.mean()


def test_the_sidecar_identifies_the_store(project):
    """The hash of a list of the store's files, which other programs compute as well."""
    folder, _ = project
    (given,) = json.loads((folder / "corrected.nc.json").read_text())["inputs"]
    files = sorted(path for path in (folder / "new.zarr").rglob("*") if path.is_file())
    hashes = (hashlib.sha256(path.read_bytes()).hexdigest() for path in files)
    lines = [f"{each}  {path.relative_to(folder / 'new.zarr')}\n" for each, path in zip(hashes, files, strict=True)]
    assert given["sha256"] == hashlib.sha256("".join(lines).encode()).hexdigest()
    assert given["bytes"] == sum(path.stat().st_size for path in files)


NAMES = "variable_names={total_precipitation_24hr: tp:24h in m, total_precipitation: other}"
CORRECTOR = "corrector=runs/weatherbench2/corrector.safetensors"


def test_stores_of_a_folder_are_cycles(project, command):
    """Each start has a file of its own, with the values of the file of all starts."""
    folder, _ = project
    with xr.open_zarr(folder / "new.zarr") as store:
        for number, start in enumerate(NEW):
            one = store.sel(time=[start]).drop_encoding()
            one.to_zarr(folder / f"cycles/{number}.zarr", zarr_format=2, consolidated=True, write_empty_chunks=True)
    ended = command(folder, "correct", CORRECTOR, "input=cycles", "output=corrected/", NAMES)
    assert ended.code == 0, ended.stderr
    assert sorted(path.name for path in (folder / "corrected").glob("*.nc")) == ["0.nc", "1.nc"]
    with xr.open_dataset(folder / "corrected.nc") as both, xr.open_dataset(folder / "corrected/1.nc") as second:
        np.testing.assert_allclose(second.t2m.values, both.t2m.values[1], rtol=1e-6)


def test_a_store_is_corrected_into_grib(project, command):
    folder, _ = project
    ended = command(folder, "correct", CORRECTOR, "input=new.zarr", "output=corrected.grib", NAMES)
    assert ended.code == 0, ended.stderr
    assert (folder / "corrected.grib").read_bytes()[:4] == b"GRIB"
