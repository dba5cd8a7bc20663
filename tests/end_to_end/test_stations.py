"""Stations from file to scores: the example of docs/data/stations.md."""

import contextlib
import csv
import json
import re
import runpy
import shlex

import numpy as np
import pytest
import xarray as xr
from followed_page import blocks_of, lines_of


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


def test_observations_of_other_stations_are_found_by_id(followed, run_verb, tmp_path):
    """Sixteen stations in reverse order and one more: scores are those of the sixteen."""
    folder, options, _ = followed
    with xr.open_dataset(folder / "analysis.nc") as own:
        other = own.isel(station=range(19, 3, -1))
        more = own.isel(station=[0]).assign_coords(station_id=("station", ["99999"], own.station_id.attrs))
        xr.concat([other, more], "station").to_netcdf(tmp_path / "analysis.nc")
    words = [*options.replace("path=.", f"path={folder}").split(), f"data.archive.analysis=[{tmp_path}/analysis.nc]"]
    output = run_verb(tmp_path, "evaluate", *words, f"run_dir={tmp_path}/scores")
    assert "found at 16 of 20 stations of the ensemble, the first without is 10000; 1 of 17 stations are not" in output
    score = json.loads((tmp_path / "scores/scores.json").read_text())["models"]["raw"]["crps"]
    assert score == pytest.approx(raw_crps(folder, slice(4, None)), rel=1e-5)
    with (tmp_path / "scores/stations.csv").open() as file:
        rows = [row for row in csv.DictReader(file) if (row["model"], row["score"]) == ("raw", "crps")]
    scored = [float(row["value"]) for row in rows if int(row["n_forecasts"])]
    assert len(scored) == 16
    assert np.mean(scored) == pytest.approx(score, rel=1e-6)
