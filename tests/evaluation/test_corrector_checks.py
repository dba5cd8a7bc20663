"""Comparisons without meaning are refused with the name of the file."""

from dataclasses import replace
from pathlib import Path

import pytest
import torch

from data_pipeline.common.errors import InputError
from data_pipeline.dates import Dates
from data_pipeline.grid import Grid
from data_pipeline.meaning import Meaning
from data_pipeline.task import Task, Variable
from evaluation.corrector_checks import (
    check_comparison,
    check_corrector,
    check_enough_members,
    check_meanings,
    check_name,
    training_members,
)
from models.corrector import Corrector

GRID = Grid.regular(5, 8)
TASK = Task("t2m", ["msl", "2t"], ["2t"], [48])
YEARS = range(2016, 2018)
PATH = Path("runs/unet/corrector.safetensors")


def corrector(task=TASK, grid=GRID, **provenance):
    provenance = {"train_years": [1998, 2013], "val_years": [2014, 2015]} | provenance
    static = torch.zeros(len(task.static_names), *grid.shape)
    return Corrector(task, grid, {"_target_": "models.statistical.raw.Raw"}, static, provenance)


def test_a_corrector_of_other_years_may_be_scored():
    check_corrector(corrector(), PATH, TASK, GRID, Dates.of_years(YEARS))
    check_corrector(corrector(replace(TASK, inputs=TASK.targets)), PATH, TASK, GRID, Dates.of_years(YEARS))


@pytest.mark.parametrize(
    ("made", "sentence"),
    [
        (lambda: corrector(train_years=[2000, 2016]), "was trained on 2016-01-01, a date of the scored split"),
        (lambda: corrector(val_years=[2017, 2020]), "was validated on 2017-01-01, a date of the scored split"),
        (lambda: corrector(train_years=None), "does not say on which dates it was trained"),
        (lambda: corrector(replace(TASK, targets=["msl"])), "predicts msl, the task t2m wants 2t"),
        (lambda: corrector(replace(TASK, lead_times=[24])), "is for lead times 24 h, the task t2m has 48 h"),
        (lambda: corrector(replace(TASK, inputs=["2t", "skt"])), "reads skt, which the task t2m lacks"),
        (lambda: corrector(replace(TASK, static=["lsm"])), "reads lsm, which the task t2m lacks"),
        (lambda: corrector(grid=Grid.regular(9, 16)), "was made for 9 x 16 points"),
    ],
)
def test_correctors_that_must_not_be_scored_are_refused(made, sentence):
    with pytest.raises(InputError) as caught:
        check_corrector(made(), PATH, TASK, GRID, Dates.of_years(YEARS))
    assert str(caught.value).startswith(f"{PATH} {sentence}")
    assert ";" in str(caught.value)


def test_names_are_letters_and_digits_and_not_reserved():
    for name in ("emos", "unet-2", "v1.3", "U_net"):
        check_name(name)
    for name in ("raw", "climatology", "oracle", "my model", "$x$", ""):
        with pytest.raises(InputError, match="correctors"):
            check_name(name)


def test_member_counts_fit_training_and_forecasts():
    check_enough_members((), 3)
    check_enough_members((5, 10), 10)
    with pytest.raises(InputError, match=r"^member_counts has 50, the forecasts have 10 members"):
        check_enough_members((5, 50), 10)
    assert training_members(corrector(members=10), PATH, (5, 10)) == 10
    with pytest.raises(InputError, match=f"^{PATH} was trained with 10 members, .* add 10 to member_counts"):
        training_members(corrector(members=10), PATH, (5, 20))
    with pytest.raises(InputError, match=f"^{PATH} does not say with how many members .*; train it again, or leave"):
        training_members(corrector(), PATH, (5, 20))


def test_the_raw_ensemble_alone_is_refused():
    check_comparison(["raw", "climatology"], [])
    check_comparison(["raw", "emos"], ["climatology is left out: x"])
    with pytest.raises(InputError, match=r"raw ensemble with \(climatology is left out: x\); give correctors"):
        check_comparison(["raw"], ["climatology is left out: x"])


def test_a_corrector_of_other_units_intervals_or_levels_is_refused():
    """Meanings are compared by channel; a corrector may read fewer channels than the task has."""
    data = [Meaning(Variable("msl"), "Pa", (0,)), Meaning(Variable("2t"), "K", (0,))]
    made = corrector(replace(TASK, inputs=TASK.targets))
    check_meanings(made, PATH, TASK, data)
    for own in (Meaning(Variable("2t"), "K", (0,)), Meaning(Variable("2t"), "K", (0,), "tropopause")):
        made.meanings = (own,)
        check_meanings(made, PATH, TASK, data)
    with pytest.raises(InputError, match="was trained on 2t on tropopause, not surface; score it on data of"):
        check_meanings(made, PATH, TASK, [data[0], Meaning(Variable("2t"), "K", (0,), "surface")])
    made.meanings = (Meaning(Variable("2t"), "K", (1440,)),)
    with pytest.raises(InputError, match="was trained on 2t at lead time 48 h over 24 h, not 0 h; score it on data of"):
        check_meanings(made, PATH, TASK, data)
