"""The verb `monitor` on forecasts of some months: what waits, what counts, when it gives an alarm, what it refuses."""

import hashlib
import json
import shutil
import warnings
from functools import partial

import numpy as np
import properscoring
import pytest
import xarray as xr
from monitored_files import FIRST, GRID, write_analyses, write_corrector, write_members

from data_pipeline.grid import Grid
from evaluation.monitoring.control_chart import control_chart
from evaluation.monitoring.monitor_page import chart_panel
from evaluation.report.figure_style import inline_svg


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    """60 days of forecasts, 1.5 K too warm from day 45 on; a file without the shift; all analyses."""
    folder = tmp_path_factory.mktemp("files")
    write_corrector(folder / "corrector.safetensors")
    write_members(folder / "calm.nc", 60)
    write_members(folder / "warm.nc", 60, shift_from=45)
    write_analyses(folder / "analyses.nc", 63)
    return folder


def run_monitor(command, files, run_dir, forecasts, analyses, *more):
    """Run the verb with a reference period of 30 days."""
    given = [f"{key}={name}" for key, name in (("forecasts", forecasts), ("analyses", analyses)) if name]
    return command(
        files, "monitor", "corrector=corrector.safetensors", f"run_dir={run_dir}", "reference=30", *given, *more
    )


@pytest.fixture
def monitor(files, command, tmp_path):
    """Run the verb in a new folder."""
    return partial(run_monitor, command, files, tmp_path / "run")


@pytest.fixture(scope="module")
def calm(files, command):
    """The folder of a run on unchanged forecasts, and how it ended."""
    return files / "calm", run_monitor(command, files, files / "calm", "calm.nc", "analyses.nc")


@pytest.fixture(scope="module")
def warm(files, command):
    """The folder of a run on forecasts that are too warm from day 45 on, with real pictures, and how it ended."""
    return files / "warm", run_monitor(partial(command, pictures=True), files, files / "warm", "warm.nc", "analyses.nc")


def state(folder):
    return json.loads((folder / "state.json").read_text())


def test_unchanged_forecasts_are_in_control(calm):
    folder, ended = calm
    assert ended.code == 0, ended.stdout + ended.stderr
    assert "120 forecasts verified now, 120 in all" in ended.stdout
    assert "in control: none of 40 charts is beyond its limit" in ended.stdout
    assert len(state(folder)["verified"]) == 120


def test_a_shift_gives_an_alarm_and_a_page(warm):
    folder, ended = warm
    assert ended.code == 4, ended.stdout + ended.stderr
    assert "ALARM" in ended.stdout
    assert "since 2020-02-1" in ended.stdout
    page = (folder / "monitor.html").read_text()
    assert "Alarm: " in page
    assert "http" not in page.replace("http://www.w3.org", "")


def test_scores_are_those_of_the_files(warm, files):
    members = xr.open_dataset(files / "warm.nc").t2m.isel(init_time=7, lead_time=1)
    truth = xr.open_dataset(files / "analyses.nc").t2m.isel(time=9).values
    crps = properscoring.crps_ensemble(truth, np.moveaxis(members.values, 0, -1))
    weights = np.broadcast_to(np.array(GRID.weights)[:, None], GRID.shape)
    start = int((FIRST + np.timedelta64(7 * 86_400, "s")).astype(int))
    (one,) = [one for one in state(warm[0])["verified"] if (one["start"], one["lead_time"]) == (start, 48)]
    area, score, _, error, *_ = one["regions"]["global"]
    assert area == 1
    assert score == pytest.approx(np.average(crps, weights=weights), rel=1e-5)
    assert error == pytest.approx(np.average(members.values.mean(0) - truth, weights=weights), abs=1e-4)


