"""scores.json: its keys, and its numbers against independent computations."""

import json
import math
import re
from dataclasses import replace

import numpy as np
import pytest
import torch
from conftest import ROOT

from data_pipeline.grid import Grid
from data_pipeline.task import Task
from evaluation.regions import region_weights
from evaluation.scores import default_diagrams, default_scores, statistics_of
from evaluation.scores.case import Case
from evaluation.scores.score import Settings
from evaluation.scoring.aggregation import Tally
from evaluation.scoring.scoreboard import Scoreboard
from evaluation.significance.intervals import interval
from evaluation.tables.score_json import scores_of
from models.distribution import Ensemble, Normal

GRID = Grid.regular(7, 8)
TASK = Task("t2m", ["2t"], ["2t"], [24, 48])
STARTS = np.datetime64("2016-01-04", "s").astype(int) + np.arange(40) * 4 * 86_400 * 2
LAND = np.tile([1.0, 0.0], (7, 4))


class Simulation:
    """Truth and oracle are N(signal, 1); raw is biased by -1 with half the spread; emos is N(signal, 1)."""

    def __init__(self, names=("raw", "climatology", "emos", "net"), oracle_from=0):
        self.regions = region_weights(GRID, LAND)
        init, lead = (axis.ravel() for axis in np.meshgrid(STARTS, TASK.lead_times, indexing="ij"))
        count = len(init)
        generator = torch.Generator().manual_seed(1)
        signal = 3 * torch.randn(count, 1, *GRID.shape, generator=generator, dtype=torch.float64)
        noise = torch.randn(11, count, 1, *GRID.shape, generator=generator, dtype=torch.float64)
        other = torch.randn(10, count, 1, *GRID.shape, generator=generator, dtype=torch.float64)
        self.truth = signal + noise[0]
        one = torch.ones_like(signal)
        self.models = {
            "raw": Ensemble(signal - 1 + noise[1:] / 2),
            "climatology": Normal(0 * one, 10**0.5 * one),
            "emos": Normal(signal - 0.3, 1.1 * one),
            "net": Normal(signal, one),
            "draws": Ensemble(signal + other),
            "wide": Normal(signal, 1.5 * one),
            "cheat": Normal(self.truth, 0.1 * one),
            "warm": Normal(signal + 30, one),
        }
        self.models = {name: self.models[name] for name in names}
        leads = np.searchsorted(TASK.lead_times, lead)
        rows, uniform = np.arange(count), torch.rand(self.truth.shape, generator=generator)
        statistics = statistics_of(*default_scores(), *default_diagrams())
        shape = (count, Settings(TASK, 11), self.regions, statistics)
        tallies = {name: Tally(name, *shape) for name in names}
        for name, tally in tallies.items():
            tally.add(rows, leads, Case(self.models[name], self.truth, uniform, 11))
        oracle, known = Tally("oracle", *shape), slice(oracle_from, None)
        members = Ensemble((signal + other)[:, known])
        oracle.add(rows[known], leads[known], Case(members, self.truth[known], uniform[known], 11))
        self.oracle_members = members
        self.board = Scoreboard(TASK, GRID, self.regions, init, lead, tallies, oracle)


@pytest.fixture(scope="module")
def simulation():
    return Simulation()


@pytest.fixture(scope="module")
def scores(simulation):
    return scores_of(simulation.board, 0)


def test_all_models_and_slices_have_the_same_keys_which_are_documented(scores):
    assert json.loads(json.dumps(scores, allow_nan=False)) == scores
    assert (scores["task"], scores["target"], scores["units"], scores["n_dates"]) == ("t2m", "2t", "K", 40)
    assert list(scores["models"]) == ["raw", "climatology", "emos", "net"]
    first = scores["models"]["raw"]
    for model in scores["models"].values():
        assert (set(model), set(model["ci95"])) == (set(first), set(first["ci95"]))
        assert sum(model["diagrams"]["rank_histogram"][""]["y"]) == pytest.approx(1)
        assert list(model["by"]["lead"]) == ["24", "48"]
        assert list(model["by"]["season"]) == ["DJF", "MAM", "JJA", "SON"]
        assert " ".join(model["by"]["region"]) == "unweighted north tropics south europe land sea"
        for entry in (entry for groups in model["by"].values() for entry in groups.values()):
            differences = {"crps_minus_raw", "crps_minus_emos", "crps_minus_climatology"}  # of all: in `pairs`
            assert set(entry) - set(model) == set(entry["ci95"]) - set(model["ci95"]) == differences
            assert set(entry) == set(first["by"]["lead"]["24"])
    text = (ROOT / "docs/scores.md").read_text()
    model = scores["models"]["net"]
    groups = scores, scores["oracle"], model, model["by"], model["by"]["region"], model["by"]["season"]
    assert [key for group in groups for key in group if f"`{key}`" not in text] == []


