"""Device on which a rank computes: its choice, its settings, its cost, and copies of batches to it."""

from __future__ import annotations

from functools import lru_cache

import torch
import torch.distributed as dist

from data_pipeline.common.checks import check_choice
from data_pipeline.common.cost_meter import CostMeter
from data_pipeline.common.errors import InputError
from data_pipeline.sample import Sample
from models.parallel.exchange import process_group
from models.parallel.mesh import Mesh
from models.parallel.single_process import DEVICES, Processes


def choose_device(option: object, ranks: Processes) -> torch.device:
    """Return the device of this rank for the option `device`, and make it PyTorch's current one.

    Each rank has a GPU of its own. `auto` means GPUs if every machine has one for each of its ranks. All ranks call
    this.
    """
    check_choice("device", option, DEVICES)
    if option == "cpu":
        return torch.device("cpu")
    found = torch.cuda.device_count() if torch.cuda.is_available() else 0
    lacking = None if found >= ranks.local_ranks else (found, ranks.local_ranks)
    lacking = next(filter(None, ranks.broadcast(ranks.gather(lacking))), None)
    if lacking is None:
        device = torch.device("cuda", ranks.local_rank)
        prepare_gpu(device)
        if isinstance(ranks, Mesh):
            open_connections(ranks, device)
        return device
    if option == "auto":
        return torch.device("cpu")
    if lacking[0] == 0:
        raise InputError("device=gpu, but PyTorch finds no usable GPU; set device=cpu or device=auto")
    raise InputError(
        f"device=gpu needs a GPU for each rank, and a machine has {lacking[0]} for {lacking[1]} ranks; set a smaller "
        "mesh or device=cpu"
    )


def prepare_gpu(device: torch.device) -> None:
    """Make `device` the current GPU of this process, for inference in float32.

    cuDNN does not measure its algorithms: this took 7 to 28 s for each shape of a batch, longer than a forecast takes.
    Its default for convolutions, TF32, would change forecasts in the third digit.
    """
    torch.cuda.set_device(device)
    torch.backends.cudnn.benchmark = False
    torch.backends.cudnn.allow_tf32 = False


def open_connections(mesh: Mesh, device: torch.device) -> None:
    """Send one message in each group of ranks: NCCL needs all ranks of a group at its first message."""
    axis = mesh.channel_axis
    groups = [mesh.everyone, mesh.spatial, mesh.alongside] + ([axis.group, axis.across] if axis else [])
    for group in dict.fromkeys(filter(None, groups)):
        dist.all_reduce(torch.zeros(1, device=device), group=process_group(group))


def copy_batch(batch: Sample, device: torch.device | str) -> Sample:
    """Return a batch on `device`; a GPU copies it while it finishes earlier work.

    The copy runs in a separate stream. Kernels of the current stream wait for it, the host does not. The batch must be
    in pinned memory (`Prefetcher.pin`).
    """
    device = torch.device(device)
    if device.type != "cuda":
        return Sample(*(tensor.to(device, non_blocking=True) for tensor in batch))
    stream, current = _copy_stream(device), torch.cuda.current_stream(device)
    with torch.cuda.stream(stream):
        copied = Sample(*(tensor.to(device, non_blocking=True) for tensor in batch))
    current.wait_stream(stream)
    for tensor in copied:
        # The allocator may reuse this memory only after the kernels that read it.
        tensor.record_stream(current)
    return copied


@lru_cache
def _copy_stream(device: torch.device) -> torch.cuda.Stream:
    return torch.cuda.Stream(device)


def watch_gpu(meter: CostMeter, device: torch.device) -> None:
    """Let `meter` measure the GPU of this process too; does nothing for a CPU."""
    if device.type == "cuda":
        uuid = f"GPU-{getattr(torch.cuda.get_device_properties(device), 'uuid', None)}"
        meter.watch_gpu(uuid, lambda: torch.cuda.max_memory_allocated(device))
