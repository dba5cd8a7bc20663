"""Explained corrections, their tables on the explanation page, and how the page writes amounts."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import cached_property

import numpy as np
import xarray as xr

from data_pipeline.dates import epoch_seconds
from data_pipeline.task import Variable
from evaluation.explanation.forecast_explanation import bias_share, root_mean_square
from evaluation.explanation.places import region_name
from evaluation.report.maps import Coast
from evaluation.report.shown_data import ExpertMap, forecast_text, place_name
from evaluation.report.tables import PageTable, format_percent, variable_title, with_minus


@dataclass(frozen=True)
class ExplainedCorrector:
    """What one corrector did: explanations of some of its `total` corrected forecasts.

    `forecasts` are those of `explain_forecast`. `units` are those of each target in the input, for a variable without
    units for readers. `problems` are sentences of the guards, and on corrected forecasts without an explanation.
    """

    name: str
    targets: tuple[Variable, ...]
    coast: Coast
    forecasts: tuple[xr.Dataset, ...]
    total: int
    units: tuple[str, ...] = ()
    experts: ExpertMap | None = None
    problems: tuple[str, ...] = ()
    about: Mapping[str, str] = field(default_factory=dict)

    @cached_property
    def area(self) -> np.ndarray:
        """The area of each cell relative to the mean, (H, W)."""
        grid = self.coast.grid
        return np.broadcast_to(np.asarray(grid.weights)[:, None], grid.shape)

    def data(self) -> xr.Dataset:
        """Return all that the page shows about this corrector, as it is written to NetCDF."""
        stated = {"corrector": self.name, "total": self.total, "problems": list(self.problems), **self.about}
        found = xr.concat(self.forecasts, "forecast") if self.forecasts else xr.Dataset()
        found = found.assign_coords(target=list(map(str, self.targets))).assign_attrs(stated)
        found["units"] = "target", list(self.units or (variable.units for variable in self.targets))
        if self.experts is not None:
            about = {"layer": self.experts.layer, "experts": self.experts.count}
            found["expert"] = found.raw_mean.dims[-2:], self.experts.chosen, about
        return found.isel(column=0, missing_dims="ignore")

    def place(self, cell: int) -> str:
        """Return the place of the cell with a number; a dash for -1."""
        return place_name(self.coast.grid, self.position(cell)) if cell >= 0 else "–"

    def position(self, cell: int) -> tuple[int, int]:
        """Return row and column of the cell with a number."""
        return divmod(int(cell), self.coast.grid.shape[1])

    def changes(self) -> Iterator[ExplainedChange]:
        """Yield the change of each target of each explained forecast."""
        for forecast in self.forecasts:
            for target, variable in enumerate(self.targets):
                units = variable.display.units or (self.units[target] if self.units else "")
                yield ExplainedChange(self, variable, units, forecast.isel(target=target))


@dataclass(frozen=True)
class ExplainedChange:
    """The change of one target of one forecast; the methods return amounts in `units` as text."""

    corrector: ExplainedCorrector
    variable: Variable
    units: str
    data: xr.Dataset

    @property
    def title(self) -> str:
        """The target and its lead time for readers."""
        return f"{variable_title(self.variable)}, +{int(self.data.lead_time)} h"

    @cached_property
    def of_mean(self) -> np.ndarray:
        """Corrected mean less raw mean, (H, W)."""
        return (self.data.corrected_mean - self.data.raw_mean).values

    @cached_property
    def of_spread(self) -> np.ndarray:
        """Corrected standard deviation less the raw one, (H, W)."""
        return (self.data.corrected_spread - self.data.raw_spread).values

    @property
    def cells(self) -> np.ndarray:
        """The numbers of the cells with the largest changes of the mean."""
        return self.data.cell.values[self.data.cell.values >= 0]

    @cached_property
    def typical(self) -> float:
        """Root mean square over the area of the change of the mean."""
        return self.size(self.of_mean)

    def size(self, values: np.ndarray | xr.DataArray) -> float:
        """Return the root mean square of a field over the area."""
        return root_mean_square(np.asarray(values), self.corrector.area)

    def usual_and_today(self) -> tuple[float, float]:
        """Return the sizes of the usual change and of the rest, NaN without a training climate."""
        if "usual_change" not in self.data:
            return math.nan, math.nan
        return self.size(self.data.usual_change), self.size(self.of_mean - self.data.usual_change.values)

    @property
    def spread_ratio(self) -> float:
        """Root mean square of the corrected spread, divided by that of the raw one; NaN without a raw spread."""
        raw = self.size(self.data.raw_spread)
        return self.size(self.data.corrected_spread) / raw if raw > 0 else math.nan

    def inputs(self) -> list[xr.Dataset]:
        """Return the data of each input, that with the largest part in the correction first; none without a climate."""
        if "input" not in self.data.coords:
            return []
        return [self.data.isel(input=k) for k in np.argsort(-self.data.mean_part.values, kind="stable")]

    def at(self, field: str, cell: int) -> float:
        """Return the value of a field in a cell; NaN for a field that needs a training climate."""
        return float(self.data[field].values.flat[cell]) if field in self.data else math.nan

    def show(self, value: float | xr.DataArray, sign: bool = True) -> str:
        """Return an amount with as many decimals as show three digits of the typical change of the mean."""
        factor = self.variable.display.factor
        typical, decimals = factor * self.typical, 3
        if typical > 0 and math.isfinite(typical):
            decimals = min(max(0, 2 - math.floor(math.log10(typical))), 9)
        return show_number(factor * float(value), decimals, sign)


def summary_table(correctors: Sequence[ExplainedCorrector]) -> PageTable:
    """Return the table of all explained forecasts and targets."""
    columns = ("target", "lead time", "change: typical", "average", "largest", "usual", "today", "spread", "bias")
    rows, links = [], []
    for number, one in enumerate(correctors):
        for place, change in enumerate(one.changes()):
            links.append(f"forecast-{number}-{place}")
            moved, known, show = change.of_mean, np.isfinite(change.of_mean), change.show
            average = float(np.average(moved[known], weights=one.area[known])) if known.any() else math.nan
            largest = float(moved.flat[change.cells[0]]) if change.cells.size else math.nan
            usual, today = change.usual_and_today()
            rows.append(
                (
                    str(change.variable) + (f"\n{one.name}" if len(correctors) > 1 else ""),
                    f"{start_of(change.data):%-d %b %H} UTC +{int(change.data.lead_time)} h",
                    f"{show(change.typical, False)} {change.units}", show(average), show(largest), show(usual, False),
                    show(today, False), show_number(change.spread_ratio, 2),
                    _share(bias_share(moved, change.of_spread, one.area)),
                )
            )  # fmt: skip
    return PageTable("All explained forecasts", columns, rows, links=links)


def place_table(change: ExplainedChange) -> PageTable:
    """Return the table of the places where a target changes most."""
    columns = [
        "place", f"raw mean ({change.units})", "corrected", "change", "usual", "raw spread", "corrected", "bias",
        "strongest input", "region",
    ]  # fmt: skip
    rows, one, show = [], change.corrector, change.show
    for place, cell in enumerate(change.cells):
        moved = float(change.of_mean.flat[cell])
        whole = moved**2 + float(np.nan_to_num(change.of_spread.flat[cell])) ** 2
        strongest = "–"
        if "place_part" in change.data:
            parts = change.data.place_part.isel(place=place)
            part = parts[int(np.abs(np.nan_to_num(parts.values)).argmax())]
            strongest = f"{part.input.item()} ({show(part)})" if part else "–"
        rows.append(
            (
                one.place(cell), show(change.at("raw_mean", cell), False),
                show(change.at("corrected_mean", cell), False), show(moved), show(change.at("usual_change", cell)),
                show(change.at("raw_spread", cell), False), show(change.at("corrected_spread", cell), False),
                _share(moved**2 / whole if whole else math.nan), strongest,
                region_name(one.coast.grid, one.position(cell), one.coast.earth, one.coast.land),
            )
        )  # fmt: skip
    return PageTable(f"Largest changes: {change.title}", columns, rows)


def input_table(change: ExplainedChange) -> PageTable:
    """Return the table of the inputs, the one with the largest part in the correction of a target first."""
    units, show = change.units, change.show
    columns = ("input", f"part in the mean ({units})", f"in the spread ({units})", "departure", "largest", "where")
    rows = [
        (
            one.input.item(), show(one.mean_part, False), show(one.spread_part, False),
            show_number(float(one.departure), 2),
            show_number(float(one.largest_departure), 1, sign=True), change.corrector.place(int(one.largest_cell)),
        )
        for one in change.inputs()
    ]  # fmt: skip
    return PageTable(f"Inputs: {change.title}", columns, rows)


def show_number(value: float, decimals: int, sign: bool = False) -> str:
    """Return a number with some decimals; a dash for NaN."""
    if not math.isfinite(value):
        return "–"
    return with_minus(f"{round(float(value), decimals) + 0.0:{'+' if sign else ''}.{decimals}f}")


def _share(value: float) -> str:
    return format_percent(value) if math.isfinite(value) else "–"


def start_of(forecast: xr.Dataset) -> datetime:
    """Return the start of a forecast."""
    return datetime.fromtimestamp(int(epoch_seconds(forecast.init_time.values)), UTC)


def valid_text(forecast: xr.Dataset) -> str:
    """Return start, lead time and valid time of a forecast as text."""
    return forecast_text(int(start_of(forecast).timestamp()), int(forecast.lead_time))