def test_forecasts_wait_for_their_analyses_and_count_once(monitor, files, warm, tmp_path):
    run = tmp_path / "run"
    write_analyses(files / "first.nc", 63, range(30))
    write_analyses(files / "second.nc", 63, range(30, 63))
    ended = monitor("warm.nc", None)
    assert ended.code == 0, ended.stderr
    assert "0 forecasts verified now" in ended.stdout
    assert "waiting for the analysis of 2020-01-02T00:00: 2t of 2020-01-01T00:00 +24 h" in ended.stdout
    assert (len(state(run)["verified"]), len(state(run)["waiting"])) == (0, 120)
    ended = monitor(None, "first.nc")
    assert "57 forecasts verified now, 57 in all" in ended.stdout
    assert "waiting for the analysis of 2020-01-31T00:00" in ended.stdout
    ended = monitor("warm.nc", "first.nc")
    assert "0 forecasts verified now, 57 in all" in ended.stdout
    assert "given again and counted once: 2t of 2020-01-01T00:00 +24 h" in ended.stdout
    assert monitor(None, "second.nc").code == 4
    # All at once gave the same state, because the layer uses only what was known at each start.
    assert state(run) == state(warm[0])
    assert not state(run)["waiting"]
    assert (run / "conformal.json").read_text() == (warm[0] / "conformal.json").read_text()


def test_a_zarr_store_is_monitored_like_a_file(monitor, files, tmp_path):
    write_members(files / "few.nc", 20)
    with xr.open_dataset(files / "few.nc") as given, warnings.catch_warnings(action="ignore"):
        given.to_zarr(files / "few.zarr", zarr_format=2)
    monitor("few.zarr", None)
    assert len(state(tmp_path / "run")["waiting"]) == 40
    assert "40 forecasts verified now" in monitor(None, "analyses.nc").stdout


def test_a_file_that_waits_may_be_replaced_or_lost(monitor, files, tmp_path):
    write_members(files / "old.nc", 20)
    monitor("old.nc", None)
    (files / "old.nc").rename(files / "new.nc")
    ended = monitor(None, "analyses.nc")
    assert "old.nc of waiting forecasts no longer exist" in ended.stdout
    assert "0 forecasts verified now" in ended.stdout
    ended = monitor("new.nc", "analyses.nc")
    assert "40 forecasts verified now" in ended.stdout
    assert not state(tmp_path / "run")["waiting"]


def test_a_file_of_another_corrector_is_refused(monitor, files):
    write_members(files / "marked.nc", 20)
    own = hashlib.sha256((files / "corrector.safetensors").read_bytes()).hexdigest()
    refused = {'[{"sha256": "00"}]': "was written by another corrector", "[]": "another corrector", "{": "is damaged"}
    for correctors, sentence in refused.items():
        (files / "marked.nc.json").write_text(f'{{"correctors": {correctors}}}')
        ended = monitor("marked.nc", "analyses.nc")
        assert ended.code == 2
        assert sentence in ended.stderr
    counts = {"forecasts": {"corrector": 37, "raw": 2, "emos": 1}}
    record = {"correctors": [{"sha256": "00"}, {"sha256": own}], "counts": counts}
    (files / "marked.nc.json").write_text(json.dumps(record))
    ended = monitor("marked.nc", "analyses.nc")
    assert ended.code == 0, ended.stderr
    assert "has forecasts of a fallback, 2 by on_problem=raw and 1 by on_problem=emos" in ended.stdout
    assert "which corrector wrote it is not known" not in ended.stdout


def test_nightly_trainings_share_the_charts_and_have_no_layer(monitor, files, tmp_path):
    for night in (1, 2):
        write_members(files / f"night{night}.nc", night)
        (files / f"night{night}.nc.json").write_text(json.dumps({"correctors": [{"sha256": f"{night}" * 64}]}))
        assert "another corrector" in monitor(f"night{night}.nc", "analyses.nc").stderr
    (tmp_path / "run").rename(tmp_path / "empty")
    for night in (1, 2):
        ended = monitor(f"night{night}.nc", "analyses.nc", "retrained=true")
        assert f"2 forecasts verified now, {2 * night} in all" in ended.stdout, ended.stderr
    assert {path.name for path in (tmp_path / "run").iterdir()} >= {"state.json", "monitor.html"}
    assert not (tmp_path / "run/conformal.json").exists()
    assert "Conformal layer" not in (tmp_path / "run/monitor.html").read_text()
    assert "was made with another corrector" in monitor("night2.nc", "analyses.nc").stderr
    idle = monitor("night2.nc", "analyses.nc", "retrained=true", "conformal_step=0.2")
    assert "conformal_step has no effect with retrained=true" in idle.stderr


