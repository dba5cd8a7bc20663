"""Training on a mesh equals training on one rank: losses, gradients, weights, scores, checkpoints."""

import math
import os
import signal
from dataclasses import replace

import numpy as np
import pytest
import torch
from ranks import run_on_ranks
from training_parts import GRID, SPECS, TASK, Tile, module

from data_pipeline.common.errors import InputError
from data_pipeline.grid import Grid
from data_pipeline.prefetch.budget import Budget
from data_pipeline.task import Task
from models.corrector import Corrector, needed_task
from models.networks.deep_weather import DeepWeather
from models.parallel.mesh import Mesh, arrange_mesh
from training import checkpoints
from training.correction_module import CorrectionModule
from training.datamodule import open_training_data
from training.initial_state import fit_corrector
from training.mesh_strategy import gather_full, shard
from training.network_training import train_network, validation_crps
from training.trainer_options import TrainerOptions

MESHES = [(1, 3, 1), (3, 1, 1), (2, 1, 1, 2)]
"""Uneven bands, samples alone, samples and channels. Tests of averages and routing compare whole runs on sectors, on
bands and sectors, and on samples and bands; tests of restarts have (1, 2, 1), (2, 1, 1) and (4, 1, 1)."""
OF_ALL_MODELS = [(3, 1, 1), (1, 2, 2)]
"""Samples alone, tiles alone; whole runs have both."""
FITTED = ["emos", "climatology", "mlp"]
EPOCHS = 3
SHAPE = pytest.mark.parametrize("shape", MESHES, ids=lambda shape: "x".join(map(str, shape)))


# Fits before the first step.


def fit_on_rank(rank, shape, toy, name):
    """The fitted state of a model, and the size of the tiles that were read for the fit."""
    mesh, tiles = arrange_mesh(*shape) if shape else Mesh.single(), []
    spec = SPECS[name]
    task = needed_task(spec, TASK)

    def corrector_on(domain):
        torch.manual_seed(0)
        return Corrector(task, domain, spec, toy(task, GRID, 1).static).double()

    def samples_on(domain):
        tiles.append(domain.own_shape)
        return Tile(toy, domain, 24, torch.float64, task=task)

    domain = mesh.domain(GRID)
    own = Tile(toy, domain, 24, torch.float64, task=task)
    corrector = corrector_on(domain)
    fit_corrector(corrector, corrector_on, samples_on, own, Budget(), 8, mesh)
    assert corrector.domain == domain
    return {key: value.numpy() for key, value in corrector.state_dict().items()}, tiles


def fits_on_rank(rank, shape, toy):
    return [fit_on_rank(rank, shape, toy, name) for name in FITTED]


@pytest.fixture(scope="module")
def fits_alone(toy):
    return fits_on_rank(0, None, toy)


@pytest.mark.parametrize(("shape", "rows"), [((2, 2, 1), {3, 4}), ((2, 1, 2), {6, 7})], ids=str)
def test_all_ranks_share_a_fit(shape, rows, toy, fits_alone):
    ranks = run_on_ranks(math.prod(shape), fits_on_rank, shape, toy)
    for name, (expected, _), found in zip(FITTED, fits_alone, zip(*ranks, strict=True), strict=True):
        assert {tile[0] for _, tiles in found for tile in tiles} == rows
        for state, _ in found:
            for key, value in expected.items():
                if key.startswith("normalizer."):
                    # Sums in the order of one process.
                    np.testing.assert_array_equal(state[key], value, err_msg=f"{name} {key}")
                limit = 1e-9 * np.nanmax(np.abs(value), initial=1e-30)
                np.testing.assert_allclose(state[key], value, rtol=0, atol=limit, err_msg=f"{name} {key}")


def cross_fit_on_rank(rank, shape, toy):
    """The cross-fitted tables of the error maps and of the baseline."""
    mesh = arrange_mesh(*shape) if shape else Mesh.single()
    spec = SPECS["mlp"] | {"baseline": {"seasonal": False}}

    def corrector_on(domain):
        return Corrector(TASK, domain, spec, toy(TASK, GRID, 1).static).double()

    def samples_on(domain):
        return Tile(toy, domain, 120, torch.float64, task=TASK)

    domain = mesh.domain(GRID)
    corrector = corrector_on(domain)
    fit_corrector(corrector, corrector_on, samples_on, samples_on(domain), Budget(), 8, mesh)
    tables = corrector.model.features.errors.without, corrector.model.head.start.without
    return [table.table.numpy() for table in tables], domain.tile, dict(corrector.provenance)


