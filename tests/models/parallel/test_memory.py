"""Memory of a U-Net's training step on one rank, against its share of the memory of one process."""

import pytest
import torch

from benchmarks.mesh.training_step import TrainingStep, peak_allocation, saved_bytes, simulated_rank
from data_pipeline.grid import Grid

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
