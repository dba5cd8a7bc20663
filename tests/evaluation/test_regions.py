"""Regions are boxes and masks; a region without cells, or on another grid, is refused in one sentence."""

import numpy as np
import pytest
import xarray as xr
from hypothesis import given
from hypothesis import strategies as st
from memory_archive import GRID

from data_pipeline.common.errors import InputError
from data_pipeline.grid import Grid
from data_pipeline.grids.points import Points
from evaluation.regions import Box, MaskFile, check_regions, mask_hashes, region_weights

QUARTER = Grid.regular(13, 24)  # every 15 degrees


@pytest.fixture
def mask_file(tmp_path):
    """Write a mask that is 1 east of Greenwich in the north, south first and from 180° W, as many files are."""

    def write(name="masks.nc", latitudes=QUARTER.latitudes[::-1], values=None, names=("lat", "lon")):
        longitudes = np.arange(-180.0, 180, 15)
        east, north = np.meshgrid(longitudes, latitudes)
        field = ((east > 0) & (north > 0)).astype(float) if values is None else values
        space = {names[0]: np.array(latitudes), names[1]: longitudes}
        dataset = xr.Dataset({"part": (("time", *names), field[None])}, space)
        dataset.to_netcdf(tmp_path / name)
        return str(tmp_path / name)

    return write


@given(north=st.integers(-6, 6), south=st.integers(-6, 6), west=st.integers(-12, 24), east=st.integers(-12, 24))
def test_a_box_holds_the_cells_that_a_walk_eastwards_meets(north, south, west, east):
    """On its own grid of 15 degrees: start in the west, and step eastwards until the east is reached."""
    north, south = max(north, south), min(north, south)
    columns = {west % 24}
    step = west
    while step % 24 != east % 24 or (east - west >= 24 and len(columns) < 24):
        step += 1
        columns.add(step % 24)
    expected = np.zeros(QUARTER.shape, bool)
    expected[np.ix_(range(6 - north, 6 - south + 1), sorted(columns))] = True
    found = Box("box", 15 * north, 15 * west, 15 * south, 15 * east).mask(QUARTER)
    np.testing.assert_array_equal(found, expected)


def test_weights_of_boxes_are_areas(mask_file):
    regions = check_regions({"belt": [30, -180, -30, 180], "part": {"file": mask_file(), "variable": "part"}})
    weights = region_weights(QUARTER, regions=regions)
    # The area between two parallels is the difference of their sines, here of the edges of the cells.
    belt = np.sin(np.radians(37.5)) * 2 / 2
    assert weights["belt"].sum() / weights["global"].sum() == pytest.approx(belt)
    east = (np.array(QUARTER.longitudes) > 0) & (np.array(QUARTER.longitudes) < 180)
    expected = weights["global"] * (QUARTER.cell_latitudes > 0) * east
    np.testing.assert_array_equal(weights["part"], expected)
    assert list(weights) == ["global", "unweighted", "north", "tropics", "south", "europe", "belt", "part"]
    inside = np.argwhere(weights["europe"] > 0)
    assert {QUARTER.latitudes[row] for row, _ in inside} == {75, 60, 45}
    assert {QUARTER.longitudes[column] for _, column in inside} == {0, 15, 30}


def test_masks_and_boxes_of_stations(tmp_path):
    stations = Points((47.3, 52.5, -17.7), (11.4, 9.7, 178.0), ids=("a", "b", "c"))
    xr.Dataset({"near": ("station", [0, 1, 1])}).to_netcdf(tmp_path / "near.nc")
    near = MaskFile("near", str(tmp_path / "near.nc"), "near")
    weights = region_weights(stations, regions=[near, Box("fiji", 0, 170, -30, -170)])
    assert weights["near"].ravel().tolist() == [0, 1, 1]
    assert weights["fiji"].ravel().tolist() == [0, 0, 1]


