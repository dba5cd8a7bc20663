"""Truth checks: find implausible values of the truth, and report them, mask them or refuse them.

Three kinds of error are found, each in the analyses that verify a forecast:

- values outside the plausible range of their variable, such as 9999 K;
- constant stretches, as a stuck sensor gives;
- isolated outliers: values far from earlier and later values of the same cell and hour, and from the forecasts.

The limits are so wide that right data, rain and cyclones included, have no such value.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any, Literal

import numpy as np

from data_pipeline.common.errors import InputError
from data_pipeline.common.files import write_csv
from data_pipeline.dates import Dates, epoch_seconds
from data_pipeline.formats.cube import missing_fields
from data_pipeline.grid import Grid
from data_pipeline.grids.points import Points
from data_pipeline.protocols import Fields, MissingFields, Window
from data_pipeline.variables.variable import Variable

TruthChecks = Literal["report", "mask", "error"]
"""What happens to implausible values of the truth: they are reported, missing (NaN), or raise an `InputError`."""
CHECKS_VERSION = 1
"""Increase this when other values are found, because masked values are a part of an archive's fingerprint."""

BLOCK_VALUES, FEWEST_TIMES = 1 << 23, 64
"""Values of the truth in memory at once, and the number of times that are in memory at least."""
REPORT_VALUES = 1 << 24
"""Values that a report examines; of more truth it examines blocks of consecutive times at equal distances."""
BAND_VALUES = 1 << 20
"""Values for which statistics are computed at once."""
STRETCH, STRETCH_HOURS, CHANCE = 8, 48, 1e-3
"""Fewest equal values and hours of a constant stretch, and the largest expected number of stretches by chance."""
CONSTANT_CELLS = 0.05
"""Fraction of cells that never change above which these are no stuck sensors, but cells without data, such as land."""
FAR, FEWEST_CASES = 8.0, 20
"""Standard deviations from its neighbours in time beyond which a value is an outlier, and fewest values at one hour."""
ROUGHLY_FAR = 5.0
"""Ratio of the largest to the mean second difference in time below which a cell has no outlier."""
OUTLIER_UNITS = ("K", "Pa", "m² s⁻²", "gpm")
"""Units of variables without the heavy tails of wind, vertical motion, fluxes and amounts, which have no outliers."""
TRUTH_TABLE = "truth_checks.csv"
"""File in the folder of a run with all implausible values."""
MOST_SHOWN = 3
"""Most values of one kind that a sentence names."""
MOST_LISTED = 100
"""Most values of one kind and field that have a row each in the table."""

ERRORS = ("range", "stretch", "outlier")
SUSPECT = np.dtype(
    [("time", "i8"), ("row", "i4"), ("column", "i4"), ("value", "f4"), ("kind", "i1"), ("length", "i4"), ("near", "f4")]
)
"""One implausible value: seconds since 1970, its cell, and its kind, a position in `ERRORS`.

`length` is the number of values of a stretch at its first value, and 0 at its others. `near` is the median of the
values before and after an outlier.
"""


