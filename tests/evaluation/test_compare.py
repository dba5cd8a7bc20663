"""The verb `compare`: scored runs against one run of all models; what is refused or said."""

import csv
import json
import math
import re
from functools import cache

import numpy as np
import pytest
import torch

from data_pipeline.grid import Grid
from data_pipeline.task import Task
from evaluation.compare import as_options, runs_of
from evaluation.regions import region_weights
from evaluation.run_comparison import run_names
from evaluation.scoring.scoring import ScoringOptions, score_models
from evaluation.tables.csv_tables import write_start_table
from evaluation.tables.score_json import SCORES_FORMAT, scores_of
from models.distribution import Ensemble, Normal
from models.parallel.domain import Domain
from models.statistical.raw import Raw

GRID = Grid.regular(5, 8)
TASK = Task("t2m", ["2t"], ["2t"], [24, 48])
RAW = Raw(TASK, Domain.of(GRID))


def normal(shift, scale):
    """A model that shifts the mean and scales the spread of the raw ensemble."""

    def forecast(batch):
        raw = RAW(batch)
        return Normal(raw.mean + shift, scale * raw.std)

    return forecast


def dependent(batch):
    return Ensemble(RAW(batch).members - 1)


MODELS = {"good": normal(-1, 2), "better": normal(-1, 2.2), "bad": normal(1, 1), "members": dependent}


@pytest.fixture(scope="module")
def write_run(toy):
    @cache
    def board_of(names, count):
        """The board and the scores of models by their names in the run and in `MODELS`."""
        models = {"raw": RAW} | {name: MODELS[model] for name, model in names}
        board = score_models(models, toy(TASK, GRID, count), region_weights(GRID), options=ScoringOptions())
        return board, scores_of(board, 0)

    def write(folder, names, count=60, renamed=None, **changed):
        board, scores = board_of(tuple(((renamed or {}).get(name, name), name) for name in names), count)
        about = {
            "format": SCORES_FORMAT, "split": "test", "members": 5, "dates": [["2001-09-09", "2003-12-31"]],
            "levels": "hazen", "ledger": {"forecasts": count, "used": count}, "inputs": {"deepweather": "0.1.0"},
        }  # fmt: skip
        folder.mkdir(parents=True)
        (folder / "scores.json").write_text(json.dumps(scores | about | changed))
        write_start_table(folder / "starts.csv", board, 0)
        return folder

    return write


@pytest.fixture
def compare(command, tmp_path):
    def run(*words):
        result = command(tmp_path, "compare", *map(str, words))
        table = tmp_path / "runs/compare/compare.csv"
        rows = list(csv.DictReader(table.open())) if table.exists() else []
        return result, rows

    return run


def find(rows, **wanted):
    (found,) = [row for row in rows if all(row[key] == value for key, value in wanted.items())]
    words = ("target", "run", "model", "score", "label", "units", "first_run")
    return {key: float(text) if key not in words and text else text for key, text in found.items()}


def test_differences_between_runs_equal_those_of_one_run_with_all_models(write_run, compare, tmp_path):
    """Value and paired interval of the same forecasts, for the plain and for the fair CRPS."""
    write_run(tmp_path / "a", ["good", "bad"])
    write_run(tmp_path / "b", ["better"], renamed={"better": "good"})
    both = json.loads((write_run(tmp_path / "both", ["good", "better"]) / "scores.json").read_text())
    result, rows = compare("a/scores.json", "b")
    assert result.code == 0, result.stderr
    expected = both["pairs"]["better"]["good"]
    found = find(rows, run="b", model="good", score="crps")
    assert found["first_run"] == "a"
    assert found["minus_first"] == pytest.approx(expected["crps_minus"], rel=1e-6)
    ends = [found["minus_first_low"], found["minus_first_high"]]
    assert ends == pytest.approx(expected["ci95"], rel=1e-6)
    own = both["models"]["better"]
    assert found["value"] == pytest.approx(own["crps"], rel=1e-8)
    assert [found["low"], found["high"]] == pytest.approx(own["ci95"]["crps"], rel=1e-8)
    assert [found["skill_low"], found["skill_high"]] == pytest.approx(own["ci95"]["skill_vs_raw"], rel=1e-8)
    assert (found["n_dates"], found["n_forecasts"]) == (both["n_dates"], both["n_forecasts"])
    rmse = find(rows, run="b", model="good", score="rmse")
    assert rmse["minus_first"] == pytest.approx(0, abs=1e-9)  # the same mean
    assert rmse["minus_first_low"] == ""
    assert find(rows, run="a", model="bad", score="crps")["minus_first"] == ""
    lines = result.stdout.splitlines()
    assert lines[0] == "2 m temperature, 24 and 48 h ahead; CRPS in K"
    order = [line.split()[:2] for line in lines[3:7]]
    crps = {name: both["models"][name]["crps"] for name in ("good", "better")}
    first, second = (["a", "good"], ["b", "good"])[:: 1 if crps["good"] < crps["better"] else -1]
    assert order[:2] == [first, second]
    assert sorted(order[2:]) == [["a", "bad"], ["a", "raw"]]
    page = (tmp_path / "runs/compare/compare.html").read_text()
    assert all(address.startswith("#") for address in re.findall(r"""\b(?:src|href)=["']?([^"'> ]*)""", page))
    assert 'class="warning"' not in page
    assert f"{own['crps']:.3f}"[:4] in "".join(re.findall("<t[hd].*?>(.*?)</t[hd]>", page))


