"""MeshStrategy: Lightning's data-parallel training over all ranks of a mesh.

The loss of a rank is its share of the total loss, times the number of ranks. The mean of the gradients over all ranks,
which stock DDP and FSDP compute, is then the gradient of the total loss, whether ranks differ in samples or in tiles.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import nullcontext
from typing import Any, cast

import torch
import torch.distributed as dist
from lightning_fabric.plugins.environments import ClusterEnvironment
from pytorch_lightning.strategies import DDPStrategy
from torch import Tensor, nn
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import FSDPModule, MixedPrecisionPolicy, fully_shard
from torch.distributed.tensor import DTensor, distribute_tensor
from torch.nn.parallel import DistributedDataParallel
from torch.optim import Optimizer
from torch.utils._pytree import tree_map

from data_pipeline.common.errors import InputError
from models.device import open_connections
from models.parallel.exchange import process_group
from models.parallel.mesh import Mesh
from training.run.trainer_options import TrainerOptions

COMPRESSION_HOOKS: dict[str, Callable] = {
    "fp16": default_hooks.fp16_compress_hook,
    "bf16": default_hooks.bf16_compress_hook,
}
"""Hooks that compress gradients before they are exchanged, by `trainer.compression`."""


class MeshStrategy(DDPStrategy):
    """DDP over all ranks of a mesh, whose process group exists already; FSDP if `trainer.sharded` is true.

    A checkpoint holds full tensors, whatever the mesh and the sharding, so that a run can be resumed on another mesh.
    """

    def __init__(self, mesh: Mesh, schedule: TrainerOptions) -> None:
        super().__init__(
            cluster_environment=MeshEnvironment(mesh),
            # All ranks start with the same weights. Their buffers are the same, or belong to their own tile.
            init_sync=False,
            forward_sync_buffers=False,
            gradient_as_bucket_view=True,
        )
        self._mesh, self._options, self._hook = mesh, schedule, COMPRESSION_HOOKS.get(schedule.compression)
        self._local_steps = schedule.local_steps > 1

    def setup_environment(self) -> None:
        """Open the connections of all groups of ranks."""
        super().setup_environment()
        open_connections(self._mesh, self.root_device)

    def _setup_model(self, model: nn.Module) -> Any:
        if not self._options.sharded:
            devices = self.determine_ddp_device_ids()
            # As in Lightning's strategy, because of https://pytorch.org/docs/stable/notes/cuda.html#id5.
            with nullcontext() if devices is None else torch.cuda.stream(torch.cuda.Stream()):
                return FixedBuckets(model, device_ids=devices, **self._ddp_kwargs)
        options = self._options
        group, policy = options.shard_ranks or self.world_size, shard_precision(options.precision)
        shard(cast(Any, model).corrector.model, self.root_device.type, self.world_size, group, policy)
        return model

    def _register_ddp_hooks(self) -> None:
        if self._hook is COMPRESSION_HOOKS["bf16"] and self.root_device.type == "cpu":
            raise InputError("trainer.compression=bf16 needs GPUs with NCCL; on CPUs set compression=fp16 or none")
        if self._hook is not None:
            cast(DistributedDataParallel, self.model).register_comm_hook(None, self._hook)
        if self._local_steps:
            cast(DistributedDataParallel, self.model).register_comm_hook(
                # PyTorch refuses a hook whose annotations are strings.
                None,
                lambda state, bucket: self.mean_of_step(bucket),
            )

    def mean_of_step(self, bucket: dist.GradBucket) -> torch.futures.Future[Tensor]:
        """Return the mean of gradients over all ranks; in a local step, over the ranks that share the samples."""
        local = cast(Any, self.lightning_module).local
        group, ranks = (self._mesh.spatial, self._mesh.tiles) if local else (self._mesh.everyone, self._mesh.ranks)
        gradients = bucket.buffer()
        if not group:
            alone: torch.futures.Future[Tensor] = torch.futures.Future()
            alone.set_result(gradients)
            return alone
        sent = dist.all_reduce(gradients.div_(ranks), group=process_group(group), async_op=True)
        return cast(torch.futures.Future[Tensor], sent.get_future().then(lambda future: future.value()[0]))

    def lightning_module_state_dict(self) -> dict[str, Any]:
        """Return all weights as full tensors."""
        return cast(dict[str, Any], gather_full(super().lightning_module_state_dict()))

    def optimizer_state(self, optimizer: Optimizer) -> dict[str, Tensor]:
        """Return the state of the optimizer as full tensors."""
        return cast(dict[str, Tensor], gather_full(super().optimizer_state(optimizer)))

    def load_optimizer_state_dict(self, checkpoint: Mapping[str, Any]) -> None:
        """Restore the state of the optimizers from a checkpoint; a sharded parameter gets its local part."""
        for optimizer, state in zip(self.optimizers, checkpoint["optimizer_states"], strict=True):
            parameters = [parameter for group in optimizer.param_groups for parameter in group["params"]]
            parts = {
                number: {name: local_part(value, parameters[number]) for name, value in entry.items()}
                for number, entry in state["state"].items()
            }
            optimizer.load_state_dict({**state, "state": parts})


class FixedBuckets(DistributedDataParallel):
    """DDP that sends the same gradients together in every step, so that a resumed run adds them in the same order.

    Stock DDP sends the gradients of the first step in one bucket, and from then on in the order in which they came. The
    order of a sum over more than two ranks depends on a gradient's position in its bucket, so the first step after a
    restart would differ by rounding. The methods of the reducer are private: a test fails if they are gone.
    """

    def __init__(self, module: nn.Module, **options: Any) -> None:
        super().__init__(module, **options)
        self.reducer._push_all_rebuilt_params()
        self.reducer._rebuild_buckets()

    def _build_params_for_reducer(self) -> tuple[list[nn.Parameter], list[bool]]:
        # Last layers first, in the order of their gradients: a bucket is sent while earlier layers are differentiated.
        parameters, sparse = super()._build_params_for_reducer()
        return parameters[::-1], sparse[::-1]


class MeshEnvironment(ClusterEnvironment):
    """The cluster environment of Lightning, from a mesh whose processes run already."""

    def __init__(self, mesh: Mesh) -> None:
        super().__init__()
        self._mesh = mesh

    @property
    def creates_processes_externally(self) -> bool:
        """True: all processes are running."""
        return True

    @property
    def main_address(self) -> str:
        """Unused: the process group exists."""
        return ""

    @property
    def main_port(self) -> int:
        """Unused: the process group exists."""
        return 0

    @staticmethod
    def detect() -> bool:
        """False: the environment is passed explicitly."""
        return False

    def world_size(self) -> int:
        """Number of all ranks."""
        return self._mesh.ranks

    def set_world_size(self, size: int) -> None:
        """Do nothing: the mesh sets it."""

    def global_rank(self) -> int:
        """Rank among all ranks."""
        return self._mesh.rank

    def set_global_rank(self, rank: int) -> None:
        """Do nothing: the mesh sets it."""

    def local_rank(self) -> int:
        """Rank among the ranks of this machine."""
        return self._mesh.local_rank

    def node_rank(self) -> int:
        """Index of this machine."""
        return self._mesh.rank // self._mesh.local_ranks


def mesh_trainer_flags(mesh: Mesh, schedule: TrainerOptions) -> dict[str, Any]:
    """Return the flags of Lightning's Trainer for a mesh."""
    if schedule.shard_ranks is not None and mesh.ranks % schedule.shard_ranks:
        raise InputError(
            f"trainer.shard_ranks={schedule.shard_ranks} must divide the {mesh.ranks} ranks of trainer.mesh, because "
            "each group of so many ranks holds all weights once; choose a divisor, or leave it out"
        )
    if mesh.ranks == 1:
        return {"devices": 1}
    return {
        "strategy": MeshStrategy(mesh, schedule),
        "devices": mesh.local_ranks,
        "num_nodes": -(-mesh.ranks // mesh.local_ranks),
        # `SampleOrder` distributes the samples, and the mesh the tiles.
        "use_distributed_sampler": False,
    }


def shard_precision(precision: str) -> MixedPrecisionPolicy:
    """Return the policy of sharded weights: with `bf16-mixed` they are gathered in bfloat16, half of the bytes.

    Each rank's part, the sums of gradients and the optimizer stay in single precision. Inputs are not rounded: samples
    are in physical units.
    """
    if precision != "bf16-mixed":
        return MixedPrecisionPolicy(cast_forward_inputs=False)
    return MixedPrecisionPolicy(torch.bfloat16, torch.float32, cast_forward_inputs=False)


def shard(
    model: nn.Module, device: str, ranks: int, group: int | None = None, policy: MixedPrecisionPolicy | None = None
) -> None:
    """Shard every weight of `model` over all ranks (FSDP); each block gathers its weights when it is used.

    With a smaller `group`, each group of this many neighbouring ranks, such as the GPUs of a node, holds the weights
    once, and the groups add their gradients (HSDP). Weights are then gathered inside a group only.
    """
    policy = policy or shard_precision("32-true")
    if group is not None and group < ranks:
        mesh = init_device_mesh(device, (ranks // group, group), mesh_dim_names=("copies", "parts"))
    else:
        mesh = init_device_mesh(device, (ranks,))
    # Inner lists first: an outer block then shards only the weights that its inner blocks do not have.
    for module in reversed([*model.modules()]):
        if isinstance(module, nn.ModuleList):
            for block in module:
                if any(True for _ in block.parameters()):
                    fully_shard(block, mesh=mesh, mp_policy=policy)
    fully_shard(model, mesh=mesh, mp_policy=policy)


def reshard(model: nn.Module) -> None:
    """Free the gathered weights of `model`, so that its parameters are the local parts again."""
    for module in model.modules():
        if isinstance(module, FSDPModule):
            module.reshard()


def gather_full(state: Any) -> Any:
    """Return a nested state with full tensors in place of sharded ones; all ranks must call this."""
    return tree_map(lambda value: value.full_tensor().cpu() if isinstance(value, DTensor) else value, state)


def local_part(value: Any, parameter: Tensor) -> Any:
    """Return this rank's part of a full tensor, if `parameter` is sharded; any other value as it is."""
    if isinstance(parameter, DTensor) and isinstance(value, Tensor) and value.shape == parameter.shape:
        return distribute_tensor(value.to(parameter.device), parameter.device_mesh, parameter.placements)
    return value
