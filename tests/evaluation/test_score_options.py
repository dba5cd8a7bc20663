"""The options scores, thresholds, efi_climate and efi_form: what they choose and what they refuse."""

import json

import numpy as np
import pytest
import torch
import xarray as xr
import yaml
from conftest import ROOT

from data_pipeline.common.errors import InputError
from data_pipeline.dates import Dates
from data_pipeline.grid import Grid
from data_pipeline.sample import Sample
from data_pipeline.statistics.efi import CLIMATE_PROBABILITIES, extreme_forecast_index
from data_pipeline.task import Task
from evaluation.scores import all_diagrams, all_scores, statistics_of
from evaluation.scoring.efi_climate import load_model_climate
from evaluation.scoring.score_options import DEFAULT_THRESHOLDS, ScoreChoice, choose_scores
from evaluation.scoring.scoreboard import MAIN_SCORES
from models.parallel.domain import Domain

TASK = Task("t2m", ["msl", "2t"], ["2t"], [24, 48], thresholds=["> 0 degC"])
GLOBE = Domain.of(Grid.regular(9, 16))
TWO = Task("two", ["2t", "tp:24h"], ["2t", "tp:24h"], [24, 48])


def options(**given):
    return {"scores": None, "thresholds": None, "efi_climate": None, "efi_form": "exact", "members": "ecc-q"} | given


def choice(task=TASK, **given):
    return ScoreChoice.parse(options(**given), task)


def test_named_scores_are_computed_beside_the_default_ones():
    """The default scores need no threshold and no quantile."""
    scores, diagrams = choose_scores(None)
    assert {score.name for score in scores} == {*MAIN_SCORES, "rank_deviation"}
    assert [diagram.name for diagram in diagrams] == ["rank_histogram"]
    assert set(statistics_of(*scores, *diagrams)) == {
        "crps", "crps_fair", "error", "squared_error", "expected_squared_error", "rank",
    }  # fmt: skip
    scores, diagrams = choose_scores(["roc", "economic_value", "log_score"])
    assert {score.name for score in scores} == {*MAIN_SCORES, "economic_value", "log_score"}
    assert {diagram.name for diagram in diagrams} == {"rank_histogram", "roc", "economic_value"}
    scores, diagrams = choose_scores("all")
    assert [score.name for score in scores] == list(all_scores())
    assert [diagram.name for diagram in diagrams] == list(all_diagrams())


@pytest.mark.parametrize(
    ("given", "sentence"),
    [
        ({"scores": ["briar"]}, "there is no score 'briar'; did you mean brier\\? there is: .*crps"),
        ({"scores": ["crps", 3]}, "there is no score 3; there is: "),
        ({"scores": "brier"}, "scores must be null, all or a list of names, got 'brier'"),
        ({"thresholds": ["> 3 mm"]}, "'mm' of '> 3 mm' cannot be converted"),
        ({"members": "ecc"}, "members must be one of ecc-q, "),
        ({"members": []}, "members must be a method or a list of different methods, got \\[\\]"),
        ({"members": ["gca", "gca"]}, "members must be a method or a list of different methods"),
        ({"efi_form": "exakt"}, "efi_form must be one of reference, exact"),
    ],
)
def test_a_wrong_option_is_refused(given, sentence):
    with pytest.raises(InputError, match=sentence):
        choice(**given)


def test_thresholds_are_those_of_the_option_or_of_the_task():
    def labels(**given):
        return [[one.label for one in of_target] for of_target in choice(**given).thresholds]

    assert labels() == [["> 0 degC"]]
    assert labels(thresholds=["< 5 %"]) == [["< 5 %"]]
    assert labels(thresholds=[]) == [[]]
    assert labels(task=TWO) == [list(DEFAULT_THRESHOLDS)] * 2
    # `task=joint 'task.targets=[tp]'` keeps the thresholds of the YAML file.
    other = Task("rain", ["tp"], ["tp"], [24], thresholds=["> 0 degC", "2t > 280", "> 1 mm", "> 90 %"])
    assert labels(task=other) == [["> 1 mm", "> 90 %"]]
    with pytest.raises(InputError, match="cannot read 'warm'"):
        labels(task=Task("rain", ["tp"], ["tp"], [24], thresholds=["warm"]))


def test_thresholds_of_every_task_of_the_project_can_be_read():
    """Data and models do not depend on thresholds: tasks with others are equal."""
    for path in (ROOT / "conf/task").glob("*.yaml"):
        written = yaml.safe_load(path.read_text())
        if "targets" in written and "thresholds" in written:
            task = Task("task", written["targets"], written["targets"], [24], thresholds=written["thresholds"])
            assert all(choice(task=task).thresholds), path
            assert task == Task("task", written["targets"], written["targets"], [24])


def test_a_named_score_that_cannot_be_computed_is_refused():
    for given, why in (
        ({"scores": ["brier"], "thresholds": []}, "brier cannot be computed: there are no thresholds"),
        ({"scores": ["eecrps"]}, "eecrps cannot be computed: there is no climate of the model; .* efi_climate"),
        ({"scores": ["efi"]}, "efi cannot be computed: there is no climatology; add it to the option references"),
        ({"scores": ["reliability"], "thresholds": ["< 5 %"]}, "reliability cannot be computed: there are no thres"),
    ):
        with pytest.raises(InputError, match=why):
            choice(**given).check(TASK, GLOBE, 5, climatology=False)
    assert choice(scores="all").check(TASK, GLOBE, 5, climatology=True) == []
    assert choice(scores=["brier"], thresholds=["< 5 %"]).check(TASK, GLOBE, 5, climatology=True) == []
    given = {"thresholds": ["> 0 degC", "< 5 %"]}
    (warning,) = choice(scores=["brier"], **given).check(TASK, GLOBE, 5, climatology=False)
    assert warning.startswith("thresholds: < 5 % are left out")
    assert choice(**given).check(TASK, GLOBE, 5, climatology=False) == [], "no score needs them"


