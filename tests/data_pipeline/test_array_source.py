"""Datasets of xarray as a data source: values by direct indexing, and one sentence for each wrong input."""

import pickle

import numpy as np
import pytest
from weather_files import weather

from data_pipeline.common.errors import InputError
from data_pipeline.dataset import ForecastDataset
from data_pipeline.grid import Grid
from data_pipeline.sources.array_fields import StandardDataset
from data_pipeline.sources.array_source import ArraySource
from data_pipeline.task import Task, Variable

STARTS = np.datetime64("2020-01-01", "ns") + np.arange(4) * np.timedelta64(1, "D")
PARTS = {
    part: data.assign_coords({name: axis.drop_attrs() for name, axis in data.coords.items()})
    for part, data in weather((24, 48), (0, 1, 2), (850, 500), STARTS, grid=Grid.regular(3, 4)).items()
}
ENSEMBLE, TRUTH = PARTS["ensemble"].assign(lsm=PARTS["static"].lsm), PARTS["analysis"][["2t"]]
TASK = Task("toy", ["2t", "t@500"], ["2t"], [24, 48], ["lsm"])


def samples(ensemble=ENSEMBLE, truth=TRUTH, task=TASK, **options):
    return ForecastDataset(ArraySource(ensemble, truth, **options), task, [2020])


def other_form():
    """The same data with other names, units of time, and orders."""
    other = ENSEMBLE.isel(latitude=slice(None, None, -1)).transpose("longitude", "number", ..., "init_time")
    other = other.rename({"init_time": "time", "lead_time": "step", "number": "ens", "latitude": "lat",
                          "longitude": "lon", "level": "isobaricInhPa", "2t": "t2m"})  # fmt: skip
    return other.assign_coords(step=np.array([24, 48], "timedelta64[h]"))


@pytest.mark.parametrize("chunks", [None, {"time": 1, "step": 1, "lat": 2}], ids=["memory", "dask"])
def test_samples_have_the_values_of_the_arrays(chunks):
    found = samples(other_form().chunk(chunks) if chunks else other_form(), names={"t2m": "2t"})
    assert len(found) == 8
    assert found.ledger.left_out == 0
    for index, (start, lead) in enumerate((i, j) for i in range(4) for j in range(2)):
        sample = found[index]
        np.testing.assert_array_equal(sample.ensemble[:, 0], ENSEMBLE["2t"][start, lead])
        np.testing.assert_array_equal(sample.ensemble[:, 1], ENSEMBLE.t[start, lead].sel(level=500))
        valid = STARTS[start] + np.timedelta64([24, 48][lead], "h")
        np.testing.assert_array_equal(sample.target[0], TRUTH["2t"].sel(time=valid))
        np.testing.assert_array_equal(sample.static[3], ENSEMBLE.lsm)
    np.testing.assert_array_equal(found.band(slice(1, 3))[3].ensemble, found[3].ensemble[:, :, 1:3])
    assert pickle.loads(pickle.dumps(found))[5].target.equal(found[5].target)


def failing():
    """A lazy dataset, one chunk of which cannot be computed."""

    def fail(block):
        raise OSError("disk gone")

    broken = ENSEMBLE["2t"].chunk(init_time=1).copy()
    broken.data = broken.data.map_blocks(fail, dtype="f4", meta=np.empty((0,) * 5, "f4"))
    return ENSEMBLE.assign({"2t": broken})


@pytest.mark.parametrize(
    ("ensemble", "truth", "sentence"),
    [
        (ENSEMBLE["2t"], TRUTH, "the ensemble must be a Dataset of xarray, got DataArray"),
        (ENSEMBLE.isel(number=0), TRUTH, "the ensemble lacks the dimension number; it has init_time, lead_time"),
        (ENSEMBLE.expand_dims(height=[2.0]), TRUTH, "2t has the dimension height, which is not known here"),
        (ENSEMBLE.isel(init_time=[0, 2, 1]), TRUTH, "init_time must increase, and 2020-01-03"),
        (ENSEMBLE.isel(init_time=[0, 0, 1]), TRUTH, "keep each once with drop_duplicates"),
        (ENSEMBLE.assign_coords(lead_time=[24.5, 48]), TRUTH, "lead_time must be different whole hours"),
        (ENSEMBLE.assign_coords(init_time=range(4)), TRUTH, "init_time of the type int64; convert it with pandas"),
        (ENSEMBLE.drop_vars("latitude"), TRUTH, "the ensemble has no coordinate latitude"),
        (ENSEMBLE.sel(level=[850]), TRUTH, "the ensemble lacks t@500: t has [850.0]; open this level"),
        (
            ENSEMBLE.rename(level="lev").assign_coords(lev=("lev", [850, 500], {"units": "1"})), TRUTH,
            "the ensemble lacks t@500: t has no dimension level; open this level",
        ),
        (ENSEMBLE.astype("i4"), TRUTH, "2t has the type int32; convert it with astype"),
        (ENSEMBLE, TRUTH["2t"].drop_attrs().to_dataset(), "in K in the ensemble and in unknown units in the analysis"),
        (failing(), TRUTH, "the ensemble cannot be computed for all forecasts (OSError: disk gone)"),
    ],
)  # fmt: skip
def test_wrong_input_is_one_sentence(ensemble, truth, sentence):
    with pytest.raises(InputError) as error:
        samples(ensemble, truth)
    assert sentence in str(error.value)


def test_names_must_exist():
    with pytest.raises(InputError, match="names has 'temperature', which is no variable of the datasets"):
        ArraySource(ENSEMBLE, TRUTH, names={"temperature": "2t"})
    with pytest.raises(InputError, match="the dataset has 2t twice, as 2t and as other"):
        StandardDataset.forecasts(ENSEMBLE.assign(other=ENSEMBLE["2t"]), "the dataset", {"other": "2t"}).field(
            Variable("2t"), ("init_time", "lead_time", "number")
        )
