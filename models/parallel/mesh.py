"""Mesh: the ranks of a run, `data` times `bands` times `sectors` of them.

    with join_mesh(cfg.mesh) as mesh:
        domain = mesh.domain(grid)             # a model built on it works on this rank's tile
        corrector = mesh.run_on_first(make)    # on the first rank; all ranks get the result

Ranks with the same tile of different samples form the data axis; ranks with different tiles of the same samples form
the spatial axes. A run of one process is a mesh of one rank, without communication.
"""

from __future__ import annotations

import atexit
import os
import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from datetime import timedelta
from typing import Any, NoReturn, TypeVar, cast

import numpy as np
import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed import ProcessGroup, Store

from data_pipeline.common.checks import check_positive
from data_pipeline.common.errors import InputError, InterruptedRunError
from data_pipeline.common.threads import processors_of_rank
from data_pipeline.grid import Grid
from models.parallel.domain import ChannelAxis, Domain
from models.parallel.exchange import destroy_groups, process_group
from models.parallel.interface import interface_towards
from models.parallel.launch import launch, watch_launcher
from models.parallel.mesh_shape import mesh_shape
from models.parallel.slurm import refuse_without_srun, variables_from_slurm

Result = TypeVar("Result")

NCCL = {"TORCH_NCCL_ASYNC_ERROR_HANDLING": "2"}
"""Default environment variables of PyTorch's NCCL backend.

Without them, NCCL's watchdog thread ends the process by SIGABRT when a rank is lost: no message, no exit code 3. With 2
it only ends the communication, and the next exchange of this rank raises an error. TORCH_NCCL_BLOCKING_WAIT would
raise too, but every exchange would wait for the GPU.
"""


@dataclass(frozen=True)
class Mesh:
    """This rank among the ranks of a run: it has tile `rank % tiles` of the samples of data rank `rank // tiles`."""

    data: int = 1
    bands: int = 1
    sectors: int = 1
    channels: int = 1
    """Ranks that divide the channels of wide layers; in all other layers each of them has a tile of its own."""
    rank: int = 0
    local_rank: int = 0
    """Number of this rank among the ranks on its machine, and so the number of its GPU."""
    local_ranks: int = 1
    store: Store | None = field(default=None, repr=False)
    """Key-value store that all ranks share."""
    spatial: str = field(default="", repr=False)
    """Name of the group of ranks with other tiles of the same samples; groups of one rank have the name ""."""
    alongside: str = field(default="", repr=False)
    """Name of the group of ranks with the same tile of other samples."""
    everyone: str = field(default="", repr=False)
    """Name of the group of all ranks."""
    channel_axis: ChannelAxis | None = field(default=None, repr=False)

    def __deepcopy__(self, memo: dict[int, Any]) -> Mesh:
        """Return the same object: it is immutable, and its store cannot be copied with a model."""
        return self

    @classmethod
    def single(cls) -> Mesh:
        """Return the mesh of one process."""
        return cls()

    @property
    def tiles(self) -> int:
        """Number of ranks that share a sample."""
        return self.bands * self.channels * self.sectors

    @property
    def ranks(self) -> int:
        """Number of ranks."""
        return self.data * self.tiles

    @property
    def data_rank(self) -> int:
        """Index of this rank's share of the samples."""
        return self.rank // self.tiles

    @property
    def spatial_rank(self) -> int:
        """Index of this rank's tile."""
        return self.rank % self.tiles

    @property
    def first(self) -> bool:
        """Whether this is the rank that prints and writes files."""
        return self.rank == 0

    def domain(self, grid: Grid) -> Domain:
        """Return `grid`, split into the tiles of this mesh."""
        bands = self.bands * self.channels
        return Domain.split(
            grid, bands, self.sectors, self.spatial_rank, self.spatial, self.everyone, self.channel_axis
        )

    def shared(self, grid: Grid) -> Domain:
        """Return `grid`, split into one tile for each rank: for work that is not on single samples."""
        bands = self.data * self.bands * self.channels
        return Domain.split(grid, bands, self.sectors, self.rank, self.everyone, self.everyone)

    def rearrange(self, shape: Sequence[int], timeout_minutes: float) -> Mesh:
        """Return the same ranks as a mesh of another `shape`; all ranks must call this."""
        if self.ranks == 1:
            return self
        made = arrange_mesh(*mesh_shape(shape, "mesh"), timedelta(minutes=timeout_minutes))
        return replace(made, local_rank=self.local_rank, local_ranks=self.local_ranks, store=self.store)

    def sum(self, x: Tensor) -> Tensor:
        """Return the sum of `x` over all ranks, without gradient."""
        return self._sum_over(self.everyone, x)

    def sum_of_tiles(self, x: Tensor) -> Tensor:
        """Return the sum of `x` over the ranks that share this rank's samples, without gradient."""
        return self._sum_over(self.spatial, x)

    def sum_of_data(self, x: Tensor) -> Tensor:
        """Return the sum of `x` over the ranks that have this rank's tile, without gradient."""
        return self._sum_over(self.alongside, x)

    def broadcast(self, value: Any) -> Any:
        """Return the `value` that the first rank passes."""
        if not self.everyone:
            return value
        box = [value]
        dist.broadcast_object_list(box, 0, process_group(self.everyone))
        return box[0]

    def gather(self, value: Any) -> list[Any] | None:
        """Return the values of all ranks in their order on the first one, None on the others."""
        if not self.everyone:
            return [value]
        values: list[Any] | None = [None] * self.ranks if self.first else None
        dist.gather_object(value, values, 0, process_group(self.everyone))
        return values

    def gather_data(self, value: Any) -> list[Any] | None:
        """Return the values of all data ranks in their order on the first rank, None on the others.

        The value of a data rank is the value of its first tile.
        """
        if not self.alongside:
            return [value] if self.first else None
        if self.spatial_rank > 0:
            return None
        values: list[Any] | None = [None] * self.data if self.first else None
        dist.gather_object(value, values, 0, process_group(self.alongside))
        return values

    @staticmethod
    def _sum_over(group: str, x: Tensor) -> Tensor:
        if not group:
            return x
        total = x.detach().clone()
        dist.all_reduce(total, group=process_group(group))
        return total

    def run_on_first(self, function: Callable[[], Result]) -> Result:
        """Call `function` on the first rank; return its result, or raise its InputError, on all ranks."""
        result: Result | None = None
        error: InputError | None = None
        if self.first:
            try:
                result = function()
            except InputError as raised:
                error = raised
        kind, message, result = self.broadcast((type(error), str(error), result))
        if kind is not type(None):
            raise error or kind(message)
        return result  # None only where `function` returns it

    def run_on_all(self, function: Callable[[], Result]) -> Result:
        """Call `function` on every rank and return this rank's result; raise the InputError of any rank on all."""
        result: Any = None
        error: InputError | None = None
        try:
            result = function()
        except InputError as raised:
            error = raised
        errors = self.gather(error) or []
        if found := self.broadcast(next(filter(None, errors), None)):
            raise found
        return result


