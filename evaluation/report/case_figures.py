"""Figures of single forecasts: fields before and after correction, and ensemble plumes at a few cells."""

from __future__ import annotations

from typing import Any

import matplotlib
import numpy as np
from matplotlib.axes import Axes

from evaluation.report.chart_frame import add_legend, chart, rule, set_limits
from evaluation.report.drawing import Drawing, Panel
from evaluation.report.figure_style import FAINT, INK, RC, REFERENCE_COLOURS
from evaluation.report.maps import DIVERGING, SEQUENTIAL, Coast, ColourScale, colour_scale, map_numbers, map_panel
from evaluation.report.shown_data import PLUME_LEVELS, ExampleForecast, MapData, Plume, place_name

TITLES = {"median": "Median case", "best": "Best case", "worst": "Worst case"}
FIELDS = "RdYlBu_r"
"""Colour map of the predicted variable itself."""
QUANTILE_NAMES = [f"quantile_{level:g}" for level in PLUME_LEVELS]


def case_drawings(fields: MapData, best: str, units: str, factor: float, colour: str) -> list[Drawing]:
    """Return maps and plumes of every case, with amounts times `factor`; `colour` is that of the model `best`.

    A single station has no maps.
    """
    names = sorted(fields.cases, key=list(TITLES).index)
    plumes = {
        name: plume_drawing(fields, name, best, units, factor, colour) for name in names if fields.cases[name].plumes
    }
    maps = [case_maps(fields, name, best, units, factor) for name in names if fields.grid.shape != (1, 1)]
    return [*plumes.values(), *maps]


def case_maps(fields: MapData, name: str, best: str, units: str, factor: float) -> Drawing:
    """Draw the analysis, the errors of both means on one scale, and the corrected spread of a case."""
    case, coast = fields.cases[name], Coast(fields.grid, fields.land, fields.earth)
    truth, raw, mean, std = (factor * field for field in (case.truth, case.raw_mean, case.mean, case.std))
    errors = {"raw − analysis": raw - truth, f"{best} − analysis": mean - truth}
    error_scale = ColourScale(colour_scale(list(errors.values()), True), DIVERGING, f"error of the mean ({units})")
    shown = {
        "analysis": (truth, ColourScale(colour_scale([truth], False), FIELDS, units)),
        **{title: (field, error_scale) for title, field in errors.items()},
        f"{best} spread": (std, ColourScale(colour_scale([std], False), SEQUENTIAL, f"standard deviation ({units})")),
    }
    panels = tuple(map_panel(coast, field, scale, title) for title, (field, scale) in shown.items())
    numbers = map_numbers(fields.grid, {title: field for title, (field, _) in shown.items()})
    return Drawing(f"case_{name}", "cases", TITLES[name], _case_note(case, name, best), panels, numbers)


def plume_drawing(fields: MapData, name: str, best: str, units: str, factor: float, colour: str) -> Drawing:
    """Draw raw members, corrected quantiles and analysis in cells of a case, over lead time if there are several."""
    case = fields.cases[name]
    panels, columns = [], _plume_columns(case.plumes, fields, factor)
    for plume in case.plumes:
        title = f"{plume.choice}: {place_name(fields.grid, plume.cell)}"
        with matplotlib.rc_context(RC):
            names = ("raw members", f"{best} 5–95 %", f"{best} 25–75 %", "analysis")
            figure, ax = chart(1.7, 0.62, names)
            draw = _draw_over_leads if len(plume.leads) > 1 else _draw_one_lead
            draw(ax, plume, best, factor, colour)
            ax.set_ylabel(units)
            ax.set_title(title)
            add_legend(figure, ax, names)
        panels.append(Panel(figure, f"Forecasts of one cell by raw members and {best}. {title}"))
    return Drawing(
        f"plumes_{name}", "cases", f"Meteograms: {TITLES[name].lower()}", _case_note(case, name, best), tuple(panels),
        columns,
    )  # fmt: skip


def _draw_over_leads(ax: Axes, plume: Plume, best: str, factor: float, colour: str) -> None:
    leads, quantiles = plume.leads, factor * plume.quantiles
    ax.fill_between(leads, quantiles[:, 0], quantiles[:, 4], color=colour, alpha=0.25, lw=0, label=f"{best} 5–95 %")
    ax.fill_between(leads, quantiles[:, 1], quantiles[:, 3], color=colour, alpha=0.45, lw=0, label=f"{best} 25–75 %")
    for number, member in enumerate(factor * plume.members.T):
        ax.plot(leads, member, color=REFERENCE_COLOURS["raw"], lw=0.7, label="raw members" if number == 0 else None)
    ax.plot(leads, quantiles[:, 2], color=colour, lw=1.6)
    ax.plot(leads, factor * plume.truth, "o-", color=INK, ms=3.5, lw=1.4, label="analysis")
    ax.set_xlabel("lead time (h)")
    rule(ax, "y")


def _draw_one_lead(ax: Axes, plume: Plume, best: str, factor: float, colour: str) -> None:
    """Draw dots of the members, a box of the quantiles and a line at the analysis."""
    members, quantiles = factor * plume.members[0], factor * plume.quantiles[0]
    # Neighbouring members stand beside each other, so that none hides another.
    ranks = np.argsort(np.argsort(members))
    ax.plot(0.06 * (ranks % 5 - 2), members, "o", ms=4, color=REFERENCE_COLOURS["raw"], label="raw members")
    for first, last, width, alpha, label in ((0, 4, 0.2, 0.25, "5–95 %"), (1, 3, 0.3, 0.45, "25–75 %")):
        low, high = quantiles[[first, last]]
        ax.bar(1, high - low, width, low, color=colour, alpha=alpha, label=f"{best} {label}")
    ax.plot([0.85, 1.15], [quantiles[2]] * 2, color=colour, lw=1.8)
    ax.axhline(factor * float(plume.truth[0]), color=INK, lw=1.4, label="analysis")
    ax.set_xlim(-0.6, 1.6)
    ax.set_xticks([0, 1], ["raw", best])
    ax.set_xlabel(f"+{int(plume.leads[0])} h")
    set_limits(ax, "y", [members, quantiles, factor * plume.truth], 0.1)
    ax.grid(axis="y", color=FAINT, alpha=0.3, lw=0.6)


def _plume_columns(plumes: tuple[Plume, ...], fields: MapData, factor: float) -> dict[str, Any]:
    counts = [len(plume.leads) for plume in plumes]
    columns: dict[str, Any] = {
        "cell": np.repeat([plume.choice for plume in plumes], counts),
        "place": np.repeat([place_name(fields.grid, plume.cell) for plume in plumes], counts),
        "lead_time": np.concatenate([plume.leads for plume in plumes]),
        "analysis": factor * np.concatenate([plume.truth for plume in plumes]),
    }
    quantiles, members = (
        factor * np.concatenate([getattr(plume, name) for plume in plumes]) for name in ("quantiles", "members")
    )
    columns |= dict(zip(QUANTILE_NAMES, quantiles.T, strict=True))
    return columns | {f"raw_{number + 1}": column for number, column in enumerate(members.T)}


def _case_note(case: ExampleForecast, name: str, best: str) -> str:
    which = {"best": "largest", "median": "median", "worst": "lowest"}[name]
    gain = f": {case.gain:.1f} %" if np.isfinite(case.gain) else ""
    return f"{case.valid}; the start with the {which} gain of {best}{gain}."
