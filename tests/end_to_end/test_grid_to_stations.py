"""Forecasts on a grid and observations at stations, through the commands and in Python."""

import json
import re

import deepweather as dw
import numpy as np
import pytest
import xarray as xr
from twin_project import FORECAST, SPLIT

pytestmark = pytest.mark.usefixtures("without_figures")

COUNT, KNOWN = 40, 30
"""Stations with observations in the test years, and those of them with observations in the training."""
DATA = [
    *SPLIT, "data.split.test=[2016,2017]", "data.archive.analysis=[observations.nc]", "data.archive.station_cells=land",
    "task.inputs=[2t]", "task.targets=[2t]", "task.lead_times=[48]", "task.static=[]",
]  # fmt: skip


def write_observations(folder, count, name):
    """Observe the twin's nature between its cells, at the altitude of each station."""
    random = np.random.default_rng(5)
    static = dw.open_static([str(folder / "data/twin/static")])
    truth = dw.open_analysis([str(folder / "data/twin/analysis.*")], ["2t"], chunks=None)["2t"]
    latitude, longitude = random.uniform(-60, 60, COUNT), random.uniform(0, 350, COUNT)
    at = {"latitude": xr.DataArray(latitude, dims="station"), "longitude": xr.DataArray(longitude, dims="station")}
    surface = (static.z / 9.80665).interp(at).values
    altitude = surface + random.normal(0, 400, COUNT)
    values = truth.interp(at).transpose("time", "station").values - 0.0065 * (altitude - surface)
    values += random.normal(0, 0.3, values.shape)
    north, east = ({"units": f"degrees_{word}"} for word in ("north", "east"))
    data = xr.Dataset(
        {"t2m": (("time", "station"), values.astype("f4"), {"units": "K"})},
        {
            "time": truth.time.values,
            "station_id": ("station", [f"s{k}" for k in range(COUNT)], {"cf_role": "timeseries_id"}),
            "lat": ("station", latitude, {"standard_name": "latitude"} | north),
            "lon": ("station", longitude, {"standard_name": "longitude"} | east),
            "alt": ("station", altitude, {"standard_name": "altitude", "units": "m"}),
        },
        {"featureType": "timeSeries"},
    )
    data.isel(station=slice(count)).to_netcdf(folder / name)


@pytest.fixture(scope="module")
def scored(project, command):
    """The project with an EMOS of 30 stations, and what the verbs printed when it was scored at 40."""
    write_observations(project, KNOWN, "observations.nc")
    write_observations(project, COUNT, "more.nc")
    data = [word.replace("observations", "more") for word in DATA]
    runs = {
        "train": ["train", *DATA, "model=emos", "run_dir=runs/stations"],
        "evaluate": [
            "evaluate", *data, "correctors={emos: runs/stations/corrector.safetensors}", "run_dir=runs/scores",
            "references=[raw,lapse_rate]",
        ],
    }  # fmt: skip
    printed = {}
    for name, words in runs.items():
        ended = command(project, *words)
        assert ended.code == 0, ended.stderr
        printed[name] = ended.stdout + ended.stderr
    return project, printed


def nearest_land(folder, observations):
    """The row and column of each station's cell: the nearest of the four around it that is land, else the nearest."""
    static = dw.open_static([str(folder / "data/twin/static")])
    lats, lons, found = static.latitude.values, static.longitude.values, []
    for lat, lon in zip(observations.lat.values, observations.lon.values, strict=True):
        rows = np.argsort(abs(lats - lat), kind="stable")[:2]
        columns = np.argsort(abs((lons - lon + 180) % 360 - 180), kind="stable")[:2]
        cells = [(r, c) for r in rows for c in columns]

        def apart(cell, lat=lat, lon=lon):
            a, b = np.radians([lats[cell[0]], lat])
            return -np.sin(a) * np.sin(b) - np.cos(a) * np.cos(b) * np.cos(np.radians(lons[cell[1]] - lon))

        found.append(min([cell for cell in cells if static.lsm.values[cell] >= 0.5] or cells, key=apart))
    return np.array(found).T


def test_raw_and_lapse_rate_have_the_scores_of_the_nearest_land_cells(scored):
    folder, printed = scored
    assert "the forecasts of 30 stations" in printed["train"]
    assert "10 are new (s30, s31, s32, ...): their correction is predicted from 30 stations" in printed["evaluate"]
    observations = xr.load_dataset(folder / "more.nc")
    rows, columns = nearest_land(folder, observations)
    static = dw.open_static([str(folder / "data/twin/static")])
    shift = -0.0065 * (observations.alt.values - static.z.values[rows, columns] / 9.80665)
    files = sorted((folder / "data/twin").glob("output.sfc.*"))
    ensemble = dw.open_ensemble([str(path) for path in files], ["2t"], [48], chunks=None)["2t"]
    starts = ensemble.init_time.values
    test = np.isin(starts.astype("M8[Y]").astype(int) + 1970, [2016, 2017])
    truth = observations.t2m.sel(time=starts[test] + np.timedelta64(48, "h")).values.astype(float)
    members = ensemble.values[test, 0][:, :, rows, columns].astype(float)
    scores = json.loads((folder / "runs/scores/scores.json").read_text())["models"]
    for name, moved in {"raw": members, "lapse_rate": members + shift}.items():
        pairs = abs(moved[:, :, None] - moved[:, None]).mean((1, 2)) / 2
        crps = abs(moved - truth[:, None]).mean(1) - pairs
        assert scores[name]["crps"] == pytest.approx(crps.mean(), rel=1e-4)
        fair = abs(moved - truth[:, None]).mean(1) - pairs * len(moved[0]) / (len(moved[0]) - 1)
        assert scores[name]["crps_fair_valid"]
        assert scores[name]["crps_fair"] == pytest.approx(fair.mean(), rel=1e-4)
    assert scores["lapse_rate"]["crps"] < scores["raw"]["crps"]
    assert scores["emos"]["crps"] < scores["lapse_rate"]["crps"]


