"""Forecasts on a grid at stations: which cells give them, and the same samples from all sources."""

import json
from bisect import bisect
from dataclasses import asdict, replace
from itertools import product
from math import acos, cos, radians, sin

import numpy as np
import pytest
import xarray as xr
from hypothesis import given
from hypothesis import strategies as st
from regridding_parts import octahedral
from weather_files import GRID, NETCDF_4, STARTS, TASK, WEATHER, WRITERS, open_arrays

from data_pipeline.archive import Archive
from data_pipeline.common.errors import InputError
from data_pipeline.dataset import ForecastDataset
from data_pipeline.grid import Grid
from data_pipeline.grids.grid_coordinates import grid_coordinates
from data_pipeline.grids.points import Points, grid_of_json, station_fields
from data_pipeline.grids.station_cells import STATION_METHODS
from data_pipeline.regridding.stations import positions_of, station_weights, stations_on
from data_pipeline.sources.array_fields import StandardDataset

STATIONS = Points((51.2, -33.0, 4.9, 89.0), (0.4, 350.1, 200.7, 12.0), (10.0, 900.0, 0.0, 5.0), ("a", "b", "c", "d"))


def angle(lat, lon, other_lat, other_lon):
    """The angle between two positions by the law of cosines."""
    lat, lon, other_lat, other_lon = map(radians, (lat, lon, other_lat, other_lon))
    return acos(min(1, sin(lat) * sin(other_lat) + cos(lat) * cos(other_lat) * cos(lon - other_lon)))


def corners(grid, lat, lon):
    """The rows and columns around a position, in a grid around the globe."""
    row = min(max(bisect([-one for one in grid.latitudes], -lat) - 1, 0), grid.shape[0] - 2)
    column = bisect(grid.longitudes, lon % 360) - 1
    return [(row + down, (column + right) % grid.shape[1]) for down in (0, 1) for right in (0, 1)]


PLACES = st.tuples(st.floats(-85, 85), st.floats(-180, 360), st.floats(0, 3000))


@given(PLACES, st.integers(0, 2**31), st.sampled_from(STATION_METHODS))
def test_cells_are_those_that_each_method_describes(place, seed, method):
    lat, lon, altitude = place
    random = np.random.default_rng(seed)
    surface = {"lsm": random.integers(0, 2, GRID.shape), "z": 9.80665 * random.uniform(0, 3000, GRID.shape)}
    field = random.standard_normal(GRID.shape)

    def static(points):
        return {name: values.ravel()[station_weights(GRID, points).positions[:, 0]] for name, values in surface.items()}

    found, _ = stations_on(Points((lat,), (lon,), (altitude,), ("a",)), GRID, method, static)
    value = station_weights(GRID, found).apply(field.ravel(), np.array([0])).item()
    around = corners(GRID, lat, lon)

    def apart(cell):
        return angle(lat, lon, GRID.latitudes[cell[0]], GRID.longitudes[cell[1]])

    if method == "bilinear":
        wrapped = np.concatenate([field, field[:, :1]], 1)
        axes = {"lat": np.array(GRID.latitudes), "lon": [*GRID.longitudes, 360.0]}
        whole = xr.DataArray(wrapped, axes, ("lat", "lon"))
        assert value == pytest.approx(whole.interp(lat=lat, lon=lon % 360).item(), abs=1e-9)
        return
    if method == "nearest":
        best = min(np.ndindex(GRID.shape), key=apart)
    if method == "land":
        best = min([cell for cell in around if surface["lsm"][cell]] or around, key=apart)
    if method == "height":
        best = min(around, key=lambda cell: abs(surface["z"][cell] / 9.80665 - altitude))
    tied = {cell for cell in around if abs(apart(cell) - apart(best)) < 1e-9} if method != "height" else {best}
    assert value in {field[cell] for cell in tied}
    if len(tied) == 1:
        assert found.model_altitudes[0] == pytest.approx(surface["z"][best] / 9.80665)
        # A chord of the unit sphere is 2 sin(angle / 2).
        chord = 2 * sin(apart(best) / 2) * 6371
        assert station_fields(found)["cell_distance"][0] == pytest.approx(chord, abs=1e-3)
        assert station_fields(found)["height_difference"][0] == altitude - found.model_altitudes[0]


