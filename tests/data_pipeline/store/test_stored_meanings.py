"""Units and intervals in a store are those of its archive, whose files here are NetCDF with amounts in kg m⁻²."""

import netCDF4
import numpy as np
import pytest
import xarray as xr

from data_pipeline.archive import Archive
from data_pipeline.common.errors import InputError
from data_pipeline.dataset import ForecastDataset
from data_pipeline.inputs import input_fields
from data_pipeline.meaning import Meaning
from data_pipeline.store import Store
from data_pipeline.task import Task, Variable

HOURS = "hours since 2016-01-01"
PLACES = {
    "lat": ("lat", [60.0, 45.0, 30.0], {"units": "degrees_north"}),
    "lon": ("lon", [0.0, 90.0, 180.0, 270.0], {"units": "degrees_east"}),
}
POINT, SUM = {"cell_methods": "time: point"}, {"cell_methods": "time: sum"}
STARTS, LEADS, NUMBERS = np.array([0.0, 48.0]), np.array([24.0, 48.0]), [0, 1, 2]
VALID = (STARTS[:, None] + LEADS).ravel()
RAIN = np.random.default_rng(0).gamma(0.5, 4.0, (2, 2, 3, 3, 4))
"""Rain of each day in kg m⁻² (start, lead time, member, latitude, longitude)."""


def write(path, coordinates, fields):
    """Write fields (name: values, attributes) whose dimensions are those of `coordinates`, then latitude, longitude."""
    outer = [name for name, (dimensions, *_) in coordinates.items() if dimensions == name]
    variables = {name: ((*outer, "lat", "lon"), *values) for name, values in fields.items()}
    xr.Dataset(variables, {**coordinates, **PLACES}).to_netcdf(path)
    return str(path)


def make_archive(folder, since_start, smoke_units="ug m-3"):
    """Write forecasts, with rain since the start or of the last day, and analyses with rain of the last day."""
    rng = np.random.default_rng(1)
    first = np.zeros(2) if since_start else LEADS - 24
    coordinates = {
        "start": ("start", STARTS, {"units": HOURS, "standard_name": "forecast_reference_time"}),
        "time": ("time", LEADS, {"units": "hours", "standard_name": "forecast_period", "bounds": "cells"}),
        "number": ("number", NUMBERS, {"standard_name": "realization"}),
        "cells": (("time", "bnds"), np.stack([first, LEADS], 1)),
    }
    fields = {
        "2t": (rng.normal(280, 5, RAIN.shape), {"units": "K", **POINT}),
        "tp": (RAIN.cumsum(1) if since_start else RAIN, {"units": "kg m-2", **SUM}),
        "smoke": (rng.random(RAIN.shape), {"units": smoke_units, **POINT}),
    }
    ensemble = write(folder / "ensemble.nc", coordinates, fields)
    coordinates = {
        "time": ("time", VALID, {"units": HOURS, "standard_name": "time", "bounds": "cells"}),
        "cells": (("time", "bnds"), np.stack([VALID - 24, VALID], 1)),
    }
    rain = 1e-3 * RAIN[:, :, 0].reshape(4, 3, 4)
    fields = {
        "2t": (rng.normal(280, 5, rain.shape), {"units": "K", **POINT}),
        "tp": (rain, {"units": "m", **SUM}),
        "smoke": (rng.random(rain.shape), {"units": "ug m-3", **POINT}),
    }
    return Archive([ensemble], [write(folder / "analysis.nc", coordinates, fields)])


@pytest.mark.parametrize("moments", [False, True])
def test_a_store_keeps_the_units_and_intervals_of_its_archive(tmp_path, moments):
    archive = make_archive(tmp_path, since_start=True)
    task = Task("t", ["2t", "tp", "tp:24h", "smoke"], ["tp:24h", "smoke", "2t"], [24, 48], [], ["tp+24h"])
    store = Store.write(archive, task, tmp_path / "store", moments=moments)
    assert Store(store.folder).contents == Store.plan(archive, task, moments=moments)
    found = input_fields(store, task).meanings
    assert found == input_fields(archive, task).meanings
    assert found == (
        Meaning(Variable("2t"), "K", (0, 0)),
        Meaning(Variable("tp"), "m", (1440, 2880)),
        Meaning(Variable("tp", period=24), "m", (1440, 1440)),
        Meaning(Variable("smoke"), "ug m-3", (0, 0)),
        Meaning(Variable("tp"), "m", (1440, 1440)),
    )
    assert store.analysis_fields(task.targets).meanings == archive.analysis_fields(task.targets).meanings
    assert store.ensemble_fields(task.inputs[1:2], [48]).meanings[0].intervals == (2880,)
    later = Task("t", ["smoke", "tp:24h"], ["smoke"], [48])
    ours, theirs = (ForecastDataset(source, later, [2016], moments=moments) for source in (store, archive))
    assert ours.meanings == theirs.meanings


def test_a_channel_of_the_analysis_keeps_its_interval(tmp_path):
    """Rain of the day before the start, which only the second forecast has."""
    archive = make_archive(tmp_path, since_start=True)
    task = Task("t", ["2t"], ["2t"], [24, 48], [], [], ["tp", "smoke"])
    found = input_fields(Store.write(archive, task, tmp_path / "store"), task).meanings
    assert found == input_fields(archive, task).meanings
    assert found[1:] == (Meaning(Variable("tp"), "m", (1440, 1440)), Meaning(Variable("smoke"), "ug m-3", (0, 0)))


@pytest.mark.parametrize("since_start", [False, True])
def test_amounts_of_rain_in_other_units_than_the_truth_are_stored_in_metres(tmp_path, since_start):
    target = "tp:24h" if since_start else "tp"
    task = Task("t", [target], [target], [24, 48])
    store = Store.write(make_archive(tmp_path, since_start), task, tmp_path / "store")
    (path,) = store.folder.glob("samples-*.nc")
    with netCDF4.Dataset(path) as file:
        assert [*file["channel_units"][:]] == [*file["target_units"][:]] == ["m"]
        ensemble, truth = file["ensemble"][:, :, 0], file["target"][:, 0]
    # The truth is member 0, whose file has other units.
    np.testing.assert_allclose(ensemble.reshape(RAIN.shape), 1e-3 * RAIN, rtol=1e-5, atol=1e-9)
    np.testing.assert_allclose(ensemble[:, 0], truth, rtol=1e-5, atol=1e-9)
    assert len(ForecastDataset(store, task, [2016])) == 4


@pytest.mark.parametrize(
    ("options", "target", "sentence"),
    [
        ({"since_start": True}, "tp", "each tp covers 48 h in the ensemble at lead time 48 h and 24 h in the analysis"),
        (
            {"since_start": True, "smoke_units": "kg m-3"},
            "smoke",
            "smoke is in kg m-3 in the ensemble and in ug m-3 in the analysis",
        ),
    ],
)
def test_targets_that_differ_from_the_truth_are_not_stored(tmp_path, options, target, sentence):
    archive, task = make_archive(tmp_path, **options), Task("t", [target], [target], [24, 48])
    for make in (Store.plan, lambda *wanted: Store.write(*wanted, tmp_path / "store")):
        with pytest.raises(InputError, match=sentence):
            make(archive, task)
    assert not (tmp_path / "store").exists()
