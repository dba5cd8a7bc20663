"""scores.csv and stations.csv: a row for each slice or station, against averages in numpy and scores.json."""

import csv
import re
from dataclasses import astuple, replace
from itertools import combinations

import netCDF4
import numpy as np
import pandas as pd
import pytest
import scoringrules
import torch
import xarray as xr

from data_pipeline.grid import Grid
from data_pipeline.grids.points import Points
from data_pipeline.task import Task
from evaluation.regions import region_weights
from evaluation.scores import all_scores
from evaluation.scores.score import CellStatistic, Score
from evaluation.scoring.aggregation import WeightedMean
from evaluation.scoring.scoring import ScoringOptions, score_models
from evaluation.tables.csv_tables import write_score_table, write_station_table
from evaluation.tables.score_dataset import write_score_file
from evaluation.tables.score_rows import Finisher, ScoreRows, whole
from models.distribution import Ensemble, Normal
from models.parallel.domain import Domain
from models.statistical.raw import Raw

GRID = Grid.regular(5, 8)
TASK = Task("t2m", ["2t"], ["2t"], [24, 48])
LIMITS = (0.5, 1.5)
LARGE = Score(
    name="large_error",
    title="large errors",
    text="Fraction of errors above a limit.",
    reference="none",
    statistics={
        "large": CellStatistic(
            lambda case: torch.stack([torch.where(case.valid, (case.error.abs() > limit).to(case.truth), case.truth)
                                      for limit in LIMITS]),
            size=lambda settings: 2,
        )
    },
    value=lambda large: np.sqrt(large),
    best="low",
    units="",
    labels=lambda settings, target: tuple(map(str, LIMITS)),
)  # fmt: skip


@pytest.fixture(scope="module")
def board(toy):
    data = toy(TASK, GRID, 120)
    data.samples[7].target[:, 2:, 3] = torch.nan
    data.samples[8].target[:] = torch.nan
    raw = Raw(TASK, Domain.of(GRID))

    def narrow(batch):
        forecast = raw(batch)
        return Normal(forecast.mean - 1, forecast.std)

    def dependent(batch):
        return Ensemble(raw(batch).members * 1.001)

    options = ScoringOptions(scores=(*all_scores().values(), LARGE), written={"narrow"})
    models = {"raw": raw, "narrow": narrow, "dependent": dependent}
    return data, score_models(models, data, region_weights(GRID), options=options)


def test_numbers_that_are_computed_together_are_those_of_each_alone(board):
    finisher = Finisher(board[1], 0, whole(board[1]))
    means = [finisher.mean(tally, name) for tally in board[1].tallies.values() for name in ("crps", "rank")]
    fewer = [
        WeightedMean(one.total, one.weight * np.arange(len(one.weight)).reshape(one.weight.shape)) for one in means
    ]
    wanted = [(function, [mean]) for function in (np.sqrt, np.square) for mean in (*means, *fewer)]
    for one, together in zip(wanted, finisher.estimates(wanted), strict=True):
        assert astuple(together[0]) == pytest.approx(astuple(finisher.estimate(*one)), rel=1e-9, nan_ok=True)


@pytest.fixture(scope="module")
def rows(board):
    return ScoreRows.of(board[1], 0).rows


@pytest.fixture(scope="module")
def table(rows, tmp_path_factory):
    path = tmp_path_factory.mktemp("table") / "scores.csv"
    write_score_table(path, rows)
    return pd.read_csv(path)


def test_every_column_has_one_type_without_any_option_of_the_reader(table):
    numbers = {
        **dict.fromkeys(["lead_time", "value", "low", "high", "skill", "skill_low", "skill_high"], np.float64),
        **dict.fromkeys(["n_forecasts", "n_dates"], np.int64),
    }
    for name, column in table.items():
        kinds = {type(value) for value in column.dropna()}
        assert len(kinds) == 1, name
        assert column.dtype == numbers[name] if name in numbers else kinds == {str}


def test_rows_of_all_forecasts_come_first_and_each_part_can_be_selected(table, board):
    """The number of rows of each part from the numbers of lead times, regions and seasons."""
    counts = {"lead": len(TASK.lead_times), "region": len(board[1].regions) - 1, "season": 4}
    crps = table[(table.score == "crps") & (table.model == "raw")]
    assert crps.part.iloc[0] == table.part.iloc[0] == "all"
    found = crps.groupby("part").size().to_dict()
    kinds = [kinds for size in range(4) for kinds in combinations(counts, size)]
    assert found == {"+".join(some) or "all": np.prod([counts[kind] for kind in some]) for some in kinds}
    sizes = [0 if part == "all" else part.count("+") + 1 for part in table.part]
    assert sizes == sorted(sizes)
    assert (table.part.str.contains("lead") == table.lead_time.notna()).all()


