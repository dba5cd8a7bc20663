"""Correction of datasets: what is corrected, what stays, and how much is in memory.

tests/test_python_door.py compares the numbers with those of the verb.
"""

import gc
import inspect
import os
import pickle
import subprocess
import sys
import warnings
import weakref

import cloudpickle
import dask
import numpy as np
import pytest
import scipy.stats
import torch
import xarray as xr
from conftest import ROOT

from conf.command_line import default_options
from data_pipeline.common.errors import InputError
from data_pipeline.grid import Grid
from data_pipeline.sample import Sample
from data_pipeline.task import Task, Variable
from data_pipeline.variables.meaning import Meaning
from models.correction.loading import ExportedCorrector
from models.corrector import Corrector
from models.engines.onnx_engine import OnnxEngine
from models.engines.onnx_export import export
from models.provenance.envelope import Envelope

pytestmark = pytest.mark.filterwarnings("ignore:.*(stay as they are|is not corrected and stays):UserWarning")

GRID = Grid.regular(5, 8)
STARTS = np.datetime64("2020-01-01", "ns") + np.arange(6) * np.timedelta64(1, "D")
LEADS = [0, 24, 48]
DIMENSIONS = ("init_time", "lead_time", "number", "latitude", "longitude")
RNG = np.random.default_rng(0)
SPACE = {"latitude": list(GRID.latitudes), "longitude": list(GRID.longitudes)}
DATASET = xr.Dataset(
    {
        "2t": (DIMENSIONS, RNG.normal(280, 5, (6, 3, 4, 5, 8)), {"units": "K"}),
        "t": ((*DIMENSIONS[:3], "level", *DIMENSIONS[3:]), RNG.normal(260, 5, (6, 3, 4, 2, 5, 8)).astype("f4"),
              {"units": "K"}),
        "lsm": (DIMENSIONS[3:], RNG.uniform(size=(5, 8))),
    },
    {"init_time": STARTS, "lead_time": LEADS, "number": [0, 1, 2, 3], "level": [850, 500], **SPACE},
    {"title": "made"},
)  # fmt: skip
WARMER = 2.5
TASK = Task("toy", ["2t", "t@850"], ["2t", "t@850"], [24, 48])


def shifting(task=TASK, spec="models.statistical.raw.Raw", shift=0.0, **options):
    """A corrector that adds a constant to all members of all targets."""
    corrector = Corrector(task, GRID, {"_target_": spec, **options}, torch.zeros(len(task.static_names), 5, 8))
    if shift:
        with torch.no_grad():
            corrector.model.coefficients[:, 0] += shift
    return corrector.eval()


def warmer(task=TASK):
    return shifting(task, "models.statistical.emos.EMOS", WARMER, seasonal=False, shared=True)


def quietly(corrector, dataset, **options):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)
        return corrector.correct(dataset, **options)


def mean_change(found, before=DATASET):
    """The change of the mean of all members, by start, lead time and place."""
    return (found - before).mean("number")


@pytest.mark.parametrize("chunks", [None, {"init_time": 1, "lead_time": 1}, {"number": 2, "latitude": 2}])
def test_targets_are_corrected_and_all_else_stays(chunks):
    data = DATASET if chunks is None else DATASET.chunk(chunks)
    with pytest.warns(UserWarning, match=".") as said:
        found = warmer().correct(data)
    assert {str(one.message) for one in said} == {
        "1 of 3 lead times are no lead times of the corrector and stay as they are: 0 h",
        "t at 1 of 2 levels is not corrected and stays as it is: 500 hPa",
    }
    assert all((each.chunks is None) == (chunks is None) for each in (found["2t"], found.t))
    assert (found.attrs, found.sizes, [*found]) == (DATASET.attrs, DATASET.sizes, [*DATASET])
    for name in DATASET:
        assert found[name].dims == DATASET[name].dims
        assert (found[name].dtype, found[name].attrs) == (DATASET[name].dtype, DATASET[name].attrs)
    xr.testing.assert_identical(found.lsm, data.lsm)
    xr.testing.assert_identical(found.coords.to_dataset(), DATASET.coords.to_dataset())
    change = mean_change(found)
    np.testing.assert_allclose(change["2t"].sel(lead_time=[24, 48]), WARMER, atol=1e-4)
    np.testing.assert_allclose(change.t.sel(lead_time=[24, 48], level=850), WARMER, atol=1e-3)
    np.testing.assert_array_equal(found["2t"].sel(lead_time=0), DATASET["2t"].sel(lead_time=0))
    np.testing.assert_array_equal(found.t.sel(level=500), DATASET.t.sel(level=500))
    np.testing.assert_array_equal(found.t.sel(lead_time=0), DATASET.t.sel(lead_time=0))
    np.testing.assert_array_equal(*(np.argsort(each["2t"].sel(lead_time=24).values, 1) for each in (found, DATASET)))


