"""An archive of random fields whose values the tests have as arrays: hindcasts of December to March, with land."""

from types import SimpleNamespace

import numpy as np
import pytest

from data_pipeline.archive import Archive
from data_pipeline.cluster import Threads
from data_pipeline.dates import Dates
from data_pipeline.formats.grib import Encoder
from data_pipeline.grid import Grid
from data_pipeline.statistics.training_forecasts import TrainingForecasts
from data_pipeline.task import Task

GRID = Grid.regular(19, 24)
YEARS = range(2010, 2016)
DAYS = ("0104", "0108", "0111", "0227", "0301", "1224", "1227", "1231")
LEADS = (24, 48)
NUMBERS = (1, 2, 3)
TASK = Task("toy", ["2t", "sst", "z@500"], ["2t"], LEADS)
TRAINING_YEARS = (2010, 2013)
BASE = {"2t": 280.0, "sst": 290.0, "z": 54_000.0}
TYPE = {"2t": ("surface", 0), "sst": ("surface", 0), "z": ("isobaricInhPa", 500)}
LAND = np.zeros(GRID.shape, bool)
LAND[4:12, 5:11] = True


@pytest.fixture(scope="session")
def toy(tmp_path_factory):
    """An `archive` and its values: ensemble[name][start, lead, member], truth[valid time]."""
    return make(tmp_path_factory.mktemp("statistics"))


@pytest.fixture(scope="session")
def spoilt(tmp_path_factory):
    """The same archive with other values after the training years."""
    return make(tmp_path_factory.mktemp("spoilt"), spoilt_after=TRAINING_YEARS[1])


def make(folder, spoilt_after=9999):
    random = np.random.default_rng(1)
    local = {"centre": "ecmf", "setLocalDefinition": 1, "localDefinitionNumber": 26, "bitsPerValue": 24, "dataTime": 0}
    forecast = Encoder(GRID, **local, stream="enfh", type="pf", stepUnits="h")
    analysis = Encoder(GRID, **local, stream="oper", type="an", shortName="2t", typeOfLevel="surface")
    starts = sorted(np.datetime64(f"{year}-{day[:2]}-{day[2:]}", "s") for year in YEARS for day in DAYS)
    shape = (len(starts), len(LEADS), len(NUMBERS), *GRID.shape)
    ensemble = {name: (base + 20 * random.normal(size=shape)) for name, base in BASE.items()}
    ensemble["sst"][..., LAND] = np.nan
    # One member of one forecast has no field, which is masked.
    hole = (starts.index(np.datetime64("2011-01-08", "s")), 1, 2)
    truth = {}
    with (folder / "ensemble").open("wb") as file, (folder / "analysis").open("wb") as verification:
        for i, start in enumerate(starts):
            for j, lead in enumerate(LEADS):
                valid = start + np.timedelta64(lead, "h")
                factor = 1 + (valid.item().year > spoilt_after)
                for name, values in ensemble.items():
                    for m, number in enumerate(NUMBERS):
                        if name == "2t" and (i, j, m) == hole:
                            continue
                        kind, level = TYPE[name]
                        keys = {"dataDate": int(str(start)[:10].replace("-", "")), "endStep": lead}
                        place = {"shortName": name, "typeOfLevel": kind, "level": level}
                        file.write(
                            forecast.encode(factor * values[i, j, m], **place, **keys, perturbationNumber=number)
                        )
                truth[valid] = 280 + 10 * random.normal(size=GRID.shape)
                verification.write(
                    analysis.encode(factor * truth[valid], level=0, dataDate=int(str(valid)[:10].replace("-", "")))
                )
    ensemble["2t"][hole] = np.nan
    archive = Archive([f"{folder}/ensemble"], [f"{folder}/analysis"], missing="mask")
    return SimpleNamespace(archive=archive, starts=np.array(starts), ensemble=ensemble, truth=truth)


@pytest.fixture(scope="session")
def training(toy):
    return TrainingForecasts(toy.archive, TASK, Dates.of_years(range(TRAINING_YEARS[0], TRAINING_YEARS[1] + 1)))


@pytest.fixture(scope="session")
def computed(training):
    """Return a function that computes a statistic and returns its arrays by name."""

    def run(statistic, training=training):
        variables, coordinates = statistic.axes(training)
        sizes = {name: len(values) for name, values in coordinates.items()}
        sizes |= dict(zip(("latitude", "longitude"), training.grid.shape, strict=True))
        arrays = {name: np.full([sizes[d] for d in axes], np.nan) for name, axes in variables.items()}
        with Threads(2).executor():
            pieces = list(statistic.compute(training, 2))
        assert len(pieces) == statistic.count_pieces(training, 2)
        for _, values in pieces:
            for name, (place, value) in values.items():
                arrays[name][place] = value
        return {**arrays, **coordinates}

    return run


@pytest.fixture(scope="session")
def in_training(toy):
    """Return the positions (start, lead time) of the forecasts valid in the training years."""
    return [
        (i, j)
        for i, start in enumerate(toy.starts)
        for j, lead in enumerate(LEADS)
        if TRAINING_YEARS[0] <= (start + np.timedelta64(lead, "h")).item().year <= TRAINING_YEARS[1]
    ]
