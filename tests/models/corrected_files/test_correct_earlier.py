"""Correctors that read the forecasts of earlier starts: the files of `earlier`, and what is refused."""

import numpy as np
import pytest
import torch
import xarray as xr
from forecast_files import write_forecasts

from data_pipeline.archive import Archive
from data_pipeline.common.errors import InputError
from data_pipeline.dataset import ForecastDataset, batches
from data_pipeline.grid import Grid
from data_pipeline.task import Task
from models.corrector import Corrector, narrow, needed_task

GRID, DAYS, LEADS, MEMBERS = Grid.regular(5, 6), 60, [24, 48, 72], 3
STARTS = np.datetime64("2020-01-01T00", "ns") + np.arange(DAYS) * np.timedelta64(1, "D")
SPEC = {"_target_": "models.statistical.emos.EMOS", "seasonal": False, "shared": True}
TASK = needed_task(SPEC, Task("lagged", ["2t"], ["2t"], [24, 48], lagged=[24]))
NUMBERS = {"number": ("number", range(MEMBERS), {"standard_name": "realization"})}


def write(path, values, first=0):
    variables = {"2t": (["number"], values, {"units": "K"})}
    return write_forecasts(path, STARTS[first : first + len(values)], LEADS, GRID, variables, NUMBERS)


@pytest.fixture(scope="module")
def project(tmp_path_factory):
    """A folder of forecasts whose errors have nothing in common from start to start, their truth, and an EMOS."""
    folder, draw = tmp_path_factory.mktemp("lagged"), np.random.default_rng(3)
    truth = 280 + 5 * draw.normal(size=(DAYS + 3, *GRID.shape))
    valid = np.stack([truth[k : k + DAYS] for k in (1, 2, 3)], 1)
    common = valid[:, :, None] + draw.normal(size=(DAYS, 3, 1, *GRID.shape))
    members = common + 0.5 * draw.normal(size=(DAYS, 3, MEMBERS, *GRID.shape))
    write(folder / "ensemble.nc", members)
    write(folder / "new.nc", members[-1:], DAYS - 1)
    write(folder / "old.nc", members[-2:-1], DAYS - 2)
    write(folder / "older.nc", members[-3:-2], DAYS - 3)
    times = STARTS[0] + np.arange(DAYS + 3) * np.timedelta64(1, "D")
    places = {"latitude": list(GRID.latitudes), "longitude": list(GRID.longitudes)}
    analyses = xr.DataArray(truth.astype("f4"), {"time": times, **places}, ["time", *places], attrs={"units": "K"})
    analyses.to_dataset(name="2t").to_netcdf(folder / "analysis.nc")
    corrector = Corrector(TASK, GRID, SPEC, torch.zeros(3, *GRID.shape))
    data = opened(folder)
    corrector.fit(data)
    corrector.save(folder / "corrector")
    return folder, corrector.eval(), data


def opened(folder, task=TASK):
    return ForecastDataset(Archive([str(folder / "ensemble.nc")], [str(folder / "analysis.nc")]), task, [2020])


def test_earlier_starts_improve_the_forecast(project):
    """Two independent forecasts of equal skill: a weight of one half each, and errors smaller by the root of two."""
    _, corrector, data = project
    (batch,) = batches(data, 10**6)
    alone = TASK.only_targets()
    plain = Corrector(alone, GRID, SPEC, torch.zeros(3, *GRID.shape))
    plain.fit(opened(project[0], alone))
    pairs = (corrector, batch), (plain.eval(), narrow(batch, TASK, alone))
    errors = [(model(one).mean - one.target).square().mean().sqrt() for model, one in pairs]
    assert errors[0] / errors[1] == pytest.approx(0.5**0.5, abs=0.05)
    assert corrector.model.coefficients[:, 2].mean() == pytest.approx(0.5, abs=0.06)
    assert len(data) == 2 * (DAYS - 1)
    assert [(one.reason, one.channels) for one in data.ledger.omissions] == [("no_input", ("lagged_mean(2t, 24)",))] * 2


def test_the_newest_forecast_is_corrected_with_the_files_of_earlier_starts(project, command):
    folder, corrector, data = project
    ended = command(folder, "correct", "corrector=corrector", "input=new.nc", "output=out.nc", "earlier=[old*.nc]")
    assert ended.code == 0, ended.stderr
    found, raw = xr.open_dataset(folder / "out.nc"), xr.open_dataset(folder / "new.nc")
    assert found.init_time.values.tolist() == raw.init_time.values.tolist()
    np.testing.assert_array_equal(found["2t"].sel(lead_time=72), raw["2t"].sel(lead_time=72))
    for k, lead in ((-2, 24), (-1, 48)):
        expected = corrector(type(data[k])(*(tensor[None] for tensor in data[k]))).mean[0, 0]
        np.testing.assert_allclose(found["2t"].sel(lead_time=lead).mean("number")[0], expected, atol=2e-4)


def test_missing_earlier_starts_are_refused(project, command):
    """Datasets have none."""
    folder, corrector, _ = project
    for options, sentence in (
        ((), "the corrector reads lagged_mean(2t, 24) of forecasts that started 24 h before; give their files with"),
        (("earlier=older.nc",), "task lagged: no forecast has the fields of lagged_mean(2t, 24) at its start"),
    ):
        ended = command(folder, "correct", "corrector=corrector", "input=new.nc", "output=never.nc", *options)
        assert ended.code == 2
        assert sentence in ended.stderr
        assert not (folder / "never.nc").exists()
    with pytest.raises(InputError, match=r"reads lagged_mean\(2t, 24\), and datasets have no earlier starts"):
        corrector.correct(xr.open_dataset(folder / "new.nc"))
