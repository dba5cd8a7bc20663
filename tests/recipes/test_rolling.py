"""docs/recipes/rolling.md at the end of a month: the window ends before the forecast, yesterday gives the weights."""

import json
import shlex
import subprocess

import numpy as np
import pytest
from followed_page import blocks_of, run_line
from recipe_weather import ERROR, SPREADS, Weather, date_of, fields_of, message, write_era5

from models.corrector import Corrector
from models.provenance.training_dates import stated_fits

WEATHER, DAY, MEMBERS = Weather(), np.timedelta64(1, "D"), 5
NIGHTS = ("2016-05-01", "2016-05-02")


def forecast(start):
    """The messages of a forecast of 24 h."""
    return b"".join(
        message(
            WEATHER.member("2t", start, 24, number), centre="ecmf", productDefinitionTemplateNumber=1, paramId=167,
            typeOfProcessedData=4, typeOfEnsembleForecast=3, perturbationNumber=number,
            numberOfForecastsInEnsemble=MEMBERS, dataDate=date_of(start), stepRange=24,
        )
        for number in range(1, MEMBERS + 1)
    )  # fmt: skip


@pytest.fixture(scope="module")
def project(tmp_path_factory):
    """The archive on the morning of the second night, and both scripts followed on both nights: what they printed."""
    folder, outputs = tmp_path_factory.mktemp("rolling"), {}
    for name in ("archive", "incoming"):
        (folder / name).mkdir()
    starts = np.datetime64("2016-03-10T00", "h") + np.arange(54) * DAY
    for start in starts:
        where = "incoming" if str(start)[:10] in NIGHTS else "archive"
        (folder / where / f"{str(start)[:10]}.grib2").write_bytes(forecast(start))
    valid = starts + DAY
    write_era5(folder / "archive/analysis.nc", {"t2m": {time: WEATHER.truth("2t", time) for time in valid}})
    for _, name, text in blocks_of("recipes/rolling.md"):
        if name:
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            (folder / name).write_text(text)
    for script in ("night.sh", "night-network.sh"):
        for night in NIGHTS:
            # The shell fills in the dates; the commands run in this process.
            shown = f'deepweather() {{ printf "%q " deepweather "$@"; echo; }}; . ./{script}'
            printed = subprocess.run(
                ["bash", "-c", shown, script, night], cwd=folder, capture_output=True, text=True, check=True
            )
            for line in printed.stdout.splitlines():
                outputs[script, night, shlex.split(line)[1]] = run_line(line, folder)
    return folder, outputs


@pytest.mark.parametrize(("script", "run", "name"), [("night.sh", "emos", ""), ("night-network.sh", "mlp", "mlp-")])
@pytest.mark.parametrize("night", NIGHTS)
def test_the_window_moves_and_ends_before_the_forecast(project, night, script, run, name):
    folder, outputs = project
    provenance = Corrector.load(folder / f"runs/{run}-{night}/corrector.safetensors").provenance
    last = np.datetime64(night) - DAY
    seen = provenance["val_dates"] or provenance["train_dates"]
    assert seen[-1][1] == str(last)
    assert provenance["train_dates"][0][0] == str(np.datetime64(night) - 45 * DAY)
    assert max(dates.spans[-1][1] for dates in stated_fits(provenance).values()) <= last.item()
    # On the second night, EMOS has a day of May in its window.
    known = (run, night) == ("emos", NIGHTS[1])
    said = outputs[script, night, "correct"]
    assert ("are at times without training: it is valid in May, and the corrector was trained on" in said) != known
    assert ("1 of 1 forecasts of" in said) != known
    record = json.loads((folder / f"corrected-{name}{night}.grib2.json").read_text())
    assert record["options"]["untrained_times"] == "correct"


@pytest.mark.parametrize("name", ["", "mlp-"])
@pytest.mark.parametrize("night", NIGHTS)
def test_the_corrected_forecast_has_no_bias(project, night, name):
    folder, _ = project
    fields = [field.values for field in fields_of(folder / f"corrected-{name}{night}.grib2")]
    assert len(fields) == MEMBERS
    truth = WEATHER.truth("2t", np.datetime64(night, "h") + DAY)
    assert abs((np.mean(fields, 0) - truth).mean()) < 0.3 * 2 * ERROR * SPREADS["2t"]


def test_the_second_night_starts_from_the_weights_of_the_first(project):
    folder, outputs = project
    first, second = (Corrector.load(folder / f"runs/mlp-{night}/corrector.safetensors").provenance for night in NIGHTS)
    assert "from" not in first
    assert second["from"]["run"] == first["run"]
    assert "tensors of weights taken" in outputs["night-network.sh", NIGHTS[1], "train"]
