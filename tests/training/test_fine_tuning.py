"""`train from=CORRECTOR`: weights of another corrector, with everything else fitted to the data of the run."""

import re
from dataclasses import replace

import numpy as np
import pytest
import torch
from grib_parts import OPTIONS, write_archive
from ranks import run_on_ranks
from safetensors.torch import load_file
from specs import SPECS
from training_parts import GRID, NET, TASK

import training.network_training
from data_pipeline.common.errors import InputError, InterruptedRunError
from data_pipeline.dates import Dates
from data_pipeline.formulas.formula import Formula
from data_pipeline.grid import Grid
from data_pipeline.task import Variable
from evaluation.forecasters.leak_audit import check_leaks
from models.corrector import Corrector, needed_task
from models.parallel.mesh import arrange_mesh
from models.provenance.training_dates import state_fits, stated_fits
from training.initial_state import warning_of_validation
from training.optimization.fine_tuning import PretrainedWeights

UNET = NET | {"cell_embedding": 2}
DATES = {"train_dates": [["1990-01-01", "1991-12-31"]], "val_dates": [["1992-01-01", "1992-12-31"]], "run": "old"}
NETWORKS = sorted(
    name
    for name in SPECS
    if next(Corrector(TASK, GRID, SPECS[name], torch.rand(3, *GRID.shape)).parameters(), None) is not None
)


def drawn(spec, grid=GRID, task=TASK, seed=0):
    """A corrector all of whose numbers are random, and positive where they are scales."""
    torch.manual_seed(seed)
    made = Corrector(task, grid, spec, torch.rand(len(task.static_names), *grid.shape), dict(DATES))
    state = {
        name: torch.rand_like(tensor) + 0.5 if tensor.is_floating_point() else tensor + seed
        for name, tensor in made.state_dict().items()
    }
    made.load_state_dict(state)
    return made


def file_of(tmp_path, corrector):
    corrector.save(path := tmp_path / "first.safetensors")
    return path


def same(one, other):
    """The names of equal tensors of two states."""
    return {name for name in one if name in other and torch.equal(one[name], other[name])}


# What is taken.


@pytest.mark.parametrize("name", NETWORKS)
def test_all_that_a_network_learns_is_taken_and_nothing_that_is_fitted(name, tmp_path):
    spec, task = SPECS[name], needed_task(SPECS[name], TASK)
    first, second = drawn(spec, task=task), drawn(spec, task=task, seed=1)
    before = {key: value.clone() for key, value in second.state_dict().items()}
    PretrainedWeights(file_of(tmp_path, first), task, spec).copy_to(second)
    learnt = {f"model.{key}" for key, _ in first.model.named_parameters()}
    statistics = {key for key in before if key.endswith(("running_mean", "running_var", "num_batches_tracked"))}
    after = second.state_dict()
    assert same(after, first.state_dict()) >= learnt | statistics
    assert same(after, before) == before.keys() - learnt - statistics


def test_on_another_grid_values_of_single_cells_stay(tmp_path):
    """Also on a grid of the same shape, where only the longitudes differ."""
    first = drawn(UNET)
    path = file_of(tmp_path, first)
    shifted = Grid(GRID.latitudes, tuple(np.asarray(GRID.longitudes) + 1.0))
    for grid in (Grid.regular(19, 36), shifted):
        second = drawn(UNET, grid, seed=1)
        lines = PretrainedWeights(path, TASK, UNET).copy_to(second)
        theirs = dict(first.model.named_parameters())
        for key, value in second.model.named_parameters():
            assert (value.shape == theirs[key].shape and torch.equal(value, theirs[key])) != (key == "place.embedding")
        count = 2 * grid.shape[0] * grid.shape[1]
        assert lines[1] == f"not taken (values of single cells of {GRID}): model.place.embedding ({count:,} numbers)"
        assert second.provenance["from"]["not_taken"] == ["model.place.embedding"]
        total = sum(value.numel() for value in theirs.values()) - theirs["place.embedding"].numel()
        assert f"tensors of weights taken ({total:,} numbers)" in lines[0]