def test_names_orders_and_times_are_given_back():
    names = {"init_time": "time", "lead_time": "step", "number": "realization", "latitude": "lat", "longitude": "lon",
             "level": "isobaricInhPa", "2t": "t2m"}  # fmt: skip
    other = DATASET.isel(latitude=slice(None, None, -1)).transpose("longitude", "number", ..., "init_time")
    other = other.rename(names).assign_coords(step=np.array(LEADS, "timedelta64[h]"))
    found, expected = quietly(warmer(), other, names={"t2m": "2t"}), quietly(warmer(), DATASET)
    assert found.t2m.dims == other.t2m.dims
    xr.testing.assert_identical(found.coords.to_dataset(), other.coords.to_dataset())
    back = found.rename({new: old for old, new in names.items()}).assign_coords(lead_time=LEADS).sel(SPACE)
    xr.testing.assert_allclose(back["2t"].transpose(*DIMENSIONS), expected["2t"])
    np.testing.assert_array_equal(back.t.transpose(*DATASET.t.dims), expected.t)


@pytest.mark.parametrize(
    "further", [{"other_leads": ["t@500+0h"]}, {"analysis": ["2t"]}, {"formulas": ["difference(t@500, 2t)"]}]
)
def test_inputs_at_other_lead_times_of_the_analysis_and_of_formulas(further):
    """The model reads all channels; lazy blocks must hold what its sample needs."""
    task = Task("toy", ["2t"], ["2t"], [24, 48], **further)
    torch.manual_seed(0)
    corrector = Corrector(task, GRID, {"_target_": "models.networks.mlp.MLP", "baseline": None, "width": 4},
                          torch.zeros(3, 5, 8)).eval()  # fmt: skip
    for parameter in corrector.model.parameters():
        torch.nn.init.normal_(parameter, std=0.1)
    analysis = DATASET[["2t"]].isel(lead_time=0, number=0, drop=True).rename(init_time="time")
    given = {"analysis": analysis} if task.analysis else {}
    found = quietly(corrector, DATASET, **given)
    lazy = quietly(corrector, DATASET.chunk(init_time=2), **given).compute()
    xr.testing.assert_identical(found, lazy)
    assert float(abs(mean_change(found)["2t"].sel(lead_time=24)).mean()) > 0.01
    changed = quietly(corrector, DATASET.assign(t=DATASET.t * 1.01), **{k: v + 3 for k, v in given.items()})
    assert not np.array_equal(changed["2t"], found["2t"])


def test_memory_is_bounded_by_chunks_at_work():
    """Chunks of the input that are alive at the same time do not grow with the number of forecasts."""
    alive, most = set(), []

    class Counted(np.ndarray):
        pass

    def load(block, block_info=None):
        values = np.random.default_rng(block_info[0]["chunk-location"][0]).normal(280, 5, block.shape).view(Counted)
        alive.add(id(values))
        weakref.finalize(values, alive.discard, id(values))
        most.append(len(alive))
        return values

    def largest(starts):
        alive.clear()
        most.clear()
        times = np.datetime64("2020-01-01", "ns") + np.arange(starts) * np.timedelta64(1, "D")
        lazy = xr.Dataset(
            {"2t": (DIMENSIONS, dask.array.zeros((starts, 1, 4, 5, 8), chunks=(1, 1, 4, 5, 8)), {"units": "K"})},
            {"init_time": times, "lead_time": [24], "number": [0, 1, 2, 3], **SPACE},
        )
        lazy["2t"].data = lazy["2t"].data.map_blocks(load, dtype=float, meta=np.empty((0,) * 5))
        corrected = warmer(Task("toy", ["2t"], ["2t"], [24])).correct(lazy)
        with dask.config.set(scheduler="threads", num_workers=2):
            mean = float(corrected["2t"].mean())
        assert mean == pytest.approx(280 + WARMER, abs=1)
        gc.collect()
        assert len(most) == starts
        return max(most)

    few, many = largest(8), largest(64)
    assert many <= max(few, 8) < 64


def test_a_lazy_correction_can_be_sent_to_another_process():
    lazy = quietly(warmer(), DATASET.chunk(init_time=1))
    copied = pickle.loads(cloudpickle.dumps(lazy.isel(init_time=[2])))
    xr.testing.assert_identical(copied.compute(), quietly(warmer(), DATASET).isel(init_time=[2]))


