"""Refused with the name of the file: a scored date that took part in any fit, and comparisons without meaning."""

from copy import deepcopy
from dataclasses import replace
from functools import cache
from pathlib import Path

import numpy as np
import pytest
import torch
from memory_archive import GRID, TASK, MemoryArchive

from data_pipeline.common.errors import InputError
from data_pipeline.dataset import ForecastDataset
from data_pipeline.dates import Dates
from data_pipeline.grid import Grid
from data_pipeline.split import Split
from data_pipeline.task import Task, Variable
from data_pipeline.variables.meaning import Meaning
from evaluation.forecasters.corrector_checks import (
    check_corrector,
    check_meanings,
    training_members,
)
from evaluation.forecasters.fold_correctors import FoldCorrectors
from evaluation.forecasters.leak_audit import audit, check_leaks, nearest_day
from models.combine import combine
from models.corrector import Corrector
from models.provenance.training_dates import state_fits, state_training, stated_fits

HONEST = {"train_dates": [["2014-01-01", "2014-12-31"]], "val_dates": [["2015-01-01", "2015-12-31"]], "members": 5}
TRAIN, VAL = (Dates.of_years([year]) for year in (2014, 2015))
MAY = Dates.from_json([("2016-05-01", "2016-05-31")])


@cache
def fitted(dates):
    """An MLP on EMOS whose normaliser and start are fitted on `dates`."""
    spec = {"_target_": "models.networks.mlp.MLP", "width": 4, "baseline": {"shared": True, "seasonal": False}}
    data = ForecastDataset(MemoryArchive(), TASK, dates)
    corrector = Corrector(TASK, GRID, spec, data.static, {})
    corrector.fit(data)
    return corrector


@pytest.fixture
def network_file(tmp_path):
    """Write an MLP on EMOS whose normaliser and start are fitted on `dates`, and whose other parts are stated."""

    def write(name, dates=TRAIN, weights=TRAIN, checkpoint=VAL, climate=TRAIN, provenance=HONEST):
        corrector = deepcopy(fitted(dates))
        corrector.provenance |= provenance
        state_training(corrector.provenance, weights, checkpoint, climate)
        corrector.save(path := tmp_path / f"{name}.safetensors")
        return path

    return write


def test_a_fit_states_the_valid_days_of_its_samples(archive, network_file):
    """The days come from the samples, not from an option: starts of the archive plus two days."""
    found = stated_fits(Corrector.load(network_file("mlp")).provenance)
    days = archive.starts.astype("datetime64[D]") + 2
    expected = [[str(day), str(day)] for day in days[days.astype("datetime64[Y]") == np.datetime64("2014")]]
    assert {part for part, dates in found.items() if dates.to_json() == expected} == {
        "normalizer", "model", "model.features.errors", "model.head", "model.head.start", "model.head.start.emos",
    }  # fmt: skip
    assert {part: found[part] for part in ("weights", "checkpoint", "climate")} == {
        "weights": TRAIN, "checkpoint": VAL, "climate": TRAIN,
    }  # fmt: skip
    assert len(expected) == 20


def test_a_leak_into_one_part_is_refused_by_its_name(network_file):
    path = network_file("mlp")
    corrector = Corrector.load(path)
    parts = {
        "normalizer": "its normaliser was fitted on", "model": "its model (MLP) was fitted on",
        "model.head.start.emos": "its model.head.start.emos (EMOS) was fitted on",
        "weights": "its weights were trained on", "checkpoint": "its best checkpoint was chosen on",
        "climate": "its climate of the loss was made of",
    }  # fmt: skip
    honest = deepcopy(corrector.provenance)
    for part, sentence in parts.items():
        corrector.provenance = deepcopy(honest)
        leak = Dates.from_json([("2014-01-07", "2014-01-07"), ("2016-02-02", "2016-02-02")])
        state_fits(corrector.provenance, {part: leak})
        with pytest.raises(InputError) as refused:
            check_leaks(corrector, path, Dates.of_years([2016]))
        assert str(refused.value) == (
            f"{path}: {sentence} 2016-02-02, a date of the scored split (2016); score other dates or train it without "
            "these"
        )
    corrector.provenance = honest
    corrector.provenance["fits"][0]["parts"].remove("normalizer")
    with pytest.raises(InputError) as refused:
        check_leaks(corrector, path, Dates.of_years([2016]))
    assert str(refused.value) == (
        f"{path} does not say on which dates its normaliser was fitted, so a leak cannot be ruled out; train it again"
    )


