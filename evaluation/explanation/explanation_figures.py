"""Figures of the explanation of a forecast: maps of the change of mean and spread, and of the strongest input."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import numpy as np
from matplotlib.ticker import MaxNLocator

from data_pipeline.grids.points import Points
from evaluation.explanation.explanation_tables import ExplainedChange
from evaluation.report.case_figures import FIELDS
from evaluation.report.drawing import Drawing, Panel
from evaluation.report.maps import DIVERGING, Coast, ColourScale, colour_scale, map_panel


def explanation_drawings(change: ExplainedChange, ending: str) -> Iterator[Drawing]:
    """Yield the maps of a change, and those of its strongest input if there is one; points have no maps."""
    coast, data, factor = change.corrector.coast, change.data, change.variable.display.factor
    if isinstance(coast.grid, Points):
        return
    means = {"raw mean": factor * data.raw_mean.values, "corrected mean": factor * data.corrected_mean.values}
    scale = ColourScale(colour_scale(list(means.values()), False), FIELDS, f"ensemble mean ({change.units})")
    panels = [_panel(coast, field, scale, title) for title, field in means.items()]
    label = f"corrected − raw ({change.units})"
    changes = {"change of the mean": (factor * change.of_mean, label)}
    changes["change of the spread"] = factor * change.of_spread, label
    note = "Red: the correction raises the mean or widens the spread; blue: it lowers or narrows them."
    panels += _differences(coast, changes)
    yield Drawing(f"change-{ending}", "maps", "Before and after", note, tuple(panels), {})
    if "strongest" not in data or data.strongest < 0:
        return
    name = data.input.values[int(data.strongest)]
    maps = {
        f"{name}: departure": (data.strongest_departure.values, "typical departures from the training mean"),
        f"{name}: part in the correction": (
            factor * data.strongest_part.values, f"part in the correction ({change.units})"
        ),
    }  # fmt: skip
    note = (
        f"{name} has the largest part in this correction. First map: how far its ensemble mean is from the "
        "mean of the training years. Second map: how much of the change of the mean comes from this departure."
    )
    panels = _differences(coast, maps)
    yield Drawing(f"strongest-{ending}", "maps", f"The strongest input: {name}", note, tuple(panels), {})


def _differences(coast: Coast, maps: Mapping[str, tuple[np.ndarray, str]]) -> list[Panel]:
    """Draw fields by their titles, with the labels of their colour bars; white is 0."""
    return [
        _panel(coast, field, ColourScale(colour_scale([field], True), DIVERGING, label), title)
        for title, (field, label) in maps.items()
    ]


def _panel(coast: Coast, field: np.ndarray, scale: ColourScale, title: str) -> Panel:
    """Draw a map whose colour bar has few marks, because small changes have long numbers."""
    panel = map_panel(coast, field, scale, title)
    panel.figure.axes[1].xaxis.set_major_locator(MaxNLocator(5))
    return panel
