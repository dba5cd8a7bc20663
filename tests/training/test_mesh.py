"""Training on a mesh equals training on one rank: fits, losses, weights, scores, checkpoints."""

import math
import os
import signal
from dataclasses import replace
from unittest.mock import patch

import numpy as np
import pytest
import torch
from ranks import run_on_ranks
from training_parts import GRID, NET, SPECS, TASK, Tile, assert_same_run, killed_at, train_run

from data_pipeline.common.errors import InputError
from data_pipeline.prefetch.budget import Budget
from data_pipeline.prefetch.tiers import ReadRates
from models.corrector import Corrector, needed_task
from models.parallel.mesh import Mesh, arrange_mesh
from models.statistical.crossfit import CrossFitted
from training.initial_state import fit_corrector
from training.run import checkpoints
from training.step import mesh_strategy
from training.step.correction_module import CorrectionModule

# Fits before the first step.

FITTED = {
    "emos": SPECS["emos"],
    "cross-fitted": SPECS["mlp"] | {"baseline": {"seasonal": False, "shared": False}}, "deep": NET | {"depth": 4},
}  # fmt: skip


def fit_on_mesh(mesh, toy, spec):
    """The fitted state, the cross-fitted tables with their tile, and the sizes of the tiles that were read."""
    task, sizes = needed_task(spec, TASK), []
    count = 120 if spec.get("baseline") else 24  # two years are needed for tables without one of them

    def corrector_on(domain):
        torch.manual_seed(0)
        return Corrector(task, domain, spec, toy(task, GRID, 1).static).double()

    def samples_on(domain):
        sizes.append(domain.own_shape)
        return Tile(toy, domain, count, torch.float64, task=task)

    domain = mesh.domain(GRID)
    corrector, own = corrector_on(domain), Tile(toy, domain, count, torch.float64, task=task)
    fit_corrector(corrector, corrector_on, samples_on, own, Budget(), 8, mesh)
    assert corrector.domain == domain
    tables = [each.table.numpy() for each in corrector.modules() if isinstance(each, CrossFitted) and each.fitted]
    state = {key: value.numpy() for key, value in corrector.state_dict().items()}
    return state, tables, domain.tile, sizes, dict(corrector.provenance)


def fits_on_rank(rank, toy):
    return {name: fit_on_mesh(arrange_mesh(2, 1), toy, spec) for name, spec in FITTED.items()}


def test_all_ranks_share_a_fit_and_each_tile_has_its_part_of_the_tables(toy):
    """Each rank fits `deep` alone: its 13 rows halved four times are one row, too few for two ranks."""
    ranks = run_on_ranks(2, fits_on_rank, toy)
    assert {size for found in ranks for size in found["emos"][3]} == {(6, 20), (7, 20)}
    assert [found["deep"][3] for found in ranks] == 2 * [[]]
    for name, spec in FITTED.items():
        expected, whole, _, _, provenance = fit_on_mesh(Mesh.single(), toy, spec)
        for found in ranks:
            state, tables, tile, _, stated = found[name]
            assert stated == provenance
            for key, value in expected.items():
                if key.startswith("normalizer."):
                    # Sums in the order of one process.
                    np.testing.assert_array_equal(state[key], value, err_msg=f"{name} {key}")
                limit = 1e-9 * np.nanmax(np.abs(value), initial=1e-30)
                np.testing.assert_allclose(state[key], value, rtol=0, atol=limit, err_msg=f"{name} {key}")
            for own, table in zip(tables, whole, strict=True):
                np.testing.assert_allclose(own, table[..., *tile], rtol=0, atol=1e-6 * np.abs(table).max())


# Whole runs.

RUN = {"spec": SPECS["routed"], "ema_decay": 0.8, "epochs": 4}
"""12 steps; every third one has a single sample, so most ranks get none, and their routing must not train the gates."""
BLOCKS = {"activation_checkpointing": True}
TWO_RANKS = [
    ((2, 1, 1), {"sharded": True} | BLOCKS, 4), ((1, 2, 1), BLOCKS, 7), ((1, 1, 2), {}, 9),
    ((1, 1, 1, 2), {"sharded": True}, 11),
]  # fmt: skip
FOUR_RANKS = [
    ((2, 2, 1), {"sharded": True, "shard_ranks": 2}, 4), ((2, 1, 1, 2), {"sharded": True, "shard_ranks": 2}, 6)
]  # fmt: skip
"""Meshes of one run, each with its options, and the step before which the run is killed there."""


@pytest.fixture(scope="module")
def alone(toy, tmp_path_factory):
    """The run of one process."""
    return train_run(Mesh.single(), toy, tmp_path_factory.mktemp("alone"), **RUN)


