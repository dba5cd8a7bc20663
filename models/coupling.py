"""Members of a corrected forecast: quantiles of its distribution, in the rank order of the raw members.

The rank order keeps the raw members' dependence between places, times and variables (ensemble copula coupling, ECC-Q;
Schefzik, Thorarinsdottir & Gneiting 2013, doi:10.1214/13-STS443).
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

QUANTILE_LEVELS: dict[str, Callable[[Tensor, int], Tensor]] = {
    "hazen": lambda k, M: (k - 0.5) / M,
    "weibull": lambda k, M: k / (M + 1),
}
"""Quantile level of the k-th of M members, k = 1 ... M, by the name of the plotting position (Hyndman & Fan 1996).

`hazen` gives the centres of M equally probable intervals, whose quantiles have the smallest expected CRPS of any M
values (Bröcker 2012, doi:10.1002/qj.1891). `weibull` gives the mean levels of the order statistics of M draws; the
spread of these members is too small: 0.83 of the distribution's spread for 10 members. IMPROVER uses `weibull`.
"""


def written_members(
    distribution: Distribution,
    sample: Sample,
    task: Task,
    grid: Grid | Domain,
    raw: Tensor | None = None,
    quantile_levels: str = "hazen",
    seed: int = 0,
) -> Ensemble:
    """Return the members that `correct` writes for a batch: (M, B, T, H, W) in physical units, with M as in `sample`.

    `distribution` is a model's forecast of the targets for `sample`, over (B, T, H, W); with a `Domain`, of the own
    tile. The members get its `member_values` in the rank order of the raw members. Equal raw members are ordered by
    random numbers that depend on `seed`, start, lead time, target and cell only, so they are the same on any mesh and
    in any run. Where a raw member of a target is missing, the raw members are returned.

    `raw` (M, B, T, H, W) are the raw members, if they are known more exactly than in `sample`.
    """
    check_member_options(quantile_levels, seed)
    channels = list(task.target_channels)
    if raw is None:
        raw = sample.ensemble[:, :, channels].movedim(1, 0)
    values = member_values(distribution, task, len(raw), quantile_levels).members
    members = values.gather(0, _ranks(raw, _draws(seed, sample, len(raw), len(channels), Domain.of(grid))))
    return Ensemble(torch.where(sample.mask[:, channels], members, raw))


def member_values(distribution: Distribution, task: Task, M: int, quantile_levels: str = "hazen") -> Ensemble:
    """Return the values of `written_members` from the lowest to the highest, (M, B, T, H, W).

    They are the quantiles at `QUANTILE_LEVELS`, within the targets' physical bounds. If the distribution is an ensemble
    of M members, they are its members. Scores of single values need only these, because they do not depend on which
    member has which value.
    """
    check_choice("quantile_levels", quantile_levels, QUANTILE_LEVELS)
    if isinstance(distribution, Patched):
        parts = (distribution.inner, distribution.outer)
        inner, outer = (member_values(part, task, M, quantile_levels).members for part in parts)
        return Ensemble(torch.where(distribution.where, inner, outer))
    if isinstance(distribution, Ensemble) and len(distribution.members) == M:
        values = distribution.members.sort(0).values
    else:
        k = torch.arange(1, M + 1, dtype=torch.float64, device=distribution.mean.device)
        values = distribution.quantile(QUANTILE_LEVELS[quantile_levels](k, M))
    for index, target in enumerate(task.targets):
        if target.bounds != (None, None):
            values[:, :, index].clamp_(*target.bounds)
    return Ensemble(values)


def check_member_options(quantile_levels: str, seed: int) -> None:
    """Raise `InputError` for invalid options of `written_members`."""
    check_choice("quantile_levels", quantile_levels, QUANTILE_LEVELS)
    check_integer("seed", seed, 0, 2**63 - 1)


def _ranks(raw: Tensor, draws: Tensor) -> Tensor:
    """Return the rank (0 ... M - 1) of each member (M, *S); equal members are ranked by their random `draws`.

    A missing member (NaN) ranks above all others.
    """
    shuffled = draws.argsort(0)
    order = shuffled.gather(0, raw.gather(0, shuffled).argsort(dim=0, stable=True))
    number = torch.arange(len(raw), device=raw.device).view(-1, *[1] * (raw.ndim - 1)).expand_as(order)
    return torch.empty_like(order).scatter_(0, order, number)


def _draws(seed: int, sample: Sample, M: int, T: int, domain: Domain) -> Tensor:
    """Return random int64 (M, B, T, H, W) for the own tile, independent of the number of ranks.

    Each number is a hash of seed, start, lead time, cell, target and member, because a random generator would have to
    draw the whole globe on every rank.
    """
    device = sample.init_time.device
    rows, columns = (torch.arange(part.start, part.stop, device=device) for part in domain.tile)
    cell = rows[:, None] * domain.shape[1] + columns
    member, target = (torch.arange(count, device=device) for count in (M, T))
    key = torch.tensor(seed, device=device)
    for number in (
        sample.init_time[:, None, None, None],
        sample.lead_time[:, None, None, None],
        cell,
        target[:, None, None],
        member[:, None, None, None, None],
    ):
        key = _hash(key) ^ number
    return _hash(key)


def _hash(x: Tensor) -> Tensor:
    """Return int64 numbers whose bits all depend on all bits of `x`: a step of SplitMix64.

    See Steele, Lea & Flood 2014, doi:10.1145/2660193.2660195. Products wrap around; shifts fill with zeros.
    """
    x = x - 0x61C8864680B583EB
    for shift, factor in ((30, -0x40A7B892E31B1A47), (27, -0x6B2FB644ECCEEE15)):
        x = (x ^ ((x >> shift) & ((1 << 64 - shift) - 1))) * factor
    return x ^ ((x >> 31) & ((1 << 33) - 1))
