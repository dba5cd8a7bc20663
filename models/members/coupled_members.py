"""Sorted values of corrected members are given to members in the rank order of a template, cell by cell.

The template has one field for each member: the raw ensemble (ensemble copula coupling, ECC; Schefzik, Thorarinsdottir &
Gneiting 2013, doi:10.1214/13-STS443), or past analyses (Schaake shuffle; Clark et al. 2004,
doi:10.1175/1525-7541(2004)005<0243:TSSAMF>2.0.CO;2). The corrected members get the template's dependence between
places, times and variables.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial

import numpy as np

from models.members.member_order import in_blocks, member_order
from models.members.named_draws import named_draws
from models.parallel.domain import Domain


@dataclass(frozen=True)
class CellNames:
    """The seed, start (seconds since 1970), lead time and tile that name the random numbers of a forecast.

    The random numbers are hashes of their names, because a random generator would have to draw the whole globe on every
    rank.
    """

    seed: int
    init_time: int
    lead_time: int
    domain: Domain

    def draws(self, cells: np.ndarray, target: int, M: int) -> np.ndarray:
        """Return random uint64 numbers (M, n) for a target at the positions (n,) of cells in this rank's tile."""
        rows, columns = self.domain.tile
        row, column = np.divmod(cells, columns.stop - columns.start)
        cell = (row + rows.start) * self.domain.shape[1] + column + columns.start
        return named_draws(self.seed, (self.init_time, self.lead_time, cell, target, np.arange(M)[:, None]))


def template_order(template: np.ndarray, names: CellNames, count: int | None = None) -> np.ndarray:
    """Return the order (T, N, count) of `count` members in the N cells: the k-th number is the k-th lowest member.

    `template` is (M, T, h, w). Equal members are ordered by random numbers that depend only on seed, start, lead time,
    target, member and cell on the globe. With more members than M, member M + m is a copy of member m. The copies of
    one member have neighbouring ranks, in an order that is the same in all cells, so that each is as smooth as the
    member itself.
    """
    M, T = template.shape[:2]
    values = template.reshape(M, T, -1)
    order = np.stack(
        [
            member_order(values[:, t], lambda cells, t=t: names.draws(cells, t, M))  # type: ignore[misc]
            for t in range(T)
        ]
    )
    return order if count in (None, M) else _with_copies(order, M, count, names)


def _with_copies(order: np.ndarray, M: int, count: int, names: CellNames) -> np.ndarray:
    """Return `order` (T, N, M) with each member followed by its copies, (T, N, count)."""
    copies = -(-count // M)
    member = np.arange(copies * M).reshape(copies, M)
    draws = named_draws(names.seed, (names.init_time, member))
    draws[member >= count] = np.iinfo(np.uint64).max  # no such member; sorted to the end
    shuffled = np.take_along_axis(member, draws.argsort(0, kind="stable"), 0).T
    chosen = shuffled[order].reshape(*order.shape[:2], -1)
    kept: np.ndarray = chosen[chosen < count].reshape(*order.shape[:2], count)
    return kept


def couple(values: np.ndarray, order: np.ndarray) -> np.ndarray:
    """Give the sorted `values` (M, T, h, w) to members: the k-th lowest member of `order` (T, N, M) gets the k-th.

    Returns the members, which share the memory of `values` if it is contiguous.
    """
    M, T = values.shape[:2]
    flat = np.ascontiguousarray(values).reshape(M, T, -1)

    def place(t: int, part: slice) -> None:
        ranked = order[t, part]
        own = np.empty((M, len(ranked)), flat.dtype)
        own.reshape(-1)[ranked.astype(np.intp) * len(ranked) + np.arange(len(ranked))[:, None]] = flat[:, t, part].T
        flat[:, t, part] = own

    for t in range(T):
        in_blocks(partial(place, t), flat.shape[2])
    return flat.reshape(values.shape)
