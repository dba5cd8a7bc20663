"""The gate on the number of members: models that pass, models that fail, and claims."""

import math

import numpy as np
import pytest
import torch
from specs import SPECS
from torch.utils.data import Dataset

from data_pipeline.grid import Grid
from data_pipeline.sample import Sample
from data_pipeline.task import Task
from evaluation.regions import region_weights
from evaluation.run.member_counts import (
    MemberCountClaim,
    member_count_claims,
    member_count_gate,
    with_gates,
)
from evaluation.scoring.scoreboard import REFERENCES
from evaluation.scoring.scoring import ScoringOptions, score_models
from evaluation.tables.score_json import scores_of
from models.corrector import Corrector, needed_task
from models.distribution import Ensemble, Normal
from models.statistical.raw import Raw

GRID = Grid.regular(9, 16)
TASK = Task("toy", ["2t"], ["2t"], [48])
REGIONS = region_weights(GRID)
SIZES = (5, 10, 20, 50)


class Draws(Dataset):
    """Members and truth are independent draws of N(signal, 1), in double precision."""

    task, grid = TASK, GRID

    def __init__(self, members=50, count=40):
        random = torch.Generator().manual_seed(0)
        self.signal = 5 * torch.randn(count, 1, 1, *GRID.shape, generator=random, dtype=torch.float64)
        draws = self.signal + torch.randn(count, 51, 1, *GRID.shape, generator=random, dtype=torch.float64)
        self.truth, self.ensemble = draws[:, 0], draws[:, 1 : members + 1]
        self.mask = torch.ones(count, 1, *GRID.shape, dtype=torch.bool)
        self.members = members

    def __len__(self):
        return len(self.truth)

    def __getitem__(self, k):
        start = torch.tensor(1_450_000_000 + 8 * 86400 * k)
        static = torch.zeros(3, *GRID.shape, dtype=torch.float64)
        return Sample(self.ensemble[k], self.mask[k], static, self.truth[k], start, torch.tensor(48))


def raw(batch):
    return Ensemble(batch.ensemble.movedim(1, 0))


def biased_by_member_count(batch):
    """Fair CRPS of draws of N(d, 1) for a truth of N(0, 1), with d = M/50."""
    return Ensemble(raw(batch).members + batch.ensemble.shape[1] / 50)


def narrowed_by_member_count(batch):
    mean = batch.ensemble.mean(1)
    return Ensemble(mean + (raw(batch).members - mean) * (1 - batch.ensemble.shape[1] / 100))


def normal_of_moments(batch):
    """Mean and spread of the members; the error of the mean decreases with their number."""
    return Normal(batch.ensemble.mean(1), batch.ensemble.std(1))


MODELS = {
    "raw": raw, "climatology": lambda batch: Normal(torch.zeros_like(batch.target), torch.full_like(batch.target, 5.0)),
    "off": biased_by_member_count, "narrow": narrowed_by_member_count, "normal": normal_of_moments,
}  # fmt: skip


@pytest.fixture(scope="module")
def scores():
    options = ScoringOptions(written={"normal"}, member_counts=SIZES)
    board = score_models(MODELS, Draws(), REGIONS, options=options)
    return with_gates(scores_of(board, 0), dict.fromkeys(MODELS, MemberCountClaim(10, True)))


def test_scores_of_draws_of_the_truth_do_not_depend_on_their_number(scores):
    """The fair CRPS is 1/√π, the plain one 1 + 1/M times as large, spread over error is 1."""
    found = scores["models"]["raw"]["by"]["members"]
    assert list(found) == ["5", "10", "20", "50"]
    for size, entry in found.items():
        assert entry["crps_fair"] == pytest.approx(math.pi**-0.5, rel=0.02)
        assert entry["crps"] == pytest.approx((1 + 1 / int(size)) * math.pi**-0.5, rel=0.02)
        assert entry["spread_skill"] == pytest.approx(1, abs=0.02)
    assert scores["models"]["raw"]["gate"] == {"claimed": True, "base": 10, "holds": True, "faults": []}


def test_scores_of_a_model_without_members_are_equal_bit_for_bit(scores):
    model = scores["models"]["climatology"]
    found = {tuple(entry[key] for key in ("crps", "rmse", "spread")) for entry in model["by"]["members"].values()}
    assert len(found) == 1
    nothing = {"crps_fair_minus": 0, "ci95": [0, 0], "p": 1}
    assert model["by"]["members"]["50"]["fewer"] == {"5": nothing, "10": nothing, "20": nothing}
    assert model["gate"]["holds"] is True


