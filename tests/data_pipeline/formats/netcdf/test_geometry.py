"""Stations, single points, curvilinear and unstructured grids: the same values at the same places, or a refusal."""

import netCDF4
import numpy as np
import pytest
from netcdf_parts import K, ramp, variables

from data_pipeline.common.errors import InputError
from data_pipeline.formats.open import analysis_fields, open_analysis, open_ensemble, open_static
from data_pipeline.grids.grid_coordinates import grid_of
from data_pipeline.grids.points import Points

NORTH, EAST = {"standard_name": "latitude"}, {"standard_name": "longitude", "units": "degrees_east"}
ID = {"cf_role": "timeseries_id"}
STARTS = {"units": "hours since 2020-01-01", "standard_name": "forecast_reference_time"}
VALID = {"units": "hours since 2020-01-01", "standard_name": "time"}
LEADS = {"units": "hours", "standard_name": "forecast_period"}
STATIONS = {
    "station_name": (("station",), ["Dillingen", "Hannover", "Innsbruck"], ID),
    "lat": (("station",), [48.6, 52.5, 47.3], NORTH),
    "lon": (("station",), [10.5, 9.7, 11.4], EAST),
    "alt": (("station",), [434.0, 55.0, 580.0], {"standard_name": "altitude", "units": "m"}),
}
POINTS = Points((48.6, 52.5, 47.3), (10.5, 9.7, 11.4), (434.0, 55.0, 580.0), ("Dillingen", "Hannover", "Innsbruck"))


def station_ensemble(plain, path, order=("time", "step", "number", "station")):
    sizes = {"time": 2, "step": 3, "number": 4, "station": 3}
    values = ramp(*sizes.values()).transpose([[*sizes].index(name) for name in order])
    axes = {
        "time": (("time",), [0, 24], STARTS), "step": (("step",), [24, 48, 72], LEADS),
        "number": (("number",), [0, 1, 2, 3], {"standard_name": "realization"}),
    }  # fmt: skip
    return plain.write(path, axes | STATIONS, {"t2m": (order, values, K)}, featureType="timeSeries")


@pytest.mark.parametrize("order", [("time", "step", "number", "station"), ("station", "number", "time", "step")])
def test_an_ensemble_at_stations(plain, tmp_path, order):
    path = station_ensemble(plain, tmp_path / "a.nc", order)
    dataset = open_ensemble(path)
    assert dict(dataset.sizes) == {"init_time": 2, "lead_time": 3, "number": 4, "point": 3}
    assert grid_of(dataset) == POINTS
    np.testing.assert_array_equal(dataset["2t"], ramp(2, 3, 4, 3))
    np.testing.assert_array_equal(dataset["2t"].isel(point=[2, 0], number=1).values, ramp(2, 3, 4, 3)[:, :, 1, [2, 0]])


def test_observations_at_stations_in_the_classic_format(plain, tmp_path):
    """Texts are arrays of letters there."""
    coordinates = {
        "time": (("time",), [12.0, 36.0], VALID), "lat": (("station",), [48.5, 52.5], NORTH),
        "lon": (("station",), [10.5, 9.75], EAST),
        "id": (("station", "letters"), netCDF4.stringtochar(np.array(["10852", "Hannover"], "S8")), ID),
    }  # fmt: skip
    fields = {"t2m": (("time", "station"), ramp(2, 2), K)}
    dataset = open_analysis(plain.write(tmp_path / "a.nc", coordinates, fields, "NETCDF3_CLASSIC"))
    assert grid_of(dataset) == Points((48.5, 52.5), (10.5, 9.75), ids=("10852", "Hannover"))
    np.testing.assert_array_equal(dataset["2t"], ramp(2, 2))


def test_a_single_station_without_its_own_dimension(plain, tmp_path):
    coordinates = {
        "time": (("time",), [12, 36], VALID), "lat": ((), 48.5, {"units": "degrees_north"}),
        "lon": ((), 10.5, {"units": "degrees_east"}), "id": ((), "Dillingen", ID),
        "alt": ((), 0.434, {"standard_name": "altitude", "units": "km"}),
    }  # fmt: skip
    path = plain.write(tmp_path / "a.nc", coordinates, {"t2m": (("time",), ramp(2), K)})
    fields = analysis_fields(path, variables("2t"))
    assert fields.grid == Points((48.5,), (10.5,), (434.0,), ("Dillingen",))
    out = np.empty((1, 1, 1, 1), np.float32)
    fields.read(fields.cells[1, 0], out)
    assert out.item() == 251


@pytest.mark.parametrize(
    ("numbers", "ids"), [([10852, 10338, 11120], ("10852", "10338", "11120")), ([0, 1, 2], ()), ([1, 2, 3], ())]
)
def test_numbers_of_stations_are_ids_unless_they_only_count(plain, tmp_path, numbers, ids):
    coordinates = {name: STATIONS[name] for name in ("lat", "lon")} | {"station": (("station",), numbers, {})}
    path = plain.write(tmp_path / "a.nc", coordinates, {"lsm": (("station",), ramp(3), {})})
    assert grid_of(open_static(path)).ids == ids


def test_the_altitude_of_the_model_is_not_that_of_the_station(plain, tmp_path):
    """Files often give both the standard_name of the station's altitude. One missing altitude makes all unknown."""
    model = (("station",), [0.5, 0.1, 1.2], {"standard_name": "surface_altitude", "units": "km"})
    for missing, altitudes in ((55.0, (434.0, 55.0, 580.0)), (np.nan, ())):
        alt = {"alt": (("station",), [434.0, missing, 580.0], STATIONS["alt"][2])}
        coordinates = {"model_altitude": model, **STATIONS, **alt}
        grid = grid_of(open_static(plain.write(tmp_path / "a.nc", coordinates, {"lsm": (("station",), ramp(3), {})})))
        assert (grid.altitudes, grid.model_altitudes) == (altitudes, (500.0, 100.0, 1200.0))


