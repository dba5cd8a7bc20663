"""The law of the ledger: what `prepare` says is used is what `train`, `evaluate` and `fit` use, or all refuse alike.

Each of them ends once it has said its ledger, because nothing after it changes what is used.
"""

import re
from contextlib import contextmanager
from itertools import chain, product
from typing import get_args

import deepweather
import pytest
import xarray as xr
from small_archive import NUMBERS, write_archive

from data_pipeline.common.errors import InputError
from data_pipeline.ledger import _WORDS, Reason
from data_pipeline.protocols import MissingPolicy
from data_pipeline.task import Task

TASK = {
    "name": "law", "inputs": ["2t", "msl"], "targets": ["2t", "msl"], "lead_times": [24, 48], "other_leads": ["2t+0h"],
}  # fmt: skip
SPLIT = {
    "train": ["2020-01-01", "2020-01-05"], "val": ["2020-01-06", "2020-01-06"], "test": ["2020-01-08", "2020-01-08"],
}  # fmt: skip
TITLES = {"train": "training", "val": "validation", "test": "test"}


def every(name, start, lead):
    """Return the gaps of all members."""
    return [(name, start, lead, member) for member in range(len(NUMBERS))]


def points(folder):
    """Replace the truth by points without ids."""
    truth = xr.load_dataset(folder / "analysis.nc")
    places = {"latitude": [10.0, 20.0], "longitude": [5.0, 100.0]}
    chosen = truth.sel({name: xr.DataArray(at, dims="place") for name, at in places.items()}, method="nearest")
    chosen.to_netcdf(folder / "analysis.nc")


def other_units(folder):
    """State units of the truth that the ensemble does not have."""
    truth = xr.load_dataset(folder / "analysis.nc")
    truth.msl.attrs["units"] = "m"
    truth.to_netcdf(folder / "analysis.nc")


def celsius(folder):
    """Write temperatures in °C, and leave their units as they are."""
    for path in folder.glob("*.nc"):
        data = xr.load_dataset(path)
        if "2t" in data:
            data["2t"] = data["2t"] - 273.15
            data["2t"].attrs["units"] = "K"
            data.to_netcdf(path)


GAPS = {
    "a missing member": [("2t", 1, 1, 1)],
    "a missing member in the test": [("2t", 5, 2, 1)],
    "a missing other lead time": every("2t", 0, 0),
    "a missing analysis of one target": [("msl", 3, None, None)],
}
DEFECTS = {
    "none": {},
    **{name: {"gaps": gaps} for name, gaps in GAPS.items()},
    "all gaps": {
        "gaps": [
            *chain(*GAPS.values()),
            ("2t", 2, None, None),
            ("msl", 2, None, None),
            *every("2t", 2, 1),
            *chain(*(every("msl", 1, lead) for lead in range(3))),
        ]
    },
    "no analysis in the validation": {"gaps": [("2t", 5, None, None), ("msl", 5, None, None)]},
    "no analysis in the test": {"gaps": [("2t", 7, None, None), ("msl", 7, None, None)]},
    "points": {"spoil": points},
    "other units": {"spoil": other_units},
    "temperatures in °C": {"spoil": celsius},
    "an unknown target": {"task": {"inputs": ["2t", "tcw"], "targets": ["2t", "tcw"]}},
    "an unknown lead time": {"task": {"lead_times": [24, 72]}},
    "an unknown static field": {"task": {"static": ["sdor"]}},
    "unknown intervals": {"task": {"inputs": ["tp"], "targets": ["tp"], "other_leads": []}},
    "years without data": {"split": {"train": ["2010-01-01", "2010-12-31"]}},
}
CASES = [*product(DEFECTS, ["error"]), *product(["all gaps"], sorted({*get_args(MissingPolicy)} - {"error"}))]


@contextmanager
def ending(place):
    """End a verb, or `fit`, where it calls the function at `place`."""

    def end(*_, **__):
        raise InputError("the ledger was said")

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(place, end)
        yield