@pytest.mark.parametrize("shape", [(1, 2, 1), (2, 1, 2)], ids=str)
def test_each_tile_has_its_part_of_the_maps_for_training(shape, toy):
    expected, _, provenance = cross_fit_on_rank(0, None, toy)
    assert len(expected[0]) == 2 * len(TASK.lead_times)  # two years
    for tables, tile, own in run_on_ranks(math.prod(shape), cross_fit_on_rank, shape, toy):
        assert own == provenance
        for found, whole in zip(tables, expected, strict=True):
            np.testing.assert_allclose(found, whole[..., *tile], rtol=0, atol=1e-6 * np.abs(whole).max())


def test_each_rank_fits_a_model_that_cannot_be_built_on_smaller_tiles(toy):
    """13 rows halved three times are 2 rows, too few for four ranks."""
    expected, _ = fit_on_rank(0, None, toy, "deep")
    for state, tiles in run_on_ranks(4, fit_on_rank, (4, 1, 1), toy, "deep"):
        assert tiles == []
        for key, value in expected.items():
            np.testing.assert_allclose(state[key], value, rtol=0, atol=1e-9 * np.nanmax(np.abs(value), initial=1e-30))


# One step.


def one_step(mesh, toy, name):
    """Loss and gradients of the first batch as DDP takes them: the mean over all ranks."""
    net, train, val = module(toy, mesh, torch.float64, SPECS[name])
    net.train()
    with open_training_data(train, val, Budget(), net.options, mesh) as data:
        torch.manual_seed(1)
        loss = net.training_step(next(iter(data.train_batches)), 0)["loss"]
    found = [mesh.sum(loss) / mesh.ranks]
    if loss.requires_grad:
        loss.backward()
        found += [mesh.sum(parameter.grad) / mesh.ranks for parameter in net.parameters()]
    # Arrays, because multiprocessing sends a tensor as an open file of its rank.
    return [tensor.detach().numpy() for tensor in found]


def steps_of_all(rank, shape, toy, names):
    mesh = arrange_mesh(*shape)
    return {name: one_step(mesh, toy, name) for name in names}


@pytest.fixture(scope="module")
def steps_alone(toy):
    """All models with gradients that work on tiles; the backbone needs an option for it."""
    found = {name: one_step(Mesh.single(), toy, name) for name in SPECS if name not in ("deep", "backbone")}
    return {name: numbers for name, numbers in found.items() if len(numbers) > 1}


@pytest.mark.parametrize("shape", OF_ALL_MODELS, ids=lambda shape: "x".join(map(str, shape)))
def test_loss_and_gradients_of_every_model_are_those_of_one_process(shape, toy, steps_alone):
    assert {"mlp", "unet", "lenet"} < set(steps_alone)
    for found in run_on_ranks(math.prod(shape), steps_of_all, shape, toy, list(steps_alone)):
        for name, expected in steps_alone.items():
            for ours, theirs in zip(found[name], expected, strict=True):
                assert np.abs(ours - theirs).max() <= 1e-12 * np.abs(theirs).max(), name


# A whole run.


def train_run(mesh, toy, folder, dtype=torch.float64, budget=None, slow=0.0, **options):
    """Train like the verb; return the table of epochs, the weights, the score, and the number of samples read."""
    net, train, val = module(toy, mesh, dtype, epochs=options.pop("epochs", EPOCHS), **options)
    train.slow, train.reads = slow, 0
    with open_training_data(train, val, budget or Budget(), net.options, mesh) as data:
        train_network(net, data, folder)
        final = validation_crps(net.eval(), data.val_batches)
    rows = [[float(x) for x in line.split(",")] for line in (folder / "metrics.csv").read_text().splitlines()[1:]]
    return rows, {name: tensor.numpy() for name, tensor in net.state_dict().items()}, final, train.reads


def train_on_rank(rank, shape, toy, folder, options):
    torch.set_num_threads(1)
    return train_run(arrange_mesh(*shape), toy, folder, **options)


def on_mesh(shape, toy, folder, **options):
    if shape == (1, 1, 1):
        return train_run(Mesh.single(), toy, folder, **options)
    return run_on_ranks(math.prod(shape), train_on_rank, shape, toy, folder, options)[0]


def assert_same(found, expected, tolerance):
    for ours, theirs in zip(found[0], expected[0], strict=True):
        assert ours == pytest.approx(theirs, rel=tolerance)
    assert found[2] == pytest.approx(expected[2], rel=tolerance)
    for name, weights in expected[1].items():
        assert np.abs(found[1][name] - weights).max() <= tolerance * np.abs(weights).max(), name


@pytest.fixture(scope="module")
def alone(toy, tmp_path_factory):
    """The run of one process: 9 steps; every third step has a single sample, so most ranks get none."""
    return on_mesh((1, 1, 1), toy, tmp_path_factory.mktemp("alone"))


