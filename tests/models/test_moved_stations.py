"""Correctors of stations at other stations: of all models of single cells, and whether the forecasts become better."""

import copy
from dataclasses import replace
from unittest.mock import patch

import numpy as np
import pytest
import torch
import xarray as xr
from specs import QUICK as SPECS

from data_pipeline.common.errors import InputError
from data_pipeline.dataset import batches
from data_pipeline.grid import Grid
from data_pipeline.grids.points import Points
from data_pipeline.samples.inputs import static_values
from data_pipeline.task import Task
from models.averages.auto import CANDIDATES, Candidate
from models.corrector import Corrector, build_model, needed_task
from models.moved_stations import _maps
from models.provenance.stations import StationCounts, describe_stations

TASK = Task("toy", ["2t", "msl"], ["2t"], [24, 48], ["altitude"])
COUNT = 40


def stations(first, last):
    """Stations between two numbers; a number always is the same station."""
    random = np.random.default_rng(5)
    lat, lon, alt = random.uniform(42, 49, 99), random.uniform(6, 16, 99), random.uniform(0, 2000, 99)
    ids = [f"{k:05}" for k in range(99)]
    return Points(*(tuple(values[first:last]) for values in (lat, lon, alt, ids)))


def cellwise():
    """The models of single cells."""
    for name, spec in SPECS.items():
        try:
            build_model(spec, needed_task(spec, TASK), stations(0, 3))
        except InputError:
            continue
        yield name


def samples(toy, task, points, *options):
    """Toy samples whose static fields are those of the stations."""
    data = toy(task, points, *options)
    data.static = torch.from_numpy(static_values(points, task, xr.Dataset()))
    data.samples = [one._replace(static=data.static) for one in data.samples]
    return data


def fitted(spec, toy, points):
    task = needed_task(spec, TASK)
    torch.manual_seed(1)
    data = samples(toy, task, points, 60)
    made = Corrector(task, points, spec, data.static)
    made.fit(data)
    for weights in made.model.parameters():
        with torch.no_grad():
            weights.copy_(torch.where(weights == 0, 0.3 * torch.randn_like(weights), weights))
    return made.eval()


def numbers(corrector, batch):
    with torch.no_grad():
        found = corrector(batch)
    return torch.stack([found.mean, found.std])


def cut(batch, first, last):
    """The batch at some of its stations."""
    fields = ("ensemble", "mask", "static", "target")
    return batch._replace(**{name: getattr(batch, name)[..., first:last, :] for name in fields})


@pytest.mark.parametrize("name", [*cellwise(), "committee"])
def test_known_stations_keep_their_forecast_and_new_ones_get_one(name, toy, tmp_path):
    with patch.dict(CANDIDATES, emos=Candidate(SPECS["emos"])):
        trained = fitted(SPECS["mlp"] if name == "committee" else SPECS[name], toy, stations(0, COUNT))
    if name == "committee":
        parts = [trained, trained]
        spec = {"_target_": "models.averages.committee.Committee", "specs": [part.spec for part in parts]}
        trained = Corrector(trained.task, trained.grid, spec, trained.static)
        for own, part in zip(trained.model.correctors, parts, strict=True):
            own.load_state_dict(part.state_dict())
        trained.eval()
    batch = next(batches(samples(toy, trained.task, stations(0, 50), 4, 5, 7), 4))
    points = stations(30, 50)  # the last ten are new
    moved = trained.at(points)
    found = numbers(moved, cut(batch, 30, 50))
    torch.testing.assert_close(found[..., :10, :], numbers(trained, cut(batch, 0, COUNT))[..., 30:, :])
    assert found.isfinite().all()
    assert StationCounts.of(points, moved.provenance) == (10, 10, 0)
    moved.save(tmp_path / "moved.safetensors")
    again = Corrector.load(tmp_path / "moved.safetensors")
    torch.testing.assert_close(numbers(again, cut(batch, 30, 50)), found, rtol=0, atol=0)


@pytest.fixture(scope="module")
def emos(toy):
    """EMOS at forty stations whose truth is too warm by 1 K per km of altitude, and by chance with 0.5 K."""
    return biased(toy, stations(0, COUNT))


def bias(points):
    """The error of the raw ensemble at each station, K."""
    chance = 0.5 * np.random.default_rng(3).standard_normal(len(points.altitudes))
    return torch.from_numpy(0.001 * np.array(points.altitudes) + chance).float()[:, None]


def biased(toy, points, error=None, **options):
    task = Task("toy", ["2t"], ["2t"], [24])
    data = toy(task, points, 120)
    error = bias(points) if error is None else torch.tensor(error).float()[:, None]
    data.samples = [
        one._replace(target=one.ensemble.mean(0) + error + 0.2 * torch.randn_like(one.target)) for one in data.samples
    ]
    made = Corrector(task, points, {**SPECS["emos"], "seasonal": False, **options}, data.static)
    made.fit(data)
    return made.eval()


