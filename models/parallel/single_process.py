"""Processes: the ranks that share a correction, a mesh or a single process, which needs no PyTorch."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeAlias, TypeVar

from data_pipeline.grid import Grid
from models.parallel.domain import Domain

if TYPE_CHECKING:
    from models.parallel.mesh import Mesh

_Result = TypeVar("_Result")
DEVICES = ("auto", "cpu", "gpu")
"""Values of the option `device`."""


class SingleProcess:
    """The part of a `Mesh` that `correct` needs, for one rank."""

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


Processes: TypeAlias = "Mesh | SingleProcess"
