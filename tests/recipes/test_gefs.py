"""docs/recipes/gefs.md on files as NOAA writes them: one file a member and variable, and one a member and lead time."""

import numpy as np
import pytest
from followed_page import follow_recipe
from recipe_weather import ERROR, SPREADS, Weather, date_of, fields_of, hourly, message, moments, monthly, write_era5

pytestmark = pytest.mark.long

WEATHER = Weather()
TODAY = moments("2024-07-01T00")[0]
NCEP = {"centre": "kwbc", "subCentre": 2, "tablesVersion": 2}
TWO_METRES = {"typeOfFirstFixedSurface": 103, "scaleFactorOfFirstFixedSurface": 0, "scaledValueOfFirstFixedSurface": 2}


def member_keys(number, start, template):
    return NCEP | {
        "typeOfProcessedData": 4 if number else 3, "productDefinitionTemplateNumber": template,
        "typeOfEnsembleForecast": 3 if number else 1, "perturbationNumber": number, "numberOfForecastsInEnsemble": 30,
        "typeOfGeneratingProcess": 4, "generatingProcessIdentifier": 107, "dataDate": date_of(start), "discipline": 0,
    }  # fmt: skip


def temperature(start, number, lead, packing):
    keys = member_keys(number, start, 1) | {"parameterCategory": 0, "parameterNumber": 0} | TWO_METRES
    return message(WEATHER.member("2t", start, lead, number), **keys, step=lead, packingType=packing)


def rain(start, number, begin, end, packing):
    amount = WEATHER.rain_of_member(start, begin, end, number)
    keys = member_keys(number, start, 11) | {"parameterCategory": 1, "parameterNumber": 8, "typeOfFirstFixedSurface": 1}
    return message(amount, **keys, typeOfStatisticalProcessing=1, stepRange=f"{begin}-{end}", packingType=packing)


def who(number):
    return f"p{number:02}" if number else "c00"


@pytest.fixture(scope="module")
def project(tmp_path_factory):
    """A folder of reforecasts, truth and today's forecast, in which the page was followed."""
    folder = tmp_path_factory.mktemp("gefs")
    for name in ("reforecasts", "era5", "today"):
        (folder / name).mkdir()
    t2m, tp, packing = {}, {}, "grid_complex_spatial_differencing"
    for start in monthly(2018, 2019, (1,)):
        for number in range(3):
            stamp = f"{date_of(start)}00_{who(number)}.grib2"
            (folder / "reforecasts" / f"tmp_2m_{stamp}").write_bytes(temperature(start, number, 24, packing))
            # Every second interval of three hours is part of one of six.
            parts = [(0, 3), (0, 6), (6, 12), (12, 18), (18, 24)]
            amounts = b"".join(rain(start, number, *part, packing) for part in parts)
            (folder / "reforecasts" / f"apcp_sfc_{stamp}").write_bytes(amounts)
        valid = start + np.timedelta64(24, "h")
        t2m[valid], tp = WEATHER.truth("2t", valid), tp | hourly(WEATHER, valid, 24)
    write_era5(folder / "era5/2018-2019.nc", {"t2m": t2m, "tp": tp})
    for number in range(4):
        for lead in (6, 12, 18, 24):
            path = folder / "today" / f"ge{who(number)}.t00z.pgrb2a.0p50.f{lead:03}"
            first = temperature(TODAY, number, lead, "grid_jpeg" if number else packing)
            path.write_bytes(first + rain(TODAY, number, lead - 6, lead, "grid_simple"))
            path.with_name(f"{path.name}.idx").write_text("1:0:d=2024070100:TMP:2 m above ground:6 hour fcst:\n")
    return folder, follow_recipe("gefs.md", folder)


def test_intervals_and_members_are_found(project):
    _, outputs = project
    said = outputs["deepweather prepare"]
    assert "control forecasts (cf) 144, perturbed forecasts (pf) 288" in said
    assert "intervals    tp 3 6 h" in said
    assert "task gefs: 24 of 24 forecasts are used" in said


def test_temperature_is_corrected_in_the_packing_of_the_input(project):
    folder, _ = project
    found = fields_of(folder / "corrected.grib2", shortName="2t", stepRange="24")
    assert [field.keys["number"] for field in found] == ["0", "1", "2", "3"]
    packings = [field.keys["packingType"] for field in found]
    assert packings == ["grid_complex_spatial_differencing", *["grid_jpeg"] * 3]
    truth = WEATHER.truth("2t", TODAY + np.timedelta64(24, "h"))
    raw_error = 2 * ERROR * SPREADS["2t"]
    assert abs(np.mean([field.values for field in found]) - truth.mean()) < 0.3 * raw_error


def test_rain_of_a_day_is_added(project):
    """It is made from four intervals of six hours, which stay as they are."""
    folder, outputs = project
    assert "4 of the corrected messages are new (tp:24h)" in outputs["deepweather correct"]
    days = fields_of(folder / "corrected.grib2", shortName="tp", stepRange="0-24")
    truth = WEATHER.rain(TODAY + np.timedelta64(24, "h"), 24)
    raw = np.mean([WEATHER.rain_of_member(TODAY, 0, 24, number) for number in range(4)])
    assert len(days) == 4
    assert abs(np.mean([field.values for field in days]) - truth.mean()) < 0.3 * (raw - truth.mean())
    for number in range(4):
        (part,) = fields_of(folder / "corrected.grib2", shortName="tp", stepRange="6-12", number=str(number))
        np.testing.assert_allclose(part.values, WEATHER.rain_of_member(TODAY, 6, 12, number), atol=2e-3)
