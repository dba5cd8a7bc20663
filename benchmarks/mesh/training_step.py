"""A training step of the U-Net just as `deepweather train` takes it, without the reading of samples.

On one process, on the ranks of a process group, or on one process that plays one rank of many: then nothing is sent,
what is received is whatever the memory held, and the time is that of a rank whom nobody keeps waiting.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel
from torch.testing._internal.distributed.fake_pg import FakeStore

from data_pipeline.grid import Grid
from data_pipeline.sample import Sample
from data_pipeline.task import Task
from models.corrector import Corrector
from models.parallel.domain import Domain
from models.parallel.mesh import Mesh, arranged
from training.correction_module import CorrectionModule
from training.trainer_options import TrainerOptions

GRID = Grid.regular(361, 720)
TASK = Task("t2m", ["sst", "tcw", "tcwv", "cp", "msl", "tcc", "10u", "10v", "2t", "tp", "skt"], ["2t"], [48])


class Step(nn.Module):
    """The shipped U-Net with a sample of random numbers; its output is the loss that is differentiated."""

    def __init__(self, mesh: Mesh, grid: Grid = GRID) -> None:
        super().__init__()
        torch.manual_seed(0)
        domain = mesh.domain(grid)
        self.batch = sample(domain)
        corrector = Corrector(TASK, domain, {"_target_": "models.networks.unet.UNet"}, torch.zeros(3, *grid.shape))
        self.module = CorrectionModule(corrector, TrainerOptions(), mesh=mesh)

    @property
    def model(self) -> nn.Module:
        """The network itself."""
        return self.module.corrector.model

    def forward(self) -> Tensor:
        """Return the own share of the loss."""
        return self.module.training_step(self.batch, 0)["loss"]

    def shared(self) -> nn.Module:
        """Return this step with gradients that are averaged over all ranks, where there are several."""
        if not self.module.mesh.everyone:
            return self
        return DistributedDataParallel(self, init_sync=False, forward_sync_buffers=False, gradient_as_bucket_view=True)


def sample(domain: Domain) -> Sample:
    """Return the own tile of a forecast of random numbers: mean and spread of 11 fields."""
    C, (H, W) = len(TASK.inputs), domain.own_shape
    return Sample(
        ensemble=torch.randn(1, 2, C, H, W),
        mask=torch.ones(1, C, H, W, dtype=torch.bool),
        static=torch.randn(1, 3, H, W),
        target=torch.randn(1, 1, H, W),
        init_time=torch.tensor([1_000_000_000]),
        lead_time=torch.tensor([48]),
    )


@contextmanager
def playing(rank: int, bands: int, sectors: int) -> Iterator[Mesh]:
    """Play one rank of a mesh; the others do not exist."""
    if bands * sectors == 1:
        yield Mesh.alone()
        return
    dist.init_process_group("fake", rank=rank, world_size=bands * sectors, store=FakeStore())
    try:
        yield arranged(1, bands, sectors)
    finally:
        dist.destroy_process_group()