REDUCED = octahedral(8)
SCATTERED = Points(*np.random.default_rng(1).uniform((-80, 0), (80, 360), (400, 2)).T)


@pytest.mark.parametrize("grid", [GRID, Grid(GRID.latitudes[2:9], GRID.longitudes[5:20]), REDUCED, SCATTERED], ids=str)
def test_the_nearest_cell_of_every_kind_of_grid(grid):
    random = np.random.default_rng(2)
    cells = np.stack(positions_of(grid, np.arange(np.prod(grid.shape))), 1)
    positions = np.concatenate([random.uniform((-85, 0), (85, 360), (60, 2)), cells[190:193]])
    stations = Points(*positions.T, ids=tuple(map(str, range(len(positions)))))
    found, sentence = stations_on(stations, grid, "nearest", lambda _: {})
    left = [positions[int(name)] for name in found.ids]
    nearest = [min(range(len(cells)), key=lambda k, at=at: angle(*at, *cells[k])) for at in left]
    weights = station_weights(grid, found)
    np.testing.assert_array_equal(weights.positions[:, 0], nearest)
    assert ("outside the grid are left out" in sentence) == (len(left) < len(positions))
    if grid is GRID:
        assert len(left) == len(positions)
    elif grid is not REDUCED:
        assert 3 <= len(left) < len(positions)
    values, rows = np.arange(len(cells), dtype=float), np.arange(len(left))[::2]
    needed = weights.rows_needed(rows)
    begin = needed.start * weights.columns
    part = values[begin : needed.stop * weights.columns]
    np.testing.assert_array_equal(weights.apply(part, rows, offset=begin)[:, 0], np.array(nearest)[::2])


def test_cells_are_found_in_every_grid_that_has_them_and_missing_ones_are_refused():
    found, _ = stations_on(STATIONS, GRID, "bilinear", lambda _: {})
    finer = Grid.regular(33, 64)
    field = np.random.default_rng(3).standard_normal(finer.shape)
    coarse, fine = (station_weights(grid, found) for grid in (GRID, finer))
    rows = np.arange(4)
    np.testing.assert_array_equal(coarse.apply(field[::2, ::2].ravel(), rows), fine.apply(field.ravel(), rows))
    with pytest.raises(InputError, match=r"come from cells such as .*, which .* lacks; give a forecast on the grid"):
        station_weights(Grid.regular(15, 28), found)
    with pytest.raises(InputError, match=r"4 stations, .* state no cells of a grid"):
        station_weights(GRID, STATIONS)
    assert grid_of_json(json.loads(json.dumps(asdict(found)))) == found
    field[0] = np.nan  # of station d, the row at the pole has most of the weight
    assert np.isnan(fine.apply(field.ravel(), rows)[:, 0]).tolist() == [False, False, False, True]


def test_stations_of_other_cells_are_other_stations():
    one, other = (stations_on(STATIONS, GRID, method, lambda _: {})[0] for method in ("nearest", "bilinear"))
    assert one.matches(STATIONS)
    assert not one.matches(other)
    assert one.matches(stations_on(STATIONS, Grid.regular(17, 32), "nearest", lambda _: {})[0])
    with pytest.raises(InputError, match="the forecasts of 4 stations, a the first, come from other cells of the grid"):
        one.positions_in(other)
    assert one.at(np.array([2, 0])).cells == replace(one, ids=()).at(np.array([2, 0])).cells


