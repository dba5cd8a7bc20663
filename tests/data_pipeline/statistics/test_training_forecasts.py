"""The training forecasts as Dask arrays, equal from GRIB, NetCDF and a store."""

import numpy as np
import pytest

from data_pipeline.archive import Archive
from data_pipeline.cluster import LocalProcesses
from data_pipeline.common.errors import InputError
from data_pipeline.dates import Dates
from data_pipeline.statistics.efi import EfiClimate
from data_pipeline.statistics.training_forecasts import TrainingForecasts
from data_pipeline.store import Store
from data_pipeline.task import Task

ALL = [EfiClimate(), EfiClimate(window_starts=3, memory_bytes=1)]


@pytest.fixture(scope="module")
def netcdf(toy, training, tmp_path_factory):
    """The same archive as NetCDF files."""
    folder = tmp_path_factory.mktemp("netcdf")
    task = training.task
    toy.archive.forecasts(task.inputs, task.lead_times).to_netcdf(folder / "ensemble.nc")
    toy.archive.analyses(task.targets).to_netcdf(folder / "analysis.nc")
    return TrainingForecasts(
        Archive([f"{folder}/ensemble.nc"], [f"{folder}/analysis.nc"], missing="mask"), task, training.dates
    )


@pytest.fixture(scope="module")
def store(toy, training, tmp_path_factory):
    """The same archive as a derived store."""
    made = Store.write(toy.archive, training.task, tmp_path_factory.mktemp("store") / "store")
    return TrainingForecasts(made, training.task, training.dates)


@pytest.mark.parametrize("source", ["netcdf", "store"])
@pytest.mark.parametrize("statistic", ALL, ids=str)
def test_statistics_are_the_same_from_every_source(statistic, source, training, computed, request):
    other = computed(statistic, request.getfixturevalue(source))
    for name, values in computed(statistic).items():
        assert np.array_equal(values, other[name], equal_nan=name != "variable"), name


def test_netcdf_is_read_in_other_processes(netcdf, computed):
    here = computed(EfiClimate(), netcdf)["climate"]
    with LocalProcesses(workers=1, threads=2, memory="2GB").executor():
        pieces = list(EfiClimate().compute(netcdf, 2))
    there = np.full_like(here, np.nan)
    for _, values in pieces:
        place, value = values["climate"]
        there[place] = value
    assert np.array_equal(there, here, equal_nan=True)


def test_a_missing_variable_is_refused(toy):
    with pytest.raises(InputError, match="has no tp"):
        _ = TrainingForecasts(toy.archive, Task("rain", ["tp"], ["tp"], (24,)), Dates.of_years(range(2010, 2014))).keys


def test_years_without_forecasts_are_refused(toy, training):
    with pytest.raises(InputError, match=r"valid in 1990-1991 can be used: .*, 0 of its forecasts are valid then"):
        _ = TrainingForecasts(toy.archive, training.task, Dates.of_years([1990, 1991])).keys
