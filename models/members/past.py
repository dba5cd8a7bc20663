"""Past weather: analyses of many years, and past forecasts of the same model, which give members their dependence.

The analyses are also the climate of the products that need one; see `models.members.truth_climate`.

One choice of past starts serves all lead times, targets and cells of a forecast, so that the members have the
dependence of past weather in time, in space and between variables.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from data_pipeline.common.errors import InputError
from data_pipeline.dates import DAYS_PER_YEAR, Dates, climatology_day
from data_pipeline.formats.format import Names
from data_pipeline.formats.open import analysis_fields, ensemble_fields
from data_pipeline.protocols import DataSource, Fields
from data_pipeline.task import Task
from models.engines.engine import CorrectorDescription
from models.parallel.domain import Domain

if TYPE_CHECKING:
    from models.members.options import CorrectionOptions

SEASON_DAYS = 45
"""The largest difference in the day of the year between a forecast and a chosen past start."""
OWN_DAYS = 15
"""Starts within so many days of the forecast are not chosen, because their analyses belong to the same weather."""
LATTICE = 32
"""Rows and columns of cells, at most, in which forecasts are compared: neighbours have similar forecasts."""
FEWEST_ERRORS = 20
"""Past forecasts that a correlation of errors needs at least."""


@dataclass(frozen=True)
class Past:
    """Analyses of a task's targets at many times, and past forecasts of these; both read as `Fields`."""

    analyses: Fields
    """Fields of lead time 0 and one member."""
    lead_times: tuple[int, ...]
    """Lead times of the task; a chosen start must have analyses at all of them."""
    path: str
    """The analyses, as the beginning of a sentence."""
    forecasts: Fields | None = None
    _known: dict[Any, np.ndarray] = field(default_factory=dict, repr=False, compare=False)

    @classmethod
    def open(cls, options: CorrectionOptions, corrector: CorrectorDescription, names: Names = None) -> Past | None:
        """Open the past of a corrector's targets on its grid; None if neither method nor products read one."""
        task, target, history, reforecasts = corrector.task, corrector.target_grid, options.history, options.reforecasts
        options.check(corrector)
        if not history:
            return None
        analyses = analysis_fields(list(history), task.targets, names=names, target=target)
        past = cls(analyses, task.lead_times, f"history={', '.join(history)}")
        if reforecasts:
            opened = ensemble_fields(
                list(reforecasts), task.targets, task.lead_times, names=names, target=target, missing="mask"
            )
            past = replace(past, forecasts=opened)
            if lost := [str(lead) for lead in task.lead_times if lead not in opened.lead_times]:
                raise InputError(
                    f"reforecasts={', '.join(reforecasts)} has no forecast at +{', +'.join(lost)} h, a lead time of "
                    "the corrector; add these"
                )
        for option, paths, fields in (
            ("history", history, analyses), ("reforecasts", reforecasts, past.forecasts),
        ):  # fmt: skip
            if fields is not None and not corrector.grid.matches(fields.grid):
                named = f"{option}={', '.join(paths)}"
                raise InputError(f"{named} has {fields.grid}, the corrector {corrector.grid}; interpolate it")
        return past

    @classmethod
    def of(cls, source: DataSource, task: Task, dates: Dates) -> Past:
        """Return the past in a data source: analyses and forecasts that are valid on `dates`."""
        analyses, forecasts = (
            source.analysis_fields(task.targets),
            source.ensemble_fields(task.targets, task.lead_times),
        )
        valid = forecasts.init_times[:, None] + np.array(task.lead_times, "timedelta64[h]")
        past = cls(_rows(analyses, dates.contains(analyses.init_times)), task.lead_times, "the training period")
        return replace(past, forecasts=_rows(forecasts, np.all(dates.contains(valid), axis=1)))

    def read_analyses(self, starts: np.ndarray, lead_time: int, domain: Domain) -> Iterator[np.ndarray]:
        """Yield the analyses (T, h, w) at a lead time (hours) after each start, on this rank's tile."""
        valid = starts + np.timedelta64(lead_time, "h")
        for place in np.searchsorted(self.analyses.init_times, valid):
            out = np.empty((1, len(self.analyses.variables), *domain.own_shape))
            self.analyses.read(self.analyses.cells[place, 0], out, domain.tile)
            yield out[0]

    def starts(self, init_time: np.datetime64, count: int, at_most: int | None = None) -> np.ndarray:
        """Return the past starts of the season, nearest first: `count`, or between `count` and `at_most`.

        They are at the hour of the forecast, and nearest to its day of the year. Of equally near starts, the latest are
        first. Starts after the forecast are chosen as well, if there are their analyses, but none within `OWN_DAYS` of
        the forecast.
        """
        near = self._in_season(init_time, self._analysed)
        self._check(len(near), count, init_time, self.path, "analyses")
        return near[: at_most or count]

    def season(self, valid: np.datetime64, days: int) -> np.ndarray:
        """Return the times of analyses at the hour of a valid time, at most `days` from it in the day of the year.

        Those within `OWN_DAYS` of it are left out.
        """
        return self._in_season(valid, self.analyses.init_times.astype("datetime64[s]"), days)

    def similar_starts(self, init_time: np.datetime64, count: int, current: Fields) -> np.ndarray:
        """Return the `count` past starts of the season whose forecasts are most similar to that of `current`.

        The distance of two forecasts is the root mean square of the differences of the means and of the spreads of
        their members, over cells, lead times and targets. Differences of each target at each lead time are divided by
        the mean standard deviation of the means of the past forecasts.
        """
        assert self.forecasts is not None
        near = self._in_season(init_time, self._forecast)
        self._check(len(near), count, init_time, self.path, "analyses and past forecasts")
        if lost := [str(lead) for lead in self.lead_times if lead not in current.lead_times]:
            raise InputError(
                f"members=simschaake compares forecasts at all lead times of the corrector, and the forecast of "
                f"{init_time} has none at +{', +'.join(lost)} h; add them, or choose members=schaake"
            )
        past = np.stack([self._features(self.forecasts, start) for start in near])
        own = self._features(current, init_time)
        scale = past[:, :1].std(0, keepdims=True).mean(-1, keepdims=True)
        distance = (((past - own) / np.where(scale > 0, scale, 1)) ** 2).sum((1, 2, 3, 4))
        return near[np.argsort(distance, kind="stable")[:count]]

    def error_root(self, domain: Domain) -> np.ndarray:
        """Return the symmetric root of the correlation of errors between lead times, (L, L, T, h, w), in each cell.

        An error is an analysis less the mean of the members of a past forecast.
        """
        assert self.forecasts is not None

        def compute() -> np.ndarray:
            starts = self._forecast
            if len(starts) < FEWEST_ERRORS:
                raise InputError(
                    f"members=decc needs {FEWEST_ERRORS} past forecasts with analyses at all lead times, got "
                    f"{len(starts)}; add reforecasts and their analyses, or choose members=ecc-q"
                )
            return symmetric_root(correlation(self._errors(start, domain) for start in starts))

        return self._remembered(("root", domain.rank, domain.own_shape), compute)

    def _errors(self, start: np.datetime64, domain: Domain) -> np.ndarray:
        """Return the errors (L, T, h, w) of the mean of a past forecast; NaN where one is missing."""
        assert self.forecasts is not None
        place, found = int(np.searchsorted(self.forecasts.init_times, start)), []
        for lead in self.lead_times:
            out = np.empty((len(self.forecasts.numbers), len(self.forecasts.variables), *domain.own_shape))
            cells = self.forecasts.cells[place, self.forecasts.lead_times.index(lead)]
            self.forecasts.read(cells, out, domain.tile)
            (analysis,) = self.read_analyses(np.array([start]), lead, domain)
            found.append(analysis - out.mean(0))
        return np.stack(found)

    def _features(self, fields: Fields, start: np.datetime64) -> np.ndarray:
        """Return mean and spread of the members of a forecast in some cells of the whole grid, (2, L, T, n).

        They are multiplied with the root of the area of the cell.
        """
        grid = fields.grid
        every = tuple(slice(None, None, -(-size // LATTICE)) for size in grid.shape)
        area = np.sqrt(np.broadcast_to(grid.weights[:, None], grid.shape)[every])

        def compute() -> np.ndarray:
            place, found = int(np.searchsorted(fields.init_times, start)), []
            for lead in self.lead_times:
                out = np.empty((len(fields.numbers), len(fields.variables), *grid.shape))
                fields.read(fields.cells[place, fields.lead_times.index(lead)], out)
                members = out[..., every[0], every[1]]
                # Unbiased, because past forecasts often have fewer members than the forecast.
                spread = members.std(0, ddof=min(1, len(members) - 1))
                found.append((area * np.stack([members.mean(0), spread])).reshape(2, len(out[0]), -1))
            return np.nan_to_num(np.stack(found, 1))

        return self._remembered((fields is self.forecasts, start), compute)

    def _remembered(self, key: Any, compute: Callable[[], np.ndarray]) -> np.ndarray:
        if key not in self._known:
            self._known[key] = compute()
        return self._known[key]

    @property
    def _analysed(self) -> np.ndarray:
        """All starts with analyses at all lead times."""
        there = self.analyses.init_times.astype("datetime64[s]")
        found = there - np.timedelta64(self.lead_times[0], "h")
        for lead in self.lead_times:
            found = found[np.isin(found + np.timedelta64(lead, "h"), there)]
        return found

    @property
    def _forecast(self) -> np.ndarray:
        """All starts with analyses and a whole past forecast at all lead times."""
        assert self.forecasts is not None
        whole = self.forecasts.init_times[(self.forecasts.cells >= 0).all((1, 2, 3))].astype("datetime64[s]")
        return np.intersect1d(self._analysed, whole)

    def _in_season(self, init_time: np.datetime64, candidates: np.ndarray, within: int = SEASON_DAYS) -> np.ndarray:
        """Return the candidates at the hour of a start and in its season, nearest to its day of the year first."""
        day, start = np.timedelta64(1, "D"), init_time.astype("datetime64[s]")
        apart = candidates - start
        candidates = candidates[((apart % day) == np.timedelta64(0, "s")) & (np.abs(apart) > OWN_DAYS * day)]
        days = np.abs(climatology_day(candidates) - climatology_day(np.array([start])))
        distance = np.minimum(days, DAYS_PER_YEAR - days)
        order = np.lexsort((-candidates.astype(np.int64), distance))
        return candidates[order[: int((distance <= within).sum())]]

    def _check(self, found: int, count: int, start: np.datetime64, path: str, what: str) -> None:
        if found < count:
            leads = ", ".join(map(str, self.lead_times))
            raise InputError(
                f"{path} has {what} after {found} past starts within {SEASON_DAYS} days of the year of {start}, at its "
                f"hour and at the lead times {leads} h, but {count} are needed; add more years, or choose members=ecc-q"
            )


def _rows(fields: Fields, kept: np.ndarray) -> Fields:
    """Return the fields of some starts."""
    return replace(fields, init_times=fields.init_times[kept], cells=fields.cells[kept], find_incomplete=dict)


def correlation(vectors: Iterator[np.ndarray]) -> np.ndarray:
    """Return the correlation (L, L, ...) of vectors (L, ...) in each place, over those that are complete there.

    Between a value that never varies and another one, it is 0.
    """
    count, mean, squares = np.zeros(()), np.zeros(()), np.zeros(())
    for vector in vectors:
        known = np.isfinite(vector).all(0)
        own = np.where(known, vector, 0)
        count, mean, squares = count + known, mean + own, squares + own[:, None] * own
    with np.errstate(invalid="ignore", divide="ignore"):
        covariance = squares / count - (mean / count)[:, None] * (mean / count)
        spread = np.sqrt(np.einsum("ll...->l...", covariance).clip(min=0))
        found = covariance / (spread[:, None] * spread)
    identity = np.eye(len(mean)).reshape(len(mean), len(mean), *(1,) * (mean.ndim - 1))
    return np.where(identity > 0, 1.0, np.nan_to_num(found, posinf=0, neginf=0))


def symmetric_root(matrices: np.ndarray) -> np.ndarray:
    """Return the symmetric square root of positive matrices (L, L, ...)."""
    values, vectors = np.linalg.eigh(np.moveaxis(matrices, (0, 1), (-2, -1)))
    root = (vectors * np.sqrt(values.clip(min=0))[..., None, :]) @ vectors.swapaxes(-2, -1)
    return np.moveaxis(root, (-2, -1), (0, 1))