def test_correct_writes_stations_from_grib_as_python_does(scored, command):
    folder, _ = scored
    corrector = folder / "runs/stations/corrector.safetensors"
    words = ["correct", f"corrector={corrector}", f"input={FORECAST}", "untrained_times=correct"]
    ended = command(folder, *words, "output=at_stations.nc")
    assert ended.code == 0, ended.stderr
    assert "at_stations.nc holds the corrected fields only" in ended.stdout
    written = xr.load_dataset(folder / "at_stations.nc", decode_timedelta=False).t2m.squeeze()
    forecasts = dw.open_ensemble(str(folder / FORECAST), ["2t"], chunks=None)
    with pytest.warns(UserWarning, match="stay as they are: 0, 24 h"):
        corrected = dw.load(corrector).correct(forecasts, untrained_times="correct")
    assert corrected.sizes["point"] == KNOWN
    expected = corrected["2t"].sel(lead_time=48).squeeze()
    np.testing.assert_array_equal(expected.station.values, [f"s{k}" for k in range(KNOWN)])
    assert written.dims == ("forecast_reference_time", "number", "station")
    np.testing.assert_allclose(written.values, expected.values, rtol=1e-6)
    raw = corrected["2t"].sel(lead_time=24).squeeze().values  # another lead time stays as it is
    rows, columns = nearest_land(folder, xr.load_dataset(folder / "observations.nc"))
    np.testing.assert_array_equal(raw, forecasts["2t"].sel(lead_time=24).squeeze().values[..., rows, columns])

    (folder / "new.csv").write_text("station,latitude,longitude,altitude\nhere,40.1,20,300\nthere,-20.5,130,10\n")
    xr.open_dataset(folder / "data/twin/static", engine="cfgrib").to_zarr(folder / "surface.zarr", zarr_format=2)
    ended = command(folder, *words, "output=new.nc", "stations=new.csv", "static_fields=surface.zarr")
    assert ended.code == 0, ended.stderr
    assert "0 of 2 stations are stations of the training; 2 are new (here, there)" in ended.stdout
    inputs = json.loads((folder / "new.nc.json").read_text())["inputs"]
    assert [each["path"] for each in inputs] == [FORECAST, "new.csv", "surface.zarr"]
    written = xr.load_dataset(folder / "new.nc", decode_timedelta=False)
    assert written.station_id.values.tolist() == ["here", "there"]
    with pytest.warns(UserWarning, match="the forecasts of 2 stations, .* are those of the nearest land cells"):
        found = dw.load(corrector).correct(
            forecasts.sel(lead_time=[48]), untrained_times="correct",
            stations=dw.Points((40.1, -20.5), (20, 130), (300, 10), ("here", "there")),
            static_fields=dw.open_static([str(folder / "data/twin/static")]),
        )  # fmt: skip
    np.testing.assert_allclose(found["2t"].values, written.t2m.values, rtol=1e-6)


REFUSED = {
    "output=x.grib": r"30 stations, .* which GRIB cannot hold here; write NetCDF with format=netcdf",
    "output=x.nc stations=new.csv": r"station_cells=land needs the land-sea mask \(lsm\)",
    "output=x.nc static_fields=data/twin/static": "static_fields is for the stations of stations=FILE",
    "output=x.nc stations=data/twin/static": r"data/twin/static holds 33 x 64 points, .* not stations with ids",
    "output=x.nc corrector=runs/emos/corrector.safetensors stations=new.csv": "trained with forecasts on a grid",
}


@pytest.mark.parametrize("words", REFUSED)
def test_what_cannot_be_corrected_is_refused(words, scored, command):
    folder, _ = scored
    (folder / "new.csv").write_text("station,latitude,longitude,altitude\nhere,40.1,20,300\n")
    own = ["corrector=runs/stations/corrector.safetensors"] * ("corrector=" not in words)
    ended = command(folder, "correct", *own, f"input={FORECAST}", *words.split(), "untrained_times=correct")
    assert ended.code == 2
    assert re.search(REFUSED[words], ended.stderr)
    assert not (folder / "x.nc").exists()


def test_fit_in_python_equals_train(scored):
    folder, _ = scored
    forecasts = dw.open_ensemble([str(folder / "data/twin/output.sfc.*")], ["2t"], [48], chunks=None)
    observations = dw.open_analysis([str(folder / "observations.nc")], ["2t"], chunks=None)
    static = dw.open_static([str(folder / "data/twin/static")])
    task = dw.Task("t2m", ["2t"], ["2t"], [48])
    made = dw.fit(
        "emos", forecasts, observations, task=task, train=[2010, 2014], val=[2015, 2015], static=static,
        station_cells="land",
    )  # fmt: skip
    state = dw.load(folder / "runs/stations/corrector.safetensors").state_dict()
    assert made.grid.cells is not None
    for name, values in made.state_dict().items():
        np.testing.assert_array_equal(values, state[name], err_msg=name)