def test_skills_are_relative_and_the_true_distribution_captures_everything(scores):
    """CRPS of N(m, 1) for a truth from it is 1/√π, and so is the oracle's fair CRPS."""
    models, oracle = scores["models"], scores["oracle"]["crps"]
    net, raw = models["net"], models["raw"]
    assert net["skill_vs_emos"] == pytest.approx(1 - net["crps"] / models["emos"]["crps"])
    assert net["captured"] == pytest.approx((raw["crps"] - net["crps"]) / (raw["crps"] - oracle))
    assert raw["captured"] == raw["skill_vs_raw"] == models["emos"]["skill_vs_emos"] == 0
    assert net["crps"] == pytest.approx(np.pi**-0.5, rel=0.02)
    assert oracle == pytest.approx(np.pi**-0.5, rel=0.05)
    histograms = {name: model["diagrams"]["rank_histogram"][""]["y"] for name, model in models.items()}
    of_oracle = scores["oracle"]["diagrams"]["rank_histogram"][""]["y"]
    for one, histogram in ((net, histograms["net"]), (scores["oracle"], of_oracle)):
        assert one["spread_skill"] == pytest.approx(1, abs=0.03)
        assert histogram == pytest.approx([1 / 11] * 11, abs=0.02)
    assert histograms["raw"][-1] > 0.4
    assert scores["warnings"] == []


def test_every_pair_of_models_is_compared_once(scores):
    assert {name: list(others) for name, others in scores["pairs"].items()} == {
        "raw": [], "climatology": ["raw"], "emos": ["raw", "climatology"], "net": ["raw", "climatology", "emos"],
    }  # fmt: skip
    crps = {name: model["crps_fair"] for name, model in scores["models"].items()}
    for other, pair in scores["pairs"]["net"].items():
        assert pair["score"] == "crps_fair"
        assert pair["crps_minus"] == pytest.approx(crps["net"] - crps[other])
        assert pair["p"] <= pair["p_holm"] < 0.05
        assert pair["ci95"][1] < 0
    assert (scores["best_set"]["lowest"], scores["best_set"]["models"]) == ("net", ["net"])
    for model in scores["models"].values():
        assert all(low <= model[key] <= high for key, (low, high) in model["ci95"].items())


def test_perfect_draws_are_better_than_a_wide_distribution_whose_plain_crps_is_lower():
    board = replace(Simulation(("raw", "draws", "wide")).board, independent=("raw", "draws"))
    scores = scores_of(board, 0)
    assert scores["models"]["wide"]["crps"] < scores["models"]["draws"]["crps"]
    pair = scores["pairs"]["wide"]["draws"]
    assert (pair["score"], pair["crps_minus"] > 0, pair["p_holm"] < 0.05) == ("crps_fair", True, True)
    assert scores["best_set"]["models"] == ["draws"]
    assert scores["power"]["models"].keys() == {"draws", "wide"}


def test_dependent_members_are_compared_by_the_members_as_written():
    """A distribution is compared with them by the members that are written from it, not by its own, lower, CRPS."""
    simulation = Simulation(("raw", "draws", "wide"))
    written = Simulation(("raw", "draws")).board.tallies["draws"]
    board = replace(simulation.board, written={"wide": written})
    pairs = scores_of(board, 0)["pairs"]
    pair = pairs["wide"]["draws"]
    assert [pair[key] for key in ("score", "crps_minus", "ci95", "p_holm")] == ["crps", 0, [0, 0], 1]
    assert pairs["wide"]["raw"]["score"] == "crps_fair"


