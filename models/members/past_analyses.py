"""Past analyses as the template of the Schaake shuffle (Clark et al. 2004,
doi:10.1175/1525-7541(2004)005<0243:TSSAMF>2.0.CO;2).

For a forecast of a start, past starts at the same hour of the day and in the same season are chosen, and each gives a
member of the template: the analyses at its lead times. One choice serves all lead times and targets, so that the
members have the dependence of past weather in time and between variables, too.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from data_pipeline.common.errors import InputError
from data_pipeline.dates import DAYS_PER_YEAR, climatology_day
from data_pipeline.formats.open import analysis_fields
from data_pipeline.protocols import Fields
from models.engines.engine import CorrectorDescription
from models.parallel.domain import Domain

SEASON_DAYS = 45
"""The largest difference in the day of the year between a forecast and a chosen past start."""
OWN_DAYS = 15
"""Starts within so many days of the forecast are not chosen, because their analyses belong to the same weather."""


@dataclass(frozen=True)
class PastAnalyses:
    """Analyses of a task's targets at many times, opened as `Fields` of lead time 0 and one member."""

    fields: Fields
    lead_times: tuple[int, ...]
    """Lead times of the task; a chosen start must have analyses at all of them."""
    path: str

    @classmethod
    def open(
        cls, paths: Sequence[str], corrector: CorrectorDescription, names: Mapping[str, str] | None = None
    ) -> PastAnalyses:
        """Open the analyses of a corrector's targets in files, folders or patterns, on the corrector's grid."""
        task, named = corrector.task, ", ".join(paths)
        fields = analysis_fields(list(paths), task.targets, names=names, target=corrector.target_grid)
        if not corrector.grid.matches(fields.grid):
            raise InputError(f"history={named} has {fields.grid}, the corrector {corrector.grid}; interpolate it")
        return cls(fields, task.lead_times, named)

    def template(self, init_time: np.datetime64, lead_time: int, count: int, domain: Domain) -> np.ndarray:
        """Return the analyses (`count`, T, h, w) at a lead time (hours) after the chosen starts on this rank's tile."""
        starts = self.starts(init_time, count)
        template = np.empty((count, len(self.fields.variables), *domain.own_shape))
        valid = starts + np.timedelta64(lead_time, "h")
        for member, place in enumerate(np.searchsorted(self.fields.init_times, valid)):
            self.fields.read(self.fields.cells[place, 0], template[member : member + 1], domain.tile)
        return template

    def starts(self, init_time: np.datetime64, count: int) -> np.ndarray:
        """Return the `count` past starts that are nearest to the forecast's day of the year.

        Of equally near starts, the latest are chosen first. Starts after the forecast are chosen as well, if the files
        have their analyses, but none within `OWN_DAYS` of the forecast.
        """
        day, there = np.timedelta64(1, "D"), self.fields.init_times.astype("datetime64[s]")
        start = init_time.astype("datetime64[s]")
        candidates = there - np.timedelta64(self.lead_times[0], "h")
        for lead in self.lead_times:
            candidates = candidates[np.isin(candidates + np.timedelta64(lead, "h"), there)]
        apart = candidates - start
        candidates = candidates[((apart % day) == np.timedelta64(0, "s")) & (np.abs(apart) > OWN_DAYS * day)]
        days = np.abs(climatology_day(candidates) - climatology_day(np.array([start])))
        distance = np.minimum(days, DAYS_PER_YEAR - days)
        near = np.lexsort((-candidates.astype(np.int64), distance))[: int((distance <= SEASON_DAYS).sum())]
        if len(near) < count:
            leads = ", ".join(map(str, self.lead_times))
            raise InputError(
                f"history={self.path} has analyses after {len(near)} past starts within {SEASON_DAYS} days of the year "
                f"of {start}, at its hour and at the lead times {leads} h, but members=schaake needs {count}; add "
                "analyses of more years, or choose members=ecc-q"
            )
        return candidates[near[:count]]