def test_runs_of_other_forecasts_have_no_differences(write_run, compare, tmp_path):
    write_run(tmp_path / "a", ["good"])
    write_run(tmp_path / "b", ["good"], count=50, dates=[["2001-09-09", "2003-06-01"]])
    write_run(tmp_path / "c", ["better"], renamed={"better": "good"}, count=50)
    result, rows = compare("a", "b", "c")
    assert find(rows, run="b", model="good", score="crps")["minus_first"] == ""
    assert find(rows, run="b", model="good", score="crps")["first_run"] == ""
    assert find(rows, run="c", model="good", score="crps")["first_run"] == "b"
    assert math.isfinite(find(rows, run="c", model="good", score="crps")["minus_first"])
    for part in (
        "their models cannot be ranked together; there are 2 tables",
        "note: the runs scored different forecasts, in 2 groups (a; b, c)",
        "differ in their dates (a: 2001-09-09 to 2003-12-31, b: 2001-09-09 to 2003-06-01",
        "differ in their starts (a: 60, b: 50, c: 50)",
    ):
        assert part in result.stdout


def test_equal_counts_with_another_truth_are_other_forecasts(write_run, compare, tmp_path):
    """Only the scores of the raw ensemble show it."""
    write_run(tmp_path / "a", ["good"])
    other = json.loads((write_run(tmp_path / "b", ["good"]) / "scores.json").read_text())
    other["models"]["raw"]["by"]["season"]["SON"]["crps"] *= 1 + 1e-6
    (tmp_path / "b/scores.json").write_text(json.dumps(other))
    result, _ = compare("a", "b")
    assert "the runs scored different forecasts, in 2 groups (a; b)" in result.stdout


def test_without_starts_there_is_a_difference_without_interval(write_run, compare, tmp_path):
    write_run(tmp_path / "a", ["good"])
    (write_run(tmp_path / "b", ["better"], renamed={"better": "good"}) / "starts.csv").unlink()
    result, rows = compare("a", "b")
    found = find(rows, run="b", model="good", score="crps")
    assert found["minus_first"] != 0
    assert found["minus_first_low"] == ""
    assert "b has no starts.csv, so differences to b have no interval" in result.stdout
    (tmp_path / "b/starts.csv").write_text("model,start,weight\nraw,2001-01-01,1\n")
    result, _ = compare("a", "b")
    assert result.code == 2
    assert "b/starts.csv is damaged" in result.stderr


def test_dependent_members_are_compared_by_the_plain_score(write_run, compare, tmp_path):
    write_run(tmp_path / "a", ["good"])
    write_run(tmp_path / "b", ["members"])
    result, _ = compare("a", "b")
    assert "plain CRPS" in result.stdout
    both = json.loads((tmp_path / "a/scores.json").read_text())["models"]["good"]
    (line,) = [line for line in result.stdout.splitlines() if line.startswith("a") and " good " in line]
    assert f"{100 * both['skill_vs_raw']:+.1f} %" in line  # not the fair one, which the others do not have
    assert "†" in (tmp_path / "runs/compare/compare.html").read_text()


