"""The command that `train` recommends writes a store of the data and the task of the training."""

import shlex

import pytest

from conf import store_command
from conf.hydra_command import composed_options

COMMANDS = [
    ["data=ens10", "data.path=/ens10", "task=t850", "data.split.train=[1999,2010]", "trainer.epochs=3"],
    ["experiment=poet"],
    ["experiment=poet", "task.lead_times=[48]", "data.store=/old", "data.cache.threads=5"],
    ["experiment=twin_unet", "task=t850", "data.archive.grid=1.5"],
    ["data=grib", "data.path=/my files", "data.split.train=[2016,2017]", "+task.static=[lsm]", "data.split.folds=2"],
]
SAME = ("data.archive", "data.path", "data.split", "task")


@pytest.mark.parametrize("number", range(len(COMMANDS)))
def test_prepare_has_the_data_and_task_of_the_training(number):
    words, moments = COMMANDS[number], bool(number % 2)
    names = ["task.lead_times", *(f"data.split.{name}" for name in ("train", "val", "gap_days"))]
    trained = composed_options("train", words, [*SAME, *names])
    settings = {name: trained[name] for name in names if trained[name] is not None}
    command = store_command("stores/one", moments, settings)
    program, verb, *options = shlex.split(command)
    assert (program, verb) == ("deepweather", "prepare")
    options = [f"data.{word}" if word.startswith("store=") else word for word in options]
    prepared = composed_options("prepare", options, [*SAME, "data.store", "moments"])
    assert {name: prepared[name] for name in SAME} == {name: trained[name] for name in SAME}
    assert (prepared["data.store"], prepared["moments"]) == ("stores/one", moments)
