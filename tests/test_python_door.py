"""The Python interface gives the numbers of the verbs, bit for bit: fit, correct and score, in memory and with dask.

The verbs read NetCDF files of the datasets that the functions get.
"""

import csv
import weakref

import deepweather as dw
import numpy as np
import pytest
import torch
import xarray as xr

from data_pipeline.grid import Grid

pytestmark = [
    pytest.mark.usefixtures("without_figures"),
    pytest.mark.filterwarnings("ignore:.*found in sys.modules after import:RuntimeWarning"),
    pytest.mark.filterwarnings("ignore:.*(no year can be held out|training starts at the raw):UserWarning"),
]

GRID = Grid.regular(5, 8)
SPACE = {
    "latitude": ("latitude", list(GRID.latitudes), {"units": "degrees_north"}),
    "longitude": ("longitude", list(GRID.longitudes), {"units": "degrees_east"}),
}
LEADS, MEMBERS, YEARS = [24, 48], 4, (2014, 2015, 2016)
TASK = dw.Task(name="t2m", inputs=["2t", "t@850"], targets=["2t"], lead_times=LEADS)
UNET = {"model": "unet", "width": 4, "depth": 1}
SPLIT = {"train": [2014, 2014], "val": [2015, 2015]}
DIMENSIONS = ("init_time", "lead_time", "number", "latitude", "longitude")


def make_world():
    """An ensemble that is 1 K too cold with half the spread, and its truth; 14 starts in each year."""
    rng = np.random.default_rng(7)
    starts = np.concatenate(
        [np.datetime64(f"{year}-01-05", "ns") + np.arange(14) * np.timedelta64(25, "D") for year in YEARS]
    )
    signal = 280 + 5 * rng.normal(size=(len(starts), 2, *GRID.shape))
    raw = signal[:, :, None] - 1 + 0.5 * rng.normal(size=(len(starts), 2, MEMBERS, *GRID.shape))
    aloft = raw[:, :, :, None] - 20 + rng.normal(size=(*raw.shape[:3], 1, *GRID.shape))
    times = {
        "init_time": ("init_time", starts, {"standard_name": "forecast_reference_time"}),
        "lead_time": ("lead_time", LEADS, {"units": "hours", "standard_name": "forecast_period"}),
        "number": ("number", np.arange(MEMBERS), {"standard_name": "realization"}),
        "level": ("level", [850], {"units": "hPa", "standard_name": "air_pressure"}),
    }
    ensemble = xr.Dataset(
        {
            "2t": (DIMENSIONS, raw.astype("f4"), {"units": "K"}),
            "t": ((*DIMENSIONS[:3], "level", *DIMENSIONS[3:]), aloft.astype("f4"), {"units": "K"}),
        },
        times | SPACE,
    )  # fmt: skip
    valid = (starts[:, None] + np.array(LEADS) * np.timedelta64(1, "h")).ravel()
    truth = (signal + rng.normal(size=signal.shape)).reshape(-1, *GRID.shape).astype("f4")
    analysis = xr.Dataset({"2t": (("time", "latitude", "longitude"), truth, {"units": "K"})}, {"time": valid} | SPACE)
    return ensemble, analysis


ENSEMBLE, TRUTH = make_world()
LAZY, LAZY_TRUTH = ENSEMBLE.chunk(init_time=1, lead_time=1), TRUTH.chunk(time=1)


def fit(model, ensemble=ENSEMBLE, truth=TRUTH, **options):
    return dw.fit(model, ensemble, truth, task=TASK, **SPLIT | {"epochs": 2, "emos_minutes": 0} | options)


@pytest.fixture(scope="module")
def project(tmp_path_factory, command):
    """Files of the data, and the runs of the verbs."""
    folder = tmp_path_factory.mktemp("project")
    (folder / "data/netcdf").mkdir(parents=True)
    ENSEMBLE.to_netcdf(folder / "data/netcdf/ensemble.nc")
    TRUTH.to_netcdf(folder / "data/netcdf/analysis.nc")
    options = [
        "data=netcdf", "data.split.train=[2014,2014]", "data.split.val=[2015,2015]",
        "task=t2m", "task.inputs=[2t,t@850]", "task.lead_times=[24,48]",
    ]  # fmt: skip
    network = ["model=unet", "model.width=4", "model.depth=1", "trainer.epochs=2", "trainer.emos_minutes=0"]
    for name, model in (("emos", ["model=emos", "model.shared=false", "trainer.emos_minutes=0"]), ("unet", network)):
        ended = command(folder, "train", *options, *model, f"run_dir=runs/{name}")
        assert ended.code == 0, ended.stderr
        ended = command(folder, "correct", f"corrector=runs/{name}/corrector.safetensors",
                        "input=data/netcdf/ensemble.nc", f"output={name}.nc")  # fmt: skip
        assert ended.code == 0, ended.stderr
    scoring = ["data.split.test=[2016,2016]", "correctors={}", "references=[raw,climatology]", "run_dir=scores"]
    ended = command(folder, "evaluate", *options, *scoring, every_part=True)
    assert ended.code == 0, ended.stderr
    return folder


