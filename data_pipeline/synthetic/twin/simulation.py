"""Simulation of one pair of start dates in many years: truth, members and oracle.

Each year has its own simulation: a random state, 32 days of spin-up, then

    parent       nature's state one day before the start, the best information that a forecast can have
    truth        parent + a perturbation, integrated by nature to the start and on to 48 h
    members      parent + M other perturbations from the same distribution, integrated by nature to the start; there
                 the deviations from their mean are shrunk (real ensembles also start too narrow), and the forecast
                 model continues
    oracle       the same M perturbed states, not shrunk, integrated by nature to 48 h

Given the parent, the truth and the oracle's members are independent draws from one distribution. So the oracle samples
the exact predictive distribution, and no correction of the members has a better expected score than the oracle.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import dataclass
from datetime import date

import torch
from torch import Tensor

from data_pipeline.synthetic.twin.atmosphere import Atmosphere
from data_pipeline.synthetic.twin.diagnostics import diagnose
from data_pipeline.synthetic.twin.model_parameters import FORECAST, NATURE
from data_pipeline.synthetic.twin.noise import NoisePurpose, normal_noise
from data_pipeline.synthetic.twin.sphere import Sphere
from data_pipeline.synthetic.twin.start_pairs import LEAD_TIMES, StartPair, days_since_new_year
from data_pipeline.synthetic.twin.state import State
from data_pipeline.task import Variable

GaussianFields = dict[Variable, Tensor]
"""Fields (W, H, B) on the Gaussian grid by variable; B runs over years, and within each year over members."""

COARSE_TRUNCATION, COARSE_DAYS, FINE_DAYS = 15, 24, 8
"""Truncation and days of the first part of the spin-up, and days at T21; T15 takes a third of the time of T21."""
SPREAD_FACTOR = 0.85
"""Factor on the members' deviations from their mean at the start."""


@dataclass(frozen=True)
class Snapshot:
    """All fields at one lead time (hours) of one start."""

    start: date
    lead: int
    truth: GaussianFields
    members: GaussianFields
    oracle: GaussianFields
    """Only the oracle years; empty if there are none."""


def simulate(pair: StartPair, without: Collection[date] = ()) -> Iterator[Snapshot]:
    """Integrate a pair of start dates, and yield the fields at each lead time of each start.

    Starts in `without` are left out; only their truth is integrated, if a later start needs it.
    """
    nature = Atmosphere(NATURE)
    forecast = Atmosphere(NATURE.towards(FORECAST, pair.difficulty))
    has_oracle = torch.tensor([year in pair.oracle_years for year in pair.years]).repeat_interleave(pair.members)
    starts = list(pair.starts)
    while starts and starts[-1] in without:
        starts.pop()
    if not starts:
        return
    truth = _spin_up(pair, nature)
    for start in starts:
        truth = nature.run(truth, days_since_new_year(start) - truth.day)
        parent = truth
        truth_noise = _noise(pair, nature.sphere, 6, NoisePurpose.TRUTH, start)
        truth = nature.run(nature.perturb(truth, truth_noise), 1).reset_rain()
        if start in without:
            for _ in LEAD_TIMES[1:]:
                truth = nature.run(truth, 1)
            continue
        member_noise = _noise(pair, nature.sphere, 6, NoisePurpose.MEMBER, start, copies=pair.members)
        perturbed = nature.run(nature.perturb(parent.repeat(pair.members), member_noise), 1).reset_rain()
        members = perturbed.contract(pair.members, SPREAD_FACTOR)
        oracle = perturbed.take(has_oracle) if has_oracle.any() else None
        for lead in LEAD_TIMES:
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


def _spin_up(pair: StartPair, nature: Atmosphere) -> State:
    """Return nature's state one day before the first start, for each year."""
    first = pair.starts[0]
    day = days_since_new_year(first) - FINE_DAYS - COARSE_DAYS
    coarse = Atmosphere(NATURE, COARSE_TRUNCATION)
    noise = _noise(pair, coarse.sphere, 1, NoisePurpose.START, first)
    mean_sea = torch.zeros(coarse.sphere.columns, coarse.sphere.rows, len(pair.years))
    state = coarse.run(coarse.initial_state(noise, mean_sea, day), COARSE_DAYS)
    return nature.run(nature.refine(state, _sea_anomaly(pair, nature.sphere)), FINE_DAYS)


def _sea_anomaly(pair: StartPair, sphere: Sphere) -> Tensor:
    """Return the sea temperature anomaly of each year, (W, H, years), K."""
    shape, degree2 = (*sphere.mask.shape[:2], 1), -sphere.laplacian
    size = 0.12 * sphere.mask[..., 0] * ((degree2 > 5) & (degree2 < 120))[..., 0]
    noise = [normal_noise(shape, pair.seed, NoisePurpose.SEA, year=year) for year in pair.years]
    return torch.cat([sphere.to_grid(size * year) for year in noise], -1)


def _noise(pair: StartPair, sphere: Sphere, fields: int, purpose: NoisePurpose, start: date, copies: int = 1) -> Tensor:
    """Return normal noise (2N, N, fields, years * copies); the copies of one year are adjacent."""
    shape, month_day = (*sphere.mask.shape[:2], fields), start.month * 100 + start.day
    noise = [
        normal_noise(shape, pair.seed, purpose, year=year, date=month_day, member=copy)
        for year in pair.years
        for copy in range(copies)
    ]
    return torch.stack(noise, -1)