def test_a_model_that_depends_on_the_number_of_members_fails(scores):
    """Of the shift: E|√2 Z + d| - 1/√π = √2 (2φ(t) + t (2Φ(t) - 1)) - 1/√π with t = d/√2."""
    found = scores["models"]["off"]["by"]["members"]
    for size, entry in found.items():
        t = int(size) / 50 / math.sqrt(2)
        density = math.exp(-t * t / 2) / math.sqrt(2 * math.pi)
        expected = math.sqrt(2) * (2 * density + t * math.erf(t / math.sqrt(2))) - math.pi**-0.5
        assert entry["crps_fair"] == pytest.approx(expected, rel=0.03)
    assert scores["models"]["off"]["gate"]["holds"] is False
    assert scores["models"]["off"]["gate"]["faults"][0] == "fair CRPS is worse with 50 members than with 5"
    # With 10 members the error of the mean is √(1 + 0.1), the spread 0.9 of it; with 50 √(1 + 0.02) and 0.5.
    narrow = scores["models"]["narrow"]["gate"]
    assert narrow["holds"] is False
    assert narrow["faults"][-1].startswith("spread / error −44.")
    assert [text.split(" claims")[0] for text in scores["warnings"]] == ["off", "narrow"]
    assert scores["warnings"][0].startswith(
        "off claims that its scores do not depend on the number of members, but fair CRPS is worse with 50 members than"
    )


def test_a_model_that_improves_with_more_members_passes(scores):
    """The spread does not change, and the error of the mean of M members is √(1 + 1/M) times that of all."""
    found = scores["models"]["normal"]["by"]["members"]
    assert all(pair["ci95"][1] < 0 for entry in found.values() for pair in entry["fewer"].values())
    for size, entry in found.items():
        assert entry["spread_skill"] == pytest.approx((1 + 1 / int(size)) ** -0.5, abs=0.02)
    # 4.3 % less than with 10, which is little enough.
    assert scores["models"]["normal"]["gate"]["holds"] is True


def test_a_member_count_equals_an_archive_of_so_many_members(scores):
    """Scores of forecasts, and of the members that are written."""
    size = 5
    board = score_models(MODELS, Draws(size), REGIONS, options=ScoringOptions(written={"normal"}))
    alone = scores_of(board, 0)["models"]
    beside, minus = (
        {"by", "diagrams", "crps_fair_valid", "runs", "lead_gain", "central_interval"},
        {f"crps_minus_{name}" for name in REFERENCES},
    )
    for name, model in alone.items():
        some = scores["models"][name]["by"]["members"][str(size)]
        assert set(some) - {"fewer", *minus} == set(model) - beside
        for key in set(some) - {"fewer", "members", "ci95", "skill", "ci95_skill", *minus}:
            assert some[key] == (None if model[key] is None else pytest.approx(model[key], rel=1e-12, abs=1e-12))
        assert some["ci95"]["crps"] == pytest.approx(model["ci95"]["crps"], rel=1e-12)
        assert some["ci95"]["skill_vs_raw"] == pytest.approx(model["ci95"]["skill_vs_raw"], rel=1e-9, abs=1e-11)
    some, expected = (models["normal"] for models in (scores["models"], alone))
    some, expected = some["by"]["members"][str(size)]["members"], expected["members"]
    for key in set(expected) - {"ci95", "skill", "ci95_skill"}:
        assert some[key] == pytest.approx(expected[key], rel=1e-6), key
    assert scores["models"]["raw"]["by"]["members"][str(size)]["members"] is None


def test_differences_are_paired(scores):
    """The interval of the difference is far narrower than that of either score."""
    models = scores["models"]["raw"]["by"]["members"]
    entry = models["50"]
    for fewer, pair in entry["fewer"].items():
        assert pair["crps_fair_minus"] == pytest.approx(entry["crps_fair"] - models[fewer]["crps_fair"], abs=1e-12)
    low, high = entry["fewer"]["20"]["ci95"]
    assert high - low < np.diff(entry["ci95"]["crps"])