@contextmanager
def join_mesh(shape: Sequence[int], option: str = "mesh", timeout_minutes: float = 10.0) -> Iterator[Mesh]:
    """Make this process a rank of a mesh of `shape`, which `mesh_shape` reads, inside the block.

    Under torchrun or srun, which have started the ranks, this process connects to them. Otherwise this process starts
    as many copies of itself, waits for them and exits with their code. A rank that ends, or does not answer for
    `timeout_minutes`, ends the run on all ranks.
    """
    data, bands, sectors, channels = mesh_shape(shape, option)
    ranks = data * bands * sectors * channels
    os.environ.update(variables_from_slurm(os.environ))
    # PyTorch counts processors without the quota of a container or of Slurm.
    torch.set_num_threads(min(torch.get_num_threads(), processors_of_rank()))
    if "WORLD_SIZE" not in os.environ:
        if ranks > 1:
            refuse_without_srun(os.environ)
            launch(ranks)
        yield Mesh.single()
        return
    watch_launcher()
    if (started := int(os.environ["WORLD_SIZE"])) != ranks:
        raise InputError(
            f"{option}={list(shape)} is a mesh of {ranks} rank{'s' * (ranks > 1)}, but {started} processes were "
            f"started; make the product of {option} the number of processes (torchrun --nproc-per-node, srun --ntasks)"
        )
    if ranks == 1:
        yield Mesh.single()
        return
    check_positive("timeout_minutes", timeout_minutes)
    with _report_lost_ranks():
        mesh = _meet(data, bands, sectors, channels, timedelta(minutes=timeout_minutes))
        yield mesh
        dist.barrier()
        dist.destroy_process_group()


def started_ranks() -> int | None:
    """Return the number of ranks that torchrun or srun has started; None if this process starts its ranks itself."""
    given = {**os.environ, **variables_from_slurm(os.environ)}
    return int(given["WORLD_SIZE"]) if "WORLD_SIZE" in given else None


