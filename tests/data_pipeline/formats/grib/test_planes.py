"""Projected and rotated grids in every scanning mode: positions and values are those that ecCodes and cfgrib give.

ecCodes places the cells of all these grids correctly if rows go east and north. The corners of that grid are the first
points of the same grid in the other scanning modes.
"""

from contextlib import nullcontext

import eccodes
import numpy as np
import pytest
import xarray as xr
from plane_parts import COLUMNS, PLANES, ROWS, plane_message

from data_pipeline.archive import Archive
from data_pipeline.common.errors import InputError
from data_pipeline.common.messages import say_once
from data_pipeline.dataset import ForecastDataset
from data_pipeline.formats.grib.horizontal import Layout
from data_pipeline.formats.grib.keys import opened
from data_pipeline.formats.open import ensemble_fields, open_ensemble
from data_pipeline.protocols import ALL
from data_pipeline.task import Task, Variable
from data_pipeline.writing import Edit, rewrite
from tests.data_pipeline.formats.grib.test_layout import SCANS, points_in_scanning_order

FIELD = np.random.default_rng(0).normal(280, 5, (ROWS, COLUMNS))
"""From low to high j and i, as all fields are read."""


def stored(field, scanning):
    """The values in the order of the file, one step at a time; row 0 of `field` is the lowest."""
    order = points_in_scanning_order(ROWS, COLUMNS, scanning)
    return np.array([field[ROWS - 1 - row, column] for row, column in order])


def by_eccodes(message):
    """Positions (2, H, W) of a message whose rows go east and north."""
    with opened(message) as handle:
        positions = [eccodes.codes_get_array(handle, f"{axis}itudes") for axis in ("lat", "long")]
    return np.reshape(positions, (2, ROWS, COLUMNS))


def first_point(name, positions, scanning):
    """The first point in a scanning mode; rotated grids state it in their own coordinates."""
    row, column = (0 if scanning & 64 else -1), (-1 if scanning & 128 else 0)
    steps = [value for key, value in PLANES[name][1].items() if key.endswith("DirectionIncrementInDegrees")]
    if not steps:
        return positions[0, row, column], positions[1, row, column] % 360
    first = PLANES[name][2]
    return first["latitude"] - row * (ROWS - 1) * steps[1], first["longitude"] - column * (COLUMNS - 1) * steps[0]


@pytest.mark.parametrize("name", PLANES)
def test_every_grid_in_every_scanning_mode_is_read_and_rewritten(name, tmp_path):
    keys = {"typeOfLevel": "surface", "shortName": "2t"}
    positions = by_eccodes(plane_message(name, FIELD, **keys))
    new = FIELD[::-1] + 3
    for scanning in SCANS if name in ("NBM", "HRDPS") else (0, 64, 128, 224):
        first = first_point(name, positions, scanning)
        bits = (11, 16)[scanning.bit_count() % 2]  # 16 bits are decoded by numpy, 11 by ecCodes
        packed = {"scanningMode": scanning, "bitsPerValue": bits}
        message = plane_message(name, stored(FIELD, scanning), first, **packed, **keys)
        path = tmp_path / f"{scanning}.grib"
        path.write_bytes(message)
        fields = ensemble_fields(path, [Variable("2t")], [0])
        grid = fields.reader.grid
        tolerance = 1e-9 if scanning == 64 else 2e-3 if PLANES[name][0] == 1 else 1e-5  # the corner is rounded
        np.testing.assert_allclose(grid.latitudes, positions[0].ravel(), atol=tolerance)
        east = np.array(grid.longitudes) - positions[1].ravel()
        np.testing.assert_allclose((east + 180) % 360 - 180, 0, atol=tolerance / np.cos(np.radians(80)))
        with opened(message) as handle:
            assert eccodes.codes_get(handle, "scanningMode") == scanning
            expected = eccodes.codes_get_array(handle, "values").astype(np.float32)
        out = np.empty((1, ROWS * COLUMNS, 1), np.float32)
        fields.reader.read(np.array([0]), out, (ALL, ALL))
        np.testing.assert_array_equal(stored(out.reshape(ROWS, COLUMNS), scanning), expected)
        part = np.empty((1, 7, 1), np.float32)
        fields.reader.read(np.array([0]), part, (slice(6, 13), ALL))
        np.testing.assert_array_equal(part, out[:, 6:13])
        rewrite(path, tmp_path / "new.grib", lambda _: Edit(new.reshape(-1, 1)))
        with opened(written := (tmp_path / "new.grib").read_bytes()) as handle:
            assert len(written) == len(message)
            found = eccodes.codes_get_array(handle, "values")
            packing = eccodes.codes_get(handle, "offsetSection" + ("5" if PLANES[name][0] == 2 else "4"))
        np.testing.assert_allclose(found, stored(new, scanning), atol=np.ptp(new) / 2**bits)
        decimal = slice(8 + 26, 8 + 28) if PLANES[name][0] == 1 else slice(0, 0)  # GRIB1's decimal scale
        assert message[: decimal.start] + message[decimal.stop : packing] == (
            written[: decimal.start] + written[decimal.stop : packing]
        )


@pytest.mark.parametrize(
    "sample", ["reduced_ll_sfc_grib1", "reduced_rotated_gg_pl_32_grib2", "rotated_gg_pl_grib2", "regular_gg_pl_grib2"]
)
def test_other_grids_of_eccodes(sample):
    handle = eccodes.codes_grib_new_from_samples(sample)
    layout = Layout.of(handle)
    theirs = [eccodes.codes_get_array(handle, f"{axis}itudes") for axis in ("lat", "long")]
    ours = np.broadcast_arrays(layout.grid.cell_latitudes, layout.grid.cell_longitudes)
    for own, their in zip(ours, theirs, strict=True):
        np.testing.assert_allclose((layout.store(own) - their + 180) % 360 - 180, 0, atol=1e-6)