def test_a_file_of_which_nothing_can_be_taken_is_refused(tmp_path):
    """All weights of a network of local kernels belong to cells."""
    spec, task = {"_target_": "models.published.heat_networks.LocalKernels"}, TASK.only_targets()
    start = PretrainedWeights(file_of(tmp_path, drawn(spec, task=task)), task, spec)
    start.copy_to(drawn(spec, task=task))
    with pytest.raises(InputError, match=r"from: no weight of .* can be taken on .*; leave out from"):
        start.copy_to(drawn(spec, Grid.regular(9, 14), task))


# What is refused.


def test_another_task_or_model_is_refused(tmp_path):
    path = file_of(tmp_path, drawn(UNET))
    for changes, spec, sentence in (
        ({"inputs": (*TASK.inputs, Variable.parse("t@850"))}, UNET, "(t@850 only in this run); give task.inputs"),
        ({"inputs": TASK.targets}, UNET, "has other channels (msl only in the file)"),
        ({"inputs": TASK.inputs[::-1]}, UNET, "has other channels (in another order, 2t, msl)"),
        ({"formulas": (Formula.parse("gradient(msl)"),)}, UNET, "gradient(msl) only in this run"),
        ({"targets": (Variable.parse("msl"),)}, UNET, "has other targets (2t only in the file and msl only in"),
        ({"static": ("lsm",)}, UNET, "has other static fields (lsm only in this run); give data.static"),
        ({"lead_times": (24, 48)}, UNET, "was trained for 1 lead times and this run for 2"),
        ({}, UNET | {"width": 8, "head": "logistic"}, "set model.width=4 model.head=normal, as in the file"),
        ({}, UNET | {"baseline": "climate"}, "set model.baseline=null, as in the file"),
        ({}, UNET | {"power": 0.5}, "set model.power=1.0, as in the file"),
        ({}, SPECS["mlp"], "holds a models.networks.unet.UNet, and this run trains a models.networks.mlp.MLP"),
    ):  # fmt: skip
        with pytest.raises(InputError, match=re.escape(sentence)):
            PretrainedWeights(path, replace(TASK, **changes), spec)


def test_files_without_weights_or_dates_are_refused(tmp_path):
    emos = {"_target_": "models.statistical.emos.EMOS"}
    with pytest.raises(InputError, match="holds a EMOS, which is fitted in closed form"):
        PretrainedWeights(file_of(tmp_path, Corrector(TASK, GRID, emos, torch.rand(3, *GRID.shape))), TASK, emos)
    first = drawn(UNET)
    first.provenance = {}
    with pytest.raises(InputError, match="does not say on which dates it was trained"):
        PretrainedWeights(file_of(tmp_path, first), TASK, UNET)
    path = file_of(tmp_path, drawn(UNET))
    assert PretrainedWeights(path, replace(TASK, lead_times=(24,)), UNET | {"dropout": 0.5, "head": "normal"})


# What the file says.


def test_dates_of_the_first_training_count_as_seen(tmp_path):
    first = drawn(UNET)
    state_fits(first.provenance, {"pre-training": Dates.of_years([1980]), "weights": Dates.of_years([1990])})
    start = PretrainedWeights(file_of(tmp_path, first), TASK, UNET)
    second = drawn(UNET, seed=1)
    second.provenance = {"train_dates": [["2000-01-01", "2000-12-31"]], "val_dates": [["2001-01-01", "2001-12-31"]]}
    state_fits(second.provenance, dict.fromkeys(second.fitted_parts, Dates.of_years([2000])))
    start.copy_to(second)
    assert stated_fits(second.provenance)["pre-training"] == Dates.of_years([1980, 1990, 1991, 1992])
    check_leaks(second, tmp_path, Dates.of_years([1993]))
    with pytest.raises(InputError, match=r"its pre-training saw 1980-01-01, a date of the scored split"):
        check_leaks(second, tmp_path, Dates.of_years([1980]))
    for year, warned in ((1980, True), (1991, True), (1992, False), (2001, False)):
        warning = warning_of_validation("a", start.provenance, Dates.of_years([year]))
        assert (f"a was trained on {year}-01-01, a validation date of this run" in warning) == warned


# On several ranks.


DEEP = UNET | {"depth": 2}


def copied_on_rank(rank, path):
    """The states after a copy on a tile of bands, and on one of channels."""
    found = []
    for shape in ((1, 2, 1), (1, 1, 1, 2)):
        corrector = Corrector(TASK, arrange_mesh(*shape).domain(GRID), DEEP, torch.rand(3, *GRID.shape))
        PretrainedWeights(path, TASK, DEEP).copy_to(corrector)
        found.append({name: value.detach().numpy() for name, value in corrector.model.named_parameters()})
    return found


