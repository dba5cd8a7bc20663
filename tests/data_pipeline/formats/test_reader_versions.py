"""A change of what readers return raises their version; otherwise stores of the old reader would stay valid.

`reader_values.json` holds versions and values. After raising a version, `python FILE` of this file writes it anew.
"""

import json
import sys
import tempfile
from pathlib import Path

import numpy as np
import pytest
from weather_files import NETCDF_4, weather, write_grib, write_zarr

from data_pipeline.formats.open import open_analysis, open_ensemble
from data_pipeline.formats.reader_versions import READER_VERSIONS
from data_pipeline.grid import Grid
from data_pipeline.task import Variable

STORED = Path(__file__).with_name("reader_values.json")
GRID = Grid.regular(7, 12)
STARTS = np.array(["2020-01-01", "2020-01-02"], "M8[ns]")
VARIABLES = ("2t", "tcc", "msl", "z@500", "10si")


def grib(path):
    """Forecasts, among them of the components of the wind and of a variable on a level."""
    names = ("2t", "tcc", "msl", "10u", "10v")
    data = weather((24,), (1, 2), (500,), STARTS[:1], names, GRID)["ensemble"]
    write_grib(path, "ensemble", data.rename(t="z"), bitsPerValue=24)
    return path, open_ensemble, {"lead_times": [24]}


def analyses():
    """Analyses of a file of another format, south first, with units that differ from GRIB's."""
    data = weather((0,), (), (), STARTS, ("2t", "msl", "tcc"), GRID)["analysis"].isel(latitude=slice(None, None, -1))
    units = {"2t": "degC", "msl": "hPa", "tcc": "%"}
    return data.assign({name: data[name].assign_attrs(units=units[name]) for name in units}).rename({"2t": "t2m"})


def netcdf(path):
    NETCDF_4(path, "analysis", analyses())
    return path, open_analysis, {}


def zarr(path):
    write_zarr(path, "analysis", analyses(), zarr_format=2)
    return path, open_analysis, {}


def table(path):
    rows = analyses().to_dataframe().reset_index()
    rows = rows.rename(columns={"t2m": "t2m [degC]", "msl": "msl [hPa]", "tcc": "tcc [%]"})
    rows.assign(station=rows.groupby(["latitude", "longitude"]).ngroup()).to_csv(path, index=False)
    return path, open_analysis, {}


def dataset(path):
    return analyses(), open_analysis, {}


WRITERS = {write.__name__: write for write in (grib, netcdf, zarr, table, dataset)}


def values_of(write, folder):
    """Return units, mean, mean square and one value of each variable that a file has."""
    path, read, options = write(folder / write.__name__)
    found = {}
    for variable in VARIABLES if write is grib else VARIABLES[:3]:
        array = read(path, [Variable.parse(variable)], **options)[Variable.parse(variable).name]
        values = array.values.astype(float)
        numbers = values.mean(), np.square(values).mean(), values.ravel()[17]
        found[variable] = [str(array.attrs["units"]), *(float(f"{number:.7g}") for number in numbers)]
    return found


@pytest.mark.parametrize("name", WRITERS)
def test_changed_values_need_a_new_version(name, tmp_path):
    stored = json.loads(STORED.read_text())
    assert stored["versions"] == READER_VERSIONS, f"a version was raised: run `python {Path(__file__).name}`"
    for variable, (units, *numbers) in values_of(WRITERS[name], tmp_path).items():
        message = f"{name} is read differently: raise its version in reader_versions.py, then run this file"
        assert units == stored["values"][name][variable][0], message
        np.testing.assert_allclose(numbers, stored["values"][name][variable][1:], rtol=1e-5, err_msg=message)


def write_stored_values():
    """Write the present values."""
    with tempfile.TemporaryDirectory() as folder:
        values = {name: values_of(write, Path(folder)) for name, write in WRITERS.items()}
    STORED.write_text(json.dumps({"versions": READER_VERSIONS, "values": values}, indent=1) + "\n")


if __name__ == "__main__":
    sys.exit(write_stored_values())