@pytest.fixture(scope="module")
def alone_in_single_precision(toy, tmp_path_factory):
    return on_mesh((1, 1, 1), toy, tmp_path_factory.mktemp("alone"), dtype=torch.float32)


@pytest.fixture(scope="module")
def alone_with_averages(toy, tmp_path_factory):
    return on_mesh((1, 1, 1), toy, tmp_path_factory.mktemp("alone"), ema_decay=0.8)


@pytest.fixture(scope="module")
def alone_with_routing(toy, tmp_path_factory):
    return on_mesh((1, 1, 1), toy, tmp_path_factory.mktemp("alone"), spec=SPECS["routed"])


@SHAPE
def test_a_run_equals_one_process(shape, toy, tmp_path, alone):
    found = on_mesh(shape, toy, tmp_path)
    assert [row[1] for row in found[0]] == list(range(3, 3 * EPOCHS + 1, 3))
    assert_same(found, alone, 1e-10)


def test_a_run_in_single_precision_equals_one_process(toy, tmp_path, alone_in_single_precision):
    found = on_mesh((2, 2, 1), toy, tmp_path, dtype=torch.float32)
    for ours, theirs in zip(found[0], alone_in_single_precision[0], strict=True):
        assert ours == pytest.approx(theirs, rel=1e-5)


@pytest.mark.parametrize("shape", [(2, 2, 1), (2, 1, 1, 2)], ids=["bands", "channels"])
def test_sharding_weights_in_two_copies_changes_nothing(shape, toy, tmp_path, alone):
    """Tests below shard them once: with averages, and until a run on 2 x 2 ranks is killed."""
    assert_same(on_mesh(shape, toy, tmp_path, sharded=True, shard_ranks=2), alone, 1e-10)


@pytest.mark.parametrize(
    ("shape", "options"),
    [
        ((2, 2, 1), {"activation_checkpointing": True}),
        ((1, 1, 2), {}),
        ((2, 1, 1), {"sharded": True, "activation_checkpointing": True}),
        ((1, 1, 1, 2), {"sharded": True, "activation_checkpointing": True}),
    ],
    ids=["in blocks", "in sectors", "in parts and blocks", "by channels in parts and blocks"],
)
def test_averages_equal_one_process(shape, options, toy, tmp_path, alone_with_averages):
    assert_same(on_mesh(shape, toy, tmp_path, ema_decay=0.8, **options), alone_with_averages, 1e-10)


@pytest.mark.parametrize("shape", [(3, 1, 1), (1, 2, 2), (2, 2, 1)], ids=lambda shape: "x".join(map(str, shape)))
def test_routing_equals_one_process(shape, toy, tmp_path, alone_with_routing):
    """In every third step most ranks have no sample, and their routing must not train the gates."""
    assert_same(on_mesh(shape, toy, tmp_path, spec=SPECS["routed"]), alone_with_routing, 1e-10)


# Restart on another mesh.


class KilledError(Exception):
    """Simulates a killed process."""


def run_until_killed(rank, shape, toy, folder, options, after):
    """Train until a step, saving checkpoints."""
    mesh = arrange_mesh(*shape) if shape != (1, 1, 1) else Mesh.single()
    original = CorrectionModule.on_train_batch_start

    def kill(self, batch, batch_idx):
        if self.global_step == after:
            raise KilledError
        original(self, batch, batch_idx)

    CorrectionModule.on_train_batch_start = kill
    with pytest.raises(KilledError):
        train_run(mesh, toy, folder, checkpoint_minutes=1e-9, **options)


@pytest.mark.parametrize(
    ("first", "parts", "then", "parts_then"),
    [
        ((2, 2, 1), True, (4, 1, 1), False),
        ((1, 1, 1), False, (1, 3, 1), False),
        ((2, 1, 1), False, (1, 1, 2), True),
        ((1, 1, 1, 2), False, (1, 1, 1), False),
    ],
    ids=["2x2 in parts to 4x1", "1 to 1x3", "2x1 to two sectors in parts", "channels to 1"],
)
def test_a_run_is_resumed_on_another_mesh(first, parts, then, parts_then, toy, tmp_path, alone):
    run_on_ranks(math.prod(first), run_until_killed, first, toy, tmp_path, {"sharded": parts}, 5)
    assert (tmp_path / "checkpoints/last.ckpt").exists()
    assert_same(on_mesh(then, toy, tmp_path, sharded=parts_then), alone, 1e-10)


