"""Laws of every score: changes of units, values turned round, the order of members, and cells without climatology."""

import math
from functools import cache

import numpy as np
import pytest
import torch
from score_cases import draws, make_case, score_of

from data_pipeline.variables.thresholds import Threshold
from evaluation.scores import all_scores
from models.distribution import Ensemble, Normal, Patched

SHAPE = 40, 1, 4, 12
THRESHOLDS = Threshold(">", 0.3), Threshold("<=", -0.5), Threshold("<", 0.2, climatological=True)
TURNED = {">": "<", "<": ">", ">=": "<=", "<=": ">="}
BY_TAIL = {"quantile_score", "efi_roc_area", "sot_roc_area", "crps_parts"}
"""Scores whose numbers are ordered from the lower tail to the upper one."""


def moved(kind, factor=1.0, shift=0.0, order=slice(None), keep=slice(None)):
    """A case with all values times a factor, plus a shift; its members in another order, or some of its cells."""

    def move(seed, *more, spread=1.0):
        return factor * spread * draws(*more, *SHAPE, seed=seed)[..., keep] + shift

    truth, size = move(1), abs(factor)
    members = Ensemble((move(2, 7) + (truth - shift) / 2)[order])
    normal = Normal(move(3), size * draws(*SHAPE, seed=4)[..., keep].exp())
    climate = Normal(move(5, spread=0.25), size * draws(*SHAPE, seed=6)[..., keep].exp())
    forecast = {
        "members": members,
        "normal": normal,
        "both": Patched(draws(*SHAPE, seed=8)[..., keep] > 0, members, normal),
    }[kind]
    thresholds = [turned(one, factor, shift) for one in THRESHOLDS]
    extremeness = math.copysign(1, factor) * draws(*SHAPE, seed=7)[..., keep].clamp(-1, 1)
    further = {"climate": climate, "extremeness": extremeness, "lead_times": (24, 48)}
    return make_case(forecast, truth, (tuple(thresholds),), **further)


def turned(threshold, factor, shift):
    side = threshold.side if factor > 0 else TURNED[threshold.side]
    if threshold.climatological:
        return Threshold(side, threshold.value if factor > 0 else 1 - threshold.value, True)
    return Threshold(side, factor * threshold.value + shift)


@cache
def scores_before(kind):
    """Every score of a case that has not been moved."""
    case = moved(kind)
    return {name: np.asarray(score_of(name, case)) for name in all_scores()}


def test_no_score_has_the_name_of_another_key_of_a_model_in_scores_json():
    """docs/scores.md: a score stands under its own name."""
    taken = {"ci95", "skill", "ci95_skill", "crps_fair_valid", "diagrams", "members", "runs", "by", "gate", "fewer"}
    assert not taken & set(all_scores())


@pytest.mark.parametrize("kind", ["members", "normal", "both"])
@pytest.mark.parametrize(("factor", "shift"), [(2.5, 5.0), (-1.0, 0.0)])
def test_scores_follow_a_change_of_units(kind, factor, shift):
    """Scores in the units of the target are multiplied; a turn changes the sign of the bias and the order of tails."""
    after = moved(kind, factor, shift)
    for name, score in all_scores().items():
        expected = scores_before(kind)[name]
        if score.units == "target":
            expected = abs(factor) * expected
        if name == "log_score":
            expected = expected + math.log(abs(factor))
        if factor < 0:
            expected = -expected if name == "bias" else expected[::-1] if name in BY_TAIL else expected
        np.testing.assert_allclose(score_of(name, after), expected, rtol=1e-9, atol=1e-9, err_msg=name)


def test_the_order_of_members_does_not_matter():
    after = moved("members", order=[4, 0, 6, 2, 1, 5, 3])
    for name, before in scores_before("members").items():
        np.testing.assert_allclose(score_of(name, after), before, rtol=1e-9, atol=1e-12, err_msg=name)


def test_cells_without_climatology_do_not_count():
    """The score is that of the other cells, for all models; only scores of a climatology leave any cell out."""
    for kind in ("members", "both"):
        case, rest = moved(kind), moved(kind, keep=slice(10, None))
        case.climate.sigma[..., :10] = torch.nan
        thresholds = ((THRESHOLDS[2],),)
        some = make_case(case.forecast, case.truth, thresholds, climate=case.climate)
        rest = make_case(rest.forecast, rest.truth, thresholds, climate=rest.climate)
        for name in (
            "brier", "brier_fair", "brier_reliability", "roc_area", "threshold_crps", "outcome_crps", "efi",
            "efi_roc_area", "sot_roc_area", "diagonal_score", "rps", "rps_fair", "rpss", "acc", "fss",
        ):  # fmt: skip
            np.testing.assert_allclose(score_of(name, some), score_of(name, rest), rtol=1e-12, err_msg=name)
