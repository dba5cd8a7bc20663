"""Files of percentiles, as IMPROVER writes them: read as members where these have the same moments, and corrected."""

import numpy as np
import pytest
import torch
import xarray as xr
from scipy.stats import norm

from data_pipeline.common.errors import InputError
from data_pipeline.formats.open import ensemble_fields, grid_of_files, open_ensemble
from data_pipeline.task import Task, Variable
from models.corrected_files.correct_files import correct_files
from models.corrector import Corrector
from models.engines.torch_engine import TorchEngine
from models.members.options import CorrectionOptions
from models.parallel.domain import Domain
from models.parallel.mesh import Mesh

TENTHS = np.arange(90.0, 0, -10)
"""Percentiles in falling order."""


def write(path, percentiles=TENTHS, name="air_temperature", units="%"):
    own = "percentile" if units == "%" else "quantile"
    axes = {
        own: (own, np.asarray(percentiles, "f4"), {"units": units}),
        "latitude": ("latitude", [2.0, 1.0, 0.0], {"units": "degrees_north"}),
        "longitude": ("longitude", [0.0, 1.0, 2.0, 3.0], {"units": "degrees_east"}),
    }
    times = {
        "forecast_reference_time": (
            (),
            np.datetime64("2020-01-01", "ns"),
            {"standard_name": "forecast_reference_time"},
        ),
        "forecast_period": ((), 24, {"standard_name": "forecast_period", "units": "hours"}),
        "height": ((), 1.5, {"standard_name": "height", "units": "m"}),
    }
    level = np.asarray(percentiles) / (100 if units == "%" else 1)
    centre = np.random.default_rng(0).normal(280, 5, (3, 4))
    values = centre + np.sinh(norm.ppf(level.clip(0.01, 0.99)))[:, None, None]
    attributes = {"standard_name": name, "units": "K"} if name == "air_temperature" else {"units": "1"}
    xr.Dataset({name: ([*axes], values.astype("f4"), attributes)}, axes | times).to_netcdf(path)
    return path, values


def test_percentiles_of_equal_parts_are_members(tmp_path):
    path, values = write(tmp_path / "file.nc")
    found = open_ensemble(path, ["2t"], [24], chunks=None)["2t"]
    assert found.number.values.tolist() == [*range(1, 10)]
    np.testing.assert_allclose(found.squeeze(), values[::-1], rtol=1e-6)
    for levels, units in (([0.125, 0.375, 0.625, 0.875], "1"), ([50], "%")):
        path, values = write(tmp_path / f"{len(levels)}.nc", levels, units=units)
        assert ensemble_fields(path, [Variable("2t")], [24]).numbers == tuple(range(1, len(levels) + 1))


def test_others_are_refused_by_name(tmp_path):
    for percentiles, name, sentence in (
        ([5, 25, 50, 75, 95], "air_temperature", "the percentiles 5, 25, 50, 75, 95, which cannot stand for"),
        ([90], "air_temperature", "has the percentiles 90, which cannot stand for members"),
        ([0, 50, 100], "air_temperature", "leave out the minimum and the maximum"),
        (TENTHS, "probability_of_air_temperature_above_threshold", r"holds probabilities, .* generate-percentiles"),
    ):
        with pytest.raises(InputError, match=sentence):
            open_ensemble(write(tmp_path / "file.nc", percentiles, name)[0])


def test_corrected_percentiles_are_those_of_the_levels_in_the_file(tmp_path):
    path, _ = write(tmp_path / "file.nc")
    grid, task = grid_of_files(path), Task("any", ["2t"], ["2t"], [24])
    spec = {"_target_": "models.statistical.emos.EMOS", "seasonal": False, "shared": True}
    corrector = Corrector(task, grid, spec, torch.zeros(len(task.static_names), *grid.shape)).eval()
    engine = TorchEngine(corrector, Domain.of(grid), torch.device("cpu"), "any", None)
    for options in ({}, {"members": "quantiles"}, {"quantile_levels": "weibull"}):
        with pytest.raises(InputError, match=r"holds percentiles, .*set members=quantiles quantile_levels=weibull"):
            correct_files([engine], [path], tmp_path / "out.nc", Mesh.single(), CorrectionOptions(**options))
    options = CorrectionOptions(members="quantiles", quantile_levels="weibull")
    correct_files([engine], [path], tmp_path / "out.nc", Mesh.single(), options)
    with xr.open_dataset(tmp_path / "out.nc") as out:
        np.testing.assert_array_equal(out.percentile, TENTHS)
        values = out.air_temperature.values
    spread = (values[0] - values[-1]) / (2 * norm.ppf(0.9))
    np.testing.assert_allclose(
        (values - values[4]) / spread, norm.ppf(TENTHS / 100)[:, None, None] + 0 * values, atol=1e-3
    )