def test_every_rank_takes_the_same_weights(tmp_path):
    first = drawn(DEEP)
    for states in run_on_ranks(2, copied_on_rank, file_of(tmp_path, first)):
        for state in states:
            assert state.keys() == {name for name, _ in first.model.named_parameters()}
            assert all(np.array_equal(state[name], value.detach()) for name, value in first.model.named_parameters())


# By the command.

FIRST = "../a/runs/first/corrector.safetensors"
TRAIN = (
    "train", *OPTIONS, "path=.", "model=unet", "model.width=2", "model.depth=1", "trainer.epochs=1",
    "trainer.emos_minutes=0",
)  # fmt: skip


@pytest.fixture(scope="module")
def archives(tmp_path_factory, command):
    """Two folders with archives of other values, and a run in each: the first one's file, and one from nothing."""
    folder = tmp_path_factory.mktemp("worlds")
    for seed, (name, run) in enumerate((("a", "first"), ("b", "nothing"))):
        (folder / name).mkdir()
        write_archive(folder / name, seed=seed)
        ended = command(folder / name, *TRAIN, f"run_dir=runs/{run}")
        assert ended.code == 0, ended.stderr
    return folder


def test_a_run_starts_at_the_weights_and_fits_the_rest_to_its_own_data(archives, command):
    """A learning rate that changes no bit shows the start in the corrector file."""
    ended = command(archives / "b", *TRAIN, f"from={FIRST}", "run_dir=runs/still", "trainer.learning_rate=1e-30")
    assert ended.code == 0, ended.stderr
    assert re.search(rf"from {FIRST}: (\d+) of \1 tensors of weights taken", ended.stdout)
    files = [archives / "a/runs/first", archives / "b/runs/nothing", archives / "b/runs/still"]
    first, nothing, still = (load_file(each / "corrector.safetensors") for each in files)
    learnt = {
        f"model.{name}" for name, _ in Corrector.load(files[0] / "corrector.safetensors").model.named_parameters()
    }
    assert same(still, first) >= learnt
    assert same(still, nothing) >= still.keys() - learnt
    # The second road is of use only if both differ.
    assert not {"normalizer.location", "normalizer.scale", "model.features.errors.bias"} & same(first, nothing)
    assert "model.last.weight" not in same(first, nothing)


def test_a_resumed_run_does_not_take_the_weights_again(archives, command, monkeypatch):
    tuned = (*TRAIN, f"from={FIRST}", "trainer.learning_rate=1e-3")
    assert command(archives / "b", *tuned, "run_dir=runs/whole").code == 0

    def stop(*_):
        raise InterruptedRunError("stopped")

    with monkeypatch.context() as patch:
        patch.setattr(training.network_training, "train_network", stop)
        assert command(archives / "b", *tuned, "run_dir=runs/halves").code == 3
    with monkeypatch.context() as patch:
        patch.setattr(training.training_run, "PretrainedWeights", stop)
        ended = command(archives / "b", *tuned, "run_dir=runs/halves")
    assert ended.code == 0, ended.stderr
    assert "fitted before, read from" in ended.stdout
    found = [archives / f"b/runs/{name}/corrector.safetensors" for name in ("whole", "halves")]
    one, other = map(load_file, found)
    assert same(one, other) == one.keys()
    first, last = Corrector.load(archives / "b" / FIRST), Corrector.load(found[1])
    assert last.provenance["from"]["run"] == first.provenance["run"]
    assert stated_fits(last.provenance)["pre-training"].years == (2000, 2001, 2002)
    assert last.provenance["from"]["hash"] in (archives / "b/runs/halves/config.yaml").read_text()


def test_refused_before_the_fit(archives, command):
    for options, sentence in (
        (["model.width=4"], "set model.width=2, as in the file"),
        ([f"initial_weights={FIRST}"], "initial_weights continues a run on the same data"),
        (["from=none"], "from: there is no corrector none; train it first"),
    ):
        ended = command(archives / "b", *TRAIN, f"from={FIRST}", "run_dir=runs/refused", *options)
        assert ended.code == 2
        assert sentence in ended.stderr
        assert "fit of" not in ended.stdout
        assert not (archives / "b/runs/refused/config.yaml").exists()
