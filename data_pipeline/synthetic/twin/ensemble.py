"""One block of the experiment: nature, analyses, forecasts and oracle for two start dates in many years.

Each year has a chain of its own: a random start, a month of spin-up, then

    parent       nature's state one day before the start; the most that a forecaster can know
    truth        parent + a kick, nature to the start and on to 48 h
    members      parent + M other kicks of the same law, nature to the start; there their deviations from the
                 mean shrink (real ensembles start too narrow, too), and the forecast model takes over
    oracle       the same M children of the parent, not shrunk, and nature itself to 48 h

Given the parent, the truth and the oracle's members are independent draws from one law. So the oracle is
the exact predictive distribution, and no correction of the members can expect a better score than the
oracle's.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import date

import torch
from torch import Tensor

from data_pipeline.synthetic.twin.atmosphere import Atmosphere
from data_pipeline.synthetic.twin.diagnostics import diagnose
from data_pipeline.synthetic.twin.layout import Block
from data_pipeline.synthetic.twin.noise import Stream, normal
from data_pipeline.synthetic.twin.parameters import FORECAST, NATURE
from data_pipeline.synthetic.twin.sphere import Sphere
from data_pipeline.synthetic.twin.starts import LEADS, days_since_new_year
from data_pipeline.synthetic.twin.state import State
from data_pipeline.task import Variable

Fields = dict[Variable, Tensor]
"""(W, H, B) each, B years (and for each year M members) one after another."""

COARSE_TRUNCATION, COARSE_DAYS, FINE_DAYS = 15, 24, 8
"""Spin-up: mostly at T15, where a day costs a third."""
SPREAD = 0.85
"""Factor on the members' deviations from their mean at the start."""


@dataclass(frozen=True)
class Snapshot:
    """All fields that are valid `lead` hours after one start."""

    start: date
    lead: int
    truth: Fields
    members: Fields
    oracle: Fields
    """Of the oracle's years only; empty if there are none."""


def simulate(block: Block) -> Iterator[Snapshot]:
    """Integrate a block, and yield what each lead time of each start shows."""
    nature = Atmosphere(NATURE)
    forecast = Atmosphere(NATURE.towards(FORECAST, block.difficulty))
    has_oracle = torch.tensor([year in block.oracle_years for year in block.years]).repeat_interleave(block.members)
    truth = _spin_up(block, nature)
    for start in block.starts:
        truth = nature.run(truth, days_since_new_year(start) - truth.day)
        kicks = _noise(block, nature.sphere, 6, Stream.MEMBER, start, copies=block.members)
        children = nature.run(nature.perturb(truth.repeat(block.members), kicks), 1).forget_rain()
        kick = _noise(block, nature.sphere, 6, Stream.TRUTH, start)
        truth = nature.run(nature.perturb(truth, kick), 1).forget_rain()
        members = children.contract(block.members, SPREAD)
        oracle = children.take(has_oracle) if has_oracle.any() else None
        for lead in LEADS:
            if lead:
                truth, members = nature.run(truth, 1), forecast.run(members, 1)
                oracle = nature.run(oracle, 1) if oracle else None
            yield Snapshot(
                start,
                lead,
                truth=diagnose(nature, truth),
                members=diagnose(forecast, members),
                oracle=diagnose(nature, oracle) if oracle else {},
            )


def _spin_up(block: Block, nature: Atmosphere) -> State:
    """Return nature one day before the first start, one chain for each year."""
    first = block.starts[0]
    day = days_since_new_year(first) - FINE_DAYS - COARSE_DAYS
    coarse = Atmosphere(NATURE, COARSE_TRUNCATION)
    noise = _noise(block, coarse.sphere, 1, Stream.START, first)
    mean_sea = torch.zeros(coarse.sphere.columns, coarse.sphere.rows, len(block.years))
    state = coarse.run(coarse.start(noise, mean_sea, day), COARSE_DAYS)
    return nature.run(nature.refine(state, _sea_anomaly(block, nature.sphere)), FINE_DAYS)


def _sea_anomaly(block: Block, sphere: Sphere) -> Tensor:
    """What each year's sea is warmer than usual, (W, H, years), K."""
    shape, degree2 = (*sphere.mask.shape[:2], 1), -sphere.laplacian
    size = 0.12 * sphere.mask[..., 0] * ((degree2 > 5) & (degree2 < 120))[..., 0]
    noise = [normal(shape, block.seed, Stream.SEA, year=year) for year in block.years]
    return torch.cat([sphere.to_grid(size * year) for year in noise], -1)


def _noise(block: Block, sphere: Sphere, fields: int, stream: Stream, start: date, copies: int = 1) -> Tensor:
    """Normal numbers (2N, N, fields, years * copies), copies of one year side by side."""
    shape, name = (*sphere.mask.shape[:2], fields), start.month * 100 + start.day
    worlds = [
        normal(shape, block.seed, stream, year=year, date=name, member=copy)
        for year in block.years
        for copy in range(copies)
    ]
    return torch.stack(worlds, -1)
