"""Tallies: the averages of all models of an evaluation, which are added, joined and saved together."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import reduce
from operator import add
from typing import TypeVar

import numpy as np

from evaluation.scoring.aggregation import Tally
from models.parallel.domain import Domain
from models.parallel.mesh import Mesh

Key = TypeVar("Key")


@dataclass(frozen=True)
class Tallies:
    """Tallies by number of members and model, of distributions and of written members, and the tally of the oracle.

    Written members are kept by number and method.

    `done` marks the forecasts whose scores are included. Parts over different forecasts are added with `+`.
    """

    by_size: dict[int, dict[str, Tally]]
    written: dict[tuple[int, str], dict[str, Tally]]
    oracle: Tally | None
    done: np.ndarray

    def __add__(self, other: Tallies) -> Tallies:
        return self._combine([self, other], lambda parts: reduce(add, parts))

    def merged(self, mesh: Mesh, domain: Domain) -> Tallies:
        """Return the tallies of the whole grid and all forecasts on the first rank; other ranks get their own part."""
        parts = mesh.gather(self)
        if parts is None:
            return self

        def of_all(tallies: Sequence[Tally]) -> Tally:
            return Tally.merge([reduce(add, tallies[tile :: mesh.tiles]) for tile in range(mesh.tiles)], domain.join)

        return self._combine(parts, of_all)

    def arrays(self) -> dict[str, np.ndarray]:
        """Return all arrays by name, for `restore`."""
        arrays = {f"{place}/{name}": array for place, tally in self._all() for name, array in tally.arrays().items()}
        return {"done": self.done, **arrays}

    def restore(self, arrays: Mapping[str, np.ndarray]) -> None:
        """Replace all sums by the sums in `arrays`."""
        self.done[:] = arrays["done"]
        for place, tally in self._all():
            tally.restore({name: arrays[f"{place}/{name}"] for name in tally.arrays()})

    def _all(self) -> Iterator[tuple[str, Tally]]:
        for size, tallies in self.by_size.items():
            yield from ((f"{size}/{name}", tally) for name, tally in tallies.items())
        for (size, method), tallies in self.written.items():
            yield from ((f"written/{size}/{method}/{name}", tally) for name, tally in tallies.items())
        if self.oracle is not None:
            yield "oracle", self.oracle

    @staticmethod
    def _combine(parts: Sequence[Tallies], combine: Callable[[Sequence[Tally]], Tally]) -> Tallies:
        first = parts[0]

        def of_sizes(tallies: Sequence[dict[Key, dict[str, Tally]]]) -> dict[Key, dict[str, Tally]]:
            return {
                size: {name: combine([part[size][name] for part in tallies]) for name in counted}
                for size, counted in tallies[0].items()
            }

        return Tallies(
            of_sizes([part.by_size for part in parts]),
            of_sizes([part.written for part in parts]),
            first.oracle and combine([part.oracle for part in parts if part.oracle]),
            reduce(np.logical_or, [part.done for part in parts]),
        )