@pytest.fixture(scope="module")
def dataset(board, rows, tmp_path_factory):
    path = tmp_path_factory.mktemp("file") / "scores.nc"
    write_score_file(path, board[1], 0, rows)
    return path


def test_the_netcdf_file_has_the_numbers_of_the_table(table, dataset):
    """Every row with a lead time, and no other number."""
    with xr.open_dataset(dataset) as file:
        found = file.load()
    endings = {"value": "", "low": "_low", "high": "_high", "skill": "_skill_vs_raw", "skill_low": "_skill_vs_raw_low",
               "skill_high": "_skill_vs_raw_high"}  # fmt: skip
    compared = dict.fromkeys(endings, 0)
    labels = {name: {label: k for k, label in enumerate(axis.values.tolist())} for name, axis in found.coords.items()}

    def number_at(name, place):
        array = found[name]
        return array.values[tuple(labels[axis][place[axis]] for axis in array.dims)]

    for one in table[table.lead_time.notna()].itertuples():
        place = {"model": one.model, "form": one.form, "lead_time": int(one.lead_time), "region": one.region,
                 "season": one.season, f"{one.score}_label": one.label}  # fmt: skip
        assert number_at("n_dates", place) == one.n_dates
        for column, ending in endings.items():
            if one.score + ending in found:
                number = number_at(one.score + ending, place)
                assert number == pytest.approx(getattr(one, column), rel=1e-8, nan_ok=True), one
                compared[column] += np.isfinite(number)
    kept = table[table.lead_time.notna()]
    assert compared == kept[list(endings)].notna().sum().to_dict()
    total = {column: sum(int(found[name + ending].notnull().sum()) for name in set(table.score)
                         if name + ending in found) for column, ending in endings.items()}  # fmt: skip
    assert total == compared


def test_every_variable_of_the_netcdf_file_follows_the_cf_conventions(dataset):
    """CF 1.8: types (2.2), names (2.3), units (3.1), long names (3.2), ancillary variables (3.4), labels (6.1)."""
    with netCDF4.Dataset(dataset) as file:
        assert file.Conventions == "CF-1.8"
        for name, variable in file.variables.items():
            assert re.fullmatch(r"[A-Za-z][A-Za-z0-9_]*", name)
            assert variable.dtype is str or variable.dtype in (np.int32, np.float64)
            assert variable.long_name
            assert (variable.dtype is str) != hasattr(variable, "units"), name
            if name not in file.dimensions:
                labels = [axis for axis in variable.dimensions if axis != "lead_time"]
                assert variable.coordinates.split() == labels
            assert {*getattr(variable, "ancillary_variables", "").split()} <= {*file.variables}
        lead_time = file["lead_time"]
        assert (lead_time.units, lead_time.standard_name) == ("hours", "forecast_period")
        assert lead_time[:].tolist() == list(TASK.lead_times)
        assert (file["crps"].units, file["spread_skill"].units, file["crps_skill_vs_raw"].units) == ("K", "1", "1")
        assert file["crps"].ancillary_variables.split()[:2] == ["crps_low", "crps_high"]


KEYS = ["model", "form", "score", "label", "lead_time", "region", "season"]


def test_there_is_one_row_for_every_combination(table, board):
    assert " ".join(table.columns) == (
        "part model form score label target units lead_time region season value low high skill skill_low skill_high "
        "n_forecasts n_dates"
    )
    assert not table.fillna({"label": ""})[KEYS].duplicated().any()
    scored = table[(table.score == "crps") & (table.model == "raw")]
    assert set(scored.lead_time.dropna()) == {24, 48}
    assert set(scored.season) == {"all", "DJF", "MAM", "JJA", "SON"}
    assert set(scored.region) == set(board[1].regions)
    assert len(scored) == 3 * 5 * len(board[1].regions)
    counts = table.groupby(["model", "form"]).score.nunique()
    computed = board[1].computed
    everything = len(computed)
    assert counts.to_dict() == {
        ("raw", "distribution"): everything, ("narrow", "distribution"): everything,
        ("dependent", "distribution"): everything,
        ("narrow", "members"): sum(not score.name.endswith("_fair") for score in computed),
    }  # fmt: skip
    assert set(table[table.score == "large_error"].label) == {"0.5", "1.5"}
    assert set(table[table.score == "rmse"].units) == {"K"}
    assert table[table.score == "large_error"].units.isna().all()


