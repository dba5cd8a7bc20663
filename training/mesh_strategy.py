"""MeshStrategy: Lightning's data-parallel training over all ranks of a mesh.

A rank's loss is its share of the loss of all, times their number. So the mean of the gradients over all ranks, which
is what stock DDP and FSDP take, is the gradient of the whole, whether ranks differ in samples or in tiles.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, cast

import torch
import torch.distributed as dist
from lightning_fabric.plugins.environments import ClusterEnvironment
from pytorch_lightning.strategies import DDPStrategy
from torch import Tensor, nn
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import FSDPModule, fully_shard
from torch.distributed.tensor import DTensor, distribute_tensor
from torch.nn.parallel import DistributedDataParallel
from torch.optim import Optimizer
from torch.utils._pytree import tree_map

from data_pipeline.common.errors import InputError
from models.parallel.exchange import process_group
from models.parallel.mesh import Mesh
from training.trainer_options import TrainerOptions

HOOKS: dict[str, Callable] = {"fp16": default_hooks.fp16_compress_hook, "bf16": default_hooks.bf16_compress_hook}
"""How gradients are made smaller on their way, by `trainer.compression`."""


class MeshStrategy(DDPStrategy):
    """DDP over all ranks of a mesh that have met already; or, if the schedule says `sharded`, FSDP.

    What a checkpoint holds is whole, whatever the mesh and the sharding: a run goes on from it on any other mesh.
    """

    def __init__(self, mesh: Mesh, schedule: TrainerOptions) -> None:
        super().__init__(
            cluster_environment=Ranks(mesh),
            # Ranks begin with the same weights; what they keep besides is the same, or that of their own tile.
            init_sync=False,
            forward_sync_buffers=False,
            gradient_as_bucket_view=True,
        )
        self._mesh, self._sharded, self._hook = mesh, schedule.sharded, HOOKS.get(schedule.compression)

    def setup_environment(self) -> None:
        """Let all ranks of each group meet once on their device: NCCL wants all of them at a group's first message."""
        super().setup_environment()
        for group in filter(None, (self._mesh.everyone, self._mesh.spatial, self._mesh.alongside)):
            dist.all_reduce(torch.zeros(1, device=self.root_device), group=process_group(group))

    def _setup_model(self, model: nn.Module) -> Any:
        if not self._sharded:
            return super()._setup_model(model)
        shard(cast(Any, model).corrector.model, self.root_device.type, self.world_size)
        return model

    def _register_ddp_hooks(self) -> None:
        if self._hook is HOOKS["bf16"] and self.root_device.type == "cpu":
            raise InputError("trainer.compression=bf16 needs GPUs with NCCL; on CPUs gradients travel as fp16 or whole")
        if self._hook is not None:
            cast(DistributedDataParallel, self.model).register_comm_hook(None, self._hook)

    def lightning_module_state_dict(self) -> dict[str, Any]:
        """Return all weights, whole."""
        return cast(dict[str, Any], whole(super().lightning_module_state_dict()))

    def optimizer_state(self, optimizer: Optimizer) -> dict[str, Tensor]:
        """Return the state of the optimizer, whole."""
        return cast(dict[str, Tensor], whole(super().optimizer_state(optimizer)))

    def load_optimizer_state_dict(self, checkpoint: Mapping[str, Any]) -> None:
        """Take the state of the optimizers from a checkpoint; what is sharded takes its part."""
        for optimizer, state in zip(self.optimizers, checkpoint["optimizer_states"], strict=True):
            parameters = [parameter for group in optimizer.param_groups for parameter in group["params"]]
            parts = {
                number: {name: local_part(value, parameters[number]) for name, value in entry.items()}
                for number, entry in state["state"].items()
            }
            optimizer.load_state_dict({**state, "state": parts})


class Ranks(ClusterEnvironment):
    """What Lightning asks about ranks, answered from a mesh."""

    def __init__(self, mesh: Mesh) -> None:
        super().__init__()
        self._mesh = mesh

    @property
    def creates_processes_externally(self) -> bool:
        """They are all there."""
        return True

    @property
    def main_address(self) -> str:
        """Not asked: they have met."""
        return ""

    @property
    def main_port(self) -> int:
        """Not asked: they have met."""
        return 0

    @staticmethod
    def detect() -> bool:
        """Not found by looking: it is given."""
        return False

    def world_size(self) -> int:
        """All ranks."""
        return self._mesh.ranks

    def set_world_size(self, size: int) -> None:
        """Known."""

    def global_rank(self) -> int:
        """Among all."""
        return self._mesh.rank

    def set_global_rank(self, rank: int) -> None:
        """Known."""

    def local_rank(self) -> int:
        """Among those on this machine."""
        return self._mesh.local_rank

    def node_rank(self) -> int:
        """Which machine."""
        return self._mesh.rank // self._mesh.local_ranks


def mesh_trainer_flags(mesh: Mesh, schedule: TrainerOptions) -> dict[str, Any]:
    """Return what Lightning's Trainer must know of a mesh."""
    if mesh.ranks == 1:
        return {"devices": 1}
    return {
        "strategy": MeshStrategy(mesh, schedule),
        "devices": mesh.local_ranks,
        "num_nodes": -(-mesh.ranks // mesh.local_ranks),
        # Samples are dealt by the stream, and tiles by the mesh.
        "use_distributed_sampler": False,
    }


def shard(model: nn.Module, device: str, ranks: int) -> None:
    """Let each rank keep a part of every weight of `model`; what is used together is put together when it is used."""
    everyone = init_device_mesh(device, (ranks,))
    # Inner lists come first: a block whose parts are already sharded keeps only the rest of its weights.
    for module in reversed([*model.modules()]):
        if isinstance(module, nn.ModuleList):
            for block in module:
                if any(True for _ in block.parameters()):
                    fully_shard(block, mesh=everyone)
    fully_shard(model, mesh=everyone)


def reshard(model: nn.Module) -> None:
    """Let go of weights that have been put together: those of `model` are now what each rank keeps."""
    for module in model.modules():
        if isinstance(module, FSDPModule):
            module.reshard()


def whole(state: Any) -> Any:
    """Return a nested state with all its sharded tensors put together; all ranks must ask."""
    return tree_map(lambda value: value.full_tensor().cpu() if isinstance(value, DTensor) else value, state)


def local_part(value: Any, parameter: Tensor) -> Any:
    """Return the part of a whole tensor that belongs to a parameter's part; anything else as it is."""
    if isinstance(parameter, DTensor) and isinstance(value, Tensor) and value.shape == parameter.shape:
        return distribute_tensor(value.to(parameter.device), parameter.device_mesh, parameter.placements)
    return value