def test_a_mean_of_whole_numbers_is_no_whole_number():
    """A dataset may have other variables than the targets, which `Corrector.correct` brings to the stations, too."""
    dataset = WEATHER["ensemble"].assign(kind=WEATHER["ensemble"]["2t"].isel(init_time=0) * 0 + np.arange(32))
    dataset["kind"] = dataset["kind"].astype("i4")
    points, _ = stations_on(STATIONS, GRID, "bilinear", lambda _: {})
    found = StandardDataset.forecasts(dataset, "the dataset").at_stations(points).dataset
    columns = np.array(STATIONS.longitudes) / 11.25
    columns[1] = 31 * (32 - columns[1])  # between column 31 and column 0
    np.testing.assert_allclose(found["kind"].values[0, 0], columns)
    assert found["2t"].dtype == np.float32


def write_observations(path, lead):
    """Write observations of the stations, so many hours after the starts."""
    times = STARTS + np.timedelta64(lead, "h")
    values = 280 + np.arange(12, dtype="f4").reshape(3, 4)
    data = xr.Dataset({"2t": (("time", "point"), values, {"units": "K"})}, {"time": times})
    data = data.assign_coords(grid_coordinates(STATIONS))
    data.station.attrs["cf_role"] = "timeseries_id"
    data.altitude.attrs |= {"standard_name": "altitude", "units": "m"}
    for name in ("latitude", "longitude"):
        data[name].attrs["units"] = f"degrees_{'north' if name == 'latitude' else 'east'}"
    data.to_netcdf(path)


def open_with(name, folder, method, task=None):
    """Return the source `name` of WRITERS with an ensemble on a grid and observations at stations."""
    folder.mkdir()
    make, open_source = WRITERS[name]
    for part in ("ensemble", "static"):
        make(folder / part, part, WEATHER[part])
    write_observations(folder / "analysis", 36 if "grib" in name else 24)  # the encoder writes starts at 12 UTC
    if open_source is open_arrays:
        from data_pipeline.sources.array_source import ArraySource

        parts = [xr.open_dataset(folder / part).load() for part in ("ensemble", "analysis", "static")]
        return ArraySource(*parts, station_cells=method)
    archive = Archive(*([str(folder / part)] for part in WEATHER), station_cells=method)
    if name == "zarr url":
        archive = replace(archive, ensemble=[f"file://{folder / 'ensemble'}"])
    if name == "store":
        from data_pipeline.store import Store

        return Store.write(archive, task or STATION_TASK, folder / "store")
    return archive


STATION_TASK = replace(TASK, static=("lsm", "altitude", "cell_distance"))


@pytest.mark.parametrize(
    ("name", "method"), [*product(WRITERS, ["bilinear"]), *product(("netcdf 4", "store", "arrays"), ["land"])]
)
def test_every_source_has_the_same_samples_at_stations(name, method, tmp_path):
    source = open_with(name, tmp_path / "own", method)
    dataset = ForecastDataset(source, STATION_TASK, [2020])
    sample = dataset[1]
    assert dataset.grid.ids == STATIONS.ids
    assert sample.ensemble.shape == (2, 2, 4, 1)
    np.testing.assert_array_equal(sample.target[0, :, 0], 280 + np.arange(4, 8))
    np.testing.assert_array_equal(sample.static[4, :, 0], STATIONS.altitudes)
    around = [corners(GRID, *position) for position in zip(STATIONS.latitudes, STATIONS.longitudes, strict=True)]
    land = WEATHER["static"].lsm.values
    weights = np.zeros((4, *GRID.shape))
    for k, (lat, lon) in enumerate(zip(STATIONS.latitudes, STATIONS.longitudes, strict=True)):
        if method == "land":  # all cells of this mask are land
            weights[k][min(around[k], key=lambda one: angle(lat, lon, GRID.latitudes[one[0]], 11.25 * one[1]))] = 1
        for row, column in around[k] if method == "bilinear" else ():
            north = 1 - abs(GRID.latitudes[row] - lat) / 11.25
            weights[k][row, column] = north * (1 - abs((11.25 * column - lon + 180) % 360 - 180) / 11.25)
    members = WEATHER["ensemble"].isel(init_time=1, lead_time=0)
    fields = np.stack([members["2t"].values, members["t"].values[:, 0]], 1)
    expected = np.einsum("nij,mcij->mcn", weights, fields.astype(float))
    # GRIB holds values with 24 bits or fewer.
    np.testing.assert_allclose(sample.ensemble[..., 0], expected, atol=2e-3 if "grib" in name else 2e-5)
    np.testing.assert_allclose(sample.static[3, :, 0], np.einsum("nij,ij->n", weights, land), atol=2e-3)