def test_shares_of_a_file_with_the_layer_are_those_of_its_members(calm, files, command, tmp_path):
    """With the layer, members are counted as they are; without it, at the levels that the layer would have had."""
    write_members(files / "with.nc", 60, shift_from=30)
    write_members(files / "without.nc", 60, shift_from=30, shift=1.51)
    own = state(calm[0])["about"]["corrector"]
    record = {"correctors": [{"sha256": own}], "options": {"conformal": [own]}}
    record["output"] = {"sha256": hashlib.sha256((files / "with.nc").read_bytes()).hexdigest()}
    found = {}
    for name in ("with", "without"):
        # The sidecar of an older file of this name does not count.
        (files / f"{name}.nc.json").write_text(json.dumps(record))
        ended = run_monitor(command, files, tmp_path / name, f"{name}.nc", "analyses.nc")
        assert ended.code == 4, ended.stderr  # the shift is an alarm
        verified = state(tmp_path / name)["verified"]
        found[name] = [np.mean([shares[1] for shares in one["cores"].values()]) for one in verified]
    assert np.mean(found["with"][:4]) == pytest.approx(np.mean(found["without"][:4]), abs=1e-6)
    assert np.mean(found["with"][-10:]) > 0.85
    assert np.mean(found["without"][-10:]) < np.mean(found["with"][-10:]) - 0.1


WRONG = {
    "no forecasts": (None, "analyses.nc", "there is nothing to monitor"),
    "no file": ("missing.nc", "analyses.nc", "there is no file"),
    "one member": ("one.nc", "analyses.nc", "has one member only"),
    "no target": ("other.nc", "analyses.nc", "2t"),
    "grid": ("grid.nc", "analyses.nc", "the corrector"),
    "grid of the analyses": ("few.nc", "coarse.nc", "bring the analyses to that grid"),
    "units": ("few.nc", "celsius.nc", "is in 'm', GRIB has 2t in K"),
    "lead time": ("late.nc", "analyses.nc", "has none of the lead times of the corrector"),
}
WRONG_OPTIONS = {
    "corrector=none.safetensors": "there is no corrector",
    "reference=5": "reference must be at least 30 days",
    "reference=[2020-03-01,2020-02-01]": "is after the last day",
    "reference=[2019-01-01,2019-12-31]": "has 0 days with scores",
    "false_alarm_days=0": "false_alarm_days must be",
    "conformal_interval=1.5": "conformal_interval must be",
    "conformal_step=0": "conformal_step must be",
    "regions={north: [1, 2, 3, 4]}": "every evaluation has the region north",
}


@pytest.fixture(scope="module")
def wrong_files(files):
    data = xr.open_dataset(files / "calm.nc").isel(init_time=slice(0, 5)).load()
    data.to_netcdf(files / "few.nc")
    data.isel(number=[0]).to_netcdf(files / "one.nc")
    other = data.rename(t2m="msl")
    other.msl.attrs.update(units="Pa", GRIB_shortName="msl", standard_name="air_pressure_at_mean_sea_level")
    other.to_netcdf(files / "other.nc")
    data.isel(latitude=slice(0, 6)).to_netcdf(files / "grid.nc")
    attributes = {"units": "hours", "standard_name": "forecast_period"}
    data.assign_coords(lead_time=("lead_time", [30, 54], attributes)).to_netcdf(files / "late.nc")
    write_analyses(files / "celsius.nc", 10, units="m")
    write_analyses(files / "coarse.nc", 10, grid=Grid(GRID.latitudes[:6], GRID.longitudes))


@pytest.mark.usefixtures("wrong_files")
@pytest.mark.parametrize("case", [*WRONG, *WRONG_OPTIONS])
def test_wrong_input_is_one_sentence(monitor, tmp_path, case):
    *words, sentence = WRONG.get(case, ("few.nc", "analyses.nc", case, WRONG_OPTIONS.get(case)))
    ended = monitor(*words)
    assert ended.code == 2, ended.stdout + ended.stderr
    (line,) = ended.stderr.splitlines()
    assert line.startswith("error: ")
    assert sentence in line
    assert not (tmp_path / "run/state.json").exists()


