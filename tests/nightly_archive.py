"""The archive of docs/recipes/rolling.md: a forecast for each day, the analyses, and forecasts that have come in."""

import numpy as np
from followed_page import blocks_of
from recipe_weather import Weather, date_of, message, write_era5

WEATHER, DAY, MEMBERS = Weather(), np.timedelta64(1, "D"), 5
FIRST = np.datetime64("2016-03-10T00", "h")


def forecast(start, members=MEMBERS):
    """The messages of a forecast of 24 h."""
    return b"".join(
        message(
            WEATHER.member("2t", start, 24, number), centre="ecmf", productDefinitionTemplateNumber=1, paramId=167,
            typeOfProcessedData=4, typeOfEnsembleForecast=3, perturbationNumber=number,
            numberOfForecastsInEnsemble=MEMBERS, dataDate=date_of(start), stepRange=24,
        )
        for number in range(1, members + 1)
    )  # fmt: skip


def write_archive(folder, nights, *pages):
    """Write forecasts from FIRST to the last of the `nights`, which have just come in, and the files of the pages."""
    for name in ("archive", "incoming"):
        (folder / name).mkdir()
    starts = np.arange(FIRST, np.datetime64(nights[-1], "h") + DAY, DAY)
    for start in starts:
        where = "incoming" if str(start)[:10] in nights else "archive"
        (folder / where / f"{str(start)[:10]}.grib2").write_bytes(forecast(start))
    write_era5(folder / "archive/analysis.nc", {"t2m": {time: WEATHER.truth("2t", time) for time in starts + DAY}})
    for page in pages:
        for _, name, text in blocks_of(page):
            if name:
                (folder / name).parent.mkdir(parents=True, exist_ok=True)
                (folder / name).write_text(text)
                if text.startswith("#!"):
                    (folder / name).chmod(0o755)