@pytest.mark.parametrize("count", [1, 3, 9])
@pytest.mark.parametrize("read", [1, 4])
def test_any_number_of_members_is_made_of_any_number(count, read):
    """Sorted members are the quantiles at the levels (k - 1/2)/M of the corrected normal distribution."""
    corrector, dataset = warmer(), DATASET.isel(number=slice(read))
    found = corrector.correct(dataset, member_count=count)
    lazy = corrector.correct(dataset.chunk(init_time=1, lead_time=1), member_count=count)
    xr.testing.assert_identical(lazy.compute(), found)
    assert found.sizes == {"init_time": 6, "lead_time": 2, "number": count, "level": 1, "latitude": 5, "longitude": 8}
    assert {*found.data_vars} == {"2t", "t"}
    assert found["2t"].dims == DIMENSIONS
    assert found.number.values.tolist() == [*range(count)]
    raw = dataset["2t"].sel(lead_time=[24, 48])
    sample = Sample(
        torch.tensor(np.stack([raw.values, dataset.t.sel(lead_time=[24, 48], level=850).values], 3)[:, 1]).float(),
        torch.ones(6, 2, 5, 8, dtype=torch.bool), corrector.static.expand(6, -1, 5, 8), torch.zeros(6, 2, 5, 8),
        torch.tensor(STARTS.astype("datetime64[s]").astype(int)), torch.full((6,), 48),
    )  # fmt: skip
    with torch.no_grad():
        forecast = corrector(sample)
    levels = (np.arange(count) + 0.5) / count
    expected = scipy.stats.norm.ppf(
        levels[:, None, None, None], forecast.mean[:, 0].double(), forecast.std[:, 0].double()
    )
    members = np.sort(found["2t"].sel(lead_time=48).transpose("number", ...).values, 0)
    np.testing.assert_allclose(members, expected, atol=2e-3)


def test_the_python_door_has_every_option_of_the_verb_or_a_reason():
    """Options have one default in both; the names of the door are those of the verb, except `names`."""
    without = {
        "corrector": "the object itself", "input": "the dataset", "output": "the result", "format": "the result",
        "template": "of GRIB headers", "mark": "of headers of files", "keys": "of GRIB headers",
        "earlier": "datasets have no earlier starts", "attention": "of a command", "status": "of a command",
        "explain": "a page beside a file", "mesh": "one process", "conformal": "belongs to the hash of a file",
    }  # fmt: skip
    verb = default_options("correct")
    verb["names"] = verb.pop("variable_names")
    door = inspect.signature(Corrector.correct).parameters
    exported = inspect.signature(ExportedCorrector.correct).parameters
    assert {*verb} - {*without} == {*door} - {"self", "dataset"}
    # It reads no second file, has one device, and holds the numbers of its own stations.
    assert {*door} - {*exported} == {"fallback", "device", "stations", "static_fields"}
    for name in {*verb} - {*without}:
        assert {one[name].default for one in (door, exported) if name in one} == {verb[name]}, name


def test_times_without_training_are_errors_or_one_warning():
    corrector = warmer()
    free = quietly(corrector, DATASET)
    corrector.envelope = Envelope({}, (0,), (6,), (4,))
    with pytest.raises(InputError, match=r"it is valid in January.*set untrained_times=correct"):
        quietly(corrector, DATASET)
    with pytest.warns(UserWarning, match="^12 of 12 forecasts of the dataset are at times without training: it is"):
        found = corrector.correct(DATASET, untrained_times="correct")
    xr.testing.assert_identical(found, free)
    corrector.envelope = Envelope({}, (0,), (6,), (4,))
    with pytest.raises(InputError, match="keeps its 4 raw members, and member_count=9"):
        quietly(corrector, DATASET, on_problem="raw", member_count=9)


@pytest.mark.parametrize("lazy", [False, True])
def test_other_units_stay_the_units_of_the_dataset(lazy):
    corrector = warmer()
    corrector.meanings = tuple(Meaning(Variable.parse(name), "K", (0, 0)) for name in ("2t", "t@850"))
    given = DATASET.assign({"2t": ((DATASET["2t"] - 273.15) * 1.8 + 32).assign_attrs(units="degF")})
    for options in ({}, {"member_count": 9}):
        found = quietly(corrector, given.chunk(init_time=1) if lazy else given, **options)["2t"]
        assert found.units == "degF"
        expected = quietly(corrector, DATASET, **options)["2t"]
        np.testing.assert_allclose((found - 32) / 1.8 + 273.15, expected, atol=2e-4)


