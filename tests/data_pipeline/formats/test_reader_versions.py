"""A change of what readers return raises their version; otherwise stores of the old reader would stay valid.

`reader_values.json` holds versions and values. After raising a version, `python FILE` of this file writes it anew.
"""

import json
import sys
import tempfile
from itertools import product
from pathlib import Path

import numpy as np
import pytest
import xarray as xr

from data_pipeline.formats.open import open_analysis, open_ensemble
from data_pipeline.formats.reader_versions import READER_VERSIONS
from data_pipeline.grid import Grid
from data_pipeline.task import Variable
from data_pipeline.writing import Encoder

STORED = Path(__file__).with_name("reader_values.json")
GRID = Grid.regular(7, 12)
FIELD = np.add.outer(np.linspace(-30, 30, 7) ** 2 / 30, np.sin(np.arange(12)))
VARIABLES = ("2t", "tcc", "msl", "z@500", "10si")


def write_grib(path):
    keys = {"type": "pf", "stream": "enfo", "stepUnits": "h", "dataDate": 20200101, "endStep": 24}
    encoder = Encoder(GRID, centre="ecmf", setLocalDefinition=1, localDefinitionNumber=26, bitsPerValue=24, **keys)
    places = {"z": {"typeOfLevel": "isobaricInhPa", "level": 500}}
    bases = {"2t": 280, "msl": 101_000, "tcc": 0.2, "z": 54_000, "10u": 3, "10v": -4}
    messages = []
    for (name, base), number in product(bases.items(), (1, 2)):
        field = base + number * FIELD * (0.01 if name == "tcc" else 1)
        place = places.get(name, {"typeOfLevel": "surface", "level": 0})
        messages.append(encoder.encode(field, shortName=name, perturbationNumber=number, **place))
    path.write_bytes(b"".join(messages))
    return path, open_ensemble, {"lead_times": [24]}


def fields():
    """Forecasts of a NetCDF or Zarr file, south first, with units that differ from GRIB's."""
    coordinates = {
        "time": np.array(["2020-01-01", "2020-01-02"], "datetime64[ns]"), "latitude": -np.array(GRID.latitudes),
        "longitude": np.array(GRID.longitudes),
    }  # fmt: skip
    bases = {"t2m": (10.0, "degC"), "msl": (1010.0, "hPa"), "tcc": (40.0, "%")}
    values = {
        name: (("time", "latitude", "longitude"), base + np.stack([FIELD, 2 * FIELD]), {"units": units})
        for name, (base, units) in bases.items()
    }
    return xr.Dataset(values, coordinates)


def write_netcdf(path):
    fields().to_netcdf(path)
    return path, open_analysis, {}


def write_zarr(path):
    fields().to_zarr(path, zarr_format=2)
    return path, open_analysis, {}


def write_table(path):
    rows = fields().to_dataframe().reset_index()
    rows = rows.rename(columns={"t2m": "t2m [degC]", "msl": "msl [hPa]", "tcc": "tcc [%]"})
    rows.assign(station=rows.groupby(["latitude", "longitude"]).ngroup()).to_csv(path, index=False)
    return path, open_analysis, {}


def dataset(path):
    return fields(), open_analysis, {}


WRITERS = {"grib": write_grib, "netcdf": write_netcdf, "zarr": write_zarr, "table": write_table, "dataset": dataset}


def values_of(write, folder):
    """Return units, mean, mean square and one value of each variable that a file has."""
    path, read, options = write(folder / f"{write.__name__}.nc")
    found = {}
    for variable in VARIABLES if write is write_grib else VARIABLES[:3]:
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
