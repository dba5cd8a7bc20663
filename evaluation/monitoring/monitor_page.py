"""The page of the verb `monitor`: alarms, scores of reference and present, control charts, PIT, the conformal layer."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from html import escape
from importlib.resources import files
from string import Template

import matplotlib
import numpy as np
from matplotlib.dates import AutoDateLocator, ConciseDateFormatter

from evaluation.monitoring.control_chart import SMOOTHING, ControlChart
from evaluation.monitoring.drift import CHARTED, DailySeries, Drift
from evaluation.monitoring.forecast_scores import PIT_BINS
from evaluation.monitoring.monitor_state import MonitorState, time_text
from evaluation.monitoring.verification import VerificationReport
from evaluation.report.chart_frame import chart, rule
from evaluation.report.drawing import Panel
from evaluation.report.figure_style import FAINT, INK, MODEL_COLOURS, RC, inline_svg
from evaluation.report.page import contents_list, scrolling
from evaluation.report.provenance import term_list
from evaluation.report.tables import with_minus
from models.members.conformal import ConformalLayer, coverage_bound, ordered

RECENT = 30
"""Days with scores that count as the present."""
MOST_CHARTS, MOST_WAITING = 12, 20
"""The page draws at most so many control charts, alarms first, and names at most so many waiting forecasts."""
ALARM, CALM = MODEL_COLOURS[:2]
ALARM_ROW = ' class="alarm"'


def chart_title(key: tuple[str, int, str, str]) -> str:
    """Return the name of a chart.

    >>> chart_title(("2t", 48, "north", "bias"))
    '2t +48 h north: bias / spread'
    """
    target, lead, region, statistic = key
    return f"{target} +{lead} h {region}: {CHARTED[statistic][0]}"


def monitor_page(
    state: MonitorState, drift: Drift, layer: ConformalLayer, report: VerificationReport, false_alarm_days: int
) -> str:
    """Return the page as HTML; it needs no other file."""
    days = np.unique(np.concatenate([one.days for one in drift.series] or [np.array([], "datetime64[D]")]))
    targets = ", ".join(state.about["targets"])
    facts = [f"{len(state.verified)} verified forecasts", f"{len(state.waiting)} wait for analyses"]
    if len(days):
        facts.append(f"starts {days[0]} to {days[-1]}")
    facts.append(
        f"reference {drift.reference[0]} to {drift.reference[1]}" if drift.reference else "no complete reference period"
    )
    facts.append(f"corrector {layer.corrector[:12]}")
    units = ", ".join(
        f"{unit} for {target}" for target, unit in zip(state.about["targets"], state.about["units"], strict=True)
    )
    parts = {
        "title": escape(f"Drift of {targets}"),
        "headline": escape(headline_of_drift(drift)),
        "facts": escape(" · ".join(facts)),
        "notes": "".join(f'<p class="warning">{escape(note)}</p>' for note in report.notes),
        "scores": scrolling(scores_table(drift, days), "Scores of reference and present"),
        "units": escape(units),
        "charts_section": charts_section(drift, false_alarm_days),
        "histograms_section": histograms_section(drift, days),
        "conformal": conformal_section(state, layer),
        "waiting": waiting_list(state),
        "definitions": definitions(),
    }
    template = Template(files("evaluation.report").joinpath("monitor.html").read_text("utf-8"))
    style = files("evaluation.report").joinpath("page.css").read_text("utf-8")
    return template.substitute(parts, contents=contents_list(template.safe_substitute(parts)), style=style)


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


def scores_table(drift: Drift, days: np.ndarray) -> str:
    """Return the scores of the reference period and of the last days as an HTML table."""
    head = ("CRPS", "CRPS / expected", "bias", "spread / error", "central 80 %")
    top = "".join(f"<th scope='col' colspan='2'>{escape(name)}</th>" for name in head)
    below = "<th scope='col'>ref</th><th scope='col'>now</th>" * len(head)
    body = []
    alarms = {key[:3] for key in drift.alarms}
    for one in drift.series:
        now = one.part(np.isin(one.days, days[-RECENT:]))
        before = None
        if drift.reference:
            before = one.part((one.days >= drift.reference[0]) & (one.days <= drift.reference[1]))
        columns = zip(_score_texts(before), _score_texts(now), strict=True)
        cells = "".join(f"<td>{text}</td>" for pair in columns for text in pair)
        mark = ' class="alarm"' if (one.target, one.lead_time, one.region) in alarms else ""
        name = escape(f"{one.target} +{one.lead_time} h {one.region}")
        body.append(f"<tr{mark}><th scope='row'>{name}</th>{cells}</tr>")
    return (
        f"<table><thead><tr><td></td>{top}</tr><tr><td></td>{below}</tr></thead><tbody>{''.join(body)}</tbody></table>"
    )


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


def charts_section(drift: Drift, false_alarm_days: int) -> str:
    """Return the control charts: those with an alarm, then those of the whole area; and a table of all charts."""
    if not drift.charts:
        return ""
    chosen = list(drift.alarms)
    chosen += [key for key in drift.charts if key not in chosen and key[2] == "global"]
    chosen += [key for key in drift.charts if key not in chosen]
    panels = [chart_panel(chart_title(key), drift.charts[key]) for key in chosen[:MOST_CHARTS]]
    note = (
        f"The line is the moving average of daily values (weight {SMOOTHING:g}) in standard deviations of "
        "the reference period; the dashed lines are its limits. Dots are the daily values, without the outermost. With "
        f"unchanged scores, all {len(drift.charts)} charts together give a false alarm every {false_alarm_days} days "
        "on average, or less often."
    )
    rest = f" {len(chosen) - MOST_CHARTS} more charts are in the table." if len(chosen) > MOST_CHARTS else ""
    rows = [
        (
            chart_title(key), _signed(drift.charts[key].mean), _signed(float(drift.charts[key].values[-1])),
            f"{drift.charts[key].correlation:.2f}", f"{drift.charts[key].limit:.2f}", _signed(drift.charts[key].recent),
            f"since {drift.charts[key].since}" if drift.charts[key].alarm else "in control",
        )
        for key in chosen
    ]  # fmt: skip
    names = ("chart", "reference mean", "last value", "correlation", "limit (sd)", "average / limit", "state")
    table = scrolling(_table(names, rows, len(drift.alarms)), "All control charts")
    return _figures("charts", "Control charts", panels, note + rest) + (
        f'<section id="all-charts"><h2>All charts</h2><details><summary>{len(rows)} charts</summary>{table}'
        '<p class="note"><i>correlation</i>: of neighbouring days in the reference period, for which the limit was '
        "simulated. An average / limit beyond 1 is an alarm; where only an increase is drift, below −1 is none.</p>"
        "</details></section>"
    )


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
        locator = AutoDateLocator(minticks=2, maxticks=7)
        ax.xaxis.set_major_locator(locator)
        ax.xaxis.set_major_formatter(ConciseDateFormatter(locator))
        rule(ax, "y")
    state = f"alarm since {one.since}" if one.alarm else "in control"
    return Panel(figure, f"Control chart of {title}: {state}")


def histograms_section(drift: Drift, days: np.ndarray) -> str:
    """Return the PIT histograms of the whole area, of the reference period and the last days."""
    chosen = [one for one in drift.series if one.region == "global"] or list(drift.series[:1])
    panels = [pit_panel(one, drift, days) for one in chosen[:6]]
    note = (
        "Frequency of the PIT, the forecast's cumulative probability at the analysis, over a flat histogram. Bars: "
        f"the last {RECENT} days; dots: the reference period. A slope is a bias, a U shape is too little spread."
    )
    return _figures("pit", "PIT histograms", panels, note) if panels else ""


def pit_panel(one: DailySeries, drift: Drift, days: np.ndarray) -> Panel:
    """Draw the PIT histogram of one series."""
    now = one.part(np.isin(one.days, days[-RECENT:])) or {"pit": np.full(PIT_BINS, np.nan)}
    centres = (np.arange(PIT_BINS) + 0.5) / PIT_BINS
    with matplotlib.rc_context(RC):
        figure, ax = chart(1.3, 0.62)
        ax.bar(centres, now["pit"] * PIT_BINS, width=0.86 / PIT_BINS, color=CALM, alpha=0.85)
        if drift.reference:
            before = one.part((one.days >= drift.reference[0]) & (one.days <= drift.reference[1]))
            if before is not None:
                ax.plot(centres, before["pit"] * PIT_BINS, ls="none", marker="o", ms=4, color=INK)
        ax.axhline(1, color=INK, lw=1, ls=(0, (3, 2)))
        title = f"{one.target} +{one.lead_time} h {one.region}"
        ax.set(title=title, xlabel="PIT", ylabel="frequency / flat", xlim=(0, 1))
        ax.set_ylim(bottom=0)
        rule(ax, "y")
    return Panel(figure, f"PIT histogram of {title}")


def conformal_section(state: MonitorState, layer: ConformalLayer) -> str:
    """Return how far the layer has moved the levels, and the coverage that it has kept."""
    used = sum(one.conformal for one in state.verified.values())
    share = f"{100 * layer.interval:g} %"
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
    names = (
        "forecast",
        "verified",
        "lower end",
        "median",
        "upper end",
        f"coverage of the {share} interval",
        "at most off",
    )
    bound = coverage_bound(1.0, layer.step, 10, 365)
    text = (
        f"{used} of {len(state.verified)} forecasts were corrected with the layer; for the others the page shows what "
        f"it would have done. The ends of the central {share} interval and the median are moved by so many standard "
        "deviations. <i>coverage</i>: of analyses in the core of the region, over all verified forecasts; <i>at most "
        "off</i>: how far it can be from its nominal value by the present moves. As an example of the guarantee: after "
        "a year of daily forecasts, with analyses within one standard deviation of the expected place and 10 forecasts "
        f"under way, each end of the interval is wrong by {100 * bound:.1f} % at most."
    )
    return scrolling(_table(names, rows), "Conformal layer") + f'<p class="note">{text}</p>'


def waiting_list(state: MonitorState) -> str:
    """Return the forecasts that wait for an analysis."""
    if not state.waiting:
        return "<p>No forecast waits.</p>"
    keys = sorted(state.waiting, key=lambda key: (key.valid, key))
    items = [f"{key}: analysis of {time_text(key.valid)}" for key in keys[:MOST_WAITING]]
    if len(keys) > MOST_WAITING:
        items.append(f"{len(keys) - MOST_WAITING} more")
    return "<ul>" + "".join(f"<li>{escape(item)}</li>" for item in items) + "</ul>"


def definitions() -> str:
    """Return the definitions of the charted statistics."""
    return term_list((title, escape(text[0].upper() + text[1:] + ".")) for title, text, _ in CHARTED.values())


def _figures(name: str, heading: str, panels: Sequence[Panel], note: str) -> str:
    images = [
        inline_svg(panel.figure, f"{name}-{number}", escape(panel.alt, quote=True))
        for number, panel in enumerate(panels)
    ]
    return (
        f'<section id="{name}">\n<h2>{heading}</h2>\n<figure><div class="panels">{"".join(images)}</div>'
        f'<figcaption class="note">{escape(note)}</figcaption></figure></section>'
    )


def _signed(number: float) -> str:
    text = f"{number:+.2f}"
    return with_minus("0.00" if float(text) == 0 else text)


def _table(columns: Iterable[str], rows: Iterable[Sequence[str]], marked: int = 0) -> str:
    """Return a table; the first `marked` rows are alarms."""
    head = "".join(f"<th scope='col'>{escape(name)}</th>" for name in columns)
    body = "".join(
        f"<tr{ALARM_ROW if number < marked else ''}><th scope='row'>{escape(row[0])}</th>"
        f"{''.join(f'<td>{escape(cell)}</td>' for cell in row[1:])}</tr>"
        for number, row in enumerate(rows)
    )
    return f"<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>"