def test_a_station_that_moved_between_files_is_named(plain, tmp_path, capsys):
    for year, lat in ((0, 52.5), (1, 54.15)):
        places = {**STATIONS, "lat": (("station",), [48.5, lat, 47.3], {"units": "degrees_north"})}
        times = {"time": (("time",), [12 + 24 * year], VALID)}
        plain.write(tmp_path / f"{year}.nc", times | places, {"t2m": (("time", "station"), ramp(1, 3), K)})
    fields = analysis_fields([tmp_path / "0.nc", tmp_path / "1.nc"], variables("2t"))
    assert fields.grid.latitudes[1] == 52.5
    assert "1 of 3 stations moved by more than 1° (Hannover by 1.65°) between" in capsys.readouterr().out


@pytest.mark.parametrize("numbered", [False, True])
def test_a_curvilinear_grid_is_read_row_by_row(plain, tmp_path, numbered):
    lat, lon, north = 50 + ramp(3, 4) / 100, ramp(3, 4) / 10 - 30, NORTH | {"units": "radian"}
    coordinates = {"nav_lat": (("y", "x"), np.radians(lat), north) if numbered else (("y", "x"), lat, NORTH)}
    coordinates |= {"nav_lon": (("y", "x"), lon, EAST), "time": (("time",), [0, 24], VALID)}
    coordinates |= {"y": (("y",), np.arange(3), {}), "x": (("x",), np.arange(4), {})} if numbered else {}
    path = plain.write(tmp_path / "a.nc", coordinates, {"t2m": (("x", "time", "y"), ramp(4, 2, 3), K)})
    fields, expected = analysis_fields(path, variables("2t")), ramp(4, 2, 3).transpose(1, 2, 0).reshape(2, 12)
    assert fields.grid.matches(Points(tuple(lat.ravel()), tuple(lon.ravel())))
    for rows in (slice(0, 12), slice(3, 5), slice(7, 12)):
        out = np.empty((1, 1, rows.stop - rows.start, 1), np.float32)
        fields.read(fields.cells[1, 0], out, (rows, slice(None)))
        np.testing.assert_array_equal(out[0, 0, :, 0], expected[1, rows])
    dataset = open_analysis(path)
    np.testing.assert_array_equal(dataset["2t"].isel(point=[9, 2, 3]).values, expected[:, [9, 2, 3]])
    assert float(dataset["2t"].isel(time=1, point=5)) == expected[1, 5]


def test_a_rotated_grid_without_positions(plain, tmp_path):
    coordinates = {
        "rlat": (("rlat",), [-1.0, 0.0], {"standard_name": "grid_latitude", "units": "degrees"}),
        "rlon": (("rlon",), [0.0, 1.0, 2.0], {"standard_name": "grid_longitude", "units": "degrees"}),
        "pole": ((), 0, {
            "grid_mapping_name": "rotated_latitude_longitude", "grid_north_pole_latitude": 40.0,
            "grid_north_pole_longitude": -170.0,
        }),
    }  # fmt: skip
    fields = {"lsm": (("rlat", "rlon"), ramp(2, 3), {"grid_mapping": "pole"})}
    dataset = open_static(plain.write(tmp_path / "a.nc", coordinates, fields))
    np.testing.assert_array_equal(dataset.lsm, ramp(6))
    assert (dataset.latitude[3].item(), dataset.longitude[3].item()) == pytest.approx((50, 10))
    assert dataset.latitude[0].item() == pytest.approx(49)


SHARED = "its time and its positions share the dimension"
REFUSED = [
    (
        {name: STATIONS[name] for name in ("lat", "lon", "station_name")} | {"time": (("obs",), [0, 24, 0, 0], VALID)},
        {"row_size": (("station",), [2, 1, 1], {"sample_dimension": "obs"}), "t2m": (("obs",), ramp(4), K)},
        r"holds stations as a ragged array \(row_size counts .*write it as an array \(time, station\)",
    ),
    (
        {
            "time": (("time",), [0, 24], VALID), "lat": (("time",), [50.0, 51.0], NORTH),
            "lon": (("time",), [8.0, 9.0], EAST),
        },
        {"t2m": (("time",), ramp(2), K)}, f"{SHARED} time; only stations that do not move",
    ),
    (
        STATIONS | {"time": (("station", "obs"), [[0, 24], [0, 24], [6, 30]], VALID)},
        {"t2m": (("station", "obs"), ramp(3, 2), K)}, rf"{SHARED} station; .* have the same times are read",
    ),
    (
        STATIONS | {"lat": (("station",), [1.0, 2.0, 3.0], NORTH | {"units": "m"})},
        {"t2m": (("station",), ramp(3), K)}, "its lat is in 'm', not in degrees or radians",
    ),
]  # fmt: skip


@pytest.mark.parametrize(
    ("coordinates", "fields", "sentence"), REFUSED, ids=["ragged", "trajectory", "own times", "in metres"]
)
def test_other_sampling_geometries_are_refused_by_name(plain, tmp_path, coordinates, fields, sentence):
    path = plain.write(tmp_path / "a.nc", coordinates, fields, featureType="timeSeries")
    with pytest.raises(InputError, match=sentence):
        open_analysis(path)
