"""Members of a corrected forecast: quantiles of its distribution, in the rank order of the raw members.

Ranks tie places, times and variables together: what a raw member says jointly, its corrected one says too (ensemble
copula coupling, ECC-Q; Schefzik, Thorarinsdottir & Gneiting 2013, doi:10.1214/13-STS443).
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from data_pipeline.common.checks import check_choice, check_integer
from data_pipeline.grid import Grid
from data_pipeline.sample import Sample
from data_pipeline.task import Task
from models.distribution import Distribution, Ensemble, Patched
from models.parallel.domain import Domain

LEVELS: dict[str, Callable[[Tensor, int], Tensor]] = {
    "hazen": lambda k, M: (k - 0.5) / M,
    "weibull": lambda k, M: k / (M + 1),
}
"""Level of the k-th of M members, k = 1 ... M, by the name of the plotting position (Hyndman & Fan 1996).

The levels of `hazen` are the middles of M equally probable parts, whose quantiles have the smallest expected CRPS of
any M values (Bröcker 2012, doi:10.1002/qj.1891). The members of `weibull` are what the order statistics of M draws have
for levels on average; their spread is too small: 0.83 of the distribution's for 10 members. IMPROVER takes these.
"""


def written_members(
    distribution: Distribution,
    sample: Sample,
    task: Task,
    grid: Grid | Domain,
    raw: Tensor | None = None,
    levels: str = "hazen",
    seed: int = 0,
) -> Ensemble:
    """Return the members that `correct` writes for a batch: (M, B, T, H, W) in physical units, M as in `sample`.

    `distribution` is a model's forecast of the targets for `sample`, over (B, T, H, W); with a `Domain`, of the own
    tile. Its `member_values` go to the members in the order of the raw ones. Raw members that are equal are ordered by
    a draw, which is named by `seed`, start, lead time, target and cell, and so the same on any mesh and in any run.
    Where any raw member of a target is missing, the members stay the raw ones.

    `raw`, (M, B, T, H, W), are the raw members where they are known more exactly than in `sample`.
    """
    check_options(levels, seed)
    channels = list(task.target_channels)
    if raw is None:
        raw = sample.ensemble[:, :, channels].movedim(1, 0)
    values = member_values(distribution, task, len(raw), levels).members
    members = values.gather(0, _ranks(raw, _draws(seed, sample, len(raw), len(channels), Domain.of(grid))))
    return Ensemble(torch.where(sample.mask[:, channels], members, raw))


def member_values(distribution: Distribution, task: Task, M: int, levels: str = "hazen") -> Ensemble:
    """Return the values of `written_members` from the lowest to the highest, (M, B, T, H, W).

    Scores of single values do not ask which member has which value, and need no more than these. They are the
    quantiles at the `LEVELS` of this name, within the targets' physical bounds; a forecast that is itself an ensemble
    of M members brings its own values.
    """
    check_choice("levels", levels, LEVELS)
    if isinstance(distribution, Patched):
        parts = (distribution.inner, distribution.outer)
        inner, outer = (member_values(part, task, M, levels).members for part in parts)
        return Ensemble(torch.where(distribution.where, inner, outer))
    if isinstance(distribution, Ensemble) and len(distribution.members) == M:
        values = distribution.members.sort(0).values
    else:
        k = torch.arange(1, M + 1, dtype=torch.float64, device=distribution.mean.device)
        values = distribution.quantile(LEVELS[levels](k, M))
    for index, target in enumerate(task.targets):
        if target.bounds != (None, None):
            values[:, :, index].clamp_(*target.bounds)
    return Ensemble(values)


def check_options(levels: str, seed: int) -> None:
    """Refuse options of `written_members` that there are not."""
    check_choice("levels", levels, LEVELS)
    check_integer("seed", seed, 0, 2**63 - 1)


def _ranks(raw: Tensor, draws: Tensor) -> Tensor:
    """Return the rank (0 ... M - 1) of each of the members (M, *S); of equal members, that of the lower draw is lower.

    A missing member (NaN) counts as higher than all others.
    """
    shuffled = draws.argsort(0)
    order = shuffled.gather(0, raw.gather(0, shuffled).argsort(dim=0, stable=True))
    number = torch.arange(len(raw), device=raw.device).view(-1, *[1] * (raw.ndim - 1)).expand_as(order)
    return torch.empty_like(order).scatter_(0, order, number)


def _draws(seed: int, sample: Sample, M: int, T: int, domain: Domain) -> Tensor:
    """Return random int64 (M, B, T, H, W) for the own tile, which the number of ranks does not change.

    A hash of the names of a value, because a generator would have to draw the whole globe on every rank.
    """
    device = sample.init_time.device
    rows, columns = (torch.arange(part.start, part.stop, device=device) for part in domain.tile)
    cell = rows[:, None] * domain.shape[1] + columns
    member, target = (torch.arange(count, device=device) for count in (M, T))
    names = torch.tensor(seed, device=device)
    for name in (
        sample.init_time[:, None, None, None],
        sample.lead_time[:, None, None, None],
        cell,
        target[:, None, None],
        member[:, None, None, None, None],
    ):
        names = _mixed(names) ^ name
    return _mixed(names)


def _mixed(x: Tensor) -> Tensor:
    """Return int64 of which each bit depends on all bits of `x`: a step of SplitMix64.

    See Steele, Lea & Flood 2014, doi:10.1145/2660193.2660195. Products wrap; shifts bring in zeros.
    """
    x = x - 0x61C8864680B583EB
    for shift, factor in ((30, -0x40A7B892E31B1A47), (27, -0x6B2FB644ECCEEE15)):
        x = (x ^ ((x >> shift) & ((1 << 64 - shift) - 1))) * factor
    return x ^ ((x >> 31) & ((1 << 33) - 1))