def test_power_is_that_of_the_skill_and_of_the_difference_to_emos(scores):
    """A detectable difference is wider than half the interval, by the ratio of (t(0.975) + t(0.8)) to t(0.975)."""
    for name in ("net", "emos"):
        low, high = scores["models"][name]["ci95"]["skill_vs_raw_fair"]
        assert 1.39 < scores["power"]["models"][name]["raw"] / (100 * (high - low) / 2) < 1.44
    low, high = scores["pairs"]["net"]["emos"]["ci95"]
    share = 100 * (high - low) / 2 / scores["models"]["raw"]["crps_fair"]
    assert 1.2 < scores["power"]["models"]["net"]["emos"] / share < 1.6


def test_captured_compares_the_forecasts_that_the_oracle_has():
    simulation = Simulation(("raw", "climatology", "net"), oracle_from=40)
    net = scores_of(simulation.board, 0)["models"]["net"]
    raw, model = (simulation.models[name].crps(simulation.truth).numpy()[40:, 0] for name in ("raw", "net"))
    oracle = simulation.oracle_members.crps(simulation.truth[40:], fair=True).numpy()[:, 0]
    weights = np.broadcast_to(GRID.weights[:, None], raw.shape)
    raw, model, oracle = (np.average(crps, weights=weights) for crps in (raw, model, oracle))
    assert net["captured"] == pytest.approx((raw - model) / (raw - oracle))


def test_implausible_scores_are_warnings():
    board = Simulation(("raw", "climatology", "net", "cheat", "warm")).board
    crps, histogram, leak = scores_of(board, 0)["warnings"]
    assert leak.startswith("leak? cheat captures")
    # |30 - X| with X of zero mean, against the closed form σ/√π of climatology with σ² = 10.
    assert float(re.search(r"warm has ([\d.]+) times the CRPS of climatology: ", crps)[1]) == pytest.approx(
        (30 - math.pi**-0.5) / (10 / math.pi) ** 0.5, rel=0.05
    )
    assert histogram.startswith("warm has 100% of the analyses in bin 1 of 11 of its rank histogram: ")


def test_lead_times_of_a_start_are_one_case(simulation, scores):
    """The interval is that of the 40 starts' means over both lead times."""
    tally = simulation.board.tallies["net"].per_forecast["crps"][:, 0, 0]
    starts = tally[0::2] + tally[1::2]
    expected = interval(np.asarray, [starts], STARTS)
    assert scores["models"]["net"]["ci95"]["crps"] == pytest.approx(list(expected))


def test_a_fair_crps_is_compared_only_where_it_is_valid(simulation):
    """Nine members on the truth and one far away have a fair CRPS of 0, and a large plain CRPS."""
    board, models = simulation.board, simulation.models
    truth = simulation.truth
    cheat = Ensemble(torch.stack([*[truth] * 9, truth + 300]))
    rows, leads = np.arange(len(truth)), np.tile([0, 1], len(truth) // 2)
    statistics = statistics_of(*default_scores(), *default_diagrams())
    tally = Tally("members", len(truth), Settings(TASK, 11), simulation.regions, statistics)
    tally.add(rows, leads, Case(cheat, truth, torch.zeros_like(truth), 11))
    board = replace(board, tallies={**board.tallies, "members": tally})
    found, claimed = (scores_of(replace(board, independent=names), 0) for names in (["raw"], ["raw", "members"]))
    cheating = found["models"]["members"]
    assert cheating["crps_fair"] == pytest.approx(0, abs=1e-9)
    assert cheating["crps_fair_valid"] is False
    fair = ("skill_vs_raw_fair", "skill_vs_emos_fair", "skill_vs_climatology_fair", "captured_fair")
    assert [cheating[key] for key in fair] == [cheating["ci95"][key] for key in fair] == [None] * 4
    plain = float(np.average(cheat.crps(truth).numpy()[:, 0].mean(0), weights=simulation.regions["global"]))
    assert cheating["crps"] == pytest.approx(plain)
    assert [text for text in found["warnings"] if "leak?" in text] == []
    assert claimed["models"]["members"]["skill_vs_raw_fair"] == pytest.approx(1)
    assert claimed["warnings"][-1].startswith("leak? members captures")
    for name in ("raw", "net"):
        assert found["models"][name]["crps_fair_valid"] is True
        law = models[name].crps(truth, fair=True).numpy()[:, 0].mean(0)
        assert found["models"][name]["crps_fair"] == pytest.approx(
            np.average(law, weights=simulation.regions["global"])
        )
