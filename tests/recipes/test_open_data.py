"""docs/recipes/open-data.md on files as ECMWF's open data has them."""

import json

import numpy as np
import pytest
from followed_page import follow_recipe
from recipe_weather import ERROR, SPREADS, Weather, date_of, fields_of, message, moments, monthly

pytestmark = pytest.mark.long

WEATHER = Weather()
TODAY = moments("2026-06-01T00")[0]
PARAMETERS = {"2t": (167, 2), "10u": (165, 10), "10v": (166, 10)}


def kind(stream, number, since_start):
    """Keys of a member, of the control as part of the ensemble, or of the high-resolution forecast."""
    centre = {"first_longitude": 180.0, "centre": "ecmf", "setLocalDefinition": 1, "localDefinitionNumber": 1}
    template = {("enfo", False): 1, ("enfo", True): 11, ("oper", False): 0, ("oper", True): 8}[stream, since_start]
    mars = {"class": "od", "type": "fc" if stream == "oper" else "pf" if number else "cf", "stream": stream}
    keys = centre | {"productDefinitionTemplateNumber": template} | mars | {"expver": "0001"}
    return keys | ({"perturbationNumber": number, "numberOfForecastsInEnsemble": 51} if stream == "enfo" else {})


def messages(start, lead, numbers, stream="enfo"):
    found = []
    for number in numbers:
        times = {"dataDate": date_of(start), "packingType": "grid_ccsds"}
        for name, (parameter, height) in PARAMETERS.items():
            values = WEATHER.member(name, start, lead, number) if lead else WEATHER.truth(name, start)
            above = {"paramId": parameter, "typeOfFirstFixedSurface": 103, "scaleFactorOfFirstFixedSurface": 0}
            above |= {"scaledValueOfFirstFixedSurface": height, "step": lead}
            found.append(message(values, **kind(stream, number, False), **above, **times))
        if lead:
            amount = WEATHER.rain_of_member(start, 0, lead, number) / 1000
            keys = kind(stream, number, True) | {"paramId": 228, "stepRange": f"0-{lead}"}
            found.append(message(amount, **keys, **times))
    return b"".join(found)


@pytest.fixture(scope="module")
def project(tmp_path_factory):
    """An archive of cycles before 50r1, and a run after it, in whose folder the page was followed."""
    folder = tmp_path_factory.mktemp("open")
    archive, today = folder / "archive", folder / "today"
    archive.mkdir()
    today.mkdir()
    for start in monthly(2024, 2025, (1,)):
        for lead in (24, 48):
            path = archive / f"{date_of(start)}000000-{lead}h-enfo-ef.grib2"
            path.write_bytes(messages(start, lead, (1, 2, 0)))
            path.with_suffix(".index").write_text('{"domain": "g", "type": "pf"}\n')
        valid = start + np.timedelta64(48, "h")
        (archive / f"{date_of(valid)}000000-0h-oper-fc.grib2").write_bytes(messages(valid, 0, (0,), "oper"))
    (archive / f"{date_of(monthly(2024, 2024)[0])}000000-24h-enfo-ef.grib2").unlink()
    for lead in (24, 48):
        stem = f"{date_of(TODAY)}000000-{lead}h"
        (today / f"{stem}-enfo-ef.grib2").write_bytes(messages(TODAY, lead, (1, 2, 3)))
        (today / f"{stem}-oper-fc.grib2").write_bytes(messages(TODAY, lead, (0,), "oper"))
    return folder, follow_recipe("open-data.md", folder)


def test_a_missed_file_is_counted(project):
    """The amount of 24 hours at 48 hours needs the amount at 24 hours."""
    _, outputs = project
    assert "task open: 23 of 24 forecasts are used" in outputs["deepweather prepare"]
    assert "left out with a missing field, first 2024-01-01T00:00 + 48 h" in outputs["deepweather prepare"]


def test_the_control_is_corrected_as_a_member_and_keeps_its_type(project):
    folder, _ = project
    found = fields_of(folder / "corrected.grib2", shortName="2t", stepRange="48")
    assert [(field.keys["dataType"], field.keys.get("number")) for field in found] == [
        ("pf", "1"), ("pf", "2"), ("pf", "3"), ("fc", None),
    ]  # fmt: skip
    assert {field.keys["packingType"] for field in found} == {"grid_ccsds"}
    truth = WEATHER.truth("2t", TODAY + np.timedelta64(48, "h"))
    assert abs(np.mean([field.values for field in found]) - truth.mean()) < 0.3 * 2 * ERROR * SPREADS["2t"]


def test_the_first_longitude_stays(project):
    """Fields that no corrector changes have the same values at the same longitudes as before."""
    folder, _ = project
    for name, number in (("10u", "1"), ("10v", "2")):
        (found,) = fields_of(folder / "corrected.grib2", shortName=name, stepRange="48", number=number)
        np.testing.assert_allclose(found.values, WEATHER.member(name, TODAY, 48, int(number)), atol=1e-3)


def test_wind_speed_is_new_and_nearer_to_the_truth(project):
    folder, _ = project
    found = fields_of(folder / "corrected.grib2", shortName="10si", stepRange="48")
    assert len(found) == 4
    valid = TODAY + np.timedelta64(48, "h")
    truth = np.hypot(WEATHER.truth("10u", valid), WEATHER.truth("10v", valid))
    raw = np.mean([np.hypot(*(WEATHER.member(name, TODAY, 48, n) for name in ("10u", "10v"))) for n in range(4)], 0)
    corrected = np.mean([field.values for field in found], 0)
    assert abs(corrected - truth).mean() < abs(raw - truth).mean()


def test_scores_say_that_the_correction_helps(project):
    folder, _ = project
    models = json.loads((folder / "runs/open/scores/2t/scores.json").read_text())["models"]
    assert models["raw"]["bias"] == pytest.approx(2 * ERROR * SPREADS["2t"], rel=0.1)
    assert models["emos"]["crps"] < 0.5 * models["raw"]["crps"]
