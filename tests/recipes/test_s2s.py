"""docs/recipes/s2s.md on reforecasts and a forecast as the archive delivers them, and on daily means of ERA5."""

import numpy as np
import pytest
from followed_page import follow_recipe
from recipe_weather import ERROR, SPREADS, Weather, date_of, fields_of, message, moments, write_era5

pytestmark = pytest.mark.long

WEATHER = Weather()
TODAY = moments("2022-01-03T00")[0]
ENDS = range(192, 337, 24)


def day(start, number, end, version=None):
    """The mean of the day before a lead time; `version` is the date of the model version of a reforecast."""
    keys = {
        "centre": "ecmf", "productionStatusOfProcessedData": 6, "typeOfProcessedData": 4 if number else 3,
        "productDefinitionTemplateNumber": 61 if version else 11, "typeOfEnsembleForecast": 3 if number else 1,
        "paramId": 167, "typeOfStatisticalProcessing": 0, "dataDate": date_of(start),
        "stepRange": f"{end - 24}-{end}", "perturbationNumber": number,
        "numberOfForecastsInEnsemble": 11 if version else 51,
    }  # fmt: skip
    if version:
        year, month, of_month = str(version.astype("datetime64[D]")).split("-")
        keys |= {"YearOfModelVersion": int(year), "MonthOfModelVersion": int(month), "DayOfModelVersion": int(of_month)}
    return message(WEATHER.member("2t", start, end, number), **keys)


@pytest.fixture(scope="module")
def project(tmp_path_factory):
    """A folder of reforecasts, daily means and a forecast, in which the page was followed."""
    folder = tmp_path_factory.mktemp("s2s")
    for name in ("reforecasts", "era5"):
        (folder / name).mkdir()
    means = {}
    for version in moments("2022-01-03T00", "2022-01-06T00"):
        starts = moments(*(f"{year}{str(version)[4:]}" for year in range(2010, 2022)))
        parts = [day(start, number, end, version) for start in starts for number in range(3) for end in ENDS]
        (folder / "reforecasts" / f"{date_of(version)}.grib2").write_bytes(b"".join(parts))
        for start in starts:
            for end in ENDS:
                valid = start + np.timedelta64(end, "h")
                means[valid - np.timedelta64(24, "h")] = WEATHER.truth("2t", valid)
    write_era5(folder / "era5/2010-2021.nc", {"t2m": means}, step_type=False)
    today = [day(TODAY, number, end) for number in range(4) for end in ENDS]
    (folder / "today.grib2").write_bytes(b"".join(today))
    return folder, follow_recipe("s2s.md", folder)


def test_starts_are_those_of_the_weather(project):
    _, outputs = project
    said = outputs["deepweather prepare"]
    assert "starts       24, 2010-01-03T00:00 to 2021-01-06T00:00 UTC" in said
    assert "variables    2t:mean" in said
    assert "120 fields of 2t are valid at the end of their bounds" in said
    assert "task s2s: 24 of 24 forecasts are used" in said
    assert "the fit has no annual cycle" in outputs["deepweather train"]


def test_the_mean_of_the_second_week_is_corrected(project):
    folder, _ = project
    found = fields_of(folder / "corrected.grib2", stepRange="168-336")
    assert [field.keys["number"] for field in found] == ["0", "1", "2", "3"]
    assert {(field.keys["class"], field.keys["expver"]) for field in found} == {("s2", "prod")}
    truth = np.mean([WEATHER.truth("2t", TODAY + np.timedelta64(end, "h")) for end in ENDS], 0)
    error = np.mean([field.values for field in found], 0) - truth
    assert abs(error.mean()) < 0.3 * 2 * ERROR * SPREADS["2t"]
    assert len(fields_of(folder / "corrected.grib2", stepRange="168-192")) == 4, "daily means stay"