@pytest.mark.parametrize(
    ("name", "data"), [("emos", (LAZY, LAZY_TRUTH)), ("unet", (ENSEMBLE, TRUTH))], ids=["EMOS, dask", "network, memory"]
)
def test_fit_and_correct_give_the_numbers_of_the_verbs(project, name, data):
    theirs = dw.load(project / "runs" / name / "corrector.safetensors")
    ours = fit(UNET if name == "unet" else {"model": "emos", "shared": False}, *data)
    assert ours.state_dict().keys() == theirs.state_dict().keys()
    assert all(torch.equal(tensor, theirs.state_dict()[key]) for key, tensor in ours.state_dict().items())
    assert (ours.task.to_json() | {"name": ""}, ours.grid) == (theirs.task.to_json() | {"name": ""}, theirs.grid)
    for corrector in (ours, theirs):
        corrector.meanings = ()
    own = {"run", "data", "made"}
    assert {key: each for key, each in ours.provenance.items() if key not in own} == {
        key: each for key, each in theirs.provenance.items() if key not in own
    }
    corrected = ours.correct(data[0])
    with xr.open_dataset(project / f"{name}.nc", decode_timedelta=False) as written:
        np.testing.assert_array_equal(corrected["2t"].transpose(*written["2t"].dims).values, written["2t"].values)
        np.testing.assert_array_equal(corrected.t.values, ENSEMBLE.t.values)
    assert corrected.sizes == ENSEMBLE.sizes
    assert corrected["2t"].dims == DIMENSIONS
    assert (corrected["2t"].attrs, corrected["2t"].dtype) == (ENSEMBLE["2t"].attrs, np.float32)
    assert not np.array_equal(corrected["2t"].values, ENSEMBLE["2t"].values)


@pytest.mark.parametrize("data", [(ENSEMBLE, TRUTH), (LAZY, LAZY_TRUTH)], ids=["memory", "dask"])
def test_score_gives_the_numbers_of_evaluate(project, data):
    """Scores of the raw ensemble in each region and lead time, to all digits of the table, with intervals."""
    ensemble, truth = data[0]["2t"].sel(init_time="2016"), data[1]["2t"]
    found, compared = dw.score(ensemble, truth), 0
    with (project / "scores/scores.csv").open() as file:
        rows = [row for row in csv.DictReader(file) if row["model"] == "raw" and row["form"] == "distribution"]
    for row in rows:
        if row["score"] in found and row["lead_time"] in ("24", "48") and row["season"] == "all" and not row["label"]:
            for ending, column in (("", "value"), ("_low", "low"), ("_high", "high")):
                ours = found[row["score"] + ending].sel(lead_time=int(row["lead_time"]), region=row["region"]).item()
                assert f"{ours:.9g}" * (ours == ours) == row[column], row
                compared += 1
    assert compared > 150


def test_lazy_fit_and_score_hold_few_chunks():
    """Chunks that dask has computed are released as soon as their forecast is read, however many there are."""
    alive, most = set(), []

    class Counted(np.ndarray):
        pass

    def load(block):
        values = block.copy().view(Counted)
        alive.add(id(values))
        weakref.finalize(values, alive.discard, id(values))
        most.append(len(alive))
        return values

    def counted(dataset):
        copied = dataset[["2t"]].copy()
        copied["2t"].data = copied["2t"].data.map_blocks(
            load, dtype="f4", meta=np.empty((0,) * copied["2t"].ndim, "f4")
        )
        return copied

    task = dw.Task(name="t2m", inputs=["2t"], targets=["2t"], lead_times=LEADS)
    dw.fit({"model": "emos", "shared": True}, counted(LAZY), counted(LAZY_TRUTH), task=task, **SPLIT, emos_minutes=0)
    assert len(most) > 100
    assert max(most) <= 8
    most.clear()
    dw.score(counted(LAZY)["2t"], counted(LAZY_TRUTH)["2t"])
    assert len(most) > 100
    assert max(most) <= 8
