"""Figures of the explanation of a forecast: maps of the change of mean and spread, and of the strongest input."""

from __future__ import annotations

import numpy as np
from matplotlib.ticker import MaxNLocator

from data_pipeline.task import Variable
from evaluation.explanation.forecast_explanation import Change, StrongestInput
from evaluation.report.case_figures import FIELDS
from evaluation.report.drawing import Drawing, Panel
from evaluation.report.maps import DIVERGING, Coast, ColourScale, colour_scale, map_numbers, map_panel


def change_maps(coast: Coast, change: Change, variable: Variable, units: str, name: str) -> Drawing:
    """Draw raw mean, corrected mean, and the change of mean and of spread."""
    factor = variable.display.factor
    means = {"raw mean": factor * change.raw_mean, "corrected mean": factor * change.mean}
    scale = ColourScale(colour_scale(list(means.values()), False), FIELDS, f"ensemble mean ({units})")
    maps = {title: (field, scale) for title, field in means.items()}
    for title, field in (("change of the mean", change.of_mean), ("change of the spread", change.of_spread)):
        shown = factor * field
        maps[title] = shown, ColourScale(colour_scale([shown], True), DIVERGING, f"corrected − raw ({units})")
    panels = tuple(_panel(coast, field, scale, title) for title, (field, scale) in maps.items())
    note = "Red: the correction raises the mean or widens the spread; blue: it lowers or narrows them."
    numbers = map_numbers(coast.grid, {title: field for title, (field, _) in maps.items()})
    return Drawing(name, "maps", "Before and after", note, panels, numbers)


def strongest_maps(coast: Coast, strongest: StrongestInput, variable: Variable, units: str, name: str) -> Drawing:
    """Draw the departure of the input with the largest part in a correction, and this part."""
    departure, part = strongest.departure, variable.display.factor * strongest.part
    maps = {
        f"{strongest.name}: departure": (departure, "typical departures from the training mean"),
        f"{strongest.name}: part in the correction": (part, f"part in the correction ({units})"),
    }
    panels = tuple(
        _panel(coast, field, ColourScale(colour_scale([field], True), DIVERGING, label), title)
        for title, (field, label) in maps.items()
    )
    note = (
        f"{strongest.name} has the largest part in this correction. First map: how far its ensemble mean is from the "
        "mean of the training years. Second map: how much of the change of the mean comes from this departure."
    )
    numbers = map_numbers(coast.grid, {title: field for title, (field, _) in maps.items()})
    return Drawing(name, "maps", f"The strongest input: {strongest.name}", note, panels, numbers)


def _panel(coast: Coast, field: np.ndarray, scale: ColourScale, title: str) -> Panel:
    """Draw a map whose colour bar has few marks, because small changes have long numbers."""
    panel = map_panel(coast, field, scale, title)
    panel.figure.axes[1].xaxis.set_major_locator(MaxNLocator(5))
    return panel