def test_scores_of_blocks_are_refused_where_ranks_divide_blocks():
    """Also if all scores are wanted: scores of one mesh are used again on any other."""
    whole, divided = (Domain.split(Grid.regular(9, 16), *tiles) for tiles in ((2, 4), (1, 3)))
    for wanted in ("all", ["energy_score_cells"]):
        assert choice(scores=wanted).check(TASK, whole, 5, climatology=True) == []
        with pytest.raises(
            InputError, match="energy_score_cells cannot be computed: mesh divides blocks of 4 x 4 cells"
        ):
            choice(scores=wanted).check(TASK, divided, 5, climatology=True)
    assert choice().check(TASK, divided, 5, climatology=True) == []


def test_every_score_has_a_text_and_a_reference_and_a_page_defines_it():
    page = (ROOT / "docs/scores.md").read_text()
    for one in (*all_scores().values(), *all_diagrams().values()):
        assert one.title
        assert one.text.endswith(".")
        assert one.reference
        assert f"`{one.name}`" in page, one.name


# The climate of the ensemble.

GRID, YEARS, SCORED = Grid.regular(4, 6), Dates.of_years(range(2000, 2010)), Dates.of_years(range(2012, 2013))


@pytest.fixture
def climate(monkeypatch):
    """The climate of two targets on two days, in the format of `prepare`."""
    rng = np.random.default_rng(0)
    values = np.sort(rng.normal(size=(2, 2, 2, len(CLIMATE_PROBABILITIES), 4, 6)), axis=3).astype(np.float32)
    dims = ("variable", "lead_time", "day", "quantile", "latitude", "longitude")
    coords = {
        "variable": np.array(["tp:24h", "2t"], object), "lead_time": [24, 48], "day": [3, 7],
        "quantile": CLIMATE_PROBABILITIES, "latitude": list(GRID.latitudes), "longitude": list(GRID.longitudes),
    }  # fmt: skip

    def write(dates=YEARS, data="abc", **changes):
        made_from = {"dates": dates.to_json(), "data": data}
        dataset = xr.Dataset({"climate": (dims, values)}, coords, {"made_from": json.dumps(made_from)}).isel(changes)
        monkeypatch.setattr("evaluation.scoring.efi_climate.load_statistic", lambda path, name: dataset)
        return dataset

    return write


def load(task=TWO, form="exact", domain=None, training=YEARS, scored=SCORED, data="abc"):
    return load_model_climate("efi.nc", form, domain or Domain.of(GRID), task, training, scored, data)


def batch(task=TWO):
    rng = np.random.default_rng(1)
    members = torch.from_numpy(rng.normal(size=(2, 5, 2, 4, 6)))
    starts = np.array(["2012-01-07", "2012-01-03"], "datetime64[s]").astype(np.int64)
    mask = torch.ones(2, 2, 4, 6, dtype=torch.bool)
    mask[0, 0, 1, 1] = False
    return Sample(
        ensemble=members, mask=mask, static=torch.zeros(2, 0, 4, 6), target=members[:, 0],
        init_time=torch.from_numpy(starts), lead_time=torch.tensor([24, 48]),
    )  # fmt: skip


@pytest.mark.parametrize("form", ["exact", "reference"])
def test_the_index_of_a_batch_is_that_of_its_start_days(climate, form):
    values = climate().climate.values
    found = load(form=form)(batch())
    raw = batch().ensemble.numpy()
    for b, (lead, day) in enumerate(((0, 1), (1, 0))):
        for t, variable in enumerate((1, 0)):
            expected = extreme_forecast_index(
                raw[b, :, t], values[variable, lead, day], form, TWO.targets[t].trace, CLIMATE_PROBABILITIES
            )
            if (b, t) == (0, 0):
                expected[1, 1] = np.nan
            np.testing.assert_allclose(found[b, t], expected)
    tile = Domain.split(GRID, 2, 2, 1)
    part = Sample(*(tile.cut(tensor) if tensor.ndim > 3 else tensor for tensor in batch()))
    torch.testing.assert_close(load(form=form, domain=tile)(part), tile.cut(found), equal_nan=True)


@pytest.mark.parametrize(
    ("changes", "given", "sentence"),
    [
        ({"dates": Dates.of_years(range(2000, 2013))}, {}, "is the climate of .*, and 2012-01-01 is a scored date"),
        ({"dates": Dates.of_years(range(1999, 2010))}, {}, "1999-01-01 is not among the training dates"),
        ({"data": "other"}, {}, "is the climate of other forecasts than those of data"),
        ({"lead_time": [0]}, {}, "has no lead time 48"),
        ({"variable": [0]}, {}, "has no target 2t"),
        ({"day": [0]}, {}, "no start on day 7 of the year"),
        ({}, {"domain": Domain.of(Grid.regular(5, 6))}, "on another grid"),
        ({}, {"form": "other"}, "efi_form must be one of"),
    ],
)
def test_a_climate_that_does_not_fit_is_refused(climate, changes, given, sentence):
    climate(**changes)
    with pytest.raises(InputError, match=sentence):
        load(**given)(batch())
