"""The figure of a mixture of experts: which expert is chosen where."""

from __future__ import annotations

import numpy as np
from matplotlib import colormaps
from matplotlib.colors import BoundaryNorm, ListedColormap

from evaluation.report.drawing import Drawing
from evaluation.report.maps import Coast, ColourScale, map_numbers, map_panel
from evaluation.report.shown_data import ExpertMap


def expert_drawing(coast: Coast, experts: ExpertMap, best: str, case: str = "the median case") -> Drawing:
    """Draw the expert that the gate of `best` chooses first in every cell, in colours of increasing lightness."""
    colours = colormaps["viridis"](np.linspace(0, 1, experts.count))
    norm = BoundaryNorm(np.arange(experts.count + 1) + 0.5, experts.count)
    scale = ColourScale(norm, ListedColormap(colours), "expert", "neither")
    chosen = np.asarray(experts.chosen, float) + 1
    used = np.unique(chosen[np.isfinite(chosen)])
    note = (
        f"The expert that the gate of {best} puts first in each cell of {case}, in the layer {experts.layer}; "
        f"{len(used)} of {experts.count} experts are first somewhere. The order of their numbers has no meaning."
    )
    panel = map_panel(coast, chosen, scale, "")
    step = -(-experts.count // 10)
    panel.figure.axes[1].set_xticks(range(1, experts.count + 1, step))
    panel.figure.axes[1].set_xticks([], minor=True)
    return Drawing(
        "experts", "experts", "Experts of the mixture", note, (panel,), map_numbers(coast.grid, {"expert": chosen})
    )
