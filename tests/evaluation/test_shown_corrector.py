"""The corrector that a report shows: from the option, the validation years or the scored years."""

import pytest
import torch

from data_pipeline.common.errors import InputError
from data_pipeline.grid import Grid
from data_pipeline.task import Task
from evaluation.shown_corrector import check_shown, choose_shown
from models.corrector import Corrector

SCORES = {"models": {
    "raw": {"crps": 0.1, "crps_fair": 0.1, "crps_fair_valid": True},
    "a": {"crps": 0.5, "crps_fair": 0.5, "crps_fair_valid": True},
    "b": {"crps": 0.6, "crps_fair": 0.4, "crps_fair_valid": True},
    "c": {"crps": 0.7, "crps_fair": 0.3, "crps_fair_valid": False},
}}  # fmt: skip
GRID = Grid.regular(5, 8)
TASK = Task("t2m", ["2t"], ["2t"], [48])


def corrector(score, model="models.statistical.emos.EMOS", **provenance):
    alike = {"train_years": [1998, 2013], "val_years": [2014, 2015], "data": "x", "members": 10}
    provenance = alike | ({} if score is None else {"validation_crps": score}) | provenance
    return Corrector(TASK, GRID, {"_target_": model}, torch.zeros(len(TASK.static_names), 5, 8), provenance)


def test_the_option_comes_before_validation_years_and_these_before_scored_years():
    correctors = {"a": corrector(0.1), "b": corrector(0.2), "c": corrector(0.3)}
    assert choose_shown("c", correctors, SCORES) == {"model": "c", "by": "option"}
    assert choose_shown(None, correctors, SCORES) == {"model": "a", "by": "validation years"}
    climatology = {"models": {"raw": {}, "climatology": SCORES["models"]["a"]}}
    assert choose_shown(None, {}, climatology)["model"] == "climatology"


@pytest.mark.parametrize(
    "other",
    [
        lambda: corrector(None),
        lambda: corrector(0.01, train_years=[2010, 2013]),
        lambda: corrector(0.01, val_years=[2014, 2014]),
        lambda: corrector(0.01, data="y"),
        lambda: corrector(0.01, runs=["r", "s"]),
    ],
)
def test_validation_scores_that_are_not_comparable_are_not_used(other):
    """The scored years choose: the lowest CRPS, the fair one where it is valid."""
    correctors = {"a": corrector(0.1), "b": corrector(0.2), "c": other()}
    assert choose_shown(None, correctors, SCORES) == {"model": "b", "by": "scored years"}


def test_an_unknown_corrector_cannot_be_shown():
    check_shown(None, ())
    check_shown("a", ["a", "b"])
    with pytest.raises(InputError, match=r"^shown_corrector must be .* of this command \(a, b\), .* got 'c'"):
        check_shown("c", ["a", "b"])
