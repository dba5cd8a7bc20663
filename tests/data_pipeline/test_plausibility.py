"""Planted errors of the data, each said in one sentence that names target and cause; none for data that are right."""

import re

import numpy as np
import pytest
import xarray as xr

from data_pipeline.common.errors import InputError
from data_pipeline.sources.array_source import ArraySource
from data_pipeline.sources.plausibility import TargetForecasts, data_warnings
from data_pipeline.task import Task, Variable

STEP, ROWS, COLUMNS, MEMBERS, STARTS = 12, 12, 24, 6, 20
TASK = Task("weather", ["2t", "t@850"], ["2t", "t@850"], [24])
LATITUDES = 90 - 15 * (np.arange(ROWS) + 0.5)


def weather(seed, skill=0.9):
    """Return an ensemble and analyses every 12 h: climate, a cycle of the day, waves that travel and decay."""
    random = np.random.default_rng(seed)
    phi, lam = np.radians(LATITUDES)[:, None], np.radians(np.arange(COLUMNS) * 15)[None]
    times = np.datetime64("2020-01-01", "ns") + np.arange(2 * STARTS + 8) * np.timedelta64(STEP, "h")
    waves = []
    amplitude = random.standard_normal((10, 1))
    for _ in times:
        amplitude = 0.7 * amplitude + 0.7 * random.standard_normal(amplitude.shape)
        number, phase = np.arange(1, 11)[:, None, None], 2 * amplitude[:, :, None]
        waves.append((np.cos(number * lam + phase + 3 * number * np.sin(phi)) * amplitude[:, :, None]).sum(0) / 2)
    waves = np.array(waves)
    day = 6 * np.cos(2 * np.pi * (np.arange(len(times)) * STEP / 24)[:, None, None] + lam) * np.cos(phi)
    climate = 288 - 40 * np.sin(phi - 0.2) ** 2 + 5 * np.cos(lam - 1)
    truth = climate + 4 * waves + day
    # Starts at 00 UTC, every second analysis; valid 24 h later.
    valid = 2 * np.arange(STARTS) + 4
    noise = random.standard_normal((STARTS, MEMBERS, ROWS, COLUMNS))
    part = skill * truth[valid][:, None] + (1 - skill) * (climate + day[valid])[:, None]
    members = 0.5 + part + (1.5 if skill else 6) * noise
    return times, valid, {"2t": members, "t": members - 10}, {"2t": truth, "t": truth - 10}


def warnings_about(members, truth, times, valid, units="K", **options):
    """Return the warnings about datasets of these values, t@850 on a pressure level."""
    place = {"latitude": LATITUDES, "longitude": np.arange(COLUMNS) * 15.0}

    def variables(fields, dims):
        levels = xr.DataArray([850.0], dims="level", attrs={"units": "hPa", "standard_name": "air_pressure"})
        surface = xr.DataArray(fields["2t"].astype("f4"), dims=dims, attrs={"units": units})
        upper = xr.DataArray(fields["t"].astype("f4"), dims=dims, attrs={"units": units})
        return xr.Dataset({"2t": surface, "t": upper.expand_dims(level=levels)}, place)

    ensemble = variables(members, ("time", "number", "latitude", "longitude")).expand_dims(step=[24])
    ensemble = ensemble.assign_coords(time=times[valid] - np.timedelta64(24, "h"), number=np.arange(MEMBERS))
    analyses = variables(truth, ("time", "latitude", "longitude")).assign_coords(time=times)
    source = ArraySource(ensemble.rename(time="init_time", step="lead_time"), analyses)
    return data_warnings(source, TASK, [2020], **options)


def same(fields):
    return fields


def celsius(fields):
    return fields - 273.15


def mixed(members):
    return np.stack([np.roll(members[:, m], m - 2, 0) for m in range(MEMBERS)], 1)


ERRORS = {
    "wrong day": (lambda t: np.roll(t, 2, 0), same, "fits the forecast better 24 h later.*times seem to be shifted"),
    "wrong hour": (lambda t: np.roll(t, 1, 0), same, "fits the forecast better 12 h.*times seem to be shifted"),
    "shifted longitude": (lambda t: np.roll(t, COLUMNS // 2, 2), same, "better shifted by half.*coordinates"),
    "flipped latitude": (lambda t: t[:, ::-1], same, "fits the forecast better mirrored north-south.*coordinates"),
    "other units": (celsius, same, "the truth is lower by 27.*seems to be in °C, not in K"),
    "both in °C": (celsius, celsius, "of the forecast, -"),
    "wrong level": (lambda t: t - 28, same, "differs from the forecast by -28.*seems to be of another level"),
    "mixed members": (same, mixed, "members of different starts seem to be mixed"),
}
"""Changes of the truth and of the members of 2t, and what the sentence says."""


@pytest.mark.parametrize(("of_truth", "of_members", "words"), ERRORS.values(), ids=ERRORS)
def test_a_planted_error_is_said_in_one_sentence(of_truth, of_members, words):
    times, valid, members, truth = weather(1)
    members["2t"], truth["2t"] = of_members(members["2t"]), of_truth(truth["2t"])
    (sentence,) = warnings_about(members, truth, times, valid)
    if "°C" in sentence or "physical range" in sentence:
        with pytest.raises(InputError, match="leave the physical range from 0 to inf K"):
            warnings_about(members, truth, times, valid, refuse=True)
    else:
        assert warnings_about(members, truth, times, valid, refuse=True) == [sentence]
    assert re.match(f"2t, 24 h: .*{words}", sentence)


@pytest.mark.parametrize(("seed", "skill"), [(0, 0.9), (0, 0.4), (0, 0), (1, 0.4), (2, 0)])
def test_nothing_is_said_about_right_data(seed, skill):
    """With skill, with little of it, and as in a season's forecast, without any."""
    times, valid, members, truth = weather(seed, skill)
    assert warnings_about(members, truth, times, valid, refuse=True) == []


def test_few_starts_and_few_cells_say_nothing():
    times, valid, members, truth = weather(1)
    truth["2t"] = truth["2t"] - 28
    few = {name: values[:5] for name, values in members.items()}
    assert warnings_about(few, truth, times, valid[:5]) == []
    nearly_empty = np.where(np.arange(COLUMNS) < 2, truth["2t"], np.nan)
    assert warnings_about(members, truth | {"2t": nearly_empty}, times, valid) == []


@pytest.mark.filterwarnings("error")
def test_analyses_of_every_second_start_say_nothing():
    """One half of the starts then has nothing to compare."""
    random = np.random.default_rng(0)
    truth = 280 + random.standard_normal((16, 40))
    later = np.where(np.arange(16)[:, None] % 2, random.standard_normal((16, 40)), np.nan)
    members = truth[:, None] + random.standard_normal((16, 4, 40))
    assert TargetForecasts(Variable("2t"), 24, members, truth, {"24 h later": later}).problem() is None
