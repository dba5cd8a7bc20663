"""One archive in several forms: scores do not depend on the form in which the same weather is stored."""

import json

import eccodes
import numpy as np
import pytest
import xarray as xr
from twin_project import SPLIT, messages

STANDARD_GRAVITY = 9.80665
OPTIONS = [*SPLIT, "task=z500", "task.inputs=[z@500]"]


def raw_crps(run_verb, folder, run, *options):
    run_verb(folder, "evaluate", *OPTIONS, "references=[raw,climatology]", f"run_dir=runs/{run}", *options)
    scores = json.loads((folder / f"runs/{run}/scores.json").read_text())
    return scores["models"]["raw"]["crps"], scores["meaning"]


def as_height_in_grib2(source, target):
    """Copy the geopotential of a file as geopotential height in GRIB2."""
    with target.open("wb") as file:
        for handle in messages(source):
            if eccodes.codes_get(handle, "shortName") == "z":
                values = eccodes.codes_get_values(handle)
                eccodes.codes_set(handle, "edition", 2)
                eccodes.codes_set(handle, "shortName", "gh")
                eccodes.codes_set(handle, "bitsPerValue", 20)
                eccodes.codes_set_values(handle, values / STANDARD_GRAVITY)
                assert eccodes.codes_get(handle, "units") == "gpm"
                file.write(eccodes.codes_get_message(handle))


def test_an_ensemble_of_heights_in_grib2_has_the_scores_of_geopotential(project, run_verb):
    plain, meaning = raw_crps(run_verb, project, "plain")
    (project / "heights").mkdir()
    for source in sorted((project / "data/twin").glob("output.pl.*")):
        as_height_in_grib2(source, project / "heights" / source.name)
    found, same = raw_crps(run_verb, project, "heights", "data.archive.ensemble=[heights/*]")
    assert found == pytest.approx(plain, rel=1e-5)
    assert found != plain  # in other bits per value
    assert meaning == same
    assert meaning["units"] == "m2 s-2"


def as_zarr(sources, target, zarr_format, **chunks):
    """Write the fields at 500 and 850 hPa in the layout of WeatherBench2 (with members) or ARCO-ERA5 (without)."""
    fields, keys, attributes = {}, ["time", "prediction_timedelta", "number", "level"], {"z": "m**2 s**-2", "t": "K"}
    for source in sources:
        for handle in messages(source):
            name, *key = (eccodes.codes_get(handle, k) for k in ("shortName", "dataDate", "endStep", "level"))
            if name in attributes and key[-1] in (500, 850):
                shape = eccodes.codes_get(handle, "Nj"), eccodes.codes_get(handle, "Ni")
                number = eccodes.codes_get(handle, "number") if eccodes.codes_is_defined(handle, "number") else 0
                values = eccodes.codes_get_values(handle).reshape(shape).astype(np.float32)
                fields[name, key[0], key[1], number, key[2]] = values
    axes = [sorted({key[k] for key in fields}) for k in range(1, 5)]
    coordinates = {
        "time": np.array([f"{date // 10000}-{date // 100 % 100:02}-{date % 100:02}" for date in axes[0]], "M8[ns]"),
        "prediction_timedelta": np.array(axes[1], "m8[h]").astype("m8[ns]"),
        "number": axes[2],
        "level": axes[3],
        "latitude": np.linspace(90, -90, shape[0]),
        "longitude": np.arange(shape[1]) * 360 / shape[1],
    }
    variables = {}
    for name, units in attributes.items():
        values = np.full((*map(len, axes), *shape), np.nan, np.float32)
        for (own, *key), field in fields.items():
            if own == name:
                values[tuple(axis.index(k) for axis, k in zip(axes, key, strict=True))] = field
        variables[{"z": "geopotential", "t": "temperature"}[name]] = ([*coordinates], values, {"units": units})
    dataset = xr.Dataset(variables, coordinates)
    if len(axes[2]) == 1:
        dataset = dataset.isel(prediction_timedelta=0, number=0, drop=True)
    else:
        dataset = dataset.transpose(*keys, "longitude", "latitude").sortby("latitude")
    sizes = {name: tuple(chunks.get(k, n) for k, n in dataset[name].sizes.items()) for name in dataset.data_vars}
    encoding = {name: {"chunks": size} for name, size in sizes.items()}
    dataset.to_zarr(target, zarr_format=zarr_format, consolidated=True, encoding=encoding)