def test_a_committee_carries_the_parts_of_its_members(network_file, refusal, tmp_path):
    honest = network_file("honest")
    leaky = network_file("leaky", Dates((*TRAIN.spans, *MAY.spans)))
    combine([honest, leaky]).save(both := tmp_path / "both.safetensors")
    message = refusal(f"correctors={{both: {both}}}", "references=[raw]")
    assert message.startswith(f"{both}: its normaliser of model.correctors.1 was fitted on 2016-05-12")


def test_a_fold_whose_normaliser_saw_the_held_out_year_is_refused(network_file, refusal):
    """The dates of training are those of an honest cross-validation over 2014 and 2015."""
    files = []
    for held_out, year, fitted in ((2014, 2015, [2014, 2015]), (2015, 2014, [2014])):
        own = HONEST | {"train_dates": [[f"{year}-01-01", f"{year}-12-31"]], "val_dates": []}
        trained = Dates.of_years([year])
        files.append(network_file(f"without{held_out}", Dates.of_years(fitted), trained, None, None, own))
    folds = ["data.split.train=[2014,2015]", "data.split.val=null", "data.split.folds=2", "split=held_out"]
    assert refusal(f"correctors={{mlp: [{files[0]},{files[1]}]}}", "references=[raw]", *folds) == (
        "correctors.mlp: each of its 2 correctors has a part that was fitted on 2014-01-07 (normalizer of "
        "corrector 1); add the corrector of that fold, or score other dates"
    )


def test_the_distance_to_the_scored_dates_is_reported(network_file, scores_of, capsys):
    """The archive starts on 5 January and then every 18 days, 20 times; forecasts are valid two days later."""
    near = network_file("near", checkpoint=Dates.from_json([("2015-12-01", "2016-01-06")]))
    options = "references=[raw,climatology]", "data.split.test=[2016-01-07,2016-12-31]"
    found = scores_of("run", f"correctors={{near: {near}}}", *options)["leak_audit"]
    last = np.datetime64("2014-01-07") + 18 * 19
    gap = (np.datetime64("2016-01-07") - last).astype(int).item()
    assert found["models"] == {
        "climatology": {"nearest_days": gap, "part": "model"},
        "near": {"nearest_days": 1, "part": "checkpoint"},
    }
    assert found["notes"] == [
        "near: its best checkpoint was chosen on a date 1 day from 2016-01-07, a scored date; neighbouring days share "
        "weather, and data.split.gap_days=2 in training keeps such dates apart",
    ]
    assert f"leak audit: {found['notes'][0]}" in capsys.readouterr().out


def test_years_that_touch_are_named_and_gap_days_refuses_fits_on_neighbouring_dates(network_file):
    """The first forecast of 2016 is valid on 7 January."""

    def notes(last, gap_days=None):
        near = Corrector.load(network_file("near", checkpoint=Dates.from_json([("2015-12-01", last)])))
        split = Split([2014, 2014], [2015, 2015], [2016, 2016], gap_days=gap_days)
        valid = np.array(["2016-01-07", "2016-01-25"], "datetime64[s]")
        return audit({"near": FoldCorrectors.of([near])}, valid, [48], split)["notes"]

    assert notes("2015-12-28") == [
        "near: its best checkpoint was chosen on a date 10 days from 2016-01-07, a scored date; neighbouring days "
        "share weather, and data.split.gap_days=10 in training keeps such dates apart",
    ]  # fmt: skip
    assert notes("2015-12-27") == notes("2015-12-31", 6) == []
    with pytest.raises(InputError) as refused:
        notes("2015-12-31", 7)
    assert str(refused.value) == (
        "near: its best checkpoint was chosen on a date 7 days from 2016-01-07, a scored date, and "
        "data.split.gap_days=7 asks for more; train it with this option"
    )


