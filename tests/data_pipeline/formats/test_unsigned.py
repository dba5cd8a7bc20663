"""`_Unsigned`: integers whose type in the file is not the type that they stand for (NetCDF Users Guide, appendix A)."""

import netCDF4
import numpy as np
import pytest
import zarr

from data_pipeline.common.errors import InputError
from data_pipeline.formats.open import analysis_fields, open_analysis
from data_pipeline.task import Variable

STORED = np.arange(-128, 128, dtype="i1").reshape(4, 8, 8)
"""Every byte, as four fields."""
LATITUDES = np.linspace(70, -70, 8)
SIZES = {"time": 4, "latitude": 8, "longitude": 8}


def variables(values, attributes):
    """Return values, dimensions and attributes of each variable of a file, longitudes in unsigned bytes as well."""
    east = np.arange(8, dtype="u1") * 32
    return {
        "time": (np.arange(4), ["time"], {"units": "days since 2020-01-01"}),
        "latitude": (LATITUDES, ["latitude"], {"units": "degrees_north"}),
        "longitude": (east.view("i1"), ["longitude"], {"units": "degrees_east", "_Unsigned": "true"}),
        "t2m": (values, ["time", "latitude", "longitude"], {"units": "K", **attributes}),
    }


def write_netcdf(folder, values, attributes, _):
    with netCDF4.Dataset(folder / "file.nc", "w") as file:
        for name, size in SIZES.items():
            file.createDimension(name, size)
        for name, (own, dimensions, described) in variables(values, attributes).items():
            fill = described.pop("_FillValue", None)
            variable = file.createVariable(name, own.dtype, dimensions, fill_value=fill)
            variable.set_auto_maskandscale(False)
            if "missing_value" in described:
                described["missing_value"] = own.dtype.type(described["missing_value"])
            variable.setncatts(described)
            variable[...] = own
    return folder / "file.nc"


def write_zarr(folder, values, attributes, layout):
    zarr_format, plain, times = layout
    group = zarr.open_group(folder / f"{zarr_format}.zarr", mode="w", zarr_format=zarr_format)
    for name, (own, dimensions, described) in variables(values, attributes).items():
        of_format = {"dimension_names": dimensions} if zarr_format == 3 else {"fill_value": None}
        array = group.create_array(
            name, shape=own.shape, dtype=own.dtype, chunks=(times, *own.shape[1:]) if own.ndim == 3 else own.shape,
            compressors=None if plain else "auto", **of_format,
        )  # fmt: skip
        array[...] = own
        array.attrs.update(described | ({"_ARRAY_DIMENSIONS": dimensions} if zarr_format == 2 else {}))
    if zarr_format == 2:
        zarr.consolidate_metadata(folder / "2.zarr")
    return folder / f"{zarr_format}.zarr"


LAYOUTS = [(2, True, 3), (3, False, 1)]
"""Format of Zarr, whether it is not compressed, and times of a chunk."""
FILES = [
    pytest.param(write_netcdf, None, id="netcdf"),
    *(pytest.param(write_zarr, layout, id="zarr{}-{}-{}".format(*layout)) for layout in LAYOUTS),
]


@pytest.mark.parametrize(("write", "layout"), FILES)
@pytest.mark.parametrize(
    ("attributes", "missing"),
    [
        ({}, []),
        ({"_FillValue": -1}, [255]),
        ({"missing_value": -6}, [250]),
        ({"valid_range": np.array([3, -3], "i1").tolist()}, [0, 1, 2, 254, 255]),
    ],
)  # fmt: skip
def test_unsigned_numbers_in_a_signed_type(tmp_path, write, layout, attributes, missing):
    if "valid_range" in attributes and write is write_netcdf:
        attributes = {"valid_range": np.array([3, -3], "i1"), "_FillValue": -1}  # the library needs a fill value here
    packing = {"_Unsigned": "true", "scale_factor": 0.5, "add_offset": 200.0}
    path = write(tmp_path, STORED, packing | attributes, layout)
    meant = STORED.astype(float) % 256
    expected = np.where(np.isin(meant, missing), np.nan, 200 + meant / 2)
    opened = open_analysis([path], ["2t"], chunks=None)["2t"]
    np.testing.assert_array_equal(opened.values, expected)
    assert opened.longitude.values.tolist() == [0, 32, 64, 96, 128, 160, 192, 224]
    for part in (slice(None), slice(2, 5)):
        out = np.empty((1, 1, len(range(8)[part]), 8), np.float32)
        fields = analysis_fields([path], [Variable("2t")])
        fields.read(fields.cells[1, 0], out, (part, slice(None)))
        np.testing.assert_array_equal(out[0, 0], expected[1, part])


def test_signed_numbers_in_an_unsigned_type(tmp_path):
    """The NetCDF library does not read them."""
    packing = {"_Unsigned": "false", "_FillValue": 128, "add_offset": 200.0}
    expected = np.where(STORED == -128, np.nan, 200.0 + STORED)
    for layout in LAYOUTS:
        path = write_zarr(tmp_path, STORED.view("u1"), packing, layout)
        np.testing.assert_array_equal(open_analysis([path], ["2t"], chunks=None)["2t"].values, expected)
    path = write_netcdf(tmp_path, STORED.view("u1"), {"_Unsigned": "false"}, None)
    with pytest.raises(InputError, match=r"file\.nc \(t2m\) holds signed numbers in an unsigned type .*_Unsigned"):
        open_analysis([path], ["2t"], chunks=None)
