"""Each station has its own scores: a published library gives the same numbers from the arrays of the samples."""

import csv

import numpy as np
import pytest
import scoringrules
import torch

from data_pipeline.grid import Grid
from data_pipeline.points import Points
from data_pipeline.task import Task
from evaluation.regions import region_weights
from evaluation.scoring import score_models
from evaluation.station_table import write_station_table
from models.distribution import Normal
from models.statistical.raw import Raw

STATIONS = Points((47.3, 52.5, -17.7), (11.4, 9.7, 178.0), (581.0, 55.0, 3.0), ("11120", "10338", "91680"))
TASK = Task("toy", ["2t"], ["2t"], [24, 48])


def normal(batch):
    mean = batch.ensemble.mean(1) + 1
    return Normal(mean, torch.ones_like(mean))


def test_the_rows_of_a_station_are_its_own_scores(toy, tmp_path):
    data = toy(TASK, STATIONS, 12)
    data[3].target[0, 1] = torch.nan
    samples = [data[k] for k in range(12)]
    board = score_models({"raw": Raw(TASK, STATIONS), "net": normal}, data, region_weights(STATIONS))
    assert write_station_table(tmp_path / "stations.csv", board, 0)
    with (tmp_path / "stations.csv").open() as file:
        rows = list(csv.DictReader(file))
    found = {(row["station"], row["lead_time"], row["model"], row["score"]): row for row in rows}
    assert len(found) == len(rows)
    for place, station in enumerate(STATIONS.ids):
        for lead in TASK.lead_times:
            mine = [s for s in samples if int(s.lead_time) == lead and not s.target[0, place, 0].isnan()]
            members = np.array([s.ensemble[:, 0, place, 0].numpy() for s in mine])
            truth = np.array([float(s.target[0, place, 0]) for s in mine])
            raw = scoringrules.crps_ensemble(truth, members, estimator="nrg").mean()
            net = scoringrules.crps_normal(truth, members.mean(1) + 1, 1.0).mean()
            row = found[station, str(lead), "net", "crps"]
            assert float(row["value"]) == pytest.approx(net, rel=1e-5)
            assert float(row["skill"]) == pytest.approx(1 - net / raw, abs=1e-5)
            assert int(row["n_forecasts"]) == len(mine)
            assert float(found[station, str(lead), "raw", "crps"]["value"]) == pytest.approx(raw, rel=1e-5)
            bias = (members.mean(1) + 1 - truth).mean()
            assert float(found[station, str(lead), "net", "bias"]["value"]) == pytest.approx(bias, abs=1e-4)
            assert found[station, str(lead), "net", "bias"]["skill"] == ""
            assert float(row["latitude"]) == STATIONS.latitudes[place]
            assert float(row["altitude"]) == STATIONS.altitudes[place]
    assert {row["units"] for row in rows if row["score"] == "crps"} == {"K"}
    assert {row["units"] for row in rows if row["score"] == "spread_skill"} == {""}


def test_grids_and_points_without_ids_have_no_table(toy, tmp_path):
    for grid in (Grid.regular(3, 4), Points((1.0, 2.0), (3.0, 4.0))):
        board = score_models({"raw": Raw(TASK, grid)}, toy(TASK, grid, 4), region_weights(grid))
        assert not write_station_table(tmp_path / "stations.csv", board, 0)
    assert not (tmp_path / "stations.csv").exists()