def test_new_stations_get_the_correction_that_their_altitude_says_and_a_wider_forecast(emos, toy):
    points = stations(COUNT, 90)
    batch = next(batches(toy(emos.task, points, 4, 5, seed=7), 4))
    moved = emos.at(points)
    with torch.no_grad():
        found = moved(batch)
    correction = (found.mean - batch.ensemble.mean(1)).mean((0, 1))[:, 0]
    expected = 0.001 * torch.tensor(points.altitudes)
    assert (correction - expected).square().mean().sqrt() < 0.25
    (error,) = moved.provenance["stations"]["error"][0]
    assert error == pytest.approx(0.5, abs=0.15)  # the part of the bias that no other station knows
    unwidened = copy.copy(moved)
    unwidened.new_stations = None
    with torch.no_grad():
        narrow = unwidened(batch)
    torch.testing.assert_close(found.std, torch.hypot(narrow.std, torch.tensor(error)))
    torch.testing.assert_close(found.mean, narrow.mean)
    assert "0 of 50 stations are stations of the training; 50 are new (00040, 00041, 00042, ...)" in describe_stations(
        moved.task, points, moved.provenance
    )


def test_the_altitude_of_the_model_explains_the_error_of_a_station(toy):
    """The error follows the difference of the two altitudes, which alone say nothing about it."""
    random = np.random.default_rng(8)

    def both(first, last, difference):
        points = stations(first, last)
        return replace(points, model_altitudes=tuple(np.array(points.altitudes) - difference))

    difference = random.uniform(-800, 800, 90)
    known, new = both(0, COUNT, difference[:COUNT]), both(COUNT, 90, difference[COUNT:])
    trained = biased(toy, known, error=-0.0065 * difference[:COUNT])
    batch = next(batches(toy(trained.task, new, 4, 5, seed=7), 4))

    def miss(points):
        with torch.no_grad():
            corrected = trained.at(points)(batch).mean - batch.ensemble.mean(1)
        return float(
            (corrected.mean((0, 1))[:, 0] + 0.0065 * torch.from_numpy(difference[COUNT:])).square().mean().sqrt()
        )

    assert miss(new) < 0.2
    assert miss(replace(new, model_altitudes=())) > 2


def test_shared_coefficients_are_the_same_at_new_stations(toy):
    shared = biased(toy, stations(0, COUNT), shared=True)
    moved = shared.at(stations(COUNT, 50))
    torch.testing.assert_close(moved.model.coefficients, shared.model.coefficients, rtol=0, atol=0)
    assert "model.coefficients" not in _maps(shared)


def test_a_station_without_truth_in_training_teaches_nothing(emos, toy):
    """Its coefficients are those of an unfitted model, as if it had no error."""
    other = copy.deepcopy(emos)
    blank = build_model(emos.spec, emos.task, emos.grid).coefficients
    other.model.coefficients[..., :8, :] = blank[..., :8, :]
    assert other.at(stations(COUNT, 50)).provenance["stations"]["known"] == COUNT - 8


def test_far_stations_keep_the_raw_ensemble(emos, toy):
    near = stations(COUNT, 42)
    points = Points((*near.latitudes, -30.0), (*near.longitudes, 150.0), (*near.altitudes, 0.0), ("a", "b", "Sydney"))
    batch = next(batches(toy(emos.task, points, 4, 5, seed=7), 4))
    moved = emos.at(points)
    found = numbers(moved, batch)
    torch.testing.assert_close(found[0, :, 0, 2], batch.ensemble.mean(1)[:, 0, 2])
    assert (found[0, :, 0, :2] != batch.ensemble.mean(1)[:, 0, :2]).all()
    assert describe_stations(moved.task, points, moved.provenance).endswith("keep the raw ensemble (Sydney)")


def test_stations_without_ids_are_found_by_position(emos):
    points = replace(stations(35, 45), ids=())
    assert StationCounts.of(points, emos.at(points).provenance) == (5, 5, 0)


def test_what_cannot_be_moved_is_refused(emos, toy):
    moved, task = copy.copy(emos), Task("toy", ["2t"], ["2t"], [24], ["lsm"])
    moved.provenance = {"stations": {}}
    data = toy(task, stations(0, 8), 60)
    unknown = Corrector(task, stations(0, 8), SPECS["mlp"], data.static)
    unknown.fit(data)
    for corrector, points, sentence in (
        (emos, Grid.regular(5, 8), "only one of stations can"),
        (moved, stations(40, 45), "moved to other stations already"),
        (biased(toy, stations(0, 4)), stations(4, 6), "has a fit at 4 stations; to predict others it needs 5 to 5000"),
        (unknown, stations(6, 10), "reads the static field lsm, which is unknown at 2 new stations; .*static="),
    ):
        with pytest.raises(InputError, match=sentence):
            corrector.at(points)
