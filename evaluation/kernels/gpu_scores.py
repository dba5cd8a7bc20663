"""Scores of an ensemble in every cell, and sums in bins and regions, on a GPU; `usable` of the layers tells where.

PyTorch sorts members in memory, and adds to bins one number after another. Here members stay in registers, and a
program compares them in pairs, which takes less time than sorting for up to `MOST_MEMBERS`.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from evaluation.kernels.ensemble_scores import EnsembleScores

MOST_MEMBERS = 64
_NUMBERS = 2048
"""Members times cells of a program."""
_CELLS = 32
"""Cells whose bins a program compares at a time."""
_PARTS = 64
"""Most programs that share the cells of a field."""


def member_scores(members: Tensor, truth: Tensor) -> EnsembleScores[Tensor]:
    """Return `ensemble_scores` of `members` (M, *S) against `truth` (*S) in single precision.

    Pairs of members are compared in single precision and added up in double precision.
    """
    M, truth = len(members), truth.contiguous()
    members = members if members[0].is_contiguous() else members.contiguous()
    numbers = torch.empty(4, *truth.shape, dtype=torch.float64, device=truth.device)
    counts = torch.empty(2, *truth.shape, dtype=torch.int32, device=truth.device)
    P = triton.next_power_of_2(M)
    cells = _NUMBERS // max(P, 8)
    grid = (triton.cdiv(truth.numel(), cells),)
    # One warp: a thread then holds the members of its cells, and no sum over members crosses warps.
    _member_scores[grid](
        members, truth, numbers, counts, truth.numel(), members.stride(0), M, P, cells, num_warps=1
    )  # fmt: skip
    return EnsembleScores(*numbers, *counts)


@triton.jit(do_not_specialize=["size"])
def _member_scores(
    members, truth, numbers, counts, size, between, M: tl.constexpr, P: tl.constexpr, CELLS: tl.constexpr
):  # fmt: skip
    cell, m = tl.program_id(0).to(tl.int64) * CELLS + tl.arange(0, CELLS), tl.arange(0, P)
    here = cell < size
    mask = (m < M)[:, None] & here[None, :]
    y = tl.load(truth + cell, here, other=0.0)
    x = tl.load(members + m.to(tl.int64)[:, None] * between + cell[None, :], mask, other=0.0)
    difference = tl.where(mask, x - y[None, :], 0.0)
    error = tl.sum(difference.to(tl.float64), 0) / M
    departure = tl.where(mask, difference.to(tl.float64) - error[None, :], 0.0)
    absolute = tl.sum(tl.abs(difference).to(tl.float64), 0) / M
    pairs, place = tl.zeros((CELLS,), tl.float64), cell
    for _ in range(M):
        other = tl.load(members + place, here, other=0.0) - y
        place = place + between
        pairs += tl.sum(tl.where(mask, tl.abs(difference - other[None, :]), 0.0), 0).to(tl.float64)
    tl.store(numbers + cell, absolute - pairs / (2 * M * M), here)
    if M > 1:
        tl.store(numbers + size + cell, absolute - pairs / (2 * M * (M - 1)), here)
        tl.store(numbers + 3 * size.to(tl.int64) + cell, tl.sum(departure * departure, 0) / (M - 1), here)
    else:
        tl.store(numbers + size + cell, absolute, here)
        tl.store(numbers + 3 * size.to(tl.int64) + cell, absolute * float("nan"), here)
    tl.store(numbers + 2 * size.to(tl.int64) + cell, error, here)
    tl.store(counts + cell, tl.sum((mask & (x < y[None, :])).to(tl.int32), 0), here)
    tl.store(counts + size + cell, tl.sum((mask & (x == y[None, :])).to(tl.int32), 0), here)


def bin_sums(index: Tensor, values: Tensor, weights: Tensor, bins: int) -> Tensor:
    """Return the sums (F, R, V, bins) of `values` (V, F, N) times `weights` (R, N) in the bins `index` (F, N).

    All are in double precision. An index below 0 or from `bins` on counts in the first or last bin.
    """
    (V, F, N), R, P = values.shape, len(weights), triton.next_power_of_2(bins)
    parts = min(_PARTS, triton.cdiv(N, 8 * _CELLS))
    each = triton.cdiv(triton.cdiv(N, _CELLS), parts)
    sums = torch.empty(F, V, R, parts, P, dtype=torch.float64, device=values.device)
    _bin_sums[parts, V * R, F](
        index.contiguous(), values.contiguous(), weights.contiguous(), sums, N, F, R, bins, each, P, _CELLS
    )
    return sums.sum(3)[..., :bins].transpose(1, 2)


@triton.jit(do_not_specialize=["N", "F", "R", "bins", "each"])
def _bin_sums(index, values, weights, sums, N, F, R, bins, each, P: tl.constexpr, CELLS: tl.constexpr):
    part, column, field = tl.program_id(0), tl.program_id(1), tl.program_id(2)
    value, region, place = column // R, column % R, tl.arange(0, P)
    total = tl.zeros((P, CELLS), tl.float64)
    for step in range(each):
        cell = (part * each + step) * CELLS + tl.arange(0, CELLS)
        here = cell < N
        mine = tl.load(index + field.to(tl.int64) * N + cell, here, other=0)
        mine = tl.minimum(tl.maximum(mine, 0), bins - 1)
        number = tl.load(values + (value.to(tl.int64) * F + field) * N + cell, here, other=0.0)
        number = number * tl.load(weights + region * N + cell, here, other=0.0)
        total += tl.where(place[:, None] == mine[None, :], number[None, :], 0.0)
    row = (field * tl.num_programs(1) + column) * tl.num_programs(0) + part
    tl.store(sums + row.to(tl.int64) * P + place, tl.sum(total, 1))
