"""`fit` as a function: arguments, warnings, what it leaves alone. tests/test_python_door.py compares its numbers."""

import random
import signal
import warnings

import numpy as np
import pytest
import torch
import xarray as xr

from data_pipeline.common.errors import InputError
from data_pipeline.common.progress import Progress
from data_pipeline.grid import Grid
from data_pipeline.task import Task
from training import fit as fit_module
from training.fit import fit
from training.optimization.loss import CRPS

GRID = Grid.regular(3, 4)
SPACE = {"latitude": list(GRID.latitudes), "longitude": list(GRID.longitudes)}
RNG = np.random.default_rng(3)
STARTS = np.concatenate(
    [np.datetime64(f"{y}-01-05", "ns") + np.arange(14) * np.timedelta64(25, "D") for y in (2014, 2015)]
)
SIGNAL = 280 + 5 * RNG.normal(size=(28, 1, 3, 4))
RAW = (SIGNAL[:, :, None] - 1 + 0.5 * RNG.normal(size=(28, 1, 4, 3, 4))).astype("f4")
ENSEMBLE = xr.Dataset(
    {"2t": (("init_time", "lead_time", "number", "latitude", "longitude"), RAW, {"units": "K"})},
    {"init_time": STARTS, "lead_time": [24], "number": range(4), **SPACE},
)
TRUTH = xr.Dataset(
    {
        "2t": (
            ("time", "latitude", "longitude"),
            (SIGNAL + RNG.normal(size=SIGNAL.shape))[:, 0].astype("f4"),
            {"units": "K"},
        )
    },
    {"time": STARTS + np.timedelta64(24, "h"), **SPACE},
)
TASK = Task("toy", ["2t"], ["2t"], [24])
EMOS = {"model": "emos", "seasonal": False, "shared": False}


def fitted(model=EMOS, ensemble=ENSEMBLE, truth=TRUTH, **options):
    return fit(model, ensemble, truth, **{"task": TASK, "train": [2014, 2014], "val": [2015, 2015]} | options)


def test_the_callback_gets_lines_and_steps_and_may_end_the_fit(monkeypatch, capsys):
    monkeypatch.setattr(fit_module, "SECONDS_BETWEEN_CALLS", 0)
    said = []
    corrector = fitted(progress=said.append)
    steps = [one for one in said if isinstance(one, Progress)]
    assert {one.name for one in steps} >= {"fit of the normaliser: forecast", "fit of EMOS: forecast"}
    assert all(one.done == one.total for one in steps)
    lines = "\n".join(one for one in said if isinstance(one, str)).splitlines()
    assert corrector.notes == lines
    assert lines[0].startswith("14 forecasts to train on, 14 to validate; 4 members on 3 x 4 points")
    assert any(line.startswith("validation: crps") for line in lines)
    assert capsys.readouterr() == ("", "")

    class StopError(Exception):
        pass

    def stop(one):
        raise StopError

    with pytest.raises(StopError):
        fitted(progress=stop)


def test_a_network_says_its_epochs_and_nothing_outside_changes(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)

    def state():
        numpy_state = np.random.get_state()  # noqa: NPY002
        filters, precision = list(warnings.filters), torch.get_float32_matmul_precision()
        return torch.get_rng_state().tolist(), random.getstate(), numpy_state[1].tolist(), filters, precision

    before = state()
    with pytest.warns(UserWarning, match="^all training samples are valid in 2014"):
        corrector = fitted({"model": "mlp", "width": 4, "baseline": None}, epochs=2, accelerator="cpu")
    assert state() == before
    assert not corrector.training
    assert [line.split(":")[0].split() for line in corrector.notes if line.startswith("epoch")] == [
        ["epoch", "1", "of", "2"], ["epoch", "2", "of", "2"],
    ]  # fmt: skip
    assert list(tmp_path.iterdir()) == []
    assert capsys.readouterr() == ("", "")


def test_what_is_left_out_is_a_warning_with_a_count():
    with pytest.warns(UserWarning, match="training: 2 left out with no analysis at their valid time"):
        fitted(truth=TRUTH.isel(time=slice(2, None)))
    warm = ENSEMBLE.where(ENSEMBLE.init_time.dt.year == 2014, ENSEMBLE + 3)
    with pytest.warns(UserWarning, match="^the model is worse than .*the raw ensemble at 24 h on the validation dates"):
        fitted(ensemble=warm.assign({"2t": warm["2t"].assign_attrs(units="K")}))


