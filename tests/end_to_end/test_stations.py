"""Stations from file to scores: the example of docs/data/stations.md, and real stations with published scores."""

import csv
import json
import re
import subprocess
import sys

import numpy as np
import pytest
import torch
import xarray as xr
from conftest import ROOT

from data_pipeline.points import Points
from models.corrector import Corrector

BLOCK = re.compile(r"^```(\w+) (\S+)\n(.*?)^```", re.MULTILINE | re.DOTALL)
PAGE = ROOT / "docs/data/stations.md"


@pytest.fixture(scope="module")
def project(tmp_path_factory, run_verb):
    """The folder in which the page was followed, with the output of each command."""
    folder = tmp_path_factory.mktemp("stations")
    blocks = {name: text for _, name, text in BLOCK.findall(PAGE.read_text())}
    (folder / "write_stations.py").write_text(blocks["write_stations.py"])
    subprocess.run([sys.executable, "write_stations.py"], cwd=folder, check=True)
    lines = blocks["my.sh"].splitlines()
    variables = dict(re.findall(r'^(\w+)="(.*)"$', blocks["my.sh"], re.MULTILINE))
    outputs = {}
    for line in lines:
        if line.startswith("deepweather"):
            for name, value in variables.items():
                line = line.replace(f"${name}", value)
            words = [word.strip("'") for word in re.findall(r"'[^']*'|\S+", line)][1:]
            outputs[" ".join(words[:1] + words[-1:])] = run_verb(folder, *words)
    return folder, variables, outputs


def test_the_page_prepares_trains_and_scores(project):
    folder, _, outputs = project
    assert "grid         20 stations, latitudes" in next(iter(outputs.values()))
    scores = json.loads((folder / "runs/scores/scores.json").read_text())["models"]
    crps = {name: model["crps"] for name, model in scores.items()}
    assert crps["mlp"] < 0.9 * crps["raw"]
    assert crps["emos"] < 0.9 * crps["raw"]
    assert crps["raw"] < crps["climatology"]


def test_the_raw_score_counts_every_station_alike(project):
    folder, *_ = project
    scores = json.loads((folder / "runs/scores/scores.json").read_text())["models"]
    members, truth = (xr.open_dataset(folder / name).t2m.astype(float) for name in ("ensemble.nc", "analysis.nc"))
    members, truth = members.values[:, 0], truth.values
    error = abs(members - truth[:, None]).mean(1)
    spread = abs(members[:, :, None] - members[:, None]).mean((1, 2))
    year = xr.open_dataset(folder / "analysis.nc").time.dt.year.values == 2021
    assert scores["raw"]["crps"] == pytest.approx((error - spread / 2)[year].mean(), rel=1e-5)


def test_a_network_that_needs_neighbours_is_refused_by_name(project, run_failing_verb):
    folder, variables, _ = project
    options = [*variables["data"].split(), *variables["task"].split()]
    line = run_failing_verb(folder, "train", *options, "model=unet", "run_dir=runs/unet")
    assert "model UNet needs neighbouring cells" in line
    assert "20 stations" in line


def test_a_store_of_stations_has_the_samples_of_the_archive(project, run_verb):
    folder, variables, _ = project
    options = [*variables["data"].split(), *variables["task"].split()]
    run_verb(folder, "prepare", *options, "data.store=store")
    run_verb(folder, "train", *options, "data.store=store", "model=emos", "run_dir=runs/stored")
    stored, own = (Corrector.load(folder / f"runs/{name}/corrector.safetensors") for name in ("stored", "emos"))
    assert isinstance(stored.grid, Points)
    assert stored.grid == own.grid
    for name, tensor in own.state_dict().items():
        torch.testing.assert_close(stored.state_dict()[name], tensor, rtol=0, atol=0)
    with xr.open_dataset(folder / "store/samples-00000.nc") as file:
        assert file.ensemble.dims == ("sample", "number", "channel", "point")
        assert file.station.values[:2].tolist() == ["10000", "10007"]
        with xr.open_dataset(folder / "ensemble.nc") as ensemble:
            np.testing.assert_array_equal(file.altitude, ensemble.alt)


def test_observations_of_other_stations_are_found_by_id(project, run_verb, tmp_path):
    """Sixteen stations in reverse order and one more: scores are those of the sixteen."""
    folder, variables, _ = project
    with xr.open_dataset(folder / "analysis.nc") as own:
        other = own.isel(station=range(19, 3, -1))
        more = own.isel(station=[0]).assign_coords(station_id=("station", ["99999"], own.station_id.attrs))
        xr.concat([other, more], "station").to_netcdf(tmp_path / "analysis.nc")
    options = [*variables["data"].replace("path=.", f"path={folder}").split(), *variables["task"].split()]
    options += [f"data.archive.analysis=[{tmp_path}/analysis.nc]", f"run_dir={tmp_path}/scores"]
    output = run_verb(tmp_path, "evaluate", *options)
    assert "found at 16 of 20 stations of the ensemble, the first without is 10000; 1 of 17 stations are not" in output
    score = json.loads((tmp_path / "scores/scores.json").read_text())["models"]["raw"]["crps"]
    with xr.open_dataset(folder / "ensemble.nc") as ensemble, xr.open_dataset(folder / "analysis.nc") as own:
        members, truth = ensemble.t2m[:, 0, :, 4:].values.astype(float), own.t2m[:, 4:].values.astype(float)
        year = own.time.dt.year.values == 2021
    spread = abs(members[:, :, None] - members[:, None]).mean((1, 2))
    assert score == pytest.approx((abs(members - truth[:, None]).mean(1) - spread / 2)[year].mean(), rel=1e-5)
    with (tmp_path / "scores/stations.csv").open() as file:
        rows = [row for row in csv.DictReader(file) if (row["model"], row["score"]) == ("raw", "crps")]
    scored = [float(row["value"]) for row in rows if int(row["n_forecasts"])]
    assert len(scored) == 16
    assert np.mean(scored) == pytest.approx(score, rel=1e-6)
