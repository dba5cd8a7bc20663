"""The option `area`: the points of a box, from every source and through the verbs."""

from dataclasses import replace

import numpy as np
import pytest
import xarray as xr
from hypothesis import given
from hypothesis import strategies as st
from weather_files import GRID, TASK, WEATHER, WRITERS, write

from data_pipeline.archive import Archive
from data_pipeline.common.errors import InputError
from data_pipeline.dataset import ForecastDataset
from data_pipeline.grids.points import Points
from data_pipeline.regridding.area import check_area, cut

EDGES = st.tuples(st.integers(-90, 90), st.integers(-180, 180), st.integers(1, 180), st.integers(1, 360))


@given(EDGES)
def test_the_points_of_a_box_are_kept_from_west_to_east(edges):
    north, west, high, wide = edges
    south, east = max(north - high, -90), west + wide
    if north == -90:
        return
    check_area([north, west, south, east])
    latitudes = [one for one in GRID.latitudes if south <= one <= north]
    turns = {one + 360 * turn for one in GRID.longitudes for turn in (-1, 0, 1, 2)}
    longitudes = sorted(one for one in turns if west <= one <= east)
    if len(latitudes) < 2 or len(longitudes) < 2:
        with pytest.raises(InputError, match="fewer than 2 x 2 points"):
            cut(GRID, [north, west, south, east])
        return
    found = cut(GRID, [north, west, south, east])
    assert found.latitudes == tuple(latitudes)
    if len(longitudes) >= len(GRID.longitudes):  # the edges of the whole circle are one column
        assert found.longitudes == GRID.longitudes
    else:
        assert found.longitudes == pytest.approx(longitudes)


BOX = [60, -30, -20.5, 45]
ROWS, COLUMNS = slice(3, 10), [30, 31, 0, 1, 2, 3, 4]


@pytest.mark.parametrize("name", ["grib", "netcdf 4", "zarr 3 shards", "store"])
def test_every_source_reads_the_box_only(name, tmp_path):
    source = write(name, tmp_path / "own")
    if name == "store":
        from data_pipeline.store import Store

        archive = Archive(*([str(tmp_path / "own" / part)] for part in WEATHER), area=BOX)
        own = Store.write(archive, TASK, tmp_path / "part")
    else:
        own = replace(source, area=BOX)
    whole, part = (ForecastDataset(each, TASK, [2020]) for each in (source, own))
    assert part.grid.shape == (7, 7)
    for one, other in ((whole[1].ensemble, part[1].ensemble), (whole[1].target, part[1].target)):
        np.testing.assert_array_equal(one[..., ROWS, :][..., COLUMNS], other)
    np.testing.assert_array_equal(whole.static[3, ROWS][:, COLUMNS], part.static[3])
    assert part.fingerprint != whole.fingerprint


def test_cells_without_rows_are_cut_by_their_positions(tmp_path):
    """A curvilinear grid has latitudes and longitudes of two dimensions."""
    random = np.random.default_rng(1)
    lat, lon = np.meshgrid(np.linspace(40, 60, 9), np.linspace(-10, 20, 8), indexing="ij")
    lat, lon = lat + random.uniform(-0.5, 0.5, lat.shape), lon + random.uniform(-0.5, 0.5, lon.shape)
    positions = {
        name: (("y", "x"), values, {"standard_name": name, "units": f"degrees_{way}"})
        for name, values, way in (("latitude", lat, "north"), ("longitude", lon, "east"))
    }
    parts = {}
    for part in ("ensemble", "analysis"):
        data = WEATHER[part][["2t"]].isel(latitude=slice(9), longitude=slice(8)).drop_vars(["latitude", "longitude"])
        parts[part] = data.rename(latitude="y", longitude="x").assign_coords(positions)
        parts[part].to_netcdf(tmp_path / part)
    archive = Archive([str(tmp_path / "ensemble")], [str(tmp_path / "analysis")], area=[55, -5, 45, 10])
    task = replace(TASK, inputs=TASK.targets, static=())
    dataset = ForecastDataset(archive, task, [2020])
    inside = (lat <= 55) & (lat >= 45) & (lon >= -5) & (lon <= 10)
    assert isinstance(dataset.grid, Points)
    assert 4 < inside.sum() == dataset.grid.shape[0] < inside.size
    np.testing.assert_array_equal(dataset[0].target[0, :, 0], parts["analysis"]["2t"].values[0][inside])
    np.testing.assert_array_equal(dataset[0].ensemble[:, 0, :, 0], parts["ensemble"]["2t"].values[0, 0][:, inside])


@pytest.mark.parametrize("area", ["Europe", [60, -30, 20], [20, 0, 60, 30], [60, 30, 20, 0], [60, 0, 20, None], 5])
def test_a_box_that_is_none_is_refused(area):
    with pytest.raises(InputError, match=r"data\.archive\.area must be \[north, west, south, east\]"):
        Archive(["a"], ["b"], area=area)
    with pytest.raises(InputError, match="has none of 1 point"):
        cut(Points((10.0,), (10.0,)), [5, 0, -5, 5])


def test_a_corrector_of_a_box_corrects_global_forecasts(tmp_path):
    """In GRIB and NetCDF; the input is cut to the box, so the corrected members equal those of a cut input."""
    from correction_runs import correct, random_corrector

    grid = cut(GRID, BOX)
    corrector = random_corrector(TASK.only_targets(), grid=grid, provenance={"regridding": "points"})
    for name in ("grib", "netcdf 4"):
        make, _ = WRITERS[name]
        make(tmp_path / "whole", "ensemble", WEATHER["ensemble"][["2t"]])
        part = WEATHER["ensemble"][["2t"]].isel(latitude=ROWS, longitude=COLUMNS)
        part = part.assign_coords(longitude=("longitude", list(grid.longitudes), part.longitude.attrs))
        make(tmp_path / "part", "ensemble", part)
        fields = []
        for source in ("whole", "part"):
            target = tmp_path / f"{source}.{'nc' if name != 'grib' else 'grib'}"
            notes = correct(corrector, tmp_path / source, target).notes
            engine = "cfgrib" if name == "grib" else "netcdf4"
            if source == "whole":
                assert any("of which they have the values" in one or "corrected fields only" in one for one in notes)
            with xr.open_dataset(target, engine=engine, decode_timedelta=False) as data:
                variable = next(one for one in data.data_vars.values() if one.ndim >= 4)
                fields.append(variable.squeeze().transpose(..., variable.dims[-2], variable.dims[-1]).values)
        np.testing.assert_allclose(*fields, rtol=2e-6)