def test_a_state_of_other_options_or_a_damaged_one_is_refused(monitor, calm, tmp_path):
    shutil.copytree(calm[0], tmp_path / "run")
    file = tmp_path / "run/state.json"
    before = file.read_text()
    ended = monitor("calm.nc", "analyses.nc", "conformal_step=0.2")
    assert ended.code == 2
    assert "was made with another conformal_step (0.1, not 0.2)" in ended.stderr
    assert file.read_text() == before
    for text in ("", "[]", before.replace('"format": ', '"format": 1')):
        file.write_text(text)
        ended = monitor("calm.nc", "analyses.nc")
        assert ended.code == 2
        assert "is no state of this version" in ended.stderr
    file.write_text(before)
    again = monitor("calm.nc", "analyses.nc")
    assert "0 forecasts verified now, 120 in all" in again.stdout
    assert state(tmp_path / "run") == json.loads(before)


def test_implausible_analyses_are_named(monitor, files):
    """Kelvin that are labelled as degrees Celsius are 273 K off, each day alike."""
    write_members(files / "short.nc", 40)
    write_analyses(files / "mislabelled.nc", 43, units="degC")
    ended = monitor("short.nc", "mislabelled.nc")
    assert "note: 80 forecasts are far from their analyses" in ended.stdout
    assert "check units, variable and dates" in ended.stdout


def test_wrong_cells_of_analyses_are_counted_and_masked_as_by_hand(monitor, command, files, tmp_path):
    write_members(files / "few.nc", 12)
    right = xr.open_dataset(files / "analyses.nc").isel(time=slice(0, 15)).load()
    for name, value in (("wrong", 9999), ("removed", np.nan)):
        data = right.copy(deep=True)
        data.t2m[5, 3, 4] = value
        data.to_netcdf(files / f"{name}.nc")
    told = (
        "2t: 1 of 2,028 values of the truth are outside the plausible range from 180 to 335 K (9999 K at latitude 45, "
    )
    masked = monitor("few.nc", "wrong.nc", "truth_checks=mask")
    assert f"note: {told}longitude 120, 2020-01-06T00:00); they are masked" in masked.stdout
    by_hand = run_monitor(command, files, tmp_path / "by hand", "few.nc", "removed.nc")
    assert "2t" not in by_hand.stdout
    states = [state(tmp_path / name) for name in ("run", "by hand")]
    assert states[0].pop("about") == states[1].pop("about") | {"masked": True}
    assert states[0] == states[1]
    for options, text in (
        ((), "truth_checks=mask leaves them out"),
        (("truth_checks=error",), "and truth_checks=report"),
    ):
        ended = run_monitor(command, files, tmp_path / text[:3], "few.nc", "wrong.nc", *options)
        assert text in ended.stdout + ended.stderr
        assert ended.code == (2 if options else 0)


def test_missing_values_and_missing_members_are_named_or_left_out(monitor, files, tmp_path):
    data = xr.open_dataset(files / "calm.nc").isel(init_time=slice(0, 6)).load()
    data.t2m[0, 0, :, :6] = np.nan  # half of the cells of one forecast
    data.t2m[1, 1, :] = np.nan  # a forecast without any value
    data.to_netcdf(files / "holes.nc")
    ended = monitor("holes.nc", "analyses.nc")
    assert ended.code == 0, ended.stderr
    assert "11 forecasts verified now" in ended.stdout
    assert "left out: 2t of 2020-01-02T00:00 +48 h" in ended.stdout
    first = state(tmp_path / "run")["verified"][0]
    assert "north" not in first["regions"]
    assert 0.3 < first["regions"]["global"][0] < 0.7


def test_the_page_fits_and_is_silent(browser, warm):
    for width, scheme in ((390, "dark"), (1280, "light")):
        shown = browser.page(warm[0] / "monitor.html", width, scheme)
        shown.check_look(width)
        assert shown.run("document.querySelectorAll('#charts svg').length") == 12
        assert shown.run("[...document.querySelectorAll('#all-charts tbody tr')].length") == 40
        assert shown.run("document.querySelector('.headline').textContent").startswith("Alarm: ")


@pytest.mark.parametrize("days", [92, 5000])
def test_charts_of_any_length_have_few_dates(days):
    values = np.random.default_rng(1).normal(size=days)
    one = control_chart(np.datetime64("2020-01-29") + np.arange(days), values, 90, 0.1, 365, two_sided=True)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        panel = chart_panel("2t +24 h global: bias / spread", one)
        svg = inline_svg(panel.figure, "one", panel.alt)
    assert 2 <= svg.count("xtick") <= 8
