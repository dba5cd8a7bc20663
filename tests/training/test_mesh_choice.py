"""The mesh that `trainer.mesh=auto` chooses, and the estimates that it chooses by."""

import math
from functools import partial

import pytest
import torch
from ranks import run_on_ranks
from training_parts import GRID, NET, TASK, Tile

from data_pipeline.common.errors import InputError
from data_pipeline.grid import Grid
from models.corrector import build_model
from models.parallel.domain import Domain
from models.parallel.exchange import count_sent_bytes
from models.parallel.mesh import arrange_mesh
from models.parallel.mesh_shape import mesh_shape
from training.run.trainer_options import TrainerOptions
from training.step.mesh_choice import (
    MACHINES,
    MachineRates,
    MeshEstimate,
    choose_mesh,
    estimate_step,
    first_shape,
    possible_meshes,
    settle_mesh,
)

BUILD = partial(build_model, NET | {"dropout": 0.0}, TASK)
COUNTING = MachineRates(operations=1.0, launch=0.0, latency=0.0, bandwidth=1.0)
"""With these rates, the seconds of an estimate are its operations and bytes."""


SHAPES = [(1, 2, 2, 1), (1, 2, 1, 2)]


def bytes_on_rank(rank, toy):
    """The bytes that a rank sends in a forward pass of two samples, for each mesh, and the bytes of all weights."""
    found = []
    for shape in SHAPES:
        domain = arrange_mesh(*shape).domain(GRID)
        model, data = BUILD(domain).eval(), Tile(toy, domain, 2, torch.float32)
        batch = torch.utils.data.default_collate([data[0], data[1]])
        with count_sent_bytes() as sent, torch.no_grad():
            model(type(data[0])(*batch))
        found.append((sum(sent.values()), sum(value.nbytes for value in model.parameters())))
    return found


def test_the_bytes_of_an_estimate_are_those_that_a_rank_sends(toy):
    for shape, (forward, weights) in zip(SHAPES, run_on_ranks(4, bytes_on_rank, toy)[2], strict=True):
        assert estimate_step(BUILD, TASK, GRID, shape, 2, 3, COUNTING).sent == 2 * forward + weights, shape


def test_the_operations_of_an_estimate_are_those_of_the_convolutions():
    expected = 0

    def count(layer, inputs, output):
        nonlocal expected
        expected += 2 * output.shape[2] * output.shape[3] * layer.weight.numel()

    model = BUILD(GRID)
    for layer in model.modules():
        if isinstance(layer, torch.nn.Conv2d):
            layer.register_forward_hook(count)
    with torch.no_grad():
        model.maps(torch.zeros(1, model.features.count, *GRID.shape))
    found = estimate_step(BUILD, TASK, GRID, (1, 1, 1, 1), 4, 3, COUNTING)
    # Besides, a few operations of each cell: the seasonal cycle of the error map, the change of resolution.
    assert 3 * 4 * expected <= found.operations <= 1.03 * 3 * 4 * expected
    assert found.compute == found.operations
    assert (found.messages, found.sent) == (0, 0)


def test_operators_are_those_that_the_profiler_sees(toy):
    """The forward pass counts a third of the operators of a step; PyTorch's profiler counts calls as they run."""
    data = Tile(toy, Domain.of(GRID), 2, torch.float32)
    batch = type(data[0])(*torch.utils.data.default_collate([data[0], data[1]]))
    model = BUILD(GRID).eval()
    with torch.no_grad(), torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as recorded:
        model(batch)
    outer = [event for event in recorded.events() if event.cpu_parent is None and event.name.startswith("aten::")]
    found = estimate_step(BUILD, TASK, GRID, (1, 1, 1, 1), 2, 3, COUNTING)
    assert 3 * len(outer) <= found.operators <= 3 * len(recorded.events())


