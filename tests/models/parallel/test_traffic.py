"""Bytes that a training step of the U-Net sends, against the minimum, and keeps, against the share of a rank."""

import math
from pathlib import Path

import pytest
import torch
from ranks import run_on_ranks

from benchmarks.common import HALF_DEGREE
from benchmarks.mesh.traffic import count_traffic, minimal_traffic, traffic_table
from benchmarks.mesh.training_step import TrainingStep, peak_allocation, saved_bytes, simulated_rank
from data_pipeline.grid import Grid
from models.layers.norms import FieldNorm
from models.parallel.mesh import Mesh, arrange_mesh

DOCUMENT = Path(__file__).parents[3] / "docs" / "scaling.md"
SHAPES = {
    "odd rows": Grid.regular(25, 34),
    "half shifted": Grid(tuple(85.5 - 9.0 * k for k in range(20)), tuple(9.0 * k for k in range(40))),
    "area": Grid(tuple(60.0 - 2.5 * k for k in range(25)), tuple(2.5 * k - 10 for k in range(30))),
}
MESHES = [(2, 2, 1), (1, 4, 1), (1, 2, 2)]
"""Data, bands, sectors: the first is two samples, each in two bands."""
CHANNEL_MESHES = [(1, 2, 1, 2), (1, 1, 2, 2), (2, 1, 1, 2)]
"""Data, bands, sectors, channels."""


def as_shipped(step):
    """The norms of the shipped U-Net depend on one cell."""
    return step


def with_field_norm(step):
    """The same step with norms over the globe, for each sample."""
    for block in [*step.model.trunk.encoder, *step.model.trunk.decoder]:
        block.path[1] = FieldNorm(block.path[0].out, block.path[0].out_channels)
    return step


def all_counts(rank, meshes, variants):
    found = {}
    for shape in meshes:
        mesh = arrange_mesh(*shape)
        for name, change, grid in variants:
            step = change(TrainingStep(mesh, grid))
            found[shape, name] = dict(count_traffic(step, step.model).sent)
    return found


def found_and_least(meshes, variants):
    """Bytes sent and minimum bytes of each rank, by mesh and variant."""
    by_rank = run_on_ranks(math.prod(meshes[0]), all_counts, meshes, variants)
    found = {key: [rank[key] for rank in by_rank] for key in by_rank[0]}
    expected = {}
    for name, change, grid in variants:
        one = change(TrainingStep(Mesh.single(), grid))
        for mesh in meshes:
            expected[mesh, name] = minimal_traffic(one, one.model, grid, *mesh[1:]) * mesh[0]
    return found, expected


def test_a_training_step_sends_only_the_bytes_that_are_needed():
    variants = [(name, as_shipped, grid) for name, grid in SHAPES.items()]
    found, expected = found_and_least(MESHES, [*variants, ("field norm", with_field_norm, SHAPES["odd rows"])])
    assert found == expected
    found, expected = found_and_least(CHANNEL_MESHES, [("area", as_shipped, SHAPES["area"])])
    assert found == expected


@pytest.mark.long
def test_the_table_in_the_docs_equals_the_counts():
    found, expected = found_and_least(
        [*MESHES, (1, 1, 4), (1, 1, 1, 4), (1, 2, 1, 2)], [("half a degree", as_shipped, HALF_DEGREE)]
    )
    assert found == expected
    sent = {str(list(mesh)): max(ranks, key=lambda rank: sum(rank.values())) for (mesh, _), ranks in found.items()}
    least = {str(list(mesh)): max(ranks, key=lambda rank: sum(rank.values())) for (mesh, _), ranks in expected.items()}
    table = traffic_table(sent, least)
    assert table in DOCUMENT.read_text(), f"docs/scaling.md should have\n{table}"


MORE = 1.1
"""Allowed ratio of a rank's memory to its share, with halo and uneven tiles."""


def step_memory(grid, rank=0, bands=1, sectors=1):
    """Bytes of activations: kept for the backward pass, and the maximum during a whole step."""
    with simulated_rank(rank, bands, sectors) as mesh:
        step = TrainingStep(mesh, grid)
        step().backward()  # allocates the gradients of the parameters
        return saved_bytes(step), peak_allocation(lambda: step().backward())


def test_memory_is_counted_to_the_byte():
    x = torch.rand(1000, requires_grad=True)
    assert saved_bytes(lambda: (x.exp() * 2).sin()) == 4000 + 4000, "the result of exp and the argument of sin"
    assert peak_allocation(lambda: torch.rand(1000).exp().sum()) == 4000 + 4000, (
        "the argument of exp is gone when the sum is there"
    )
    assert peak_allocation(lambda: [torch.rand(1000).sum() for _ in range(3)]) == 4000 + 3 * 4


@pytest.fixture(scope="module")
def whole():
    return step_memory(Grid.regular(181, 360))


@pytest.mark.parametrize(("bands", "sectors"), [(3, 1), (2, 2)])
def test_every_rank_needs_its_share_of_memory(bands, sectors, whole):
    ranks = bands * sectors
    for rank in (0, ranks // 2):
        for found, of_one in zip(step_memory(Grid.regular(181, 360), rank, bands, sectors), whole, strict=True):
            assert of_one / MORE / ranks < found < of_one * MORE / ranks


@pytest.mark.long
def test_four_ranks_need_a_quarter_of_the_memory_each_at_half_a_degree():
    grid = Grid.regular(361, 720)
    for found, of_one in zip(step_memory(grid, 1, 4, 1), step_memory(grid), strict=True):
        assert of_one / 1.02 / 4 < found < of_one * 1.02 / 4