def test_the_nearest_day_equals_that_of_all_pairs():
    for seed in range(5):
        rng = np.random.default_rng(seed)
        fitted, days = (np.datetime64("2015-01-01") + np.unique(rng.integers(0, 3000, size)) for size in (40, 15))
        pairs = abs(fitted[:, None] - days[None]).astype(int)
        distance, day = nearest_day(Dates.of_times(fitted), days)
        assert distance == pairs.min()
        assert day == days[pairs.min(0).argmin()]


# Comparisons without meaning.

SMALL = Grid.regular(5, 8)
OTHER = Task("t2m", ["msl", "2t"], ["2t"], [48])
YEARS = range(2016, 2018)
PATH = Path("runs/unet/corrector.safetensors")


def corrector(task=OTHER, grid=SMALL, **provenance):
    provenance = HONEST | {"members": None, "fits": [{"parts": ["normalizer"], "dates": []}]} | provenance
    static = torch.zeros(len(task.static_names), *grid.shape)
    return Corrector(task, grid, {"_target_": "models.statistical.raw.Raw"}, static, provenance)


@pytest.mark.parametrize(
    ("made", "sentence"),
    [
        (lambda: corrector(train_dates=[["2000-01-01", "2016-12-31"]]), "was trained on 2016-01-01, a date of the"),
        (lambda: corrector(val_dates=[["2017-01-01", "2020-12-31"]]), "was validated on 2017-01-01, a date of the"),
        (lambda: corrector(train_dates=None), "does not say on which dates it was trained"),
        (lambda: corrector(replace(OTHER, targets=["msl"])), "predicts msl, the task t2m wants 2t"),
        (lambda: corrector(replace(OTHER, lead_times=[24])), "is for lead times 24 h, the task t2m has 48 h"),
        (lambda: corrector(replace(OTHER, inputs=["2t", "skt"])), "reads skt, which the task t2m lacks"),
        (lambda: corrector(grid=Grid.regular(9, 16)), "was made for 9 x 16 points"),
    ],
)
def test_correctors_that_must_not_be_scored_are_refused(made, sentence):
    with pytest.raises(InputError) as caught:
        check_corrector(made(), PATH, OTHER, SMALL, Dates.of_years(YEARS))
    assert str(caught.value).startswith(f"{PATH} {sentence}")
    assert ";" in str(caught.value)


def test_member_counts_fit_training():
    assert training_members(corrector(members=10), PATH, (5, 10)) == 10
    with pytest.raises(InputError, match=f"^{PATH} was trained with 10 members, .* add 10 to member_counts"):
        training_members(corrector(members=10), PATH, (5, 20))
    with pytest.raises(InputError, match=f"^{PATH} does not say with how many members .*; train it again, or leave"):
        training_members(corrector(), PATH, (5, 20))


def test_a_corrector_of_other_units_intervals_or_levels_is_refused():
    """Meanings are compared by channel; a corrector may read fewer channels than the task has."""
    data = [Meaning(Variable("msl"), "Pa", (0,)), Meaning(Variable("2t"), "K", (0,))]
    made = corrector(replace(OTHER, inputs=OTHER.targets))
    check_meanings(made, PATH, OTHER, data)
    for own in (Meaning(Variable("2t"), "K", (0,)), Meaning(Variable("2t"), "K", (0,), "tropopause")):
        made.meanings = (own,)
        check_meanings(made, PATH, OTHER, data)
    with pytest.raises(InputError, match="was trained on 2t on tropopause, not surface; score it on data of"):
        check_meanings(made, PATH, OTHER, [data[0], Meaning(Variable("2t"), "K", (0,), "surface")])
    made.meanings = (Meaning(Variable("2t"), "K", (1440,)),)
    with pytest.raises(InputError, match="was trained on 2t at lead time 48 h over 24 h, not 0 h; score it on data of"):
        check_meanings(made, PATH, OTHER, data)
