"""A run with the initial weights of another run: Deep Weather's two stages, by two commands."""

import shutil

import pytest
import torch
from grib_parts import GRID, OPTIONS, write_archive
from safetensors.torch import load_file

from data_pipeline.common.errors import InputError
from data_pipeline.grid import Grid
from data_pipeline.task import Task
from models.corrector import Corrector
from training.initial_state import hash_corrector_files, load_initial_weights

TASK = Task("toy", ["2t", "msl"], ["2t"], [24])
TRAIN = (
    "train", *OPTIONS, "path=.", "model=deep_weather", "model.bias_depth=0", "model.bias_width=2", "trainer.epochs=1",
    "trainer.emos_minutes=0",
)  # fmt: skip
BIAS, SIGMA = ("model.trained_networks=bias", "loss=squared_error"), ("model.trained_networks=uncertainty", "loss=crps")
FIRST = "runs/first/corrector.safetensors"


@pytest.fixture(scope="module")
def stages(tmp_path_factory, command):
    """A folder in which both stages were trained."""
    folder = tmp_path_factory.mktemp("stages")
    write_archive(folder)
    for options in ((*BIAS, "run_dir=runs/first"), (*SIGMA, f"initial_weights={FIRST}", "run_dir=runs/second")):
        ended = command(folder, *TRAIN, *options)
        assert ended.code == 0, ended.stderr
    assert f"initial weights from {FIRST}" in ended.stdout
    return folder


def test_the_second_stage_holds_the_first_and_trains_the_rest(stages):
    first, second = (load_file(stages / f"runs/{name}/corrector.safetensors") for name in ("first", "second"))
    assert first.keys() == second.keys()
    changed = {name for name in first if not torch.equal(first[name], second[name])}
    assert changed
    assert all(name.startswith("model.uncertainty_net.") for name in changed)
    # The first stage did not change the network for σ, and learnt the bias of 1 K.
    one, both = (Corrector.load(stages / f"runs/{name}/corrector.safetensors") for name in ("first", "second"))
    assert both.provenance["initial_weights"] == one.provenance["run"]
    assert one.model.local.weight.any()


def test_a_run_with_other_initial_weights_is_refused(stages, tmp_path, command):
    shutil.copytree(stages, folder := tmp_path / "copy")
    second = (*TRAIN, *SIGMA, f"initial_weights={FIRST}", "run_dir=runs/second")
    assert "is already trained with these options" in command(folder, *second).stdout
    made = Corrector.load(folder / FIRST)
    made.provenance["run"] = "another"
    made.save(folder / FIRST)
    ended = command(folder, *second)
    assert ended.code == 2
    assert "runs/second holds a run with other initial_weights; choose another run_dir" in ended.stderr


def test_weights_of_another_kind_or_other_data_are_refused(stages, command):
    for options, sentence in (
        (["max_members=2"], "was trained with another number of members; train it again with the same options"),
        (["data.split.val=[2003,2003]", "data.split.test=[2002,2002]"], "with another set of validation dates"),
        (["task.inputs=[2t]"], "was trained with another task"),
        (["model.uncertainty=resnet2d"], "holds another model"),
        (["model=emos", "loss=crps"], "EMOS has no weights to load; leave out initial_weights"),
    ):
        given = TRAIN if options[0] != "model=emos" else ("train", *OPTIONS, "path=.")
        model = SIGMA if options[0] != "model=emos" else ()
        ended = command(stages, *given, *model, f"initial_weights={FIRST}", "run_dir=runs/refused", *options)
        assert ended.code == 2
        assert sentence in ended.stderr
        assert not (stages / "runs/refused/config.yaml").exists()


def test_a_missing_file_and_another_grid_are_refused(tmp_path):
    with pytest.raises(InputError, match=r"there is no corrector none.safetensors; train it first"):
        hash_corrector_files({"initial_weights": "none.safetensors"})
    assert hash_corrector_files({"initial_weights": None, "members": 5}) == {"members": 5}
    spec, static = {"_target_": "models.networks.mlp.MLP", "width": 4, "depth": 1}, torch.rand(3, *GRID.shape)
    Corrector(TASK, GRID, spec, static).save(tmp_path / "a")
    other = Grid.regular(11, 14)
    with pytest.raises(InputError, match="was trained with another grid"):
        load_initial_weights(Corrector(TASK, other, spec, torch.rand(3, *other.shape)), tmp_path / "a")
