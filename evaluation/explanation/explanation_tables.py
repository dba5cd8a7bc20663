"""Tables of the explanation page, and how it writes amounts."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime

import numpy as np

from data_pipeline.task import Variable
from evaluation.explanation.forecast_explanation import Change, ForecastExplanation, bias_share, root_mean_square
from evaluation.explanation.places import place_name, region_name
from evaluation.report.maps import Coast
from evaluation.report.shown_data import ExpertMap
from evaluation.report.tables import PageTable, format_percent, variable_title, with_minus


@dataclass(frozen=True)
class ExplainedCorrector:
    """What one corrector did: explanations of some of its `total` corrected forecasts.

    `left_out` are corrected forecasts without an explanation, one sentence for each reason. `units` are those of each
    target in the input, for a variable without units for readers. `problems` are sentences of the guards.
    """

    name: str
    targets: tuple[Variable, ...]
    coast: Coast
    forecasts: tuple[ForecastExplanation, ...]
    total: int
    units: tuple[str, ...] = ()
    experts: ExpertMap | None = None
    problems: tuple[str, ...] = ()
    about: Mapping[str, str] = field(default_factory=dict)

    @property
    def area(self) -> np.ndarray:
        """The area of each cell relative to the mean, (H, W)."""
        grid = self.coast.grid
        return np.broadcast_to(np.asarray(grid.weights)[:, None], grid.shape)

    def units_of(self, target: int) -> str:
        """Return the units in which the page shows a target."""
        return self.targets[target].display.units or (self.units[target] if self.units else "")

    def rows(self) -> Iterator[tuple[ForecastExplanation, int, Change]]:
        """Yield each explained forecast with each target."""
        for forecast in self.forecasts:
            for target, change in enumerate(forecast.changes):
                yield forecast, target, change


def summary_table(correctors: Sequence[ExplainedCorrector]) -> PageTable:
    """Return the table of all explained forecasts and targets."""
    columns = ("target", "lead time", "change: typical", "average", "largest", "usual", "today", "spread", "bias")
    rows, links = [], []
    for number, one in enumerate(correctors):
        for place, (forecast, target, change) in enumerate(one.rows()):
            factor, show, units = (
                one.targets[target].display.factor,
                amount_format(one, target, change),
                one.units_of(target),
            )
            moved = change.of_mean
            known = np.isfinite(moved)
            average = float(np.average(moved[known], weights=one.area[known])) if known.any() else math.nan
            largest = float(moved[change.cells[0]]) if change.cells else math.nan
            usual = today = math.nan
            if change.usual is not None:
                usual = root_mean_square(change.usual, one.area)
                today = root_mean_square(moved - change.usual, one.area)
            links.append(f"forecast-{number}-{place}")
            rows.append(
                (
                    str(one.targets[target]) + (f"\n{one.name}" if len(correctors) > 1 else ""),
                    f"{start_of(forecast):%-d %b %H} UTC +{forecast.lead_time} h",
                    f"{show(factor * root_mean_square(moved, one.area), False)} {units}",
                    show(factor * average), show(factor * largest), show(factor * usual, False),
                    show(factor * today, False), _ratio(spread_ratio(change, one.area)),
                    _share(bias_share(change, one.area)),
                )
            )  # fmt: skip
    return PageTable("All explained forecasts", columns, rows, links=links)


def place_table(one: ExplainedCorrector, forecast: ForecastExplanation, target: int) -> PageTable:
    """Return the table of the places where a target changes most."""
    change, factor, grid = forecast.changes[target], one.targets[target].display.factor, one.coast.grid
    show, units = amount_format(one, target, change), one.units_of(target)
    columns = [
        "place", f"raw mean ({units})", "corrected", "change", "usual", "raw spread", "corrected", "bias",
        "strongest input", "region",
    ]  # fmt: skip
    rows = []
    for place, cell in enumerate(change.cells):
        whole = float(change.of_mean[cell] ** 2 + np.nan_to_num(change.of_spread[cell]) ** 2)
        parts = [(part.at_cells[target][place], part.name) for part in forecast.inputs]
        strongest = max(parts, key=lambda part: abs(np.nan_to_num(part[0])), default=None)
        rows.append(
            (
                place_name(grid, cell),
                show(factor * change.raw_mean[cell], False), show(factor * change.mean[cell], False),
                show(factor * change.of_mean[cell]),
                "–" if change.usual is None else show(factor * change.usual[cell]),
                show(factor * change.raw_std[cell], False), show(factor * change.std[cell], False),
                _share(float(change.of_mean[cell] ** 2) / whole if whole else math.nan),
                f"{strongest[1]} ({show(factor * strongest[0])})" if strongest and strongest[0] else "–",
                region_name(grid, cell, one.coast.earth, one.coast.land),
            )
        )  # fmt: skip
    return PageTable(f"Largest changes: {title_of(one, forecast, target)}", columns, rows)


def input_table(one: ExplainedCorrector, forecast: ForecastExplanation, target: int) -> PageTable:
    """Return the table of the inputs, the one with the largest part in the correction of a target first."""
    factor, grid, change = one.targets[target].display.factor, one.coast.grid, forecast.changes[target]
    show, units = amount_format(one, target, change), one.units_of(target)
    columns = ("input", f"part in the mean ({units})", f"in the spread ({units})", "departure", "largest", "where")
    rows = [
        (
            part.name, show(factor * part.mean_part[target], False),
            show(factor * part.spread_part[target], False), show_number(part.departure, 2),
            show_number(part.largest, 1, sign=True), place_name(grid, part.cell) if part.cell else "–",
        )
        for part in sorted(forecast.inputs, key=lambda part: -part.mean_part[target])
    ]  # fmt: skip
    return PageTable(f"Inputs: {title_of(one, forecast, target)}", columns, rows)


def title_of(one: ExplainedCorrector, forecast: ForecastExplanation, target: int) -> str:
    """Return the name of an explained target and its lead time for readers."""
    return f"{variable_title(one.targets[target])}, +{forecast.lead_time} h"


def amount_format(one: ExplainedCorrector, target: int, change: Change) -> AmountFormat:
    """Return how to show amounts that are compared with the typical change of a target."""
    return AmountFormat(one.targets[target].display.factor * root_mean_square(change.of_mean, one.area))


@dataclass(frozen=True)
class AmountFormat:
    """Shows amounts with as many decimals as show three digits of a typical amount."""

    typical: float

    def __call__(self, value: float, sign: bool = True) -> str:
        """Return an amount as text, with its sign if it is a difference."""
        if not (self.typical > 0 and math.isfinite(self.typical)):
            return show_number(value, 3, sign)
        return show_number(value, min(max(0, 2 - math.floor(math.log10(self.typical))), 9), sign)


def show_number(value: float, decimals: int, sign: bool = False) -> str:
    """Return a number with some decimals; a dash for NaN."""
    if not math.isfinite(value):
        return "–"
    return with_minus(f"{round(float(value), decimals) + 0.0:{'+' if sign else ''}.{decimals}f}")


def _ratio(value: float) -> str:
    return f"{value:.2f}" if math.isfinite(value) else "–"


def _share(value: float) -> str:
    return format_percent(value) if math.isfinite(value) else "–"


def spread_ratio(change: Change, area: np.ndarray) -> float:
    """Return the root mean square of the corrected spread, divided by that of the raw one."""
    raw = root_mean_square(change.raw_std, area)
    return root_mean_square(change.std, area) / raw if raw > 0 else math.nan


def start_of(forecast: ForecastExplanation) -> datetime:
    """Return the start of a forecast."""
    return datetime.fromtimestamp(int(forecast.init_time.astype("datetime64[s]").astype(np.int64)), UTC)
