"""False alarms and delays of the control charts of `monitor` on AR(1) series: the table of docs/monitor.md.

Each series has a reference period, from which mean, deviation and correlation are estimated as in `monitor`. The mean
run length counts days to the first false alarm; it is a lower bound, because series are watched for at most ten times
the nominal length. In a row with 10 charts, the figures are for one of them, whose nominal length is 10 times as long.
Delays are medians, in days, after shifts of the mean in standard deviations of a day.

    python -m benchmarks.control_charts [--trials 1000] [--nominal 365] [--json]
"""

from __future__ import annotations

import math

import numpy as np

from benchmarks.common import command_line, report
from evaluation.monitoring.control_chart import (
    autocorrelation,
    chance_of_chart,
    control_limits,
    moving_average,
    round_up,
)

WATCHED = 10
"""Nominal run lengths for which a series is watched."""
SHIFTS = (1.0, 2.0, 3.0)
HARDEST = 0.9
"""Largest correlation for which the docs state that false alarms are as rare as promised."""


def ar1(r: float, length: int, trials: int, rng: np.random.Generator) -> np.ndarray:
    """Return stationary series (length, trials) with mean 0 and variance 1."""
    series = rng.normal(size=(length, trials))
    for k in range(1, length):
        series[k] = r * series[k - 1] + math.sqrt(1 - r * r) * series[k]
    return series


def run_length(average: np.ndarray, limits: np.ndarray) -> np.ndarray:
    """Return the number of the first value (1, 2, ...) beyond the limit in each column of (n, k); n + 1 if none is."""
    beyond = np.abs(average) > limits
    return np.where(beyond.any(0), beyond.argmax(0) + 1, len(average) + 1)


def row(r: float, reference: int, nominal: int, charts: int, trials: int, seed: int) -> dict[str, float]:
    """Return the figures of series with the correlation `r`, for one of `charts` charts."""
    rng = np.random.default_rng(seed)
    series = ar1(r, reference + WATCHED * nominal, trials, rng)
    own, days = series[:reference], np.arange(reference).astype("datetime64[D]")
    scaled = (series[reference:] - own.mean(0)) / own.std(0, ddof=1)
    chance = chance_of_chart(charts)
    limits = {
        "chart": np.array(
            [control_limits(round_up(autocorrelation(days, column)), reference, nominal, chance)[1] for column in own.T]
        ),
        "textbook": np.full(trials, control_limits(0.0, 100_000, nominal, chance)[1]),
    }
    average = moving_average(scaled)
    found = {"promised": chance}
    for name, limit in limits.items():
        lengths = run_length(average, limit)
        found[f"{name}_alarms"] = float((lengths <= nominal).mean())
        found[f"{name}_length"] = float(lengths.mean())
    for shift in SHIFTS:
        moved = moving_average(scaled[:nominal] + shift / own.std(0, ddof=1))
        found[f"delay_{shift:g}"] = float(np.median(run_length(moved, limits["chart"])))
    return found


def table(trials: int, nominal: int) -> tuple[str, dict[str, float]]:
    """Return the Markdown table, and the largest ratio of measured and promised false alarms up to `HARDEST`."""
    lines = [
        "| reference (days) | correlation | charts | promised alarms | measured | textbook | nominal run length | "
        "measured | textbook | delay of a shift of 1, 2, 3 sd (days) |",
        "|-|-|-|-|-|-|-|-|-|-|",
    ]
    worst = 0.0
    shortest = math.inf
    for number, (reference, r, charts) in enumerate(
        (n, r, K) for n in (90, 365) for r in (0.0, 0.3, 0.6, 0.8, 0.9, 0.95) for K in (1, 10)
    ):
        one = row(r, reference, nominal, charts, trials, 100 + number)
        if r <= HARDEST:
            worst = max(worst, one["chart_alarms"] / one["promised"])
            if charts == 1:
                shortest = min(shortest, one["chart_length"] / nominal)
        delays = ", ".join(
            f"{one[f'delay_{shift:g}']:.0f}" if one[f"delay_{shift:g}"] <= nominal else f"> {nominal}"
            for shift in SHIFTS
        )
        lines.append(
            f"| {reference} | {r} | {charts} | {one['promised']:.3f} | {one['chart_alarms']:.3f} | "
            f"{one['textbook_alarms']:.3f} | {charts * nominal} | {'>' * (charts > 1)}{one['chart_length']:.0f} | "
            f"{one['textbook_length']:.0f} | {delays} |"
        )
    return "\n".join(lines), {"measured_vs_promised": worst, "length_vs_nominal": shortest}


if __name__ == "__main__":
    options = command_line(__doc__, trials=1000, nominal=365).parse_args()
    text, ratios = table(options.trials, options.nominal)
    print(text)
    report("control_charts", ratios, options.json)