def test_names_members_and_losses():
    renamed = ENSEMBLE.rename({"2t": "t2m"}), TRUTH.rename({"2t": "t2m"})
    expected = fitted().state_dict()
    found = fitted(EMOS, *renamed, names={"t2m": "2t"}).state_dict()
    assert all(torch.equal(found[name], expected[name]) for name in expected)
    assert fitted(members=3).provenance["members"] == 3
    assert fitted(loss=CRPS()).state_dict().keys() == expected.keys()


def test_wrong_arguments_are_one_sentence():
    for options, sentence in (
        ({"task": {"name": "toy"}}, "task must be a Task, got dict"),
        ({"model": "emoss"}, "there is no model 'emoss'; choose one of auto, backbone"),
        ({"model": {"model": "emos", "famly": "normal"}}, "model emos has no option 'famly'; it has family"),
        ({"model": 3}, "model must be a name, or a dict"),
        ({"mesh": [2, 1]}, "fit has no option mesh: it trains in this process; use deepweather train"),
        ({"epoch": 3}, "fit has no option 'epoch'"),
        ({"epochs": 0}, "epochs must be a whole number of at least 1, got 0"),
        ({"model": "mlp", "val": None}, "there are no validation dates; give them as val=[first, last]"),
        ({"val": [2014, 2015]}, "val shares 2014 with another split"),
        ({"train": [2010, 2011]}, "no forecast that is valid in 2010-2011 can be used"),
        ({"missing": "ignore"}, "missing must be one of error, mask, drop"),
        ({"loss": "energie"}, "there is no loss 'energie'; choose one of crps"),
        ({"members": 5}, "members must be a number from 1 to 4"),
        ({"task": Task("rain", ["tp"], ["tp"], [24])}, "write it in the task, such as tp:24h"),
        ({"task": Task("toy", ["2t"], ["2t"], [24], ["lsm"]), "model": "mlp"}, "needs the static field lsm, the data"),
    ):
        with pytest.raises(InputError) as error:
            fitted(**options)
        assert sentence in str(error.value)


def test_stations_are_cells_of_a_grid_without_neighbours():
    """EMOS is fitted cell by cell: points at the places of the cells get the numbers of the grid."""

    def as_points(data):
        points = data.stack(point=("latitude", "longitude")).reset_index("point")
        places = {name: ("point", points[name].values) for name in ("latitude", "longitude")}
        return points.assign_coords(places | {"station": ("point", [f"s{k}" for k in range(points.sizes["point"])])})

    stations, expected = as_points(ENSEMBLE), fitted().correct(ENSEMBLE)["2t"].values
    corrector = fitted(EMOS, stations, as_points(TRUTH))
    found = corrector.correct(stations)
    assert found["2t"].dims == stations["2t"].dims
    np.testing.assert_allclose(found["2t"].values.reshape(expected.shape), expected, rtol=1e-6)
    xr.testing.assert_identical(corrector.correct(stations.chunk(init_time=3)).compute(), found)


@pytest.mark.filterwarnings("ignore:all training samples are valid in 2014:UserWarning")
def test_an_interrupted_fit_continues_at_the_next_call(tmp_path, monkeypatch):
    """It repeats no finished epoch, gives the corrector of a fit in one go, and then leaves no file behind."""
    monkeypatch.setenv("DEEPWEATHER_CACHE", str(tmp_path))
    options = {"model": {"model": "mlp", "width": 4, "baseline": None}, "epochs": 3, "emos_minutes": 0}
    expected = fitted(**options).state_dict()
    assert list(tmp_path.rglob("*.ckpt")) == []

    def stop(one):
        if str(one).startswith("epoch   2 of 3"):
            signal.raise_signal(signal.SIGINT)

    with pytest.raises(KeyboardInterrupt, match="call it with the same arguments to continue it"):
        fitted(**options, progress=stop)
    (folder,) = (tmp_path / "fits").iterdir()
    fitted(**options | {"seed": 1})
    corrector = fitted(**options)
    assert [line.split(":")[0] for line in corrector.notes if line.startswith("epoch")] == ["epoch   3 of 3"]
    assert all(torch.equal(tensor, expected[name]) for name, tensor in corrector.state_dict().items())
    assert not folder.exists()