def test_what_cannot_be_compared_is_refused(write_run, compare, tmp_path):
    write_run(tmp_path / "a", ["good"])
    write_run(tmp_path / "old", ["good"], format=3)
    write_run(tmp_path / "rain", ["good"], target="tp", units="m")
    (tmp_path / "list.json").write_text("[1]")
    (tmp_path / "text.json").write_text("CRPS 0.6")
    write_run(tmp_path / "several/one", ["good"])
    write_run(tmp_path / "several/two", ["good"])
    (tmp_path / "sweep/unet").mkdir(parents=True)
    (tmp_path / "sweep/unet/config.yaml").touch()
    faults = {
        ("a",): "two runs or more, got only a",
        (): "option runs has no value; give it as runs=...",
        ("a", "a/scores.json"): f"the same run is given twice ({tmp_path}/a)",
        ("a", "old"): f"old/scores.json has format 3, this version compares format {SCORES_FORMAT}; run deepweather ",
        ("a", "rain"): "rain/scores.json scores tp in m, a/scores.json 2t in K",
        ("a", "list.json"): "list.json is no scores.json of deepweather evaluate; name one, or the folder",
        ("a", "text.json"): "text.json is not JSON",
        ("a", "nothing"): "cannot read nothing (No such file or directory); name a scores.json or its folder",
        ("a", "several"): "several holds several runs of one target; name one of its folders: one, two",
        (
            "a",
            "sweep/unet",
        ): "sweep/unet holds training, no scores: see its curves with tensorboard --logdir sweep/unet",
        ("sweep",): "sweep holds training, no scores",
        ("runs=3",): "runs must be [PATH, PATH, ...] or {NAME: PATH, ...}, got 3",
        ("a", "run=b"): "there is no option run; did you mean runs?",
        ("a", "old", "run_dir=3"): "run_dir must be the path of a folder, got 3",
    }
    for words, sentence in faults.items():
        result, _ = compare(*words)
        assert (result.code, result.stdout) == (2, "")
        assert sentence in result.stderr, words


def test_every_target_of_the_runs_is_compared(write_run, compare, tmp_path):
    """Two targets of two runs, and a third target of one of them."""
    for run, model in (("a", "good"), ("b", "better")):
        write_run(tmp_path / run / "2t", [model], renamed={model: "net"})
        write_run(tmp_path / run / "msl", [model], renamed={model: "net"}, target="msl", units="Pa")
    write_run(tmp_path / "b/tp", ["good"], target="tp", units="m")
    result, rows = compare("a", "b")
    assert result.code == 0, result.stderr
    alone, _ = compare("runs={a: a/2t, b: b/2t}", "run_dir=alone")
    (row,) = [line for line in alone.stdout.splitlines() if line.startswith("b ") and " net " in line]
    assert row in result.stdout.splitlines()
    assert {(row["target"], row["run"]) for row in rows} == {(t, r) for t in ("2t", "msl") for r in ("a", "b")}
    assert "note: only b scores tp" in result.stdout
    page = (tmp_path / "runs/compare/compare.html").read_text()
    assert page.count("<table>") == 2 * (1 + 1 + 3 + 1)
    assert "Mean sea-level pressure: Season" in page


def test_runs_are_named_by_their_folders_or_by_the_user(write_run, compare, tmp_path):
    scores = json.loads((write_run(tmp_path / "x/y", ["good"]) / "scores.json").read_text())
    write_run(tmp_path / "it's, odd=1/y", ["good"])
    result, rows = compare("x/y", "it's, odd=1/y/scores.json")
    assert result.code == 0, result.stderr
    assert {row["run"] for row in rows} == {"x/y", "it's, odd=1/y"}
    assert len(rows) == 2 * 2 * sum(len(one["labels"] or [""]) for one in scores["definitions"].values())
    assert {float(row["minus_first"]) for row in rows if row["first_run"] and row["value"]} == {0}
    result, rows = compare("runs={new: x/y, old: 'it\\'s, odd=1/y'}")
    assert {row["run"] for row in rows} == {"new", "old"}
    assert as_options(["run_dir=c", "--cfg", "job"]) == ["run_dir=c", "--cfg", "job"]
    assert list(runs_of(["a/1/scores.json", "b/1"])) == ["a/1", "b/1"]
    assert run_names([tmp_path / "a", tmp_path / "b/scores.json"]) == ["a", "b"]


def test_the_start_table_holds_the_average_of_each_start(write_run, toy, tmp_path):
    folder = write_run(tmp_path / "a", ["good"], count=6)
    rows = list(csv.DictReader((folder / "starts.csv").open()))
    weights = region_weights(GRID)["global"]
    for sample, row in zip(toy(TASK, GRID, 6), [row for row in rows if row["model"] == "good"], strict=True):
        assert row["start"] == str(np.datetime64(int(sample.init_time), "s").astype("datetime64[m]"))
        mean, std = sample.ensemble[:, 0].double().mean(0) - 1, 2 * sample.ensemble[:, 0].double().std(0)
        z = (sample.target[0].double() - mean) / std
        standard = torch.distributions.Normal(0.0, 1.0)
        crps = std * (z * (2 * standard.cdf(z) - 1) + 2 * standard.log_prob(z).exp() - math.pi**-0.5)
        assert float(row["crps"]) == pytest.approx((crps.numpy() * weights).sum() / weights.sum(), rel=1e-4)
        assert float(row["weight"]) == pytest.approx(weights.sum())
