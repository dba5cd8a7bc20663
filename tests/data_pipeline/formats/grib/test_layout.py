import eccodes
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from data_pipeline.common.errors import InputError
from data_pipeline.formats.grib.horizontal import ALTERNATIVE_ROWS, I_NEGATIVELY, J_CONSECUTIVE, J_POSITIVELY, Layout

SCANS = [scan for scan in range(256) if not scan & 15]


def points_in_scanning_order(rows, columns, scanning):
    """The points (row from north, column from west) in scanning order, one step at a time."""
    order = []
    lines, points = (columns, rows) if scanning & J_CONSECUTIVE else (rows, columns)
    for line in range(lines):
        for point in range(points):
            if scanning & ALTERNATIVE_ROWS and line % 2:
                point = points - 1 - point
            j, i = (point, line) if scanning & J_CONSECUTIVE else (line, point)
            row = rows - 1 - j if scanning & J_POSITIVELY else j
            column = columns - 1 - i if scanning & I_NEGATIVELY else i
            order.append((row, column))
    return order


def layout(rows=3, columns=4, scanning=0, north=60, south=40, west=10, east=40):
    return Layout("regular_ll", rows, columns, north, south, west, east, scanning=scanning)


@given(st.integers(1, 5), st.integers(1, 6), st.sampled_from(SCANS), st.sampled_from([0.0, 180.0, 350.0]))
def test_every_scanning_mode_is_arranged_and_stored(rows, columns, scanning, west):
    around = (
        west + 360 * (columns - 1) / columns
    )  # a full circle: the grid starts at 0 degrees, independent of the scan
    ours = layout(rows, columns, scanning, west=west, east=around % 360)
    order = points_in_scanning_order(rows, columns, scanning)
    stored = np.arange(rows * columns, dtype=float)
    field = ours.arrange(stored)
    longitude = (west + 360 / columns * np.arange(columns)) % 360
    for value, (row, column) in zip(stored, order, strict=True):
        # Only identical points can both be the nearest.
        where = np.abs(np.array(ours.grid.longitudes) - longitude[column]).argmin() if columns > 1 else 0
        assert field[row, where] == value
    np.testing.assert_array_equal(ours.store(field), stored)


def test_a_global_grid_starts_at_greenwich_and_a_region_is_not_split():
    assert layout(columns=8, west=-180, east=135).grid.longitudes == (0, 45, 90, 135, 180, 225, 270, 315)
    assert layout(columns=8, west=180, east=135).grid.longitudes == (0, 45, 90, 135, 180, 225, 270, 315)
    assert layout(columns=4, west=350, east=20).grid.longitudes == (-10, 0, 10, 20)
    assert layout(columns=3, west=170, east=190).grid.longitudes == (170, 180, 190)
    assert layout(columns=1, west=7.27, east=7.27).grid.longitudes == (7.27,)
    # 1024 columns whose increment GRIB1 cannot store exactly
    np.testing.assert_allclose(
        layout(columns=1024, west=0, east=359.648).grid.longitudes, np.arange(1024) * 360 / 1024, atol=1e-9
    )


def test_a_repeated_meridian_and_spectral_fields_are_refused_with_their_own_remedy():
    with pytest.raises(InputError, match="less than 360"):
        _ = layout(columns=9, west=0, east=360).grid
    with pytest.raises(InputError, match=r"the grid is sh;.*cdo -f grb sp2gp"):
        _ = Layout.of(eccodes.codes_grib_new_from_samples("sh_pl_grib2")).grid
    # `cdo remapbil` refuses unstructured cells.
    with pytest.raises(InputError, match=r"the grid is unstructured_grid;.*remapdis,r720x361 -setgrid,CELLS"):
        _ = Layout("unstructured_grid").grid


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("grib_cfgrib_samples/reduced_gg.grib", "the reduced Gaussian grid N48 (13280 points)"),
        ("grib_metview_ens/t_n48.grib", "the reduced Gaussian grid N48 (13280 points)"),
        ("grib_earthkit/healpix_H8.grib2", "the HEALPix grid H8 (768 points)"),
        ("grib_earthkit/O32_global.grib2", "the octahedral reduced Gaussian grid O32 (5248 points)"),
    ],
)
def test_points_of_reduced_grids_are_where_eccodes_puts_them(samples, plain, name, text):
    handle = next(plain.handles(samples / name))
    grid = Layout.of(handle).grid
    assert str(grid) == text
    latitudes, longitudes = (eccodes.codes_get_array(handle, axis) for axis in ("latitudes", "longitudes"))
    ours = [(lat, lon % 360) for row, lat in enumerate(grid.latitudes) for lon in grid.longitudes_of(row)]
    np.testing.assert_allclose(ours, np.stack([latitudes, longitudes % 360], axis=1), atol=1e-6)


def test_what_is_no_grid_of_rows_and_columns_is_not_read_as_one():
    """In GRIB1, 65535 columns mean that the number is missing; ecCodes returns the largest integer."""
    handle = eccodes.codes_grib_new_from_samples("reduced_gg_pl_32_grib2")
    eccodes.codes_set(handle, "scanningMode", 64)
    with pytest.raises(InputError, match="the grid is reduced_gg that is not stored from north to south"):
        _ = Layout.of(handle).grid
    handle = eccodes.codes_grib_new_from_samples("regular_ll_pl_grib2")
    eccodes.codes_set(handle, "scanningMode", 8)
    assert not Layout.of(handle).regular, "a staggered grid"
    handle = eccodes.codes_grib_new_from_samples("regular_ll_pl_grib1")
    eccodes.codes_set_missing(handle, "Ni")
    with pytest.raises(InputError, match="regular_ll without its number of rows or columns"):
        _ = Layout.of(handle).grid
