"""Stations from file to scores: the example of docs/data/stations.md."""

import contextlib
import csv
import json
import re
import runpy
import shlex

import deepweather as dw
import numpy as np
import pytest
import xarray as xr
from followed_page import blocks_of, lines_of
from quick_report import no_figures


@pytest.fixture(scope="module")
def followed(tmp_path_factory, run_verb):
    """The folder in which the page was followed, the options of its data and task, and what `prepare` printed."""
    folder = tmp_path_factory.mktemp("stations")
    blocks = {name: text for _, name, text in blocks_of("data/stations.md") if name}
    (folder / "write_stations.py").write_text(blocks["write_stations.py"])
    with contextlib.chdir(folder):
        runpy.run_path("write_stations.py", run_name="__main__")
    variables = dict(re.findall(r'^(\w+)="(.*)"$', blocks["my.sh"], re.MULTILINE))
    printed = []
    for line in lines_of(blocks["my.sh"]):
        if line.startswith("deepweather"):
            for name, value in variables.items():
                line = line.replace(f"${name}", value)
            printed.append(run_verb(folder, *shlex.split(line)[1:]))
    return folder, f"{variables['data']} {variables['task']}", printed[0]


def raw_crps(folder, stations):
    """The CRPS of the raw ensemble in the test year, computed from the files; all stations count alike."""
    with xr.open_dataset(folder / "ensemble.nc") as ensemble, xr.open_dataset(folder / "analysis.nc") as analysis:
        members = ensemble.t2m[:, 0].isel(station=stations).values.astype(float)
        truth = analysis.t2m.isel(station=stations).values.astype(float)
        year = analysis.time.dt.year.values == 2021
    spread = abs(members[:, :, None] - members[:, None]).mean((1, 2))
    return (abs(members - truth[:, None]).mean(1) - spread / 2)[year].mean()


def test_the_page_prepares_trains_and_scores(followed):
    folder, _, prepared = followed
    assert "grid         20 stations, latitudes" in prepared
    scores = json.loads((folder / "runs/scores/scores.json").read_text())["models"]
    crps = {name: model["crps"] for name, model in scores.items()}
    assert crps["raw"] == pytest.approx(raw_crps(folder, slice(None)), rel=1e-5)
    assert crps["mlp"] < 0.9 * crps["raw"]
    assert crps["emos"] < 0.9 * crps["raw"]
    assert crps["raw"] < crps["climatology"]
    assert python_scores(folder, folder) == {name: scores["raw"][name] for name in ("crps", "crps_fair", "bias")}


def python_scores(folder, other):
    """The scores of the raw ensemble in the test year by `dw.score`; the observations are in the folder `other`."""
    ensemble = dw.open_ensemble(str(folder / "ensemble.nc"), ["2t"], [24])["2t"]
    truth = dw.open_analysis(str(other / "analysis.nc"), ["2t"])["2t"].sel(time="2021")
    found = dw.score(ensemble.load(), truth.load(), by_lead_time=False).sel(region="global")
    return {name: pytest.approx(found[name].item(), rel=1e-9) for name in ("crps", "crps_fair", "bias")}


def test_observations_of_other_stations_are_found_by_id(followed, run_verb, tmp_path):
    """Sixteen stations in reverse order and one more: scores are those of the sixteen."""
    folder, options, _ = followed
    with xr.open_dataset(folder / "analysis.nc") as own:
        other = own.isel(station=range(19, 3, -1))
        more = own.isel(station=[0]).assign_coords(station_id=("station", ["99999"], own.station_id.attrs))
        xr.concat([other, more], "station").to_netcdf(tmp_path / "analysis.nc")
    words = [*options.replace("path=.", f"path={folder}").split(), f"data.archive.analysis=[{tmp_path}/analysis.nc]"]
    with no_figures():
        output = run_verb(tmp_path, "evaluate", *words, "references=[raw,climatology]", f"run_dir={tmp_path}/scores")
    assert "found at 16 of 20 stations of the ensemble, the first without is 10000; 1 of 17 stations are not" in output
    score = json.loads((tmp_path / "scores/scores.json").read_text())["models"]["raw"]["crps"]
    assert score == pytest.approx(raw_crps(folder, slice(4, None)), rel=1e-5)
    assert python_scores(folder, tmp_path)["crps"] == score
    with (tmp_path / "scores/stations.csv").open() as file:
        rows = [row for row in csv.DictReader(file) if (row["model"], row["score"]) == ("raw", "crps")]
    scored = [float(row["value"]) for row in rows if int(row["n_forecasts"])]
    assert len(scored) == 16
    assert np.mean(scored) == pytest.approx(score, rel=1e-6)


