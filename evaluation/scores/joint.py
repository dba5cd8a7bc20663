"""Energy and variogram scores of vectors: neighbouring cells, the lead times of a start, or the targets in a cell.

They depend on which value belongs to which member, so they show whether members have the dependence of the truth;
scores of single values do not. Each member is one vector of d values, and so is the truth. Only members are scored.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import Literal

import numpy as np
import torch
from torch import Tensor

from data_pipeline.grid import Grid
from evaluation.kernels.vector_scores import vector_scores
from evaluation.scores.case import Case
from evaluation.scores.extremes import no_climatology
from evaluation.scores.score import CellStatistic, Joint, Score, Settings

SIDE = 4
"""Rows and columns of a block of cells, which is one vector."""
DIVIDED = (
    f"mesh divides blocks of {SIDE} x {SIDE} cells among ranks; give all ranks to the data axis of mesh, or name other "
    "scores"
)
"""Why blocks of cells cannot be scored on a mesh."""


class Vectors:
    """Which values are one vector, and how far they are from each other."""

    joint: Joint
    text: str
    """The vectors, as the end of a sentence."""
    weighted: str
    """The mean over pairs of values in the variogram score."""
    units: Literal["target", ""] = "target"

    def _split(self, fields: Tensor, case: Case) -> Tensor:
        """Return the vectors (..., d, *S) of fields (..., B, T, H, W); the first axis of S is of forecasts."""
        raise NotImplementedError

    def _join(self, values: Tensor, case: Case) -> Tensor:
        """Return the number of each vector (*S) in all its cells, (B, T, H, W); 0 in cells of no vector."""
        raise NotImplementedError

    def _distances(self, d: int, case: Case) -> Tensor:
        """Return the distances (d, d) between the values of a vector."""
        raise NotImplementedError

    def missing(self, settings: Settings) -> str:
        """Return why there are no vectors, "" if there are."""
        raise NotImplementedError

    def known(self, case: Case) -> Tensor:
        """Return 1 in the cells of vectors that are scored, where all their values have a truth, else 0."""
        if self.joint == "lead_times" and not case.lead_times:
            return torch.zeros_like(case.truth)
        return self._join(self._split(case.truth, case).isfinite().all(0), case)

    def scores(self, case: Case) -> list[Tensor]:
        """Return the numbers of `vector_scores`, each (B, T, H, W); NaN without members, 0 where `known` is 0."""
        members, known = case.forecast.as_members, case.once(self.known) > 0
        if members is None or not known.any():
            return [torch.full_like(case.truth, torch.nan if members is None else 0.0)] * 4
        x, y = self._split(members, case), self._split(case.truth, case)
        weights = 1 / self._distances(len(y), case).fill_diagonal_(torch.inf)
        weights /= weights.sum()
        # One forecast or start at a time, because the vectors are copies of the members.
        numbers = np.stack(
            [
                vector_scores(x[:, :, k].flatten(2).cpu().numpy(), y[:, k].flatten(1).cpu().numpy(), weights.numpy())
                for k in range(y.shape[1])
            ],
            axis=1,
        ).reshape(4, *y.shape[1:])
        return [self._join(torch.from_numpy(one).to(case.truth), case).masked_fill(~known, 0) for one in numbers]


class Cells(Vectors):
    """Blocks of cells. The last rows and columns that fill no block belong to none."""

    joint: Joint = "cells"
    text = f"{SIDE} x {SIDE} neighbouring cells"
    weighted = "Mean with weights 1/distance, in rows and columns,"

    def _split(self, fields: Tensor, case: Case) -> Tensor:
        rows, columns = (size // SIDE for size in fields.shape[-2:])
        fields = fields[..., : rows * SIDE, : columns * SIDE]
        blocks = fields.unflatten(-1, (columns, SIDE)).unflatten(-3, (rows, SIDE))
        return blocks.movedim((-3, -1), (-6, -5)).flatten(-6, -5)

    def _join(self, values: Tensor, case: Case) -> Tensor:
        whole = torch.zeros_like(case.truth)
        rows, columns = (SIDE * size for size in values.shape[-2:])
        whole[..., :rows, :columns] = values.repeat_interleave(SIDE, -2).repeat_interleave(SIDE, -1)
        return whole

    def _distances(self, d: int, case: Case) -> Tensor:
        place = torch.cartesian_prod(*(torch.arange(SIDE, dtype=torch.float64),) * 2)
        return torch.cdist(place, place)

    def missing(self, settings: Settings) -> str:
        """Return why there are no blocks; ranks that divide one cannot score it."""
        grid = settings.grid
        if type(grid) is not Grid:
            return "stations and points have no neighbouring cells; only fields on a regular grid have"
        if min(grid.shape) < SIDE:
            return f"the grid has fewer than {SIDE} rows or columns"
        return DIVIDED if any(cut % SIDE for cut in settings.cuts) else ""


class LeadTimes(Vectors):
    """Starts with all lead times of the task."""

    joint: Joint = "lead_times"
    text = "all lead times of a start in a cell"
    weighted = "Mean with weights 1/difference of the lead times"

    def _split(self, fields: Tensor, case: Case) -> Tensor:
        return fields.unflatten(-4, (-1, len(case.lead_times))).movedim(-4, -5)

    def _join(self, values: Tensor, case: Case) -> Tensor:
        return values.repeat_interleave(len(case.lead_times), 0).to(case.truth)

    def _distances(self, d: int, case: Case) -> Tensor:
        hours = torch.tensor(case.lead_times, dtype=torch.float64)
        return abs(hours[:, None] - hours)

    def missing(self, settings: Settings) -> str:
        """Return why there are no vectors."""
        task = settings.task
        return f"the task {task.name} has a single lead time" if len(task.lead_times) < 2 else ""


class Targets(Vectors):
    """Targets, as standardised departures from climatology: their differences have no units."""

    joint: Joint = "targets"
    text = "all targets in a cell, each less its climatological mean and divided by its climatological spread"
    weighted = "Mean"
    units: Literal["target", ""] = ""

    def _split(self, fields: Tensor, case: Case) -> Tensor:
        assert case.climate is not None
        return ((fields - case.climate.mean) / case.climate.std).movedim(-3, -4)

    def _join(self, values: Tensor, case: Case) -> Tensor:
        return values[:, None].expand_as(case.truth).to(case.truth)

    def _distances(self, d: int, case: Case) -> Tensor:
        return torch.ones(d, d, dtype=torch.float64)

    def missing(self, settings: Settings) -> str:
        """Return why there are no vectors, or no climatology."""
        task = settings.task
        return f"the task {task.name} has a single target" if len(task.targets) < 2 else no_climatology(settings)


_ENERGY = "Gneiting & Raftery 2007, doi:10.1198/016214506000001437"
_VARIOGRAM = "Scheuerer & Hamill 2015, doi:10.1175/MWR-D-14-00269.1"
_FAIR = "; Ferro 2014, doi:10.1002/qj.2270"
NUMBERS = (
    ("energy_score", "", _ENERGY, "1/M Σ|xᵢ − y| − 1/(2M²) ΣΣ|xᵢ − xⱼ| with Euclidean distances between vectors"),
    ("energy_score", "_fair", _ENERGY + _FAIR, "The energy score with 1/(2M(M − 1)) in place of 1/(2M²), for vectors"),
    (
        "variogram_score", "", _VARIOGRAM,
        "{weighted} of (√|yₖ − yₗ| − v)² over all pairs of values k, l of a vector, where v is the mean of √|xₖ − xₗ| "
        "over the members. A bias that all values share does not change it. For vectors",
    ),
    (
        "variogram_score", "_fair", _VARIOGRAM + _FAIR,
        "The variogram score less the variance of v, which the mean of infinitely many members would not have, for "
        "vectors",
    ),
)  # fmt: skip
"""Beginning and ending of a name, reference and text of the numbers of `vector_scores`."""


def scores_over(vectors: Vectors) -> Iterator[Score]:
    """Yield the scores of vectors."""
    known = CellStatistic(vectors.known, joint=vectors.joint)
    for number, (kind, ending, reference, text) in enumerate(NUMBERS):
        name = f"{kind}_{vectors.joint}{ending}"
        yield Score(
            name=name,
            title=f"{'fair ' * bool(ending)}{kind.replace('_', ' ')} over {vectors.joint.replace('_', ' ')}",
            text=f"{text.format(weighted=vectors.weighted)} of {vectors.text}. Null for distributions: only members, "
            "such as those that correct writes, have a joint distribution.",
            reference=reference,
            statistics={
                name: CellStatistic(partial(_numbered, vectors, number), joint=vectors.joint),
                f"{vectors.joint}_known": known,
            },
            best="low",
            units=vectors.units,
            missing=vectors.missing,
        )


def _numbered(vectors: Vectors, number: int, case: Case) -> Tensor:
    return case.once(vectors.scores)[number]


SCORES = tuple(score for vectors in (Cells(), LeadTimes(), Targets()) for score in scores_over(vectors))
