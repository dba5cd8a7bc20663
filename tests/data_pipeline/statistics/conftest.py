"""An archive of random fields whose values the tests have as arrays: hindcasts of December to March, with land."""

from types import SimpleNamespace

import numpy as np
import pytest
from weather_files import weather, write_grib

from data_pipeline.archive import Archive
from data_pipeline.cluster import Threads
from data_pipeline.dates import Dates
from data_pipeline.grid import Grid
from data_pipeline.statistics.statistic_file import write_statistic
from data_pipeline.statistics.training_forecasts import TrainingForecasts
from data_pipeline.task import Task

LEADS = (24, 48)
TASK = Task("toy", ["2t", "sst", "t@500"], ["2t"], LEADS)
TRAINING_YEARS = (2010, 2013)
DAYS = ("01-04", "01-08", "01-11", "02-27", "03-01", "12-24", "12-27", "12-31")
STARTS = np.array([f"{year}-{day}" for year in range(2010, 2016) for day in DAYS], "M8[ns]")


@pytest.fixture(scope="session")
def toy(tmp_path_factory):
    """An `archive` and its values: ensemble[name][start, lead, member]."""
    folder = tmp_path_factory.mktemp("statistics")
    parts = weather(LEADS, (1, 2, 3), (500,), STARTS, ("2t", "sst"), Grid.regular(19, 24))
    parts["ensemble"].sst[..., 4:12, 5:11] = np.nan  # land
    # One member of one forecast has no field, which is masked.
    parts["ensemble"]["2t"][1, 1, 2] = np.nan
    for part, data in parts.items():
        write_grib(folder / part, part, data, bitsPerValue=24)
    archive = Archive([f"{folder}/ensemble"], [f"{folder}/analysis"], missing="mask")
    ensemble = {name: array.values.reshape(48, 2, 3, 19, 24) for name, array in parts["ensemble"].items()}
    return SimpleNamespace(archive=archive, starts=STARTS, ensemble=ensemble)


@pytest.fixture(scope="session")
def training(toy):
    return TrainingForecasts(toy.archive, TASK, Dates.of_years(range(TRAINING_YEARS[0], TRAINING_YEARS[1] + 1)))


@pytest.fixture(scope="session")
def written(training):
    """Return a function that computes a statistic, writes its file and returns the path."""

    def write(path, statistic, training=training, cluster=None):
        cluster = cluster or Threads(2)
        with cluster.executor():
            pieces = list(statistic.compute(training, cluster.at_once))
        assert len(pieces) == statistic.count_pieces(training, cluster.at_once)
        write_statistic(path, statistic, training, pieces)
        return path

    return write


@pytest.fixture(scope="session")
def in_training(toy):
    """Return the positions (start, lead time) of the forecasts valid in the training years."""
    return [
        (i, j)
        for i, start in enumerate(toy.starts)
        for j, lead in enumerate(LEADS)
        if TRAINING_YEARS[0] <= (start.astype("M8[s]") + np.timedelta64(lead, "h")).item().year <= TRAINING_YEARS[1]
    ]