def test_an_estimate_adds_operations_operators_messages_and_bytes():
    rates = MachineRates(operations=1e10, launch=1e-5, latency=1e-3, bandwidth=1e8)
    found = MeshEstimate((1, 2, 1, 1), 2 * 10**10, 300, 40, 10**7, rates)
    assert str(found) == "[1,2] 2.14 s a step (0.14 s of it for 40 messages)"


def test_all_meshes_of_some_ranks_are_possible():
    found = list(possible_meshes(12, 4))
    assert len(found) == len(set(found))
    assert all(math.prod(shape) == 12 and shape[0] <= 4 for shape in found)
    whole = [(a, b, c, d) for a in (1, 2, 3, 4) for b in range(1, 13) for c in range(1, 13) for d in range(1, 13)]
    assert set(found) == {shape for shape in whole if math.prod(shape) == 12}


def test_samples_are_shared_before_tiles_which_more_ranks_share():
    shape, why = choose_mesh(BUILD, TASK, GRID, 4, 8, 3, MACHINES["cpu"])
    assert shape == (4, 1, 1, 1)
    assert why.startswith("trainer.mesh=auto, best of ")
    assert " estimates for 4 ranks: [4,1] " in why
    free = MachineRates(operations=1e3, launch=0.0, latency=0.0, bandwidth=1e30)
    shape, _ = choose_mesh(BUILD, TASK, Grid.regular(33, 64), 4, 2, 3, free)
    assert shape[0] < 4
    assert math.prod(shape) == 4


def test_a_model_of_whole_fields_shares_samples():
    spec = {"_target_": "torch.nn.Conv2d"}

    def build(domain):
        if domain.ranks > 1:
            raise InputError(f"{spec} works on whole fields")
        return BUILD(domain)

    assert choose_mesh(build, TASK, GRID, 4, 8, 3, MACHINES["cpu"])[0] == (4, 1, 1, 1)
    with pytest.raises(InputError, match=r"trainer.mesh=auto finds no mesh of 4 ranks .* trainer.batch_size=2; start"):
        choose_mesh(build, TASK, GRID, 4, 2, 3, MACHINES["cpu"])


def test_a_model_that_reads_values_has_no_estimate():
    class Reader(torch.nn.Module):
        def forward(self, sample):
            return sample.ensemble * float(sample.ensemble.mean())

    assert estimate_step(lambda domain: Reader(), TASK, GRID, (1, 1, 1, 1), 1, 3, COUNTING) is None


def settle_on_rank(rank):
    """The final mesh and options, and a sum over the ranks that share a sample."""
    options = TrainerOptions(mesh="auto", batch_size=2, accelerator="cpu")
    mesh, options = settle_mesh(arrange_mesh(4, 1), options, BUILD, TASK, GRID, 3)
    total = mesh.sum_of_tiles(torch.ones(()))
    return options.mesh, mesh.domain(GRID).tile, float(total), mesh.tiles


def test_ranks_settle_on_the_same_mesh():
    found = run_on_ranks(4, settle_on_rank)
    shapes = {tuple(shape) for shape, *_ in found}
    assert len(shapes) == 1
    (shape,) = shapes
    assert shape[0] == 2
    assert {total for _, _, total, _ in found} == {2.0}
    assert len({str(tile) for _, tile, _, _ in found}) == 2
    assert Domain.of(GRID).ranks == 1


def test_ranks_start_with_the_number_of_processes(monkeypatch):
    options = TrainerOptions(mesh="auto", accelerator="cpu")
    monkeypatch.delenv("WORLD_SIZE", raising=False)
    assert first_shape(options) == [1, 1]
    monkeypatch.setenv("WORLD_SIZE", "6")
    assert first_shape(options) == [6, 1]
    assert first_shape(TrainerOptions(mesh=[1, 2])) == [1, 2]


def test_a_job_needs_numbers():
    for option in ("mesh", "trainer.mesh"):
        with pytest.raises(InputError, match=rf"^{option}=auto chooses a mesh for the running processes .* write"):
            mesh_shape("auto", option)