def test_averages_are_resumed_on_another_mesh(toy, tmp_path, alone_with_averages):
    run_on_ranks(2, run_until_killed, (2, 1, 1), toy, tmp_path, {"ema_decay": 0.8, "sharded": True}, 5)
    assert_same(on_mesh((1, 2, 1), toy, tmp_path, ema_decay=0.8), alone_with_averages, 1e-10)


def run_until_signal(rank, shape, toy, folder):
    """Send a signal to one rank only; ranks query each other after every step, not every two seconds."""
    mesh = arrange_mesh(*shape)
    checkpoints.SECONDS_BETWEEN_QUERIES = 0.0
    original = CorrectionModule.on_train_batch_start

    def ask(self, batch, batch_idx):
        original(self, batch, batch_idx)
        if self.global_step == 7 and mesh.rank == 1:
            os.kill(os.getpid(), signal.SIGTERM)

    CorrectionModule.on_train_batch_start = ask
    with pytest.raises(InputError, match="interrupted in epoch 3; run the same command again") as info:
        train_run(mesh, toy, folder)
    return info.value.exit_code


def test_a_signal_to_one_rank_stops_all_after_the_same_step(toy, tmp_path, alone):
    assert run_on_ranks(2, run_until_signal, (1, 2, 1), toy, tmp_path, fresh=True) == [3, 3]
    assert torch.load(tmp_path / "checkpoints/last.ckpt", weights_only=True)["global_step"] == 8
    assert_same(on_mesh((1, 2, 1), toy, tmp_path), alone, 1e-10)


# Precision of exchanges and of computation.


@pytest.mark.parametrize(
    ("shape", "option"),
    [
        ((1, 2, 1), {"precision": "bf16-mixed"}),
        ((2, 1, 1), {"compression": "fp16"}),
        ((1, 1, 1, 2), {"precision": "bf16-mixed", "sharded": True}),
        ((2, 1, 1, 2), {"precision": "bf16-mixed", "compression": "fp16"}),
    ],
    ids=str,
)
def test_lower_precision_is_nearly_the_same_run(shape, option, toy, tmp_path, alone_in_single_precision):
    found, exact = on_mesh(shape, toy, tmp_path, dtype=torch.float32, **option), alone_in_single_precision
    assert found[0][-1] == pytest.approx(exact[0][-1], rel=1e-2)
    # Losses may differ as little as by rounding, 1e-7. Weights differ by 1e-2, without the option by 2e-7.
    moved = [np.abs(found[1][name] - weights).max() / np.abs(weights).max() for name, weights in exact[1].items()]
    assert max(moved) > 1e-4


def test_compression_to_bf16_needs_gpus(toy, tmp_path):
    with pytest.raises(AssertionError, match=r"InputError: trainer\.compression=bf16 needs GPUs with NCCL; on CPUs"):
        on_mesh((2, 1, 1), toy, tmp_path, dtype=torch.float32, compression="bf16")


def test_compression_with_sharding_is_refused():
    with pytest.raises(InputError, match=r"trainer\.compression and trainer\.sharded exclude each other"):
        TrainerOptions(sharded=True, compression="bf16")


# Caches of other ranks.


def test_ranks_read_samples_from_each_others_caches(toy, tmp_path):
    size = Tile(toy, Mesh.single().domain(GRID), 2, torch.float64).nbytes
    budget = Budget(staging_bytes=80 * size, memory_bytes=40 * size, threads=2)
    options = {"count": 40, "epochs": 6, "slow": 0.03, "budget": budget}
    together_read = sum(run[3] for run in run_on_ranks(2, train_on_rank, (2, 1, 1), toy, tmp_path / "peers", options))
    # Each rank caches two thirds of its samples; without the other's cache it would read the rest again in each epoch.
    lonely = replace(budget, memory_bytes=0)
    alone_read = sum(
        run[3]
        for run in run_on_ranks(2, train_on_rank, (2, 1, 1), toy, tmp_path / "lonely", options | {"budget": lonely})
    )
    assert alone_read >= 6 * 40
    assert together_read < alone_read / 2


def sharding_keeps_weights(rank):
    """Return whether a network with nested lists of blocks has the same full weights after sharding."""
    torch.manual_seed(0)
    task = Task("toy", ["2t", "msl"], ["2t"], [24])
    model = DeepWeather(task, Grid.regular(9, 12), bias_width=1, bias_depth=0)
    before = {name: value.clone() for name, value in model.state_dict().items()}
    shard(model, "cpu", 2)
    after = gather_full(model.state_dict())
    return before.keys() == after.keys() and all(torch.equal(before[name], after[name]) for name in before)


def test_blocks_that_hold_lists_of_layers_are_sharded():
    assert run_on_ranks(2, sharding_keeps_weights) == [True, True]
