"""Our weights against `cdo remapcon` and `cdo remapbil`, on real reduced grids and on regular ones.

cdo needs corners to remap reduced grids conservatively, so these fields are given to it as unstructured cells. It
interpolates bilinearly from regular grids only: `setgridtype,regular` first interpolates along each row, as we do, and
then a target with a part of these longitudes gives the same values. Rows beyond the last row of a Gaussian grid are
compared with analytic fields in `test_weights.py`, because cdo extrapolates there.
"""

import os
import shutil
import subprocess

import eccodes
import netCDF4
import numpy as np
import pytest
import xarray as xr
from regridding_parts import GRIDS

from data_pipeline.formats.grib.horizontal import Layout
from data_pipeline.grid import Grid
from data_pipeline.regridding.weights import METHODS, weights_between

OPERATOR = {"conservative": "remapcon", "bilinear": "remapbil"}
SAMPLES = ("grib_cfgrib_samples/reduced_gg.grib", "grib_earthkit/O32_global.grib2")
TARGET = Grid.regular(19, 48)

if shutil.which("cdo") is None:
    pytest.skip("needs the program cdo (a Debian package)", allow_module_level=True)


def cdo(folder, operators, source):
    """Run cdo on `source`; return the field of its result on `TARGET`."""
    rows = " ".join(map(repr, TARGET.latitudes))
    columns = " ".join(map(repr, TARGET.longitudes))
    height, width = TARGET.shape
    (folder / "target").write_text(
        f"gridtype=lonlat\nxsize={width}\nysize={height}\nxvals={columns}\nyvals={rows}\n", encoding="utf-8"
    )
    command = ["cdo", "-s", "-O", "-P", "1", "-b", "F64", "-f", "nc", *operators, source, folder / "out.nc"]
    subprocess.run(command, check=True, capture_output=True, cwd=folder, env={**os.environ, "OMP_NUM_THREADS": "1"})
    with netCDF4.Dataset(folder / "out.nc") as found:
        fields = [variable for variable in found.variables.values() if variable.shape[-2:] == TARGET.shape]
        return np.ma.filled(fields[0][:].squeeze().astype(float), np.nan)


def read(path):
    """Grid and values of the first message of a file."""
    with path.open("rb") as file:
        handle = eccodes.codes_grib_new_from_file(file)
    return Layout.of(handle).grid, eccodes.codes_get_double_array(handle, "values")


def write_cells(path, grid, values):
    """Write a reduced grid as unstructured cells with four corners each."""
    lat, north, south = (np.repeat(rows, grid.counts) for rows in (grid.latitudes, grid.edges[:-1], grid.edges[1:]))
    lon = np.concatenate([grid.longitudes_of(row) for row in range(len(grid.counts))])
    half = np.repeat(180 / np.array(grid.counts), grid.counts)
    cells = {
        "lat": ("cell", lat, {"units": "degrees_north", "bounds": "lat_bounds"}),
        "lon": ("cell", lon, {"units": "degrees_east", "bounds": "lon_bounds"}),
        "lat_bounds": (("corner", "cell"), [north, north, south, south]),
        "lon_bounds": (("corner", "cell"), [lon + half, lon - half, lon - half, lon + half]),
        "x": ("cell", values, {"coordinates": "lat lon", "CDI_grid_type": "unstructured"}),
    }
    encoding = {name: {"_FillValue": None} for name in cells}
    xr.Dataset(cells).transpose("cell", ...).to_netcdf(path, encoding=encoding)


@pytest.mark.parametrize("name", SAMPLES)
def test_reduced_grids(samples, tmp_path, name):
    grid, values = read(samples / name)
    write_cells(tmp_path / "in.nc", grid, values)
    ours = weights_between(grid, TARGET, "conservative").apply(values, np.arange(19))
    np.testing.assert_allclose(ours, cdo(tmp_path, ["remapcon,target"], tmp_path / "in.nc"), atol=1e-5 * np.ptp(values))
    ours = weights_between(grid, TARGET, "bilinear").apply(values, np.arange(19))
    theirs = cdo(tmp_path, ["remapbil,target", "-setgridtype,regular", "-seltimestep,1"], samples / name)
    theirs = theirs.reshape(-1, *TARGET.shape)[0]  # the first level
    np.testing.assert_allclose(ours[1:-1], theirs[1:-1], atol=1e-6 * np.ptp(values))


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("name", ["from 180 degrees west", "regular Gaussian"])
def test_regular_grids(tmp_path, name, method):
    grid = GRIDS[name]
    values = np.random.default_rng(2).normal(280, 15, grid.shape)
    axes = {
        "lat": ("lat", list(grid.latitudes), {"units": "degrees_north", "standard_name": "latitude"}),
        "lon": ("lon", list(grid.longitudes), {"units": "degrees_east", "standard_name": "longitude"}),
    }
    xr.Dataset({"x": (("lat", "lon"), values)}, axes).to_netcdf(tmp_path / "in.nc")
    ours = weights_between(grid, TARGET, method).apply(values.ravel(), np.arange(19))
    theirs = cdo(tmp_path, [f"{OPERATOR[method]},target"], tmp_path / "in.nc")
    inner = slice(1, -1) if method == "bilinear" else slice(None)
    np.testing.assert_allclose(ours[inner], theirs[inner], atol=1e-6 * np.ptp(values))
