"""The account of training runs: over kills, and after a run that the user stopped."""

import json
import os
import signal
import subprocess
import sys
import time

from conftest import ROOT
from twin_project import SPLIT

from data_pipeline.common.messages import format_duration


def summary_of(folder):
    return json.loads((folder / "summary.json").read_text())


def test_a_killed_run_keeps_its_account(project, run_verb):
    """The time of both starts, as this test measures it, is the time of the account."""
    run = project / "runs/account"
    options = ["train", *SPLIT, "model=unet", "run_dir=runs/account", "trainer.epochs=8", "model.width=4"]
    began = time.monotonic()
    process = subprocess.Popen(
        [sys.executable, ROOT / "scripts/deepweather.py", *options],
        cwd=project, env=os.environ | {"PYTHONPATH": str(ROOT)}, stdout=subprocess.PIPE, text=True,
    )  # fmt: skip
    for line in process.stdout:
        if line.startswith("epoch   2"):
            process.send_signal(signal.SIGKILL)
            break
    process.communicate(timeout=900)
    first = time.monotonic() - began
    before = summary_of(run)
    assert (before["starts"], before["finished"], before["time_to_crps"]["emos"]) == (1, False, None)
    assert 1 <= before["epochs"] < 8, "the signal comes a little after the second epoch"
    assert 0 < before["seconds"] < first

    began = time.monotonic()
    output = run_verb(project, *options)
    second = time.monotonic() - began
    after = summary_of(run)
    assert (after["starts"], after["finished"], after["epochs"]) == (2, True, 8)
    assert before["seconds"] < after["seconds"] < before["seconds"] + second
    assert sum(after["phases"].values()) == after["seconds"]
    # The twin has 40 training forecasts; an epoch that was killed counts twice.
    assert 8 * 40 <= after["samples"] <= 10 * 40
    validations = after["validations"]
    assert [each["epoch"] for each in validations] == list(range(9))
    assert [each["seconds"] for each in validations] == sorted(each["seconds"] for each in validations)
    # What the table of epochs says, by another way.
    rows = [line.split(",") for line in (run / "metrics.csv").read_text().splitlines()[1:]]
    assert [float(row[3]) for row in rows] == [each["loss"] for each in validations[1:]]
    assert f"done in {format_duration(after['seconds'])} in 2 starts (" in output


def test_emos_of_the_validation_is_that_of_a_trained_emos(project):
    """The network's run fits the same EMOS as `deepweather train model=emos`, and scores it in the same units."""
    emos, unet = (summary_of(project / "runs" / name) for name in ("emos", "unet"))
    assert abs(unet["references"]["emos"] / emos["validation"]["crps"] - 1) < 1e-5
    assert abs(unet["references"]["raw"] / emos["references"]["raw"] - 1) < 1e-6
    assert emos["finished"]
    assert emos["samples_per_second"] is None
    assert emos["time_to_crps"]["raw"]["seconds"] < emos["seconds"]


def test_evaluate_takes_the_emos_of_the_training_run(project, run_verb):
    output = run_verb(
        project, "evaluate", *SPLIT, "correctors={unet: runs/unet/corrector.safetensors}", "run_dir=runs/cached"
    )
    assert "emos was fitted on the training dates before, and is read from" in output
    assert output.splitlines()[-1].startswith("done in ")
