"""Two systems whose members have the same numbers, one of which is late: each file, and each forecast, by itself."""

import numpy as np
import pytest
import torch
import xarray as xr
from forecast_files import write_forecasts

from data_pipeline.archive import Archive
from data_pipeline.common.errors import InputError
from data_pipeline.dataset import ForecastDataset
from data_pipeline.dates import Dates
from data_pipeline.grid import Grid
from data_pipeline.task import Task
from models.corrector import Corrector, needed_task

GRID, DAYS, LATE = Grid.regular(5, 6), 60, 57
STARTS = np.datetime64("2020-01-01T00", "ns") + np.arange(DAYS) * np.timedelta64(1, "D")
SPEC = {"_target_": "models.statistical.emos.EMOS", "seasonal": False, "shared": True}
TASK = needed_task(SPEC, Task("systems", ["2t"], ["2t"], [24], groups={"one": 0, "other": 1000}))


def write(path, values, first=0, number=0):
    numbers = {"number": ("number", number + np.arange(values.shape[2]), {"standard_name": "realization"})}
    variables = {"2t": (["number"], values, {"units": "K"})}
    write_forecasts(path, STARTS[first : first + len(values)], [24], GRID, variables, numbers)


@pytest.fixture(scope="module")
def project(tmp_path_factory):
    """A folder with the files of two systems; of the last three days, only those of the first system."""
    folder, draw = tmp_path_factory.mktemp("systems"), np.random.default_rng(3)
    truth = 280 + 5 * draw.normal(size=(DAYS, *GRID.shape))
    one, other = (
        truth[:, None, None] + bias + draw.normal(size=(DAYS, 1, 1, *GRID.shape)) + draw.normal(
            size=(DAYS, 1, count, *GRID.shape)
        )
        for bias, count in ((1.0, 3), (-2.0, 4))
    )  # fmt: skip
    write(folder / "one.nc", one)
    write(folder / "other.nc", other[:LATE])
    write(folder / "renumbered.nc", other[:LATE], number=1000)
    write(folder / "one_new.nc", one[LATE - 1 :], LATE - 1)
    write(folder / "other_new.nc", other[LATE - 1 : LATE], LATE - 1)
    times = {"time": STARTS + np.timedelta64(24, "h")}
    axes = times | {"latitude": list(GRID.latitudes), "longitude": list(GRID.longitudes)}
    analyses = xr.DataArray(truth.astype("f4"), axes, list(axes), attrs={"units": "K"})
    analyses.to_dataset(name="2t").to_netcdf(folder / "analysis.nc")
    systems = {name: [str(folder / f"{name}.nc")] for name in ("one", "other")}
    archive = Archive([], [str(folder / "analysis.nc")], systems=systems)
    data = ForecastDataset(archive, TASK, [2020])
    corrector = Corrector(TASK, GRID, SPEC, torch.zeros(3, *GRID.shape))
    corrector.fit(ForecastDataset(archive, TASK, [2020], moments=True))
    corrector.save(folder / "corrector")
    return folder, corrector.eval(), data


def test_members_of_systems_get_numbers_of_their_own(project):
    folder, _, data = project
    files = [str(folder / name) for name in ("one.nc", "renumbered.nc")]
    plain = ForecastDataset(Archive(files, [str(folder / "analysis.nc")]), TASK, [2020])
    assert data.numbers == plain.numbers == (0, 1, 2, 1000, 1001, 1002, 1003)
    for found, wanted in zip(data, plain, strict=True):
        np.testing.assert_array_equal(found.ensemble, wanted.ensemble)
    assert len(data.ledger.omissions) == DAYS - LATE
    archive = Archive([], [], systems={"one": files[:1], "other": files[1:]})
    task = Task("wrong", ["2t"], ["2t"], [24], groups={"one": 0, "other": 3})
    with pytest.raises(InputError, match=r"set task.groups=\{one: 0, other: 1000\}"):
        archive.check_available(task, Dates.all(), False)


def test_each_file_is_corrected_with_and_without_the_other_system(project, command):
    folder, corrector, data = project
    (folder / "out").mkdir()
    ended = command(
        folder, "correct", "corrector=corrector", "input={one: one_new.nc, other: other_new.nc}", "output=out"
    )
    assert ended.code == 0, ended.stderr
    assert "3 of 4 forecasts have no member of other, and were corrected from the other groups" in ended.stdout
    files = [xr.open_dataset(folder / "out" / name)["2t"] for name in ("one_new.nc", "other_new.nc")]
    assert [file.number.values.tolist() for file in files] == [[0, 1, 2], [0, 1, 2, 3]]
    for day in range(LATE - 1, DAYS):
        sample = data[day]
        with torch.no_grad():
            wanted = corrector(type(sample)(*(tensor[None] for tensor in sample))).mean[0, 0]
        there = [file.sel(init_time=STARTS[day], lead_time=24).values for file in files[: 2 if day < LATE else 1]]
        # The quantiles of a normal distribution at symmetric levels have its mean.
        np.testing.assert_allclose(np.concatenate(there).mean(0), wanted, atol=2e-3)
