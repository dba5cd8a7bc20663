"""Datasets of xarray as a data source: values by direct indexing, and one sentence for each wrong input."""

import pickle

import numpy as np
import pytest
import xarray as xr

from data_pipeline.archive import Archive
from data_pipeline.array_fields import StandardDataset
from data_pipeline.array_source import ArraySource
from data_pipeline.common.errors import InputError
from data_pipeline.dataset import ForecastDataset
from data_pipeline.task import Task, Variable

STARTS = np.datetime64("2020-01-01", "ns") + np.arange(4) * np.timedelta64(1, "D")
LATITUDE, LONGITUDE = [60.0, 0.0, -60.0], [0.0, 90.0, 180.0, 270.0]
RNG = np.random.default_rng(0)
DIMENSIONS = ("init_time", "lead_time", "number", "latitude", "longitude")
ENSEMBLE = xr.Dataset(
    {
        "2t": (DIMENSIONS, RNG.normal(280, 5, (4, 2, 3, 3, 4)).astype("f4"), {"units": "K"}),
        "t": ((*DIMENSIONS[:3], "level", *DIMENSIONS[3:]), RNG.normal(260, 5, (4, 2, 3, 2, 3, 4)).astype("f4"),
              {"units": "K"}),
        "lsm": (DIMENSIONS[3:], RNG.uniform(size=(3, 4)).astype("f4")),
    },
    {"init_time": STARTS, "lead_time": [24, 48], "number": [0, 1, 2], "level": [850, 500], "latitude": LATITUDE,
     "longitude": LONGITUDE},
)  # fmt: skip
TIMES = np.datetime64("2020-01-01", "ns") + np.arange(6) * np.timedelta64(1, "D")
TRUTH = xr.Dataset(
    {"2t": (("time", "latitude", "longitude"), RNG.normal(280, 5, (6, 3, 4)).astype("f4"), {"units": "K"})},
    {"time": TIMES, "latitude": LATITUDE, "longitude": LONGITUDE},
)
TASK = Task("toy", ["2t", "t@500"], ["2t"], [24, 48], ["lsm"])


def samples(ensemble=ENSEMBLE, truth=TRUTH, task=TASK, **options):
    return ForecastDataset(ArraySource(ensemble, truth, **options), task, [2020])


def other_form():
    """The same data with other names, units of time, and orders."""
    other = ENSEMBLE.isel(latitude=slice(None, None, -1)).transpose("longitude", "number", ..., "init_time")
    other = other.rename({"init_time": "time", "lead_time": "step", "number": "realization", "latitude": "lat",
                          "longitude": "lon", "level": "isobaricInhPa", "2t": "t2m"})  # fmt: skip
    return other.assign_coords(step=np.array([24, 48], "timedelta64[h]"))


@pytest.mark.parametrize(
    ("ensemble", "names"),
    [(ENSEMBLE, None), (ENSEMBLE.chunk(init_time=1, lead_time=1, latitude=2), None), (other_form(), {"t2m": "2t"})],
    ids=["memory", "dask", "other names"],
)
def test_samples_have_the_values_of_the_arrays(ensemble, names):
    found = samples(ensemble, **{} if names is None else {"names": names})
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


def test_the_same_fields_as_from_files(tmp_path):
    """The archive reads the datasets from NetCDF files."""
    standard = {"init_time": "forecast_reference_time", "lead_time": "forecast_period", "number": "realization"}
    files = ENSEMBLE.drop_vars("lsm")
    for name, text in standard.items():
        files[name].attrs["standard_name"] = text
    files.lead_time.attrs["units"] = "hours"
    files.level.attrs |= {"units": "hPa", "standard_name": "air_pressure"}
    files.to_netcdf(tmp_path / "ensemble.nc")
    TRUTH.to_netcdf(tmp_path / "truth.nc")
    task = Task("toy", ["2t", "t@500"], ["2t"], [24, 48])
    archive = Archive([f"{tmp_path}/ensemble.nc"], [f"{tmp_path}/truth.nc"])
    theirs, ours = ForecastDataset(archive, task, [2020]), samples(task=task)
    assert ours.meanings == theirs.meanings
    for one, other in zip(ours, theirs, strict=True):
        assert all(mine.equal(yours) for mine, yours in zip(one, other, strict=True))


def test_a_forecast_without_truth_and_one_without_values_are_counted():
    gone = ENSEMBLE.copy(deep=True)
    gone["2t"][1, 0] = np.nan
    gone["t"][1, 0] = np.nan
    gone["t"][2, 1, 2] = np.nan
    for ensemble in (gone, gone.chunk(init_time=2)):
        found = samples(ensemble, TRUTH.isel(time=slice(5)), missing="mask")
        reasons = {name: [one.key for one in group] for name, group in found.ledger.by_reason.items()}
        seconds = STARTS.astype("datetime64[s]").astype(int)
        assert reasons == {
            "no_analysis": [(seconds[3], 48)], "missing_field": [(seconds[1], 24)], "masked": [(seconds[2], 48)],
        }  # fmt: skip
        with pytest.raises(InputError, match=r"lacks all fields for the forecast of 2020-01-02.* at 24 h"):
            samples(ensemble)


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
        (ENSEMBLE.rename(number="perturbation"), TRUTH, "the ensemble lacks the dimension number"),
        (ENSEMBLE.expand_dims(height=[2.0]), TRUTH, "2t has the dimension height, which is not known here"),
        (ENSEMBLE.isel(init_time=[0, 2, 1]), TRUTH, "init_time must increase, and 2020-01-03"),
        (ENSEMBLE.isel(init_time=[0, 0, 1]), TRUTH, "keep each once with drop_duplicates"),
        (ENSEMBLE.isel(lead_time=[1, 0]), TRUTH, "lead_time must increase, and 48 is followed by 24"),
        (ENSEMBLE.assign_coords(lead_time=[24.5, 48]), TRUTH, "lead_time must be different whole hours"),
        (ENSEMBLE.assign_coords(init_time=range(4)), TRUTH, "init_time of the type int64; convert it with pandas"),
        (ENSEMBLE.drop_vars("latitude"), TRUTH, "the ensemble has no coordinate latitude"),
        (ENSEMBLE.drop_vars("t"), TRUTH, "the ensemble lacks the variable t@500; it has 2t, lsm"),
        (ENSEMBLE.sel(level=[850]), TRUTH, "the ensemble lacks t@500: t has [850]; open this level"),
        (ENSEMBLE.isel(lead_time=[0]), TRUTH, "the ensemble has no lead time 48 h; it has 24 h"),
        (ENSEMBLE.astype("i4"), TRUTH, "2t has the type int32; convert it with astype"),
        (ENSEMBLE, TRUTH.isel(latitude=[0, 1]), "the ensemble has 3 x 4 points"),
        (ENSEMBLE, TRUTH["2t"].assign_attrs(units="degC").to_dataset(), "is in K in the ensemble and in degC in the"),
        (ENSEMBLE, TRUTH["2t"].drop_attrs().to_dataset(), "in K in the ensemble and in unknown units in the analysis"),
        (ENSEMBLE, TRUTH.assign_coords(time=TIMES + np.timedelta64(100, "D")), "no forecast that is valid in 2020 can"),
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
            Variable("2t"), DIMENSIONS[:3]
        )
