"""Coverage of 95 % intervals on simulated scores whose true mean is known: the tables of docs/intervals.md.

Each series of scores is simulated 2,000 times. Its intervals by this project stand beside three others:

- independent: Student's t with n - 1 degrees of freedom, as if the starts were independent;
- HAC: the mean ± 1.96 standard errors by Newey & West (1987, doi:10.2307/1913610), 4 (n/100)^(2/9) lags;
- bootstrap: percentiles of 500 resamples of blocks of n^(1/3) starts, the series closed to a ring.

    python -m benchmarks.coverage [--trials 2000] [--json]
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from benchmarks.common import command_line, report
from evaluation.aggregation import WeightedMean
from evaluation.scores.ratios import skill
from evaluation.significance.intervals import estimates
from evaluation.significance.student import t_quantile

DAY = 86_400
REPLICATES = 500
FIRST_SEED = 20_000
"""Seeds of these tables; the method was chosen on seeds below."""


@dataclass(frozen=True)
class Series:
    """Normal scores at start times in days; neighbours that are `usual` days apart have the correlation `r`.

    A share `noise` of the variance is white noise, which adds no correlation.
    """

    name: str
    days: np.ndarray
    r: float
    usual: float = 3.5
    noise: float = 0.0

    def draw(self, trials: int, rng: np.random.Generator) -> np.ndarray:
        """Return series (n, trials) of mean 0 and variance 1."""
        series = rng.normal(size=(len(self.days), trials))
        for k, gap in enumerate(np.diff(self.days), 1):
            step = self.r ** (gap / self.usual)
            series[k] = step * series[k - 1] + math.sqrt(1 - step**2) * series[k]
        return math.sqrt(1 - self.noise) * series + math.sqrt(self.noise) * rng.normal(size=series.shape)


def regular(n: int, r: float, noise: float = 0.0) -> Series:
    """Return a series of starts 3.5 days apart."""
    return Series(f"{n} starts", 3.5 * np.arange(n), r, noise=noise)


WITHIN = [
    regular(n, r)
    for n, correlations in {
        32: (0.0, 0.3, 0.6), 64: (0.0, 0.3, 0.6), 105: (0.0, 0.3, 0.6, 0.8), 210: (0.0, 0.3, 0.6, 0.8, 0.9),
        730: (0.6, 0.9),
    }.items()
    for r in correlations
]  # fmt: skip
"""Coverage is 93 to 97 %."""
UNEVEN = [
    Series("64 Mondays and Thursdays", np.cumsum(np.where(np.arange(64) % 2, 3, 4)), 0.6),
    Series("16 pairs, 45 days apart", (45 * np.arange(16)[:, None] + [0, 3.5]).ravel(), 0.6),
    Series("20 days in each of 6 winters", (365 * np.arange(6)[:, None] + np.arange(20)).ravel(), 0.8, usual=1),
]
BEYOND = [
    regular(16, 0.6), regular(32, 0.8), regular(105, 0.9), regular(105, 0.9, noise=0.5), regular(210, 0.9, noise=0.5),
    regular(730, 0.9, noise=0.5),
]  # fmt: skip
"""Too few starts, or a memory that the correlation of neighbours does not show."""


def coverages(series: Series, trials: int, seed: int) -> dict[str, float]:
    """Return the share of intervals of each method that contain the true mean."""
    values = series.draw(trials, np.random.default_rng([FIRST_SEED, seed]))
    n, mean = len(values), values.mean(0)
    anomalies = values - mean
    found = {"deepweather": float(np.mean(list(contain(values, series.days, 0.0))))}
    error = anomalies.std(0, ddof=1) / math.sqrt(n)
    found["independent"] = float(np.mean(np.abs(mean) <= t_quantile(0.975, n - 1.0) * error))
    lags = int(4 * (n / 100) ** (2 / 9))
    terms = [(1 - lag / (lags + 1)) * (anomalies[lag:] * anomalies[: n - lag]).sum(0) for lag in range(1, lags + 1)]
    variance = ((anomalies**2).sum(0) + 2 * sum(terms)) / n**2
    found["HAC"] = float(np.mean(np.abs(mean) <= 1.96 * np.sqrt(np.maximum(variance, 0))))
    length = round(n ** (1 / 3))
    blocks = sum(np.roll(values, -shift, axis=0) for shift in range(length)) / length
    # One set of resamples for all trials, which are independent of each other.
    draws = np.random.default_rng(seed).multinomial(round(n / length), np.full(n, 1 / n), size=REPLICATES)
    low, high = np.quantile(draws @ blocks / round(n / length), [0.025, 0.975], axis=0)
    found["bootstrap"] = float(np.mean((low <= 0) & (high >= 0)))
    return found


def contain(values: np.ndarray, days: np.ndarray, truth: float) -> Iterator[bool]:
    """Yield whether each interval of the mean of `values` (n, trials) contains the truth."""
    means = [WeightedMean(values, np.ones((len(values), 1)))]
    for estimate in estimates(np.asarray, means, DAY * np.asarray(days)):
        interval = estimate.interval
        if interval is None:
            raise ValueError("a simulated series is too short for an interval")
        yield interval[0] <= truth <= interval[1]


def skill_coverage(series: Series, trials: int, seed: int) -> float:
    """Return the coverage of the skill of a model whose CRPS is 0.9 of raw's, plus a part of its own.

    Both CRPS have skewed distributions, the exponential of normal series.
    """
    rng = np.random.default_rng([FIRST_SEED, seed])
    weather, own = np.exp(0.5 * series.draw(trials, rng)), np.exp(0.5 * series.draw(trials, rng))
    expected = math.exp(0.5**2 / 2)
    raw, model = weather, 0.8 * weather + 0.1 * own
    one = np.ones((len(raw), 1))
    means = [WeightedMean(model, one), WeightedMean(raw, one)]
    truth = 1 - (0.9 * expected) / expected
    intervals = [estimate.interval for estimate in estimates(skill, means, DAY * series.days)]
    return float(np.mean([found is not None and found[0] <= truth <= found[1] for found in intervals]))


def coverage_table(cases: Sequence[Series], trials: int, seed: int) -> tuple[list[str], list[float]]:
    """Return a Markdown table of all methods, and the coverages by this project."""
    lines = ["| starts | r | deepweather | independent | HAC | bootstrap |", "|-|-|-|-|-|-|"]
    ours = []
    for number, series in enumerate(cases):
        found = coverages(series, trials, seed + number)
        ours.append(found["deepweather"])
        name = series.name + (f", {series.noise:.0%} white noise".replace("%", " %") if series.noise else "")
        lines.append(f"| {name} | {series.r} | " + " | ".join(f"{share:.3f}" for share in found.values()) + " |")
    return lines, ours


def tables(trials: int) -> tuple[str, dict[str, float]]:
    """Return all tables as Markdown, and the extreme coverages."""
    parts: list[str] = []
    ratios: dict[str, float] = {}
    for number, (name, cases) in enumerate({"within": WITHIN, "uneven": UNEVEN, "beyond": BEYOND}.items()):
        lines, ours = coverage_table(cases, trials, 100 * number)
        parts.append("\n".join(lines))
        ratios |= {f"{name}_lowest": min(ours), f"{name}_highest": max(ours)}
    lines = ["| starts | r | skill, skewed scores |", "|-|-|-|"]
    for number, series in enumerate((regular(32, 0.6), regular(105, 0.8), regular(210, 0.9))):
        ratios["skill_lowest"] = min(ratios.get("skill_lowest", 1.0), share := skill_coverage(series, trials, number))
        lines.append(f"| {series.name} | {series.r} | {share:.3f} |")
    return "\n\n".join([*parts, "\n".join(lines)]), ratios


if __name__ == "__main__":
    parser = command_line(__doc__)
    parser.add_argument("--trials", type=int, default=2000)
    options = parser.parse_args()
    text, extremes = tables(options.trials)
    print(text)
    report("coverage", extremes, options.json)