def _meet(data: int, bands: int, sectors: int, channels: int, timeout: timedelta) -> Mesh:
    """Connect to the ranks that the environment variables name."""
    rank, ranks = int(os.environ["RANK"]), data * bands * sectors * channels
    for name, value in NCCL.items():
        os.environ.setdefault(name, value)
    local_rank, local_ranks = int(os.environ.get("LOCAL_RANK", rank)), int(os.environ.get("LOCAL_WORLD_SIZE", ranks))
    place = f"{os.environ.get('MASTER_ADDR')}:{os.environ.get('MASTER_PORT')}"
    if local_ranks < ranks and (interface := interface_towards(os.environ.get("MASTER_ADDR", ""))):
        os.environ.setdefault("GLOO_SOCKET_IFNAME", interface)
    try:
        store, _, _ = next(dist.rendezvous("env://", rank, ranks, timeout=timeout))
        # Fits sum tensors of the CPU, also where PyTorch sees GPUs; its default would be NCCL alone there.
        backend = "cpu:gloo,cuda:nccl" if torch.cuda.is_available() else "gloo"
        dist.init_process_group(backend, store=store, rank=rank, world_size=ranks, timeout=timeout)
    except (ValueError, dist.DistError) as error:
        raise InputError(
            f"the {ranks} ranks of the run could not connect at {place} ({_short(error)}); start all of them with the "
            "same MASTER_ADDR, MASTER_PORT and WORLD_SIZE, on machines that can reach each other"
        ) from None
    atexit.register(destroy_groups)
    return replace(
        arrange_mesh(data, bands, sectors, channels, timeout),
        local_rank=local_rank,
        local_ranks=local_ranks,
        store=store,
    )


def arrange_mesh(data: int, bands: int, sectors: int = 1, channels: int = 1, timeout: timedelta | None = None) -> Mesh:
    """Return the mesh of the ranks of PyTorch's default process group, which exists already."""
    rank, tiles = dist.get_rank(), bands * channels * sectors
    ranks, starts = data * tiles, range(0, data * tiles, tiles)
    spatial = _group_of(rank, [list(range(start, start + tiles)) for start in starts], timeout)
    alongside = _group_of(rank, [list(range(t, ranks, tiles)) for t in range(tiles)], timeout)
    axis = None
    if channels > 1:
        # [data, band, channel, sector]: tiles that share channels are neighbours from north to south.
        numbers = np.arange(ranks).reshape(data, bands, channels, sectors)
        axis = ChannelAxis(
            channels,
            _group_of(rank, numbers.transpose(0, 1, 3, 2).reshape(-1, channels).tolist(), timeout),
            _group_of(rank, numbers.transpose(0, 2, 1, 3).reshape(-1, bands * sectors).tolist(), timeout),
        )
    return Mesh(data, bands, sectors, channels, rank, rank, ranks, None, spatial, alongside, _everyone(), axis)


def _everyone() -> str:
    return cast(ProcessGroup, dist.group.WORLD).group_name


def _group_of(rank: int, members: list[list[int]], timeout: timedelta | None) -> str:
    """Create a group of each list of ranks, on all ranks; return the name of the group of `rank`, "" for one rank."""
    if len(members[0]) == 1:
        return ""
    if len(members) == 1:
        return _everyone()
    groups = [dist.new_group(ranks, timeout=timeout) for ranks in members]
    return next(group.group_name for group, ranks in zip(groups, members, strict=True) if rank in ranks)


@contextmanager
def _report_lost_ranks() -> Iterator[None]:
    """Turn a library's error about a lost rank or a timeout into InterruptedRunError."""
    try:
        yield
    except InputError:
        raise
    except Exception as error:
        link: BaseException | None = error
        while link is not None:  # clean-up after the error may fail as well and hide it
            text = str(link).lower() if isinstance(link, RuntimeError) else ""
            if "timed out" in text or "timeout" in text:
                _lost("does not answer", link)
            if isinstance(link, dist.DistError) or re.search("connection|gloo|nccl|broken pipe|socket", text):
                _lost("is gone", link)
            link = link.__cause__ or link.__context__
        raise


def _lost(what: str, error: BaseException) -> NoReturn:
    # Ranks describe the end of a connection differently; the launcher prints equal messages once.
    ended = re.search("connection (closed|reset)|broken pipe", str(error), re.IGNORECASE)
    detail = "" if ended else f" ({_short(error)})"
    raise InterruptedRunError(
        f"another rank of the mesh {what}{detail}; see its own error, then run the same command again"
    ) from error


def _short(error: BaseException) -> str:
    """Return the first sentence of a message, without the position in the library's source and the rank."""
    text = re.sub(r"^\[\S+\.(cc|cpp|h|hpp):\d+\]\s*", "", str(error).strip())
    return re.sub(r" \[\S+\]:\d+", "", re.split(r"\n|\. ", text)[0])[:200].rstrip(".")
