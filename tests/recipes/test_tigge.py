"""docs/recipes/tigge.md on files as the archive delivers them."""

import numpy as np
import pytest
from followed_page import follow_recipe
from recipe_weather import Weather, date_of, fields_of, hourly, message, moments, monthly, write_era5

pytestmark = pytest.mark.long

WEATHER = Weather()
TODAY = moments("2024-07-01T12")[0]


def rain(start, number, lead, centre="ecmf"):
    """An amount since the start at 12 UTC; the header of a message of TIGGE has no local section."""
    keys = {
        "centre": centre, "productionStatusOfProcessedData": 4, "typeOfProcessedData": 4 if number else 3,
        "productDefinitionTemplateNumber": 11, "typeOfEnsembleForecast": 3 if number else 1, "paramId": 228228,
        "dataDate": date_of(start), "dataTime": 1200, "stepRange": f"0-{lead}", "perturbationNumber": number,
        "numberOfForecastsInEnsemble": 51,
    }  # fmt: skip
    return message(WEATHER.rain_of_member(start, 0, lead, number), **keys)


@pytest.fixture(scope="module")
def project(tmp_path_factory):
    """A folder of forecasts and truth, in which the page was followed."""
    folder = tmp_path_factory.mktemp("tigge")
    for name in ("tigge", "era5"):
        (folder / name).mkdir()
    tp = {}
    starts = [start + np.timedelta64(12, "h") for start in monthly(2018, 2019, (1,))]
    for name, numbers in (("cf", [0]), ("pf", [1, 2])):
        parts = [rain(start, number, lead) for start in starts for number in numbers for lead in (6, 30)]
        (folder / "tigge" / f"{name}.grib2").write_bytes(b"".join(parts))
    for start in starts:
        tp |= hourly(WEATHER, start + np.timedelta64(30, "h"), 24)
    write_era5(folder / "era5/2018-2019.nc", {"tp": tp})
    today = [rain(TODAY, number, lead) for number in range(4) for lead in (6, 30)]
    (folder / "today.grib2").write_bytes(b"".join(today))
    return folder, follow_recipe("tigge.md", folder)


def test_control_and_members_are_one_ensemble(project):
    _, outputs = project
    said = outputs["deepweather prepare"]
    assert "members      0 1 2" in said
    assert "intervals    tp since the start" in said
    assert "units        tp in kg m**-2, converted to m" in said
    assert "task tigge: 24 of 24 forecasts are used" in said


def test_the_rain_of_a_day_is_corrected_in_the_units_of_the_archive(project):
    folder, _ = project
    found = fields_of(folder / "corrected.grib2", stepRange="6-30")
    assert [field.keys["number"] for field in found] == ["0", "1", "2", "3"]
    assert {(field.keys["units"], field.keys["class"]) for field in found} == {("kg m**-2", "ti")}
    truth = WEATHER.rain(TODAY + np.timedelta64(30, "h"), 24)
    raw = np.mean([WEATHER.rain_of_member(TODAY, 6, 30, number) for number in range(4)])
    assert abs(np.mean([field.values for field in found]) - truth.mean()) < 0.3 * (raw - truth.mean())
    assert min(field.values.min() for field in found) >= 0
