"""The page of the verb `monitor`: alarms, scores of reference and present, control charts, PIT, the conformal layer."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import matplotlib
import numpy as np

from evaluation.monitoring.control_chart import SMOOTHING, ControlChart
from evaluation.monitoring.drift import CHARTED, DailySeries, Drift, days_of
from evaluation.monitoring.forecast_scores import PIT_BINS
from evaluation.monitoring.monitor_state import MonitorState, time_text
from evaluation.monitoring.verification import VerificationReport
from evaluation.report.chart_frame import chart, date_axis, rule
from evaluation.report.drawing import Drawing, Panel
from evaluation.report.figure_style import FAINT, INK, MODEL_COLOURS, RC
from evaluation.report.rendering import render_page
from evaluation.report.tables import PageTable, with_minus
from models.members.conformal import ConformalLayer, coverage_bound, ordered

RECENT = 30
"""Days with scores that count as the present."""
MOST_CHARTS, MOST_WAITING = 12, 20
"""The page draws at most so many control charts, alarms first, and names at most so many waiting forecasts."""
ALARM, CALM = MODEL_COLOURS[:2]
Charts = Mapping[tuple[str, int, str, str], ControlChart]


def chart_title(key: tuple[str, int, str, str]) -> str:
    """Return the name of a chart.

    >>> chart_title(("2t", 48, "north", "bias"))
    '2t +48 h north: bias / spread'
    """
    target, lead, region, statistic = key
    return f"{target} +{lead} h {region}: {CHARTED[statistic][0]}"


def monitor_page(
    state: MonitorState, drift: Drift, layer: ConformalLayer | None, report: VerificationReport, false_alarm_days: int
) -> str:
    """Return the page as HTML; it needs no other file. Without a `layer` the forecasts are of several correctors."""
    days = days_of(drift.series)
    targets = ", ".join(state.about["targets"])
    facts = [f"{len(state.verified)} verified forecasts", f"{len(state.waiting)} wait for analyses"]
    if len(days):
        facts.append(f"starts {days[0]} to {days[-1]}")
    facts.append(
        f"reference {drift.reference[0]} to {drift.reference[1]}" if drift.reference else "no complete reference period"
    )
    facts.append(f"corrector {layer.corrector[:12]}" if layer else "several trainings of the corrector")
    units = [f"{unit} for {target}" for target, unit in zip(state.about["targets"], state.about["units"], strict=True)]
    charts = ordered_charts(drift)
    return render_page(
        "monitor.html",
        title=f"Drift of {targets}",
        headline=headline_of_drift(drift),
        facts=facts,
        warnings=report.notes,
        scores=scores_table(drift, days),
        units=", ".join(units),
        charts=charts_drawing(charts, false_alarm_days) if charts else None,
        all_charts=charts_table(charts),
        histograms=histograms_drawing(drift, days),
        conformal=conformal_table(state, layer) if layer else None,
        used=sum(one.conformal for one in state.verified.values()),
        verified=len(state.verified),
        interval=f"{100 * state.about['conformal_interval']:g} %",
        bound=f"{100 * coverage_bound(1.0, state.about['conformal_step'], 10, 365):.1f} %",
        waiting=list(waiting_list(state)),
        definitions=[(title, f"{text[0].upper()}{text[1:]}.") for title, text, _ in CHARTED.values()],
    )


def headline_of_drift(drift: Drift) -> str:
    """Return whether the forecasts are in control, in one sentence."""
    if drift.reference is None:
        return f"The reference period is not complete: {drift.reference_days} days with scores; there is no chart yet."
    alarms = drift.alarms
    if not alarms:
        return f"In control: none of {len(drift.charts)} charts is beyond its limit."
    (key, worst), *_ = alarms.items()
    return (
        f"Alarm: {len(alarms)} of {len(drift.charts)} charts are beyond their limits; the farthest is "
        f"{chart_title(key)}, {abs(worst.recent):.1f} times its limit, since {worst.since}."
    )


def scores_table(drift: Drift, days: np.ndarray) -> PageTable:
    """Return the scores of the reference period and of the last days."""
    names = ("CRPS", "CRPS / expected", "bias", "spread / error", "central 80 %")
    alarms = {key[:3] for key in drift.alarms}
    rows, marks = [], {}
    for number, one in enumerate(drift.series):
        now = one.part(np.isin(one.days, days[-RECENT:]))
        pairs = zip(_score_texts(drift.before(one)), _score_texts(now), strict=True)
        rows.append([f"{one.target} +{one.lead_time} h {one.region}", *(text for pair in pairs for text in pair)])
        if (one.target, one.lead_time, one.region) in alarms:
            marks[number] = "alarm"
    columns, above = ["", *("ref", "now") * len(names)], [("", 1), *((name, 2) for name in names)]
    return PageTable("Scores of reference and present", columns, rows, above, marks)


def _score_texts(means: dict | None) -> list[str]:
    if means is None:
        return ["–"] * 5
    error = np.sqrt(means["squared_error"])
    numbers = [
        f"{means['crps']:.3g}",
        f"{means['crps'] / means['expected']:.2f}" if means["expected"] > 0 else "–",
        f"{means['error']:+.2g}",
        f"{np.sqrt(means['variance']) / error:.2f}" if error > 0 else "–",
        f"{100 * means['pit'][1:-1].sum():.1f} %",
    ]
    return [with_minus(number) for number in numbers]


def ordered_charts(drift: Drift) -> Charts:
    """Return the charts in the order of the page: those with an alarm, then those of the whole area, then the rest."""
    whole = [key for key in drift.charts if key[2] == "global"]
    return {key: drift.charts[key] for key in dict.fromkeys([*drift.alarms, *whole, *drift.charts])}


def charts_drawing(charts: Charts, false_alarm_days: int) -> Drawing:
    """Draw the first control charts."""
    panels = tuple(chart_panel(chart_title(key), one) for key, one in list(charts.items())[:MOST_CHARTS])
    note = (
        f"The line is the moving average of daily values (weight {SMOOTHING:g}) in standard deviations of "
        "the reference period; the dashed lines are its limits. Dots are the daily values, without the outermost. With "
        f"unchanged scores, all {len(charts)} charts together give a false alarm every {false_alarm_days} days "
        "on average, or less often."
    )
    rest = f" {len(charts) - MOST_CHARTS} more charts are in the table." if len(charts) > MOST_CHARTS else ""
    return Drawing("control", "charts", "", note + rest, panels, {})


def charts_table(charts: Charts) -> PageTable:
    """Return the table of all control charts."""
    rows = [
        (
            chart_title(key), _signed(one.mean), _signed(float(one.values[-1])), f"{one.correlation:.2f}",
            f"{one.limit:.2f}", _signed(one.recent), f"since {one.since}" if one.alarm else "in control",
        )
        for key, one in charts.items()
    ]  # fmt: skip
    columns = ("chart", "reference mean", "last value", "correlation", "limit (sd)", "average / limit", "state")
    marks = {number: "alarm" for number, one in enumerate(charts.values()) if one.alarm}
    return PageTable("All control charts", columns, rows, marks=marks)


def chart_panel(title: str, one: ControlChart) -> Panel:
    """Draw a control chart: daily values, their moving average, and the limits."""
    place = one.days.astype("datetime64[D]")
    scaled = (one.values - one.mean) / one.deviation
    top = 1.25 * max(one.limit, float(np.nanmax(np.abs(one.average))), 2.0)
    colour = ALARM if one.alarm else CALM
    with matplotlib.rc_context(RC):
        figure, ax = chart(1.7, 0.5)
        ax.plot(place, np.where(np.abs(scaled) < top, scaled, np.nan), ls="none", marker=".", ms=2.5, color=FAINT)
        ax.axvspan(place[0], place[one.reference - 1], color=FAINT, alpha=0.15, lw=0)
        ax.plot(place, one.average, color=colour, lw=1.6)
        for limit in (one.limit, *((-one.limit,) if one.two_sided else ())):
            ax.plot(place[[one.reference, -1]], [limit, limit], color=INK, lw=1, ls=(0, (4, 2)))
        ax.axhline(0, color=FAINT, lw=0.7)
        ax.set(title=title, ylim=(-top, top), ylabel="sd")
        date_axis(ax, 7)
        rule(ax, "y")
    state = f"alarm since {one.since}" if one.alarm else "in control"
    return Panel(figure, f"Control chart of {title}: {state}")


def histograms_drawing(drift: Drift, days: np.ndarray) -> Drawing:
    """Draw the PIT histograms of the whole area, of the reference period and the last days."""
    chosen = [one for one in drift.series if one.region == "global"] or list(drift.series[:1])
    panels = tuple(pit_panel(one, drift, days) for one in chosen[:6])
    note = (
        "Frequency of the PIT, the forecast's cumulative probability at the analysis, over a flat histogram. Bars: "
        f"the last {RECENT} days; dots: the reference period. A slope is a bias, a U shape is too little spread."
    )
    return Drawing("histograms", "pit", "", note, panels, {})


def pit_panel(one: DailySeries, drift: Drift, days: np.ndarray) -> Panel:
    """Draw the PIT histogram of one series."""
    now = one.part(np.isin(one.days, days[-RECENT:])) or {"pit": np.full(PIT_BINS, np.nan)}
    centres = (np.arange(PIT_BINS) + 0.5) / PIT_BINS
    with matplotlib.rc_context(RC):
        figure, ax = chart(1.3, 0.62)
        ax.bar(centres, now["pit"] * PIT_BINS, width=0.86 / PIT_BINS, color=CALM, alpha=0.85)
        if (before := drift.before(one)) is not None:
            ax.plot(centres, before["pit"] * PIT_BINS, ls="none", marker="o", ms=4, color=INK)
        ax.axhline(1, color=INK, lw=1, ls=(0, (3, 2)))
        title = f"{one.target} +{one.lead_time} h {one.region}"
        ax.set(title=title, xlabel="PIT", ylabel="frequency / flat", xlim=(0, 1))
        ax.set_ylim(bottom=0)
        rule(ax, "y")
    return Panel(figure, f"PIT histogram of {title}")


def conformal_table(state: MonitorState, layer: ConformalLayer) -> PageTable:
    """Return how far the layer has moved the levels, and the coverage that it has kept."""
    rows = []
    for (target, lead), regions in layer.scores.items():
        own = [one for key, one in state.verified.items() if (key.target, key.lead_time) == (target, lead)]
        for region, scores in regions.items():
            found = np.array([one.cores[region] for one in own if region in one.cores])
            shift = ordered(scores) - layer.nominal
            low, _, high = found.mean(0)
            gap = np.abs(scores - layer.nominal) / (layer.step * len(found))
            rows.append(
                (
                    f"{target} +{lead} h {region}", f"{len(found)}", *(_signed(float(number)) for number in shift),
                    f"{100 * (high - low):.1f} %", f"{100 * (gap[0] + gap[2]):.1f} %",
                )
            )  # fmt: skip
    columns = (
        "forecast", "verified", "lower end", "median", "upper end",
        f"coverage of the {100 * layer.interval:g} % interval", "at most off",
    )  # fmt: skip
    return PageTable("Conformal layer", columns, rows)


def waiting_list(state: MonitorState) -> Iterator[str]:
    """Yield the forecasts that wait for an analysis, the first MOST_WAITING of them by name."""
    keys = sorted(state.waiting, key=lambda key: (key.valid, key))
    for key in keys[:MOST_WAITING]:
        yield f"{key}: analysis of {time_text(key.valid)}"
    if len(keys) > MOST_WAITING:
        yield f"{len(keys) - MOST_WAITING} more"


def _signed(number: float) -> str:
    text = f"{number:+.2f}"
    return with_minus("0.00" if float(text) == 0 else text)
