"""One archive in several forms: samples do not depend on the form in which the same weather is stored."""

import eccodes
import numpy as np
import pytest
import torch
import xarray as xr
from twin_project import messages

from data_pipeline.archive import Archive
from data_pipeline.dataset import ForecastDataset
from data_pipeline.task import Task

STANDARD_GRAVITY = 9.80665
YEARS = range(2014, 2018)
HEIGHT, RAIN = (Task(name, [name], [name], [48]) for name in ("z@500", "tp:24h"))


def fields_of(paths, name):
    """Return the fields of a variable at the surface by start and lead time (h)."""
    fields = {}
    for path in paths:
        for handle in messages(path):
            if eccodes.codes_get(handle, "shortName") == name:
                day, lead = (eccodes.codes_get(handle, key) for key in ("dataDate", "endStep"))
                start = np.datetime64(f"{day // 10000}-{day // 100 % 100:02}-{day % 100:02}", "ns")
                shape = eccodes.codes_get(handle, "Nj"), eccodes.codes_get(handle, "Ni")
                fields[start, lead] = eccodes.codes_get_values(handle).reshape(shape)
    return fields


def as_dataset(fields, name, units):
    """Return a dataset of fields by their valid time."""
    times = sorted(fields)
    values = np.stack([fields[time] for time in times]).astype(np.float32)
    _, rows, columns = values.shape
    places = {
        "latitude": ("latitude", np.linspace(90, -90, rows), {"units": "degrees_north"}),
        "longitude": ("longitude", np.arange(columns) * 360 / columns, {"units": "degrees_east"}),
    }
    return xr.Dataset({name: (("time", *places), values, {"units": units})}, {"time": times} | places)


def heights_in_grib2(data, folder):
    for source in data.glob("output.pl.20180108"):
        with (folder / source.name).open("wb") as file:
            for handle in messages(source):
                if [eccodes.codes_get(handle, key) for key in ("shortName", "level")] == ["z", 500]:
                    values = eccodes.codes_get_values(handle)
                    eccodes.codes_set(handle, "edition", 2)
                    eccodes.codes_set(handle, "shortName", "gh")
                    eccodes.codes_set(handle, "bitsPerValue", 20)
                    eccodes.codes_set_values(handle, values / STANDARD_GRAVITY)
                    assert eccodes.codes_get(handle, "units") == "gpm"
                    file.write(eccodes.codes_get_message(handle))
    return HEIGHT, {"ensemble": f"{folder}/*"}


def truth_of_rain_in_millimetres(data, folder):
    """The truth in GRIB has amounts since the start, in NetCDF amounts of 24 hours."""
    since_start, amounts = fields_of(data.glob("analysis.sfc.20180108"), "tp"), {}
    for (start, lead), metres in since_start.items():
        if lead:
            before = since_start[start, lead - 24] if lead > 24 else 0
            amounts[start + np.timedelta64(lead, "h")] = 1000 * np.maximum(metres - before, 0)
    dataset = as_dataset(amounts, "rain", "mm")
    dataset.rain.attrs |= {"cell_methods": "time: sum", "standard_name": "lwe_thickness_of_precipitation_amount"}
    dataset.time.attrs["bounds"] = "cells"
    dataset["cells"] = xr.concat([dataset.time - np.timedelta64(24, "h"), dataset.time], "sides").T
    dataset.to_netcdf(folder / "rain.nc", encoding={"time": {"units": "hours since 2000-01-01", "dtype": "f8"}})
    return RAIN, {"analysis": f"{folder}/rain.nc"}


FORMS = [heights_in_grib2, truth_of_rain_in_millimetres]


@pytest.mark.parametrize("form", FORMS, ids=lambda form: form.__name__)
def test_another_form_gives_the_samples_of_the_twin(first_project, tmp_path, form):
    data = first_project / "data/twin"
    task, changed = form(data, tmp_path)
    plain = {"ensemble": f"{data}/output.*.20180108", "analysis": f"{data}/analysis.*.20180108"}
    expected, found = (list(ForecastDataset(Archive(**plain | own), task, YEARS)) for own in ({}, changed))
    assert len(expected) == len(found) > 0
    for own, other in zip(expected, found, strict=True):
        torch.testing.assert_close(other.ensemble, own.ensemble, rtol=2e-6, atol=1e-9)
        torch.testing.assert_close(other.target, own.target, rtol=2e-6, atol=1e-9)