def test_new_stations_are_corrected_counted_and_scored_by_themselves(followed, run_verb, tmp_path):
    """Two of the stations get other ids and places, so they are new to the correctors."""
    folder, options, _ = followed
    for name in ("ensemble", "analysis"):
        with xr.open_dataset(folder / f"{name}.nc") as own:
            ids, lat = own.station_id.values.astype(object), own.lat.values.copy()
            ids[[3, 8]], lat[[3, 8]] = ["90003", "90008"], lat[[3, 8]] - 0.2
            ids[5] = f"00{ids[5]}"
            moved = own.load().assign_coords(station_id=("station", ids, own.station_id.attrs))
        moved.assign_coords(lat=("station", lat, own.lat.attrs)).to_netcdf(tmp_path / f"{name}.nc")
    words = [*options.replace("path=.", f"path={tmp_path}").split(), "references=[raw]"]
    correctors = f"{{mine: {folder}/runs/emos/corrector.safetensors, mlp: {folder}/runs/mlp/corrector.safetensors}}"
    with no_figures():
        output = run_verb(tmp_path, "evaluate", *words, f"correctors={correctors}", f"run_dir={tmp_path}/scores")
    for name in ("mine", "mlp"):
        assert f"{name}: 18 of 20 stations are stations of the training; 2 are new (90003, 90008)" in output
    scores = json.loads((tmp_path / "scores/scores.json").read_text())
    assert scores["stations"]["mlp"] == {"own": 18, "new": 2, "far": 0}
    regions = {name: model["by"]["region"] for name, model in scores["models"].items()}
    assert regions["raw"]["new_stations"]["crps"] == pytest.approx(raw_crps(folder, [3, 8]), rel=1e-5)
    for name in ("mine", "mlp"):
        assert regions[name]["new_stations"]["crps"] < 0.9 * regions["raw"]["new_stations"]["crps"]
    listed = ", ".join(f"{name} {regions[name]['new_stations']['crps']:.2f}" for name in regions)
    assert f"CRPS at new stations (2): {listed}" in output
    whole = json.loads((folder / "runs/scores/scores.json").read_text())["models"]["emos"]["crps"]
    assert scores["models"]["mine"]["crps"] == pytest.approx(whole, rel=0.05)

    with xr.open_dataset(tmp_path / "ensemble.nc") as ensemble:
        ensemble.isel(station=[8, 5, 0], init_time=[-1]).load().to_netcdf(tmp_path / "forecast.nc")
    printed = run_verb(
        tmp_path, "correct", f"corrector={folder}/runs/emos/corrector.safetensors", "input=forecast.nc", "output=out.nc"
    )
    assert "2 of 3 stations are stations of the training; 1 are new (90008)" in printed
    sidecar = json.loads((tmp_path / "out.nc.json").read_text())
    assert sidecar["correctors"][0]["stations"] == {"own": 2, "new": 1, "far": 0}
    corrector = dw.Corrector.load(folder / "runs/emos/corrector.safetensors")
    with xr.open_dataset(tmp_path / "forecast.nc") as raw, xr.open_dataset(tmp_path / "out.nc") as written:
        with pytest.warns(UserWarning, match="2 of 3 stations are stations of the training"):
            made = corrector.correct(dw.open_ensemble(tmp_path / "forecast.nc"))
        np.testing.assert_allclose(made["2t"].squeeze() - 273.15, written.t2m.squeeze(), atol=1e-3)
        # The fallback is moved to the same stations.
        mlp = dw.Corrector.load(folder / "runs/mlp/corrector.safetensors")
        with pytest.warns(UserWarning, match="1 are new"):
            fallen = mlp.correct(dw.open_ensemble(tmp_path / "forecast.nc"), on_problem="emos", fallback=corrector)
        assert fallen["2t"].notnull().all()
        altitude = raw.alt.values[0]
        # The raw members are too warm by 1 K per km.
        assert float((raw.t2m - written.t2m)[..., 0].mean()) == pytest.approx(0.001 * altitude, abs=0.4)