@dataclass(frozen=True, eq=False)
class Findings:
    """The implausible values `suspects` of one variable of the truth, found at `times` (seconds) of `of_times` times.

    At each of them, `known` values exist, and `missing` are missing in cells that have values at other times.
    """

    variable: Variable
    grid: Grid
    suspects: np.ndarray
    times: np.ndarray
    known: np.ndarray
    missing: np.ndarray
    of_times: int

    def on(self, dates: Dates) -> Findings:
        """Return the findings on some dates; times that were not examined count as before."""
        suspects, mine = (dates.contains(one.astype("datetime64[s]")) for one in (self.suspects["time"], self.times))
        kept = {name: getattr(self, name)[mine] for name in ("times", "known", "missing")}
        left = self.of_times - int((~mine).sum()) if len(self.times) == self.of_times else self.of_times
        return replace(self, suspects=self.suspects[suspects], of_times=left, **kept)

    def sentences(self, policy: TruthChecks) -> Iterator[str]:
        """Yield a sentence with the count and the first values for each kind of error."""
        units = self.variable.units
        for kind, name in enumerate(ERRORS):
            found = self.suspects[self.suspects["kind"] == kind]
            if not len(found):
                continue
            first = found[found["length"] > 0]
            shown = "; ".join([*map(self._named, first[:MOST_SHOWN]), *["..."] * (len(first) > MOST_SHOWN)])
            low, high = self.variable.plausible
            words = {
                "range": f"outside the plausible range from {low:g} to {high:g} {units}".rstrip(),
                "stretch": f"in {len(first):,} constant stretch{'es' * (len(first) > 1)}, as of a stuck sensor",
                "outlier": "far from the values before and after them and from the forecast",
            }[name]
            advice = "they are masked" if policy == "mask" else "data.archive.truth_checks=mask leaves them out"
            if name == "range" and self.mostly_beyond:
                advice = "the units seem to be wrong; state them in data.archive.variable_names, or correct the files"
            yield (
                f"{self.variable}: {len(found):,} of {self.known.sum():,} values of the truth{self._among} are {words} "
                f"({shown}); {advice}"
            )

    def missing_sentence(self) -> str | None:
        """Return a sentence with the number of missing values, None if no value is missing."""
        count, of = int(self.missing.sum()), int(self.missing.sum() + self.known.sum())
        if not count:
            return None
        return (
            f"{self.variable}: {count:,} of {of:,} values of the truth{self._among} are missing ({count / of:.1%}); "
            "forecasts of them are neither trained on nor scored"
        )

    @property
    def mostly_beyond(self) -> bool:
        """Whether most values are outside the plausible range, so that rather the units are wrong."""
        return 2 * int((self.suspects["kind"] == ERRORS.index("range")).sum()) > int(self.known.sum())

    def refuse(self) -> None:
        """Raise an `InputError` if there is an implausible value."""
        for sentence in self.sentences("error"):
            raise InputError(sentence + ("" if self.mostly_beyond else ", and truth_checks=report uses them"))

    @property
    def _among(self) -> str:
        count = len(self.times)
        return "" if count == self.of_times else f" at {count:,} of {self.of_times:,} times"

    def _named(self, one: np.void) -> str:
        """Return value, cell and date of an implausible value, or of the stretch that begins with it."""
        time = one["time"].astype("datetime64[s]").astype("datetime64[m]")
        text = f"{one['value']:g} {self.variable.units}".rstrip() + f" at {self.place(one['row'], one['column'])}"
        if one["length"] > 1:
            return f"{text}, {one['length']} times from {time}"
        return f"{text}, {time}" + (f", between values of {one['near']:g}" if np.isfinite(one["near"]) else "")

    def listed(self) -> Iterator[tuple[np.datetime64, str, str, str]]:
        """Yield time, place, value and kind of error: of each value, or once of many values of a field."""
        key = self.suspects["time"] * len(ERRORS) + self.suspects["kind"]
        order = np.argsort(key, kind="stable")
        for group in np.split(self.suspects[order], np.flatnonzero(np.diff(key[order])) + 1):
            if len(group) > MOST_LISTED:
                many = (f"{len(group)} places", f"{group['value'].min():g} to {group['value'].max():g}")
                texts = [(group[0], *many)]
            else:
                texts = [(one, self.place(one["row"], one["column"]), f"{one['value']:g}") for one in group]
            for one, *text in texts:
                yield one["time"].astype("datetime64[s]"), *text, ERRORS[one["kind"]]

    def place(self, row: int, column: int) -> str:
        """Return the id of a station, or the position of a cell."""
        if isinstance(self.grid, Points) and self.grid.ids:
            return f"station {self.grid.ids[row]}"
        latitudes, longitudes = (
            np.broadcast_to(one, self.grid.shape) for one in (self.grid.cell_latitudes, self.grid.cell_longitudes)
        )
        return f"latitude {latitudes[row, column]:g}, longitude {longitudes[row, column]:g}"