def train_on_meshes(rank, meshes, toy, folder):
    """Train on one mesh after the other, saving checkpoints; weights are sharded among as many ranks as asked."""
    for shape, options, end in meshes:
        with killed_at(end), patch.object(mesh_strategy, "shard", wraps=mesh_strategy.shard) as sharded:
            train_run(arrange_mesh(*shape), toy, folder, checkpoint_minutes=1e-9, **RUN, **options)
        groups = [options.get("shard_ranks", math.prod(shape))] if "sharded" in options else []
        assert [call.args[3] for call in sharded.call_args_list] == groups


@pytest.mark.parametrize("meshes", [TWO_RANKS, FOUR_RANKS], ids=["2 ranks", "4 ranks"])
def test_a_run_that_moves_from_mesh_to_mesh_equals_one_process(meshes, toy, tmp_path, alone):
    run_on_ranks(math.prod(meshes[0][0]), train_on_meshes, meshes, toy, tmp_path)
    assert torch.load(tmp_path / "checkpoints/last.ckpt", weights_only=True)["global_step"] == meshes[-1][2]
    found = train_run(Mesh.single(), toy, tmp_path, **RUN)
    assert [row[1] for row in found[0]] == [3, 6, 9, 12]
    assert_same_run(found, alone)


def run_until_signal(rank, toy, folder):
    """Send a signal to one rank only; ranks query each other after every step, not every two seconds."""
    mesh, original = arrange_mesh(1, 2), CorrectionModule.on_train_batch_start

    def ask(self, batch, batch_idx):
        original(self, batch, batch_idx)
        if self.global_step == 4 and mesh.rank == 1:
            os.kill(os.getpid(), signal.SIGTERM)

    with (
        patch.object(checkpoints, "SECONDS_BETWEEN_QUERIES", 0.0),
        patch.object(CorrectionModule, "on_train_batch_start", ask),
        pytest.raises(InputError, match="interrupted in epoch 2; run the same command again") as info,
    ):
        train_run(mesh, toy, folder, epochs=2)
    return info.value.exit_code


def test_a_signal_to_one_rank_stops_all_after_the_same_step(toy, tmp_path):
    assert run_on_ranks(2, run_until_signal, toy, tmp_path, fresh=True) == [3, 3]
    assert torch.load(tmp_path / "checkpoints/last.ckpt", weights_only=True)["global_step"] == 5


# Precision of exchanges and of computation.

SINGLE = {"dtype": torch.float32, "epochs": 2}
LOWER = [
    ((1, 2, 1), {"precision": "bf16-mixed"}), ((2, 1, 1), {"compression": "fp16"}),
    ((1, 1, 1, 2), {"precision": "bf16-mixed", "sharded": True}),
]  # fmt: skip


def train_in_lower_precision(rank, toy, folder):
    with pytest.raises(InputError, match=r"trainer\.compression=bf16 needs GPUs with NCCL; on CPUs"):
        train_run(arrange_mesh(2, 1), toy, folder / "refused", compression="bf16", **SINGLE)
    return [
        train_run(arrange_mesh(*shape), toy, folder / str(number), **SINGLE, **options)
        for number, (shape, options) in enumerate(LOWER)
    ]


def test_lower_precision_is_nearly_the_same_run(toy, tmp_path):
    exact = train_run(Mesh.single(), toy, tmp_path / "exact", **SINGLE)
    for found, case in zip(run_on_ranks(2, train_in_lower_precision, toy, tmp_path)[0], LOWER, strict=True):
        assert found[0][-1] == pytest.approx(exact[0][-1], rel=1e-2), case
        # Losses may differ as little as by rounding, 1e-7. Weights differ by 1e-2, without the option by 2e-7.
        moved = [np.abs(found[1][name] - weights).max() / np.abs(weights).max() for name, weights in exact[1].items()]
        assert max(moved) > 1e-4, case


# Caches of other ranks.


def reads_on_rank(rank, toy, folder, budgets):
    """The samples that a rank reads; it counts its peer as faster than the archive, whatever a machine measures."""
    options, rates = {"count": 40, "epochs": 6, "spec": SPECS["mlp"]}, {"archive": 1.0, "peer": 2.0}
    with patch.object(ReadRates, "rate", lambda self, storage: rates[storage]):
        return [
            train_run(arrange_mesh(2, 1), toy, folder / str(number), budget=budget, **options)[3]
            for number, budget in enumerate(budgets)
        ]


def test_ranks_read_samples_from_each_others_caches(toy, tmp_path):
    """Each rank caches two thirds of its samples; without the other's cache it would read the rest in each epoch.

    Each reads a few samples ahead, so that it waits in each step for the other one and for what that caches.
    """
    size = Tile(toy, Mesh.single().domain(GRID), 2, torch.float64).nbytes
    peers = Budget(staging_bytes=24 * size, memory_bytes=40 * size, threads=2)
    together, lonely = np.sum(run_on_ranks(2, reads_on_rank, toy, tmp_path, [peers, replace(peers, memory_bytes=0)]), 0)
    assert lonely >= 6 * 40
    assert together < lonely / 2