def row(table, model, score, lead="all", region="global", season="all", form="distribution", label=None):
    found = table[
        (table.model == model) & (table.score == score) & (table.region == region) & (table.season == season)
        & (table.lead_time.isna() if lead == "all" else table.lead_time == float(lead)) & (table.form == form)
    ]  # fmt: skip
    found = found if label is None else found[found.label == label]
    assert len(found) == 1
    return found.iloc[0]


@pytest.mark.parametrize(("lead", "region", "season"), [("24", "tropics", "JJA"), ("all", "north", "DJF")])
def test_numbers_equal_weighted_averages_of_the_slice(table, board, lead, region, season):
    data, found = board
    months = {"DJF": (12, 1, 2), "JJA": (6, 7, 8)}[season]
    total, weight, dates = np.zeros(4), 0.0, []
    for sample in data.samples:
        valid = np.datetime64(int(sample.init_time) + 3600 * int(sample.lead_time), "s")
        month = int(str(valid.astype("datetime64[M]"))[5:])
        if month not in months or lead not in ("all", str(int(sample.lead_time))):
            continue
        error = (sample.ensemble[:, 0].mean(0) - 1 - sample.target[0]).double().numpy()
        cells = np.where(np.isfinite(error), found.regions[region], 0.0)
        if not cells.any():
            continue
        error = np.nan_to_num(error)
        dates.append(int(sample.init_time))
        total += [(cells * one).sum() for one in (error**2, error, abs(error) > 0.5, abs(error) > 1.5)]
        weight += cells.sum()
    mean = total / weight
    rmse = row(table, "narrow", "rmse", lead, region, season)
    assert rmse.value == pytest.approx(np.sqrt(mean[0]), rel=1e-5)
    assert row(table, "narrow", "bias", lead, region, season).value == pytest.approx(mean[1], rel=1e-3)
    for label, expected in zip(("0.5", "1.5"), mean[2:], strict=True):
        large = row(table, "narrow", "large_error", lead, region, season, label=label)
        assert large.value == pytest.approx(np.sqrt(expected), rel=1e-6)
    assert (rmse.n_forecasts, rmse.n_dates) == (len(dates), len(set(dates)))


def test_fair_scores_of_dependent_members_and_quantiles_are_not_compared(table):
    assert np.isnan(row(table, "dependent", "crps_fair").skill)
    assert np.isfinite(row(table, "dependent", "crps").skill)
    assert not ((table.form == "members") & (table.score == "crps_fair")).any()


def test_a_part_without_a_scored_cell_has_no_row(rows, tmp_path):
    first = rows[0]
    write_score_table(tmp_path / "scores.csv", [first, first._replace(n_forecasts=0), first._replace(hour="06")])
    assert len((tmp_path / "scores.csv").read_text().splitlines()) == 2


def test_a_target_without_known_units_gets_those_of_its_files(board, tmp_path):
    strange = replace(board[1], task=Task("x", ["xyz"], ["xyz"], [24, 48]))
    write_score_table(tmp_path / "scores.csv", ScoreRows.of(strange, 0, "furlong", [whole(strange)]).rows)
    found = pd.read_csv(tmp_path / "scores.csv")
    assert set(found[found.score == "crps"].units) == {"furlong"}


STATIONS = Points((47.3, 52.5, -17.7), (11.4, 9.7, 178.0), (581.0, 55.0, 3.0), ("11120", "10338", "91680"))


def test_the_rows_of_a_station_are_its_own_scores(toy, tmp_path):
    """A published library gives the same numbers from the arrays of the samples."""

    def warmer(batch):
        mean = batch.ensemble.mean(1) + 1
        return Normal(mean, torch.ones_like(mean))

    data = toy(TASK, STATIONS, 12)
    data[3].target[0, 1] = torch.nan
    samples = [data[k] for k in range(12)]
    board = score_models({"raw": Raw(TASK, STATIONS), "net": warmer}, data, region_weights(STATIONS))
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