def write_table(findings: Sequence[Findings], path: Path) -> None:
    """Write the implausible values into a CSV file; without any, the file is removed.

    A field with more than `MOST_LISTED` values of one kind has one row for all of them: a file in wrong units would
    otherwise give a row for each of millions of values.
    """
    if not any(len(one.suspects) for one in findings):
        path.unlink(missing_ok=True)
        return
    rows = (
        (one.variable, time, place, value, one.variable.units, error)
        for one in findings for time, place, value, error in one.listed()
    )  # fmt: skip
    write_csv(path, ["variable", "valid_time", "place", "value", "units", "error"], rows)


def examine(truth: Fields, variable: Variable, forecasts: Fields | None, *, whole: bool = True) -> Findings:
    """Find the implausible values of a variable, at all times that one of the `forecasts` is valid for.

    Without forecasts, all times are examined, and no outliers are found. `whole`: examine all values, else at most
    `REPORT_VALUES`, or one block.
    """
    channel = truth.variables.index(variable)
    numbers, seconds = truth.cells[:, 0, 0, channel], epoch_seconds(truth.init_times)
    there = numbers >= 0
    if forecasts is not None:
        leads = 3600 * np.array(forecasts.lead_times, np.int64)
        there &= np.isin(seconds, (epoch_seconds(forecasts.init_times)[:, None] + leads).ravel())
    numbers, seconds = numbers[there], seconds[there]
    cells = int(np.prod(truth.grid.shape))
    size = max(FEWEST_TIMES, BLOCK_VALUES // cells)
    blocks = np.array_split(np.arange(len(numbers)), -(-len(numbers) // size)) if len(numbers) else []
    if not whole and len(numbers) * cells > REPORT_VALUES:
        most = max(1, REPORT_VALUES // (size * cells))
        blocks = [blocks[k] for k in np.unique(np.linspace(0, len(blocks) - 1, most).astype(int))]
    suspects, known, missing = [np.zeros(0, SUSPECT)], [np.zeros(0, int)], [np.zeros(0, int)]
    for block in blocks:
        values = np.empty((len(block), 1, *truth.grid.shape), np.float32)
        truth.read(numbers[block][:, None], values)
        finite = np.isfinite(values).reshape(len(block), -1)
        known.append(finite.sum(1))
        missing.append(finite.any(0).sum() - known[-1])
        suspects.append(_Block(variable, truth.grid, values[:, 0], seconds[block], forecasts).suspects())
    examined = seconds[np.concatenate(blocks)] if blocks else seconds
    found = np.concatenate(suspects)
    return Findings(variable, truth.grid, found, examined, np.concatenate(known), np.concatenate(missing), len(numbers))


@dataclass(frozen=True, eq=False)
class _Block:
    """Consecutive `values` (n, H, W) of a variable at `seconds` (n,)."""

    variable: Variable
    grid: Grid
    values: np.ndarray
    seconds: np.ndarray
    forecasts: Fields | None

    def suspects(self) -> np.ndarray:
        """Return all implausible values, sorted by time."""
        values = self.values.reshape(len(self.values), -1)
        beyond = self._beyond(values)
        found = [self._rows("range", *np.nonzero(beyond))] if beyond.any() else []
        values[beyond] = np.nan  # neither a stretch nor the scale of outliers
        step = max(1, BAND_VALUES // len(values))
        bands = [slice(first, first + step) for first in range(0, values.shape[1], step)]
        found += [part for band in bands for part in self._stretches(values, band)]
        if self.variable.units in OUTLIER_UNITS and not self.variable.near_bound:
            candidates = [self._departures(values, band) for band in bands]
            found += self._outliers(values, *(np.concatenate(part) for part in zip(*candidates, strict=True)))
        joined = np.concatenate(found) if found else np.zeros(0, SUSPECT)
        return joined[np.lexsort([joined["column"], joined["row"], joined["time"]])]

    def _rows(self, kind: str, time: np.ndarray, cell: np.ndarray, length: Any = 1, near: Any = np.nan) -> np.ndarray:
        rows = np.zeros(len(time), SUSPECT)
        rows["time"], rows["kind"], rows["length"], rows["near"] = self.seconds[time], ERRORS.index(kind), length, near
        rows["row"], rows["column"] = np.unravel_index(cell, self.grid.shape)
        rows["value"] = self.values[time, rows["row"], rows["column"]]
        return rows

    def _beyond(self, values: np.ndarray) -> np.ndarray:
        """Return where values lie outside the plausible range by more than rounding can explain."""
        low, high = self.variable.plausible
        if np.isinf([low, high]).all():
            return np.zeros(values.shape, bool)
        with np.errstate(invalid="ignore"):
            beyond = (values < low) | (values > high)
            if beyond.any():
                inside = values[~beyond & np.isfinite(values)]
                slack = 0.01 * np.ptp(np.percentile(inside, (1, 99))) if inside.size else 0.0
                beyond &= (values < low - slack) | (values > high + slack)
        return beyond

    def _stretches(self, values: np.ndarray, band: slice) -> Iterator[np.ndarray]:
        """Yield the values of each constant stretch in some cells that chance cannot explain."""
        part = values[:, band]
        equal = part[1:] == part[:-1]
        length = np.zeros(part.shape, np.int32)
        for k in range(1, len(part)):
            length[k] = (length[k - 1] + 1) * equal[k - 1]
        last = length >= STRETCH - 1
        last[:-1] &= ~equal
        if not last.any():
            return
        pairs = np.isfinite(part[1:]) & np.isfinite(part[:-1])
        repeats, of = equal.sum(0), pairs.sum(0)
        never = (repeats == of) & (of > 0)
        if never.mean() > CONSTANT_CELLS or part.shape[1] < 1 / CONSTANT_CELLS:
            last[:, never] = False
        pool = (repeats[~never].sum() + 1) / (of[~never].sum() + 2)
        if self.variable.censored:
            with np.errstate(invalid="ignore"):
                last &= (part != np.fmin.reduce(part)) & (part != np.fmax.reduce(part))
        ends, cells = np.nonzero(last)
        counts = length[ends, cells] + 1
        begins = ends + 1 - counts
        # The chance that a value repeats the one before: that of this cell outside of the stretch, or of all cells.
        rates = (repeats[cells] - counts + 2) / (of[cells] - counts + 3)
        rates = np.where(never[cells], pool, np.maximum(rates, min(pool, 0.5)))
        unlikely = np.log(values.size) + (counts - 1) * np.log(rates) < np.log(CHANCE)
        unlikely &= self.seconds[ends] - self.seconds[begins] >= 3600 * STRETCH_HOURS
        begins, cells, counts = (np.repeat(one[unlikely], counts[unlikely]) for one in (begins, cells, counts))
        first = np.diff(cells * len(part) + begins, prepend=-1) != 0
        steps = np.arange(len(first)) - np.maximum.accumulate(np.arange(len(first)) * first)
        yield self._rows("stretch", begins + steps, band.start + cells, np.where(first, counts, 0))

    def _departures(self, values: np.ndarray, band: slice) -> tuple[np.ndarray, ...]:
        """Return time, cell, neighbours' median and scale of values that are far from their neighbours in time."""
        found: list[tuple[np.ndarray, ...]] = []
        for hour in np.unique(self.seconds % 86400):
            own = np.flatnonzero(self.seconds % 86400 == hour)
            if len(own) < FEWEST_CASES:
                continue
            part = values[own, band]
            # Most cells need no robust statistics: none of their second differences is large beside the others.
            rough = np.abs(part - (part[[1, *range(len(part) - 1)]] + part[[*range(1, len(part)), -2]]) / 2)
            usual = rough.mean(0)
            cells = np.flatnonzero(~(rough.max(0) <= ROUGHLY_FAR * usual))  # also those with missing values
            part = part[:, cells]
            near = _near_median(part)
            away = np.abs(part - near)
            scale = np.fmax(_scale(away), np.median(usual[np.isfinite(usual)]) / 4 if np.isfinite(usual).any() else 0)
            with np.errstate(invalid="ignore"):
                time, cell = np.nonzero((away > FAR * scale) & (np.isfinite(away).sum(0) >= FEWEST_CASES) & (away > 0))
            found.append((own[time], band.start + cells[cell], near[time, cell], scale[cell]))
        empty = np.zeros(0, int), np.zeros(0, int), np.zeros(0), np.zeros(0)
        return tuple(np.concatenate(part) for part in zip(*found, empty, strict=True))

    def _outliers(
        self, values: np.ndarray, time: np.ndarray, cell: np.ndarray, near: np.ndarray, scale: np.ndarray
    ) -> Iterator[np.ndarray]:
        """Yield the candidates that neither a forecast nor the cells beside them confirm."""
        away = np.abs(values[time, cell] - near)
        times, first = np.unique(time[np.argsort(-away / scale, kind="stable")], return_index=True)
        for one in times[np.argsort(first)][: max(16, len(values) // 4)]:  # those with the worst candidates
            mine = np.flatnonzero(time == one)
            forecast = self._forecast(int(self.seconds[one]))
            if forecast is None:
                continue
            error = np.abs(values[one, cell[mine]] - forecast.ravel()[cell[mine]])
            wrong = (error > FAR / 2 * scale[mine]) & (error > away[mine] / 2)
            wrong &= ~self._confirmed(one, cell[mine], near[mine])
            if wrong.any():
                yield self._rows("outlier", time[mine][wrong], cell[mine][wrong], near=near[mine][wrong])

    def _confirmed(self, time: int, cells: np.ndarray, near: np.ndarray) -> np.ndarray:
        """Whether a cell beside each of these departs likewise from its values at this hour; stations have none."""
        found = np.zeros(len(cells), bool)
        if isinstance(self.grid, Points):
            return found
        H, W = self.grid.shape
        rows, columns = np.unravel_index(cells, self.grid.shape)
        same = np.flatnonzero(self.seconds % 86400 == self.seconds[time] % 86400)
        place = int(np.searchsorted(same, time))
        around = same[max(place - 2, 0) : place + 3, None]
        away = self.values[time, rows, columns] - near
        for down, right in ((-1, 0), (1, 0), (0, -1), (0, 1)):
            r, c = rows + down, (columns + right) % W
            beside = (r >= 0) & (r < H) & ((r != rows) | (c != columns))
            values = self.values[around, r.clip(0, H - 1), c]
            departure = values[min(place, 2)] - _near_median(values)[min(place, 2)]
            with np.errstate(invalid="ignore"):
                found |= beside & (departure * np.sign(away) > np.abs(away) / 2)
        return found

    def _forecast(self, valid: int) -> np.ndarray | None:
        """Return the ensemble mean (H, W) of the forecast with the shortest lead time for a time, None without one."""
        if self.forecasts is None:
            return None
        starts = epoch_seconds(self.forecasts.init_times)
        for place, lead in enumerate(self.forecasts.lead_times):
            init = int(np.searchsorted(starts, valid - 3600 * lead))
            if init == len(starts) or starts[init] != valid - 3600 * lead:
                continue
            channel = self.forecasts.variables.index(self.variable)
            numbers = self.forecasts.cells[init, place, :, channel]
            if (numbers >= 0).all():
                members = np.empty((len(numbers), 1, *self.grid.shape), np.float32)
                self.forecasts.read(numbers[:, None], members)
                return members.mean(0)[0]
        return None


def _near_median(values: np.ndarray) -> np.ndarray:
    """Return the median of the two values before and the two values after each value (n, K); NaN without any."""
    padded = np.full((len(values) + 4, values.shape[1]), np.nan, np.float32)
    padded[2:-2] = values
    near = [padded[k : k + len(values)] for k in (0, 1, 3, 4)]
    count = sum(np.isfinite(one).astype(np.int8) for one in near)
    total = sum(np.nan_to_num(one) for one in near)
    # Of three and of four values, the median is the mean without the least and the largest.
    ends = np.fmin(np.fmin(near[0], near[1]), np.fmin(near[2], near[3]))
    ends += np.fmax(np.fmax(near[0], near[1]), np.fmax(near[2], near[3]))
    with np.errstate(invalid="ignore", divide="ignore"):
        found: np.ndarray = np.where(count > 2, (total - ends) / (count - 2), total / count)
    return found


def _scale(away: np.ndarray) -> np.ndarray:
    """Return a robust standard deviation of departures (n, K): the larger of two estimates from quantiles of |z|."""
    ordered, count = np.sort(away, axis=0), np.isfinite(away).sum(0)
    at = [np.maximum(np.ceil(level * count).astype(int) - 1, 0) for level in (0.5, 0.95)]
    half, most = np.take_along_axis(ordered, np.stack(at), 0)
    return np.maximum(half / 0.6745, most / 1.96)


def checked(
    truth: Fields, policy: TruthChecks, find: Callable[[Variable], Findings], *, count_empty: bool = False
) -> Fields:
    """Return the truth with the implausible values masked, or refused, when they are read, by the policy.

    `find` returns the implausible values of a variable. `count_empty`: fields that lose all their values count as
    missing fields, as in datasets of xarray.
    """
    if policy == "report":
        return truth
    reader = CheckedReader(truth, policy, find)
    if not count_empty:
        return replace(truth, reader=reader)
    return replace(truth, reader=reader, find_incomplete=reader.incomplete)


class CheckedReader:
    """Reads the fields of `truth` without their implausible values, which are found at the first reading.

    With the policy `error`, an implausible value raises an `InputError`.
    """

    def __init__(self, truth: Fields, policy: TruthChecks, find: Callable[[Variable], Findings]) -> None:
        self.truth, self.policy, self._find = truth, policy, find

    @property
    def grid(self) -> Grid:
        """The grid of the values."""
        return self.truth.grid

    @cached_property
    def findings(self) -> tuple[Findings, ...]:
        """The implausible values of each variable."""
        found = tuple(map(self._find, self.truth.variables))
        for one in found:
            if self.policy == "error" or one.mostly_beyond:
                one.refuse()
        return found

    @cached_property
    def _cells(self) -> dict[int, np.ndarray]:
        """The masked cells (n, 2) of each field with one, by its number."""
        cells: dict[int, np.ndarray] = {}
        seconds = epoch_seconds(self.truth.init_times)
        for channel, one in enumerate(self.findings):
            times, first = np.unique(one.suspects["time"], return_index=True)
            places = np.stack([one.suspects["row"], one.suspects["column"]], 1)
            for time, own in zip(times, np.split(places, first[1:]) if len(first) else (), strict=True):
                cells[int(self.truth.cells[np.searchsorted(seconds, time), 0, 0, channel])] = own
        return cells

    def read(self, wanted: np.ndarray, out: np.ndarray, window: Window) -> None:
        """Read the `window` of the fields with the numbers `wanted` (...); see `FieldReader`."""
        self.truth.reader.read(wanted, out, window)
        if self._cells:
            for place in zip(*np.nonzero(np.isin(wanted, list(self._cells))), strict=True):
                masked = np.zeros(self.grid.shape, bool)
                masked[tuple(self._cells[int(wanted[place])].T)] = True
                out[place][masked[window[0]][..., window[1]]] = np.nan

    def incomplete(self) -> dict[tuple[int, int], MissingFields]:
        """Return the fields without any value, as `Fields.incomplete`, also those whose values are all masked."""
        absent = self.truth.cells < 0
        for (init, lead), lacks in self.truth.incomplete.items():
            absent[init, lead] |= np.isin([str(one) for one in self.truth.variables], lacks.channels)
        for number in self._cells:
            values = np.empty((1, 1, *self.grid.shape), np.float32)
            self.read(np.array([[number]]), values, (slice(None), slice(None)))
            absent[self.truth.cells == number] = bool(np.isnan(values).all())
        return missing_fields(absent, self.truth.variables, self.truth.numbers, lambda *_: "the truth")

    def __getstate__(self) -> dict[str, Any]:
        """Return the findings, so that another process need not find them again."""
        return {"truth": self.truth, "policy": self.policy, "findings": self.findings}
