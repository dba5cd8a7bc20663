"""A training step of the U-Net as in `deepweather train`, without reading samples, and the memory that it takes.

The step runs on one process, on the ranks of a process group, or on one process that simulates one rank of many. A
simulated rank sends nothing and receives uninitialised memory, so its time is the time of a rank that never waits.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.autograd.graph import saved_tensors_hooks
from torch.nn.parallel import DistributedDataParallel
from torch.profiler import ProfilerActivity, profile
from torch.testing._internal.distributed.fake_pg import FakeStore

from benchmarks.common import HALF_DEGREE
from benchmarks.step_memory import random_batch
from data_pipeline.grid import Grid
from data_pipeline.task import Task
from models.corrector import Corrector
from models.parallel.mesh import Mesh, arrange_mesh
from training.run.trainer_options import TrainerOptions
from training.step.correction_module import CorrectionModule

UNET_SPEC = {"_target_": "models.networks.unet.UNet"}
UNET_TASK = Task("t2m", ["sst", "tcw", "tcwv", "cp", "msl", "tcc", "10u", "10v", "2t", "tp", "skt"], ["2t"], [48])


class TrainingStep(nn.Module):
    """The shipped U-Net with a sample of random numbers; the output is the loss to be differentiated."""

    def __init__(self, mesh: Mesh, grid: Grid = HALF_DEGREE) -> None:
        super().__init__()
        torch.manual_seed(0)
        corrector = Corrector(UNET_TASK, mesh.domain(grid), UNET_SPEC, torch.zeros(3, *grid.shape))
        self.batch = random_batch(corrector)
        self.module = CorrectionModule(corrector, TrainerOptions(), mesh=mesh)

    @property
    def model(self) -> nn.Module:
        """The network itself."""
        return self.module.corrector.model

    def forward(self) -> Tensor:
        """Return this rank's part of the loss."""
        return self.module.training_step(self.batch, 0)["loss"]

    def shared(self) -> nn.Module:
        """Return this step with gradients averaged over all ranks, or the step itself on a single rank."""
        if not self.module.mesh.everyone:
            return self
        return DistributedDataParallel(self, init_sync=False, forward_sync_buffers=False, gradient_as_bucket_view=True)


@contextmanager
def simulated_rank(rank: int, bands: int, sectors: int, channels: int = 1) -> Iterator[Mesh]:
    """Yield the mesh of one rank while the other ranks do not exist."""
    ranks = bands * sectors * channels
    if ranks == 1:
        yield Mesh.single()
        return
    dist.init_process_group("fake", rank=rank, world_size=ranks, store=FakeStore())
    try:
        yield arrange_mesh(1, bands, sectors, channels)
    finally:
        dist.destroy_process_group()


def peak_allocation(work: Callable[[], object]) -> int:
    """Return the largest rise, in bytes, of the memory allocated by PyTorch while `work` runs."""
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True, acc_events=False) as recorded:
        work()
    events = [event for event in recorded.profiler.kineto_results.events() if event.name() == "[memory]"]
    allocated = largest = 0
    for event in sorted(events, key=lambda event: event.start_ns()):
        allocated += event.nbytes()
        largest = max(largest, allocated)
    return largest


def saved_bytes(forward: Callable[[], object]) -> int:
    """Return the bytes that `forward` keeps for the backward pass; memory shared by tensors counts once."""
    saved: dict[int, int] = {}

    def save(x: Tensor) -> Tensor:
        storage = x.untyped_storage()
        saved[storage.data_ptr()] = storage.nbytes()
        return x

    with saved_tensors_hooks(save, lambda x: x):
        result = forward()
    del result
    return sum(saved.values())
