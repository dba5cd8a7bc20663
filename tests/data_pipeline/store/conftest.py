"""An archive with missing values, and the store made from it."""

from collections.abc import Callable

import numpy as np
import pytest
from weather_files import OUTER, weather, write_grib

from data_pipeline.archive import Archive
from data_pipeline.grid import Grid
from data_pipeline.store import Store
from data_pipeline.task import Task

STARTS = np.array(["2015-12-27", "2015-12-28", "2015-12-31", "2016-01-04", "2016-01-08"], "M8[ns]")
TASK = Task("toy", ["2t", "t@850", "sst"], ["t@850", "2t"], [24, 48], ["lsm"])
SAMPLE = 4 * 40 * (4 * 3 + 2)
"""Bytes of a sample on disk."""


@pytest.fixture(scope="session")
def archive(tmp_path_factory):
    """Random fields; sst is missing on land, and a member of one forecast and the analysis of another everywhere."""
    folder = tmp_path_factory.mktemp("archive")
    parts = weather(TASK.lead_times, range(4), starts=STARTS, surface=("2t", "sst"), grid=Grid.regular(5, 8))
    land = parts["static"].lsm > 280
    parts["static"]["lsm"] = land.astype("f4")
    parts["ensemble"]["sst"] = parts["ensemble"].sst.where(~land)
    parts["ensemble"].t[2, 1, 3] = np.nan
    parts["analysis"] = parts["analysis"].drop_vars("sst").drop_sel(time=STARTS[3:4] + np.timedelta64(48, "h"))
    for part, data in parts.items():
        write_grib(folder / part, part, data)
    return Archive(*([str(folder / part)] for part in OUTER), missing="mask")


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
