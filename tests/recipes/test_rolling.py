"""docs/recipes/rolling.md at the end of a month: the window ends before the forecast, yesterday gives the weights."""

import json
import shlex
import subprocess

import numpy as np
import pytest
from followed_page import run_line
from nightly_archive import DAY, MEMBERS, WEATHER, write_archive
from recipe_weather import ERROR, SPREADS, fields_of

from models.corrector import Corrector
from models.provenance.training_dates import stated_fits

NIGHTS = ("2016-05-01", "2016-05-02")


@pytest.fixture(scope="module")
def project(tmp_path_factory):
    """The archive on the morning of the second night, and both scripts followed on both nights: what they printed."""
    folder, outputs = tmp_path_factory.mktemp("rolling"), {}
    write_archive(folder, NIGHTS, "recipes/rolling.md")
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