@pytest.mark.parametrize("name", ["store", "arrays"])
def test_groups_of_members_are_those_of_the_members_at_stations(name, tmp_path):
    """The spread of interpolated members is not the interpolated spread."""
    task = replace(STATION_TASK, formulas=("group_mean(2t, 1)", "group_spread(2t, 0)", "in_group(2t, 1)"))
    source = open_with(name, tmp_path / "own", "bilinear", task)
    for sample in ForecastDataset(source, task, [2020]):
        members, _, mean, spread, belongs = sample.ensemble.double().unbind(1)
        assert belongs.mean((1, 2)).tolist() == [0.0, *[1.0] * (len(members) - 1)]
        np.testing.assert_allclose(mean, members[1:].expand_as(members), rtol=1e-6)
        np.testing.assert_allclose(spread, members.std(0).expand_as(members), rtol=1e-4)


@pytest.mark.parametrize("name", ["grib", "netcdf 4", "store", "arrays"])
def test_formulas_are_computed_on_the_grid_and_read_at_stations(name, tmp_path):
    """Gradients need the neighbours of a cell; inputs at other lead times come from other groups of fields."""
    formulas = ("laplacian(t@850)", "eastward_gradient(t@850)")
    task = replace(STATION_TASK, formulas=formulas)
    found = ForecastDataset(open_with(name, tmp_path / "own", "bilinear", task), task, [2020])
    gridded = open_gridded(tmp_path / "own")
    whole = ForecastDataset(gridded, replace(TASK, formulas=formulas), [2020])
    stations = found.grid
    weights = station_weights(GRID, stations)
    for k in range(len(whole)):
        expected = [
            [weights.apply(field.numpy().ravel(), np.arange(4)) for field in member] for member in whole[k].ensemble
        ]
        np.testing.assert_allclose(found[k].ensemble, expected, rtol=1e-4, atol=2e-3 if name == "grib" else 1e-12)
        if name != "grib":
            np.testing.assert_allclose(found[k].ensemble[:, 2:], np.array(expected)[:, 2:], rtol=1e-3, atol=1e-16)


def open_gridded(folder):
    """Open the ensemble of a folder with analyses on its grid."""
    NETCDF_4(folder / "whole", "ensemble", WEATHER["ensemble"])
    NETCDF_4(folder / "truth", "analysis", WEATHER["analysis"])
    return Archive([str(folder / "whole")], [str(folder / "truth")], [str(folder / "static")])


def test_an_archive_names_what_it_lacks(tmp_path, capsys):
    archive = open_with("netcdf 4", tmp_path / "own", None)
    ForecastDataset(archive, STATION_TASK, [2020])
    said = capsys.readouterr().out
    assert "the forecasts of 4 stations, " in said
    assert "are those of the cells around them, interpolated, " in said
    plain = replace(archive, static_fields=())
    for method, why in {"land": r"the land-sea mask \(lsm\)", "height": r"the surface height \(z or orog\)"}.items():
        with pytest.raises(InputError, match=f"station_cells={method} needs {why} of the forecast model; add its file"):
            ForecastDataset(replace(plain, station_cells=method), TASK, [2020])
    NETCDF_4(tmp_path / "gridded", "analysis", WEATHER["analysis"])
    gridded = replace(archive, analysis=[str(tmp_path / "gridded")], station_cells="nearest")
    with pytest.raises(InputError, match=r"station_cells is for an ensemble on a grid and observations at stations"):
        ForecastDataset(gridded, TASK, [2020])
    with pytest.raises(InputError, match=r"station_cells must be one of nearest, land, height, bilinear"):
        replace(archive, station_cells="best")
    prints = {replace(archive, station_cells=each).fingerprint for each in (None, *STATION_METHODS)}
    assert len(prints) == 5