def winds(path, step, along_grid):
    """A file of 10u with vectors along the axes of the grid, or of east and north."""
    keys = {"productDefinitionTemplateNumber": 1, "typeOfLevel": "heightAboveGround", "level": 10, "shortName": "10u"}
    keys |= {"dataDate": 20200102 - bool(step), "dataTime": 0, "step": step, "perturbationNumber": along_grid}
    path.write_bytes(plane_message("HRDPS", FIELD, **keys, uvRelativeToGrid=along_grid))
    return path


def station(folder, ensemble):
    """A file of 10u at a station on the first cell of a forecast."""
    grid = ensemble_fields(ensemble, [Variable("10u")], [24]).grid
    place = {
        name: ("station", [axis[0]], {"standard_name": name, "units": units})
        for name, axis, units in (
            ("latitude", grid.latitudes, "degrees_north"), ("longitude", grid.longitudes, "degrees_east"),
        )
    }  # fmt: skip
    place |= {"id": ("station", ["a"], {"cf_role": "timeseries_id"}), "time": [np.datetime64("2020-01-02", "ns")]}
    xr.Dataset({"10u": (("time", "station"), [[3.0]], {"units": "m s-1"})}, place).to_netcdf(folder / "station.nc")
    return str(folder / "station.nc")


@pytest.mark.parametrize("along_grid", [1, 0])
def test_winds_along_the_grid_are_said_and_never_mixed_with_winds_along_east_and_north(tmp_path, along_grid, capsys):
    task = Task("wind", ["10u"], ["10u"], [24])
    ensemble = winds(tmp_path / "ensemble.grib", 24, along_grid)
    truths = [winds(tmp_path / f"truth{flag}.grib", 0, flag) for flag in (0, 1)]
    say_once.cache_clear()
    ForecastDataset(Archive([str(ensemble)], [str(truths[along_grid])]), task, [2020])
    said = "ensemble.grib: 1 fields of 10u are along the axes of the grid"
    assert capsys.readouterr().out.count(said) == along_grid
    with pytest.raises(InputError, match=r"10u lies on the axes of .* in the ensemble and on the axes of .* in the "):
        ForecastDataset(Archive([str(ensemble)], [str(truths[not along_grid])]), task, [2020])
    message = r"10u lies on the axes of the grid in the ensemble and on the axes of east and north in the analysis"
    with pytest.raises(InputError, match=message) if along_grid else nullcontext():
        ForecastDataset(Archive([str(ensemble)], [station(tmp_path, ensemble)]), task, [2020])
    both = ensemble.read_bytes() + winds(tmp_path / "other.grib", 24, 1 - along_grid).read_bytes()
    (tmp_path / "both.grib").write_bytes(both)
    with pytest.raises(InputError, match=r"has 10u on 2 levels, 1 x the axes of .*shortName=10u,uvRelativeToGrid=0"):
        ensemble_fields(tmp_path / "both.grib", task.inputs, [24])


def test_points_are_not_brought_to_a_regular_grid(tmp_path):
    (tmp_path / "file.grib").write_bytes(plane_message("NBM", FIELD, typeOfLevel="surface", shortName="2t"))
    archive = Archive([str(tmp_path / "file.grib")], [str(tmp_path / "file.grib")], grid=0.5)
    with pytest.raises(InputError, match=r"fields of 20 points, .* cannot be brought to a grid; leave out .* cdo -f"):
        ForecastDataset(archive, Task("plane", ["2t"], ["2t"], [0]), [2007])


def test_a_truth_in_netcdf_has_its_rows_in_another_order_than_the_ensemble(tmp_path):
    """Points of GRIB rise in j; NetCDF keeps the order of its rows."""
    keys = {"typeOfLevel": "heightAboveGround", "level": 2, "shortName": "2t", "dataTime": 0}
    (tmp_path / "ensemble.grib").write_bytes(plane_message("HRDPS", FIELD, **keys, dataDate=20200101, step=24))
    (tmp_path / "truth.grib").write_bytes(plane_message("HRDPS", FIELD, **keys, dataDate=20200102, step=0))
    with xr.open_dataset(tmp_path / "truth.grib", engine="cfgrib", backend_kwargs={"indexpath": ""}) as truth:
        truth.isel(y=slice(None, None, -1)).drop_vars("step").to_netcdf(tmp_path / "truth.nc")
    archive = Archive([str(tmp_path / "ensemble.grib")], [str(tmp_path / "truth.nc")])
    sample = ForecastDataset(archive, Task("plane", ["2t"], ["2t"], [24]), [2020])[0]
    np.testing.assert_array_equal(sample.target.ravel(), sample.ensemble.ravel())


def test_names_of_harmonie_near_the_ground(tmp_path):
    """ecCodes names these parameters of table 253 without their height."""
    codes = {(11, 2): "2t", (33, 10): "10u", (34, 10): "10v", (52, 2): "2r", (51, 2): "2sh", (17, 2): "2d"}
    codes[33, 80] = "u"
    messages, own = [], {"centre": "eidb", "table2Version": 253, "indicatorOfTypeOfLevel": 105}
    for code, height in codes:
        messages.append(plane_message("HARMONIE", FIELD, **own, indicatorOfParameter=code, level=height))
        with opened(messages[-1]) as handle:
            assert eccodes.codes_get(handle, "shortName") in ("t", "u", "v", "r", "q", "td")
    (tmp_path / "file.grib").write_bytes(b"".join(messages))
    assert set(open_ensemble(tmp_path / "file.grib")) == set(codes.values())