@pytest.mark.parametrize(
    ("option", "way_out"),
    [
        ([48, 5, 44, 17], "regions must be {NAME: [north, west, south, east], ...}"),
        ({"alps": [44, 5, 48, 17]}, "in degrees with 90 >= north >= south"),
        ({"alps": [48, 5, 44]}, "[north, west, south, east] in degrees, or {file: PATH, variable"),
        ({"alps": {"file": "a.nc"}}, "[north, west, south, east] in degrees, or {file"),
        ({"north": [48, 5, 44, 17]}, "every evaluation has the region north"),
        ({"my alps": [48, 5, 44, 17]}, "'my alps' is not a valid name"),
    ],
)
def test_wrong_options_are_refused(option, way_out):
    with pytest.raises(InputError, match=r"^regions") as caught:
        check_regions(option)
    assert way_out in str(caught.value)


def test_a_region_without_cells_is_refused():
    with pytest.raises(InputError, match=r"^regions.dot has no cell of the forecasts \(13 x 24 points"):
        region_weights(QUARTER, regions=[Box("dot", 50, 5, 49, 6)])


def test_masks_that_do_not_fit_are_refused(mask_file, tmp_path):
    (tmp_path / "text.nc").write_text("no NetCDF")
    good = mask_file()
    plain = mask_file("plain.nc", names=("y", "x"))
    kinds = mask_file("kinds.nc", values=np.full((13, 24), 4.0))
    cases = [
        (MaskFile("m", good, "part"), Grid.regular(7, 24), "not the grid of the forecasts (7 x 24 points"),
        (MaskFile("m", plain, "part"), QUARTER, "has the dimensions y 13, x 24, not the grid"),
        (MaskFile("m", good, "prat"), QUARTER, "masks.nc has no variable prat; it has part"),
        (MaskFile("m", "nowhere.nc", "part"), QUARTER, "regions.m: cannot read the NetCDF file nowhere.nc"),
        (MaskFile("m", str(tmp_path / "text.nc"), "part"), QUARTER, "regions.m: cannot read the NetCDF file"),
        (MaskFile("m", kinds, "part"), QUARTER, f"part of {kinds} must be 1 inside and 0 outside"),
    ]
    for mask, grid, sentence in cases:
        with pytest.raises(InputError) as caught:
            mask.mask(grid)
        assert sentence in str(caught.value)


def test_regions_of_the_command_are_scored_and_fingerprinted(archive, emos, scores_of, tmp_path):
    field = xr.Dataset(
        {"part": (("latitude", "longitude"), np.eye(*GRID.shape))},
        {"latitude": list(GRID.latitudes), "longitude": list(GRID.longitudes)},
    )
    field.to_netcdf(tmp_path / "part.nc")
    options = [
        f"correctors={{emos: {emos}}}",
        "references=[raw]",
        f"regions={{east: [90,30,-90,180], part: {{file: {tmp_path}/part.nc, variable: part}}}}",
    ]
    scores = scores_of("run", *options)
    # Members of the memory archive are 280 K and more, so that every cell has a score of its own.
    found = scores["models"]["raw"]["by"]["region"]
    assert list(found)[-2:] == ["east", "part"]
    assert scores["slices"]["region"]["east"] == {"n_forecasts": 20, "n_dates": 20, "cells": 7 * 6}
    assert scores["slices"]["region"]["part"]["cells"] == 7
    test = archive.starts >= np.datetime64("2016-01-01")
    members, truth = archive.raw[test, 1], archive.truth[test, 1]
    error = members.mean(1) - truth
    area = np.broadcast_to(GRID.weights[:, None], GRID.shape) * np.eye(*GRID.shape)
    assert found["part"]["bias"] == pytest.approx((error.mean(0) * area).sum() / area.sum(), rel=1e-5)
    (mask,) = (found for found in check_regions({"part": {"file": f"{tmp_path}/part.nc", "variable": "part"}}))
    assert scores["inputs"]["masks"] == {"part": mask.fingerprint}
    field.fillna(0).assign_attrs(changed=1).to_netcdf(tmp_path / "part.nc")
    assert scores["inputs"]["masks"] != mask_hashes([mask])["masks"]
