"""Processes: the ranks that share a correction; a single process needs no PyTorch."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol, TypeVar

from data_pipeline.grid import Grid
from models.parallel.domain import Domain

_Result = TypeVar("_Result")


class Processes(Protocol):
    """The part of a mesh that `correct` needs; `models.parallel.mesh.Mesh` has all of it."""

    @property
    def data(self) -> int:
        """Number of samples that are worked on at the same time."""

    @property
    def ranks(self) -> int:
        """Number of processes."""

    @property
    def local_rank(self) -> int:
        """Number of this process among the processes on its machine, and so the number of its GPU."""

    @property
    def local_ranks(self) -> int:
        """Number of processes on the same machine."""

    @property
    def first(self) -> bool:
        """Whether this is the rank that reads headers and writes files."""

    def domain(self, grid: Grid) -> Domain:
        """Return `grid`, split into the tiles of all ranks."""

    def broadcast(self, value: Any) -> Any:
        """Return the `value` that the first rank passes."""

    def gather(self, value: Any) -> list[Any] | None:
        """Return the values of all ranks in their order on the first one, None on the others."""

    def run_on_first(self, function: Callable[[], _Result]) -> _Result:
        """Call `function` on the first rank; return its result, or raise its InputError, on all ranks."""

    def run_on_all(self, function: Callable[[], _Result]) -> _Result:
        """Call `function` on every rank and return this rank's result; raise the InputError of any rank on all."""


class SingleProcess:
    """`Processes` of one rank."""

    data, ranks, local_rank, local_ranks, first = 1, 1, 0, 1, True

    def domain(self, grid: Grid) -> Domain:
        """Return `grid` as one tile."""
        return Domain.of(grid)

    def broadcast(self, value: Any) -> Any:
        """Return `value`."""
        return value

    def gather(self, value: Any) -> list[Any]:
        """Return `value` in a list."""
        return [value]

    def run_on_first(self, function: Callable[[], _Result]) -> _Result:
        """Call `function`."""
        return function()

    def run_on_all(self, function: Callable[[], _Result]) -> _Result:
        """Call `function`."""
        return function()
