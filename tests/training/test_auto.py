"""Networks that `train_auto` adds: taken where they are better on validation dates, and left out by name."""

import numpy as np
import pytest
import xarray as xr
from specs import quick_auto

from data_pipeline.common.errors import InputError
from data_pipeline.grid import Grid
from data_pipeline.task import Task
from models.averages.auto import Auto
from models.averages.committee import Committee
from training.fit import fit

GRID = Grid.regular(5, 8)
SPACE = {"latitude": list(GRID.latitudes), "longitude": list(GRID.longitudes)}
STARTS = np.datetime64("2010-01-05", "ns") + np.arange(90) * np.timedelta64(24, "D")
TASK = Task("toy", ["2t"], ["2t"], [24, 48])
YEARS = {"task": TASK, "train": [2010, 2014], "val": [2015, 2015]}
QUICK = {"epochs": 20, "learning_rate": 0.02, "accelerator": "cpu", "emos_minutes": 0}


def world(bend, bias=0.0):
    """Ensemble and truth, of which the share `bend` is 280 K + |signal - 280 K|, which no line fits."""
    rng = np.random.default_rng(1)
    signal = 280 + 5 * rng.normal(size=(len(STARTS), 2, 5, 8))
    truth = (1 - bend) * signal + bend * (280 + abs(signal - 280)) + 0.5 * rng.normal(size=signal.shape)
    raw = (signal[:, :, None] + bias + 0.5 * rng.normal(size=(len(STARTS), 2, 4, 5, 8))).astype("f4")
    dims = ("init_time", "lead_time", "number", "latitude", "longitude")
    leads = np.array([24, 48])
    times = (STARTS[:, None] + leads * np.timedelta64(1, "h")).ravel()
    found, index = np.unique(times, return_index=True)
    values = truth.reshape(-1, 5, 8)[index].astype("f4")
    return (
        xr.Dataset(
            {"2t": (dims, raw, {"units": "K"})}, {"init_time": STARTS, "lead_time": leads, "number": range(4), **SPACE}
        ),
        xr.Dataset({"2t": (("time", "latitude", "longitude"), values, {"units": "K"})}, {"time": found, **SPACE}),
    )


@pytest.fixture
def crps():
    """Return the mean CRPS of a corrector's forecasts of the year 2015."""

    def of(corrector, ensemble, truth):
        chosen = ensemble.sel(init_time="2015")
        found = corrector.correct(chosen)["2t"]
        valid = chosen.init_time + chosen.lead_time.astype("timedelta64[h]")
        observed = truth["2t"].sel(time=valid)
        pairs = abs(found - found.rename(number="other")).mean(("number", "other"))
        return float((abs(found - observed).mean("number") - pairs / 2).mean())

    return of


@pytest.fixture(autouse=True)
def only_quick(monkeypatch):
    """The network of single cells alone, and one EMOS for all cells."""
    monkeypatch.setattr("training.auto.NETWORKS", ("mlp",))
    with quick_auto():
        yield


def test_networks_are_added_where_they_are_better(tmp_path, crps):
    ensemble, truth = world(bend=1.0)
    statistical = fit({"model": "auto", "minutes": 1e-6, "folds": 2}, ensemble, truth, **YEARS, emos_minutes=0)
    assert any(note.startswith("auto: mlp is left out: it would take about") for note in statistical.notes)
    with_networks = fit({"model": "auto", "minutes": 60, "folds": 2}, ensemble, truth, **YEARS, **QUICK)
    assert isinstance(statistical.model, Auto)
    assert isinstance(with_networks.model, Committee)
    assert crps(with_networks, ensemble, truth) < 0.7 * crps(statistical, ensemble, truth)
    with_networks.save(tmp_path / "auto")
    assert type(with_networks).load(tmp_path / "auto").spec == with_networks.spec


def test_networks_that_do_not_help_are_not_in_the_file(monkeypatch):
    """A network that stays the raw ensemble, which has a bias of 3 K."""
    named = {"_target_": "models.networks.mlp.MLP", "width": 4, "baseline": None}
    monkeypatch.setattr("training.auto.named_options", lambda group, name: named)
    ensemble, truth = world(bend=0.0, bias=3.0)
    lazy = QUICK | {"epochs": 1, "learning_rate": 1e-7}
    corrector = fit({"model": "auto", "minutes": 60, "folds": 2}, ensemble, truth, **YEARS, **lazy)
    assert isinstance(corrector.model, Auto)
    assert "auto: the networks do not improve the forecast" in corrector.notes


def test_networks_without_validation_are_named():
    ensemble, truth = world(bend=0.0)
    notes = fit({"model": "auto", "minutes": 0, "folds": 2}, ensemble, truth, **YEARS | {"val": None}).notes
    assert any(note.startswith("auto: no networks, because there are no validation dates") for note in notes)
    with pytest.raises(InputError, match=r"model\.minutes must be a number of minutes, 0 or more, got -1"):
        fit({"model": "auto", "minutes": -1}, ensemble, truth, **YEARS)
