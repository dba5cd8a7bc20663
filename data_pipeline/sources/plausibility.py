"""Plausibility: warn if a truth or members seem to be other data than their metadata say.

Files with shifted times, mirrored or shifted coordinates, other units, another level or members of other starts can be
read without an error. A few forecasts of the shortest lead time reveal such errors: they fit the truth far better after
an error is undone. For forecasts without any skill, no error is found.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from pathlib import Path

import numpy as np

from data_pipeline.common.errors import InputError
from data_pipeline.common.progress import watched
from data_pipeline.dataset import ForecastDataset
from data_pipeline.dates import Dates, epoch_seconds
from data_pipeline.grids.points import Points
from data_pipeline.protocols import DataSource
from data_pipeline.task import Task, Variable
from data_pipeline.truth_checks import CheckedReader, Findings, TruthChecks, examine, write_table

BLOCKS, STARTS_OF_BLOCK = 2, 8
"""Number of blocks that are read, and number of consecutive starts in a block."""
FEWEST_STARTS, FEWEST_CELLS, MOST_CELLS, MOST_MEMBERS = 6, 30, 4096, 8
"""Fewest starts and fewest cells with a value that are enough for a check; most cells and members that are read."""
HOURS = (-24, -12, 12, 24)
"""Time shifts in hours that are tried."""
CLEARLY, LEAST_CORRELATION = 0.5, 0.6
"""When an error is undone, 1 - r must fall below the first number times its old value, and the correlation r must reach
the second number."""
MATCHING_CORRELATION = 0.8
"""Spatial correlation above which a member matches the truth of another start."""
UNIT_RATIOS = {1000.0: 3.0, 100.0: 3.0, 9.80665: 1.05}
"""Ratios of units that are often confused; for each, the factor by which the ratio of magnitudes may differ from it."""
KELVIN, NEAR_KELVIN = 273.15, 25.0
PACKING = 0.01
"""Fraction of the usual range of values by which rounding may move a value beyond a physical bound."""
LEVEL_RATIO, LEVEL_PART = 4.0, 0.7
"""A bias suggests another level if it reaches the first number times the variability in time of a cell, and the second
number times the variability in time and space."""


@dataclass(frozen=True)
class TargetForecasts:
    """N forecasts of one target and lead time in K cells, in the order of time."""

    target: Variable
    lead: int
    members: np.ndarray
    """(N, M, K) members, or two pseudo-members."""
    truth: np.ndarray
    """(N, K) analyses at the valid times."""
    others: dict[str, np.ndarray]
    """(N, K) truth after an error of place or time is undone, by words for messages such as `12 h later`."""

    @cached_property
    def mean(self) -> np.ndarray:
        """Ensemble mean (N, K)."""
        return self.members.mean(1)

    def problem(self, refuse: bool = False) -> str | None:
        """Return a sentence about the first problem that is found; None for plausible data.

        With `refuse`, values outside the physical range raise an `InputError`.
        """
        if refuse and (impossible := self._range()):
            raise InputError(
                f"{self.target}, {self.lead} h: {impossible}; correct the files, or state their units in "
                "data.archive.variable_names"
            )
        there = np.isfinite(self.mean) & np.isfinite(self.truth)
        if there.any(0).sum() < FEWEST_CELLS or there.any(1).sum() < FEWEST_STARTS:
            return None
        checks = partial(self._units, there), self._range, self._place_or_time, self._level, self._members
        found = next((text for check in checks if (text := check())), None)
        return found and f"{self.target}, {self.lead} h: {found}"

    def _range(self) -> str | None:
        low, high = (
            beyond if bound is None else bound
            for bound, beyond in zip(self.target.bounds, (-np.inf, np.inf), strict=True)
        )
        for name, values in (("forecast", self.members), ("truth", self.truth)):
            known = values[np.isfinite(values)]
            if known.size < FEWEST_CELLS:
                continue
            slack = PACKING * np.subtract(*np.percentile(known, (99, 1)))
            outside = ((known < low - slack) | (known > high + slack)).sum()
            if outside > len(known) / 1000:
                return (
                    f"{outside} of {len(known)} values of the {name}, {known.min():.4g} to {known.max():.4g}, leave "
                    f"the physical range from {low:g} to {high:g} {self.target.units}; its units seem to be wrong"
                )
        return None

    def _units(self, there: np.ndarray) -> str | None:
        forecast, truth = self.mean[there], self.truth[there]
        if self.target.units == "K":
            difference = float(forecast.mean() - truth.mean())
            if abs(abs(difference) - KELVIN) < NEAR_KELVIN:
                who = "truth" if difference > 0 else "forecast"
                return f"the {who} is lower by {abs(difference):.1f} on average; it seems to be in °C, not in K"
        # With nearly no rain in the forecast or in the truth, the ratio means nothing.
        if min(np.count_nonzero(forecast), np.count_nonzero(truth)) < FEWEST_CELLS:
            return None
        ratio = float(np.sqrt((truth**2).mean() / (forecast**2).mean()))
        for factor, tolerance in UNIT_RATIOS.items():
            if factor != 9.80665 or self.target.name in ("z", "gh"):
                for expected in (factor, 1 / factor):
                    if 1 / tolerance < ratio / expected < tolerance:
                        return (
                            f"the truth is {ratio:.3g} times as large as the forecast on average; one of them seems to "
                            f"have units that differ by a factor of {factor:g}"
                        )
        return None

    def _place_or_time(self) -> str | None:
        best: tuple[float, str] = (0.0, "")
        for done, other in self.others.items():
            # For shifted times, the climate of each cell is removed, because it would hide a wrong day. For shifted
            # places it is kept, because it shows the right place.
            centred = done.endswith("later") or done.endswith("earlier")
            own, undone = self._correlations(self.truth, other, centred)
            halves = [self._correlations(self.truth, other, centred, slice(first, None, 2)) for first in (0, 1)]
            if all(_is_clear(*pair) for pair in ((own, undone), *halves)) and undone > best[0]:
                best = (
                    undone,
                    f"the truth fits the forecast better {done} (correlation {undone:.2f} instead of {own:.2f}); its "
                    f"{'times seem to be shifted' if centred else 'coordinates seem to be wrong'}",
                )
        return best[1] or None

    def _level(self) -> str | None:
        if self.target.near_bound:
            return None
        error = self.truth - self.mean
        with np.errstate(invalid="ignore"):
            there = np.isfinite(error)
            whole = there.sum(0) >= FEWEST_STARTS
            if whole.sum() < FEWEST_CELLS:
                return None
            bias, forecast, truth = error[:, whole], self.mean[:, whole], self.truth[:, whole]
            bias, spread = np.nanmean(bias, 0), np.maximum(np.nanstd(forecast, 0), np.nanstd(truth, 0))
        mean, total = float(bias.mean()), float(np.nanstd(truth))
        varies = spread > 0
        if not varies.any():
            return None
        same_sign = (np.sign(bias) == np.sign(mean)).mean()
        ratio = float(np.median(np.abs(bias[varies]) / spread[varies]))
        if same_sign < 0.95 or ratio < LEVEL_RATIO or abs(mean) < LEVEL_PART * total:
            return None
        return (
            f"the truth differs from the forecast by {mean:.3g} {self.target.units} on average, with the same sign "
            f"nearly everywhere, {ratio:.2g} times the variability of a cell; one of them seems to be of another level"
        )

    def _members(self) -> str | None:
        if self.members.shape[1] < 3:
            return None
        known = np.isfinite(self.members).all((0, 1)) & np.isfinite(self.truth).all(0)
        if known.sum() < FEWEST_CELLS:
            return None
        truth, members = self.truth[:, known], self.members[:, :, known]
        truth, members = _unit(truth - truth.mean(0)), _unit(members - members.mean((0, 1)))
        # (N, M, N): correlation in space of each member with the truth of each start.
        found = members @ truth.T
        starts = np.arange(len(truth))
        own = found[starts, :, starts]
        found[starts, :, starts] = -np.inf
        other = found.max(2)
        moved = (other > MATCHING_CORRELATION) & (1 - other < CLEARLY * (1 - own))
        if moved.mean() < 0.3:
            return None
        return (
            f"{moved.mean():.0%} of the members fit the truth of another start better than that of their own "
            f"(correlation {other[moved].mean():.2f} instead of {own[moved].mean():.2f}); members of different starts "
            "seem to be mixed"
        )

    def _correlations(
        self, truth: np.ndarray, other: np.ndarray, centred: bool, part: slice = slice(None)
    ) -> tuple[float, float]:
        """Return the correlations of the ensemble mean with two versions of the truth, over the same points."""
        there = np.isfinite(self.mean) & np.isfinite(truth) & np.isfinite(other)
        if there.any(1).sum() < FEWEST_STARTS or there.any(0).sum() < FEWEST_CELLS:
            return 0.0, 0.0
        values = [np.where(there, field, np.nan) for field in (self.mean, truth, other)]
        if centred:
            with np.errstate(invalid="ignore"):
                counts = there.sum(0)
                values = [field - np.nansum(field, 0) / np.maximum(counts, 1) for field in values]
        chosen = there[part]
        forecast, *truths = (field[part][chosen] for field in values)
        return _correlation(forecast, truths[0]), _correlation(forecast, truths[1])


def data_warnings(
    source: DataSource,
    task: Task,
    dates: Dates,
    members: int | None = None,
    *,
    refuse: bool = False,
    table: Path | None = None,
) -> list[str]:
    """Return a sentence for each target whose truth, units or members seem to be wrong.

    With `refuse`, a target with values outside its physical range raises an `InputError`. All implausible values of the
    truth are written into the file `table`.

    This reads at most `BLOCKS * STARTS_OF_BLOCK` forecasts of the shortest lead time, analyses near their valid times,
    and the truth as `truth_checks` does. It cannot detect that two variables have their members in different orders.
    """
    findings, policy = truth_findings(source, task, Dates.of(dates))
    if table is not None:
        write_table(findings, table)
    targets = task.only_targets()
    stored = source.moments is not None
    forecasts = ForecastDataset(source, targets, dates, members=None if stored else members, moments=stored)
    if not stored and forecasts.members > MOST_MEMBERS:
        forecasts = ForecastDataset(source, targets, dates, members=MOST_MEMBERS)
    starts, leads = (times.numpy() for times in forecasts.times())
    lead = int(leads.min())
    rows = np.flatnonzero(leads == lead)
    present = forecasts.groups_present[rows]
    rows = rows[present == np.bincount(present).argmax()]  # forecasts with the same members
    rows = rows[np.argsort(starts[rows], kind="stable")]
    rows = rows[_chosen(len(rows))]
    problems = {cases.target: cases.problem(refuse) for cases in _read(forecasts, source, rows, lead)}
    wrong = {target for target, problem in problems.items() if problem}
    return [*filter(None, problems.values()), *_sentences(findings, policy, wrong)]


def truth_warnings(source: DataSource, task: Task, dates: Dates) -> list[str]:
    """Return a sentence for each target and kind of implausible values of the truth, and for missing values."""
    return _sentences(*truth_findings(source, task, dates))


def _sentences(findings: Sequence[Findings], policy: TruthChecks, wrong: Collection[Variable] = ()) -> list[str]:
    """Return the sentences of all findings; the units of `wrong` targets are said elsewhere."""
    found: list[str] = []
    for one in findings:
        if not (one.mostly_beyond and one.variable in wrong):
            found += one.sentences(policy)
        found += filter(None, [one.missing_sentence()])
    return found


def truth_findings(source: DataSource, task: Task, dates: Dates) -> tuple[list[Findings], TruthChecks]:
    """Return the implausible values of each target on some dates, and whether they are reported or masked."""
    truth = source.analysis_fields(task.targets)
    if isinstance(truth.reader, CheckedReader):
        return [one.on(dates) for one in truth.reader.findings], truth.reader.policy
    forecasts = source.ensemble_fields(task.targets, task.lead_times)
    return [examine(truth, target, forecasts, whole=False).on(dates) for target in task.targets], "report"


def _chosen(count: int) -> np.ndarray:
    """Return positions of blocks of consecutive starts among `count`, from the first to the last start."""
    if count <= BLOCKS * STARTS_OF_BLOCK:
        return np.arange(count)
    first = np.linspace(0, count - STARTS_OF_BLOCK, BLOCKS).astype(int)
    return (first[:, None] + np.arange(STARTS_OF_BLOCK)).ravel()


def _read(forecasts: ForecastDataset, source: DataSource, rows: np.ndarray, lead: int) -> Iterator[TargetForecasts]:
    """Read the samples `rows` of `forecasts`, and the truth with errors undone; yield the forecasts of each target."""
    task, (H, W) = forecasts.task, forecasts.grid.shape
    step = max(1, int(np.ceil(np.sqrt(H * W / MOST_CELLS))))
    thin = (..., slice(None, None, step), slice(None, None, step))
    analyses = source.analysis_fields(task.targets)
    positions = {time: k for k, time in enumerate(epoch_seconds(analyses.init_times).tolist())}
    members, truths = [], []
    others: dict[str, list[np.ndarray]] = {}
    for row in watched(rows.tolist(), "plausibility of the data: forecast", len(rows)):
        sample = forecasts[row]
        members.append(sample.ensemble.numpy()[thin].copy())
        truth = sample.target.numpy()
        truths.append(truth[thin].copy())
        undone = {}
        if not isinstance(forecasts.grid, Points):
            undone["mirrored north-south"] = truth[:, ::-1]
            undone["shifted by half of the longitudes"] = np.roll(truth, W // 2, axis=2)
        valid = int(sample.init_time) + 3600 * lead
        for hours in HOURS:
            field = np.full((1, *truth.shape), np.nan, np.float32)
            if (position := positions.get(valid + 3600 * hours)) is not None:
                analyses.read(analyses.cells[position, 0], field)
            undone[f"{abs(hours)} h {'later' if hours > 0 else 'earlier'}"] = field[0]
        for done, field in undone.items():
            others.setdefault(done, []).append(field[thin].copy())
    for t, target in enumerate(task.targets):
        channel = task.target_channels[t]
        yield TargetForecasts(
            target, lead,
            np.stack([one[:, channel].reshape(len(one), -1) for one in members]).astype(float),
            np.stack([one[t].ravel() for one in truths]).astype(float),
            {done: np.stack([one[t].ravel() for one in fields]).astype(float) for done, fields in others.items()},
        )  # fmt: skip


def _is_clear(own: float, undone: float) -> bool:
    """Whether the correlation `undone` is so much better than `own` that it cannot be chance."""
    return undone >= LEAST_CORRELATION and 1 - undone < CLEARLY * (1 - own)


def _correlation(a: np.ndarray, b: np.ndarray) -> float:
    """Return Pearson's correlation; 0 if one of the arrays does not vary, or if they are empty."""
    if a.size == 0:
        return 0.0
    a, b = a - a.mean(), b - b.mean()
    size = float(np.sqrt((a**2).sum() * (b**2).sum()))
    return float((a * b).sum()) / size if size > 0 else 0.0


def _unit(values: np.ndarray) -> np.ndarray:
    """Return values (..., K) scaled to mean 0 and norm 1 over K; 0 where they do not vary."""
    values = values - values.mean(-1, keepdims=True)
    size = np.sqrt((values**2).sum(-1, keepdims=True))
    return values / np.where(size > 0, size, 1)
