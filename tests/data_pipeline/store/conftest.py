"""An archive with missing values, and the store made from it."""

from collections.abc import Callable

import numpy as np
import pytest

from data_pipeline.archive import Archive
from data_pipeline.formats.grib import Encoder
from data_pipeline.grid import Grid
from data_pipeline.store import Store
from data_pipeline.task import Task

GRID = Grid.regular(5, 8)
STARTS = (20151227, 20151228, 20151231, 20160104, 20160108)
NUMBERS = (0, 1, 2, 3)
TASK = Task("toy", ["2t", "t@850", "sst"], ["t@850", "2t"], [24, 48], ["lsm"])
LOCAL = {"centre": "ecmf", "setLocalDefinition": 1, "localDefinitionNumber": 26}
SAMPLE = 4 * 40 * (4 * 3 + 2)
"""Bytes of a sample on disk."""


def keys(variable):
    if variable.level:
        return {"typeOfLevel": "isobaricInhPa", "level": variable.level, "shortName": variable.name}
    return {"typeOfLevel": "surface", "shortName": variable.name}


@pytest.fixture(scope="session")
def archive(tmp_path_factory):
    """Random fields; sst is missing on land, one member of one forecast is missing entirely."""
    folder, rng = tmp_path_factory.mktemp("archive"), np.random.default_rng(0)
    land = rng.random(GRID.shape) > 0.5
    forecast = Encoder(GRID, **LOCAL, stream="enfh", type="pf", stepUnits="h")
    ensemble = []
    for start in STARTS:
        for lead in TASK.lead_times:
            for number in NUMBERS:
                for variable in TASK.inputs:
                    field = rng.normal(280, 5, GRID.shape)
                    if variable.name == "sst":
                        field[land] = np.nan
                    if (start, lead, number, variable.level) != (STARTS[2], 48, 3, 850):
                        when = {"dataDate": start, "endStep": lead, "perturbationNumber": number}
                        ensemble.append(forecast.encode(field, **when, **keys(variable)))
    (folder / "ensemble").write_bytes(b"".join(ensemble))
    analysis = Encoder(GRID, **LOCAL, stream="oper", type="an")
    dates = (20151228, 20151229, 20151230, 20160101, 20160102, 20160105, 20160109, 20160110)
    truth = [
        analysis.encode(rng.normal(281, 5, GRID.shape), dataDate=date, **keys(variable))
        for date in dates
        for variable in TASK.targets
    ]
    (folder / "analysis").write_bytes(b"".join(truth))
    static = Encoder(GRID, **LOCAL, typeOfLevel="surface", shortName="lsm")
    (folder / "static").write_bytes(static.encode(land.astype(float), dataDate=20180101))
    return Archive([f"{folder}/ensemble"], [f"{folder}/analysis"], [f"{folder}/static"], missing="mask")


@pytest.fixture(scope="session")
def task() -> Task:
    """The task of the store: three inputs, two targets, two lead times."""
    return TASK


@pytest.fixture(scope="session")
def sample_bytes() -> int:
    """Bytes of one sample on disk."""
    return SAMPLE


@pytest.fixture(scope="session")
def make(archive) -> Callable[..., Store]:
    """Make a store in a folder: nine samples in three files, unless options change this."""

    def write(folder, **options):
        return Store.write(
            **({"archive": archive, "task": TASK, "shard_bytes": 4 * SAMPLE + 100} | options), folder=folder
        )

    return write


@pytest.fixture(scope="session")
def store(make, tmp_path_factory) -> Store:
    """The store; tests must not change it."""
    return make(tmp_path_factory.mktemp("store"))


@pytest.fixture
def copy(store, tmp_path):
    """The folder of a copy of the store, which tests may damage."""
    for path in store.folder.iterdir():
        (tmp_path / path.name).write_bytes(path.read_bytes())
    return tmp_path