def test_wrong_input_is_one_sentence():
    corrector = warmer()
    corrector.meanings = tuple(Meaning(Variable.parse(name), "K", (0, 0)) for name in ("2t", "t@850"))
    assert quietly(corrector, DATASET).sizes == DATASET.sizes
    for change, sentence in (
        (lambda d: d.isel(number=0), "the dataset lacks the dimension number"),
        (lambda d: d.isel(latitude=slice(4)), "the dataset has 4 x 8 points"),
        (lambda d: d.drop_vars("t"), "the dataset lacks the variable t@850; it has 2t, lsm"),
        (lambda d: d.sel(lead_time=[0]), "the dataset has the lead times 0 h, the corrector corrects 24, 48 h"),
        (lambda d: d.assign({"2t": d["2t"].drop_attrs()}), "trained on 2t in K, not unknown units as in the dataset"),
    ):
        for dataset in (DATASET, DATASET.chunk(init_time=1)):
            with pytest.raises(InputError) as error:
                quietly(corrector, change(dataset))
            assert sentence in str(error.value)


def test_wrong_analyses_are_refused():
    with pytest.raises(InputError, match="the corrector reads no analysis; leave out analysis"):
        quietly(warmer(), DATASET, analysis=DATASET)
    reader = warmer(Task("toy", ["2t"], ["2t"], [24], analysis=["2t"]))
    with pytest.raises(InputError, match="reads the analysis of 2t at the start; give it as analysis=DATASET"):
        quietly(reader, DATASET)
    late = DATASET[["2t"]].isel(lead_time=0, number=0, drop=True).rename(init_time="time").isel(time=slice(1, None))
    with pytest.raises(InputError, match="lack 2t analysis for the forecast of 2020-01-01"):
        quietly(reader, DATASET, analysis=late)


def test_a_corrector_says_what_it_is():
    corrector = warmer()
    corrector.provenance = {
        "train_dates": [["2010-01-01", "2014-12-31"]], "val_dates": [["2015-01-01", "2015-12-31"]], "members": 4,
        "validation_crps": 0.3, "validation_crps_raw": 0.4, "data": "<a>", "unfitted": {"cells": 3, "of": 80},
        "ledger": {"train": {"forecasts": 50, "used": 48}},
    }  # fmt: skip
    text, html = repr(corrector), corrector._repr_html_()
    for line in (
        "2t; t at 850 hPa",
        "2010-2014, 48 of 50 forecasts",
        "0.3 in normalised units, 25.0 % lower",
        "3 of 80",
    ):
        assert line in text
    assert "&lt;a&gt;" in html
    corrector.provenance["validation_crps"] = 0.5
    assert "25.0 % higher than the raw" in repr(corrector)


WITHOUT_TORCH = """
import sys
sys.modules["torch"] = None
import deepweather as dw, xarray as xr
corrector = dw.load("small.onnx")
print(corrector)
corrector.correct(xr.open_dataset("in.nc")).to_netcdf("out.nc")
corrector.correct(xr.open_dataset("in.nc", chunks={"init_time": 2})).to_netcdf("lazy.nc")
"""


def test_an_exported_corrector_corrects_datasets_without_torch(tmp_path):
    corrector = warmer(Task("toy", ["2t"], ["2t"], [24, 48]))
    corrector.save(tmp_path / "small.safetensors")
    export(tmp_path / "small.safetensors", tmp_path / "small.onnx")
    DATASET[["2t"]].sel(lead_time=[24, 48]).to_netcdf(tmp_path / "in.nc")
    places = os.pathsep.join([str(ROOT), str(ROOT / "scripts")])
    process = subprocess.run(
        [sys.executable, "-c", WITHOUT_TORCH], cwd=tmp_path, env=os.environ | {"PYTHONPATH": places},
        capture_output=True, text=True,
    )  # fmt: skip
    assert process.returncode == 0, process.stderr
    assert "24 48 h" in process.stdout
    expected = quietly(corrector, DATASET[["2t"]]).sel(lead_time=[24, 48])
    for name in ("out.nc", "lazy.nc"):
        with xr.open_dataset(tmp_path / name) as found:
            np.testing.assert_allclose(found["2t"], expected["2t"], rtol=1e-6)
    engine = OnnxEngine(tmp_path / "small.onnx")
    assert pickle.loads(pickle.dumps(engine)).description.sha256 == engine.description.sha256