@pytest.mark.filterwarnings("ignore:Consolidated metadata")
def test_an_ensemble_and_a_truth_in_zarr_have_the_scores_of_grib(project, run_verb):
    """The ensemble in the layout of WeatherBench2, the truth in that of ARCO-ERA5; alone and together."""
    plain = raw_crps(run_verb, project, "grib")
    data = project / "data/twin"
    as_zarr(sorted(data.glob("output.pl.*")), project / "zarr/ensemble.zarr", 2, time=1, prediction_timedelta=1)
    as_zarr(sorted(data.glob("analysis.pl.*")), project / "zarr/analysis.zarr", 3, time=10)
    ensemble, analysis = (f"data.archive.{name}=[zarr/{name}.zarr]" for name in ("ensemble", "analysis"))
    for run, options in (
        ("truth", [analysis]),
        ("members", [ensemble]),
        ("both", ["data=zarr", "path=zarr", "data.split.test=[2016,2017]"]),
    ):
        found = raw_crps(run_verb, project, run, *options)
        assert found[0] == pytest.approx(plain[0], rel=1e-5)
        assert found[1] == plain[1]
    said = run_verb(project, "prepare", "data=zarr", "path=zarr")
    assert "called       z is geopotential, t is temperature" in said
    assert "missing      none" in said


def surface_analyses(folder, name):
    """Return the analyses of a surface variable by date (ns) and lead time (h)."""
    fields = {}
    for source in sorted(folder.glob("analysis.sfc.*")):
        for handle in messages(source):
            if eccodes.codes_get(handle, "shortName") == name:
                day, lead = (eccodes.codes_get(handle, key) for key in ("dataDate", "endStep"))
                start = np.datetime64(f"{day // 10000}-{day // 100 % 100:02}-{day % 100:02}", "ns")
                shape = eccodes.codes_get(handle, "Nj"), eccodes.codes_get(handle, "Ni")
                fields[start, lead] = eccodes.codes_get_values(handle).reshape(shape)
    return fields


def as_netcdf(fields, target, name, hours=0, **attributes):
    """Write fields by valid time as CF NetCDF; `hours` is the length of their intervals."""
    times = sorted(fields)
    values = np.stack([fields[time] for time in times]).astype(np.float32)
    dataset = xr.Dataset(
        {name: (("time", "latitude", "longitude"), values, attributes)},
        {
            "time": ("time", times, {"standard_name": "time"}),
            "latitude": ("latitude", np.linspace(90, -90, values.shape[1]), {"units": "degrees_north"}),
            "longitude": ("longitude", np.arange(values.shape[2]) * 360 / values.shape[2], {"units": "degrees_east"}),
        },
    )
    if hours:
        dataset["time"].attrs["bounds"] = "cells"
        dataset["cells"] = (("time", "sides"), [[time - np.timedelta64(hours, "h"), time] for time in times])
    dataset.to_netcdf(target, encoding={"time": {"units": "hours since 2000-01-01", "dtype": "f8"}})


def test_a_truth_in_celsius_has_the_scores_of_kelvin(project, run_verb):
    task = ["task=t2m", "task.inputs=[2t]"]
    plain = raw_crps(run_verb, project, "kelvin", *task)
    fields = {start: kelvin - 273.15 for (start, _), kelvin in surface_analyses(project / "data/twin", "2t").items()}
    as_netcdf(fields, project / "celsius.nc", "t2m", units="degC")
    found = raw_crps(run_verb, project, "celsius", *task, "data.archive.analysis=[celsius.nc]")
    assert found[0] == pytest.approx(plain[0], rel=1e-5)
    assert found[1] == plain[1]


def test_a_truth_of_rain_in_millimetres_has_the_scores_of_metres(project, run_verb):
    """The truth in GRIB has amounts since the start, in NetCDF amounts of 24 hours."""
    task = ["task=rain", "task.inputs=['tp:24h']"]
    plain = raw_crps(run_verb, project, "metres", *task)
    since_start, amounts = surface_analyses(project / "data/twin", "tp"), {}
    for (start, lead), metres in since_start.items():
        if lead:
            before = since_start[start, lead - 24] if lead > 24 else 0
            amounts[start + np.timedelta64(lead, "h")] = 1000 * np.maximum(metres - before, 0)
    options = {"cell_methods": "time: sum", "standard_name": "lwe_thickness_of_precipitation_amount"}
    as_netcdf(amounts, project / "millimetres.nc", "rain", 24, units="mm", **options)
    found = raw_crps(run_verb, project, "millimetres", *task, "data.archive.analysis=[millimetres.nc]")
    assert found[0] == pytest.approx(plain[0], rel=1e-5)
    assert found[1] == plain[1]
    assert found[1]["units"] == "m"