def written(value):
    return "[" + ",".join(map(str, value)) + "]" if isinstance(value, list) else str(value)


def ledgers(text):
    """Return the lines about each split in the output of a verb."""
    lines = text.splitlines()
    found = {name: [line for line in lines if line.startswith(f"{title}: ")] for name, title in TITLES.items()}
    return {name: lines for name, lines in found.items() if lines}


def counts(lines):
    """Return lines of a ledger without the first forecast of each reason: `fit` cannot name its file."""
    return [line.split(", first ")[0] for line in lines]


def refusal(text):
    """Return the error of a verb, "" if it said its ledger."""
    (error,) = [line for line in text.splitlines() if line.startswith("error: ")] or [""]
    return "" if "the ledger was said" in error else error.removeprefix("error: ")


def words(error):
    """Return the beginning of an error, without the name of the file or dataset that it is about."""
    return re.sub(r"^\S*\.nc |^.*?(?=lacks |has no )", "", error).split()[:6]


def fitted(folder, task, split, missing):
    """Return what `fit` says of the same files: its lines, and its error."""
    lines = []
    with ending("training.training_run.open_training_data"):
        try:
            leads = [0, *task["lead_times"]]
            ensemble = deepweather.open_ensemble([f"{folder}/ensemble*"], task["inputs"], leads, missing="mask")
            truth = deepweather.open_analysis([f"{folder}/analysis*"], task["targets"], missing="mask")
            deepweather.fit(
                "mlp", ensemble, truth, task=Task(**task), **split, gap_days=1, missing=missing, progress=lines.append
            )
        except InputError as error:
            return "\n".join(map(str, lines)), f"error: {error}"
    raise AssertionError("fit has to end")


@pytest.mark.parametrize(("defect", "missing"), CASES)
def test_all_use_the_same_forecasts_or_refuse_alike(command, tmp_path, defect, missing):
    about = {"gaps": (), "spoil": lambda folder: None, "task": {}, "split": {}} | DEFECTS[defect]
    task, split = TASK | about["task"], SPLIT | about["split"]
    write_archive(tmp_path, about["gaps"], ("2t", "msl", "tp"))
    about["spoil"](tmp_path)
    options = ["data=netcdf", "path=.", f"data.archive.missing={missing}", "data.split.gap_days=1"]
    options += [f"task.{name}={written(value)}" for name, value in task.items()]
    options += [f"data.split.{name}={written(value)}" for name, value in split.items()]
    prepare = command(tmp_path, "prepare", *options)
    with ending("training.training_run.open_training_data"):
        train = command(tmp_path, "train", *options, "model=mlp", "run_dir=run")
    with ending("evaluation.run.scored_data.region_weights"):
        evaluate = command(tmp_path, "evaluate", *options, "run_dir=scores")
    lines, error = fitted(tmp_path, task, split, missing)

    assert "variables    " in prepare.stdout, "the summary of the files comes first, also of a task that is refused"
    said, trained, scored, by_fit = (ledgers(text) for text in (prepare.stdout, train.stdout, evaluate.stdout, lines))
    refused = refusal(train.stderr)
    assert (prepare.code, refusal(prepare.stderr)) == (2 if refused else 0, refused)
    assert words(refusal(error)) == words(refused)
    if not refused:
        assert (said["train"], said["val"]) == (trained["train"], trained["val"])
        assert [counts(by_fit[name]) for name in ("train", "val")] == [counts(said[name]) for name in ("train", "val")]
        not_scored = refusal(evaluate.stderr)
        assert said["test"] == ([f"test: {not_scored}"] if not_scored else scored["test"])
    if defect == "all gaps" and missing != "error":
        # `no_forecast` is of `compare` alone, the task has no groups; the forecast near another split lacks a field.
        others = {"masked", "near_split"} if missing == "drop" else {"missing_field"}
        reasons = {*get_args(Reason)} - {"no_forecast", "no_group", "without_group"} - others
        absent = [reason for reason in reasons if _WORDS[reason] not in prepare.stdout]
        assert absent == [], prepare.stdout