def test_all_member_counts_are_scored_in_the_same_cells():
    data = Draws(20, 4)
    data.mask[1, 0, 2, 3] = False
    data.ensemble[1, 15, 0, 2, 3] = math.nan
    found = score_models(
        {"raw": Raw(TASK, GRID)}, data, REGIONS, options=ScoringOptions(member_counts=[10, 5])
    ).by_member_count
    assert list(found) == [5, 10]
    weights = [found[size]["raw"].per_forecast["crps_fair"].weight for size in (5, 10)]
    assert (weights[0] == weights[1]).all()
    assert weights[0][1, 0, 0] < weights[0][0, 0, 0]


def entries(ratios, crps=(0.0, 0.0, 0.0), p_values=(1, 1, 1)):
    """Scores with 5, 10 and 20 members, with the differences 10 - 5, 20 - 5, 20 - 10."""
    ten, first, second = ({"crps_fair_minus": c, "p": p} for c, p in zip(crps, p_values, strict=True))
    fewer = {"5": {}, "10": {"5": ten}, "20": {"5": first, "10": second}}
    return {size: {"spread_skill": r, "fewer": fewer[size]} for size, r in zip(fewer, ratios, strict=True)}


@pytest.mark.parametrize(
    ("made", "holds", "faults"),
    [
        (entries((0.96, 1.0, 1.04)), True, []),
        (entries((0.94, 1.0, 1.0)), False, ["spread / error −6.0 % with 5 members"]),
        (entries((1.06, 1.0, 1.07)), False, ["spread / error +7.0 % with 20 members"]),
        (entries((1, 1, 1), (0.1, 0.2, 0.1), (0.3, 0.02, 0.3)), True, []),  # 3 x 0.02 is above 5 %
        (entries((1, 1, 1), (0.1, 0.2, 0.1), (0.3, 0.01, 0.3)), False, ["fair CRPS is worse with 20 members than wit"]),
        (entries((1, 1, 1), (-0.1, -0.2, -0.1), (0.3, 0.01, 0.3)), True, []),
        (entries((1, 1, 1), p_values=(None, 1, 1)), None, []),
        (entries((1, 1, None)), None, []),
        (entries((0.5, 1, None)), False, ["spread / error −50.0 % with 5 members"]),
    ],
)  # fmt: skip
def test_the_gate_compares_crps_and_spread_over_error(made, holds, faults):
    found = member_count_gate(made, MemberCountClaim(10, False))
    assert (found["claimed"], found["base"], found["holds"]) == (False, 10, holds)
    assert len(found["faults"]) == len(faults)
    assert all(text.startswith(start) for text, start in zip(found["faults"], faults, strict=True))


def test_only_a_false_claim_is_a_warning():
    scores = {"models": {"net": {"by": {"members": entries((2, 1, 1))}}}, "warnings": ["else"]}
    assert with_gates(scores, {"net": MemberCountClaim(10, False)})["warnings"] == ["else"]
    assert len(with_gates(scores, {"net": MemberCountClaim(10, True)})["warnings"]) == 2
    assert scores["warnings"] == ["else"]


def corrector_of(name, task=None, **options):
    task = task or Task("toy", ["sst", "2t", "msl"], ["2t"], [24, 48], ["lsm"])
    task = needed_task(SPECS[name], task)
    return Corrector(task, Grid.regular(13, 16), SPECS[name] | options, torch.zeros(len(task.static_names), 13, 16))


def test_references_have_the_smallest_base_of_all_correctors():
    kinds = {"raw": "raw", "climatology": "climatology", "a": "emos", "b": "mlp"}
    models = {name: corrector_of(kind) for name, kind in kinds.items()}
    found = member_count_claims(models, trained := {"a": 20, "b": 10}, (5, 10, 20))
    assert {name: claim.base for name, claim in found.items()} == {"raw": 10, "climatology": 10} | trained
    assert [name for name, claim in found.items() if claim.made] == ["raw", "climatology"]
    assert member_count_claims({"raw": models["raw"]}, {}, (5, 10)) == {"raw": MemberCountClaim(5, True)}
    assert member_count_claims(models, trained, ()) == {}


def test_only_models_that_correct_each_member_alone_claim_any_number_of_members():
    claimed = {name for name in SPECS if member_count_claims({name: corrector_of(name)}, {}, (5, 10))[name].made}
    assert claimed == {"raw", "climatology", "transformer_independent"}
    changed = {"head": "normal"}, {"member_attention": True}
    assert not any(corrector_of("transformer_independent", **change).model.any_size for change in changed)
