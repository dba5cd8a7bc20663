"""Coverage of 95 % intervals and false discoveries on simulated scores: the tables of docs/intervals.md.

Each series of scores is simulated 2,000 times. Its intervals by this project stand beside three others:

- independent: Student's t with n - 1 degrees of freedom, as if the starts were independent;
- HAC: the mean ± 1.96 standard errors by Newey & West (1987, doi:10.2307/1913610), 4 (n/100)^(2/9) lags;
- bootstrap: percentiles of 500 resamples of blocks of n^(1/3) starts, the series closed to a ring.

Further tables have models with several training runs, all spacings and memories, years that differ, and maps.

    python -m benchmarks.coverage [--trials 2000] [--maps 200] [--json]
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from scipy.special import stdtr, stdtrit
from scipy.stats import ttest_1samp

from benchmarks.common import command_line, report
from evaluation.scores.ratios import skill
from evaluation.scoring.aggregation import WeightedMean
from evaluation.significance.field_significance import block_times, date_blocks, field_p_values
from evaluation.significance.intervals import estimates
from evaluation.significance.model_comparison import discoveries
from evaluation.significance.run_means import RunMean

DAY = 86_400
REPLICATES = 500
FIRST_SEED = 20_000
"""Seeds of these tables begin here. The method was chosen on smaller seeds."""


@dataclass(frozen=True)
class Series:
    """Normal scores at start times in days; neighbours that are `usual` days apart have the correlation `r`.

    A share `noise` of the variance is white noise, which adds no correlation.
    """

    name: str
    days: np.ndarray
    r: float | np.ndarray
    usual: float = 3.5
    noise: float = 0.0

    def draw(self, trials: int, rng: np.random.Generator) -> np.ndarray:
        """Return series (n, trials) of mean 0 and variance 1."""
        series = rng.normal(size=(len(self.days), trials))
        for k, gap in enumerate(np.diff(self.days), 1):
            step = self.r ** (gap / self.usual)
            series[k] = step * series[k - 1] + np.sqrt(1 - step**2) * series[k]
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
"""Series for which the coverage is 93 to 97 %."""
UNEVEN = [
    Series("64 Mondays and Thursdays", np.cumsum(np.where(np.arange(64) % 2, 3, 4)), 0.6),
    Series("16 pairs, 45 days apart", (45 * np.arange(16)[:, None] + [0, 3.5]).ravel(), 0.6),
    Series("20 days in each of 6 winters", (365 * np.arange(6)[:, None] + np.arange(20)).ravel(), 0.8, usual=1),
]
SPACINGS, MEMORIES = (1, 3.5, 7, 10.5, 14, 20, 30), (0, 2, 5, 10, 20)
"""Days between starts over two years, 40 starts at least, and days in which the correlation falls to 1/e."""
YEARS = [(years, share) for years in (2, 5, 10) for share in (0.01, 0.03, 0.1)]
"""Numbers of test years, and the share of the variance that is common to all starts of a year."""
WEST_AND_EAST = np.where(np.arange(28 * 40) % 40 < 20, 0.17, 0.84)
"""Memories of 2 and of 20 days, in the halves of a map."""
LARGE = 10**7
"""Cells for which blocks of starts are kept, not each start."""
PAIRS = Series("16 pairs, 46 days apart", (46 * np.arange(16)[:, None] + [0, 3]).ravel(), 0.5, usual=3.5)
MAPS = [
    (regular(104, 0.0), 864), (regular(104, 0.7), 864), (regular(104, 0.7), LARGE), (PAIRS, 864),
    (Series("104 starts, two memories", 3.5 * np.arange(104), WEST_AND_EAST), 864),
    (Series("32 starts, two memories", 3.5 * np.arange(32), WEST_AND_EAST), 864),
    (Series("365 daily starts", np.arange(365.0), 0.9, usual=1), 864),
]  # fmt: skip
"""Starts of maps, and the numbers of cells that decide whether every start is kept."""
BEYOND = [
    regular(16, 0.6), regular(32, 0.8), regular(105, 0.9), regular(105, 0.9, noise=0.5), regular(210, 0.9, noise=0.5),
    regular(730, 0.9, noise=0.5),
]  # fmt: skip
"""Series with too few starts, or with a memory that the correlation of neighbours does not show."""


def coverages(series: Series, trials: int, seed: int) -> dict[str, float]:
    """Return the share of intervals of each method that contain the true mean."""
    values = series.draw(trials, np.random.default_rng([FIRST_SEED, seed]))
    n, mean = len(values), values.mean(0)
    anomalies = values - mean
    found = {"deepweather": float(np.mean(list(contain(values, series.days, 0.0))))}
    error = anomalies.std(0, ddof=1) / math.sqrt(n)
    found["independent"] = float(np.mean(np.abs(mean) <= stdtrit(n - 1, 0.975) * error))
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
    """Return the coverage of the skill of a model whose CRPS is 0.8 of raw's, plus 0.1 of an independent series.

    The CRPS of raw and the independent series have skewed distributions, the exponential of normal series.
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


def seed_coverages(runs: int, seeds: float, trials: int, seed: int) -> tuple[float, float]:
    """Return the coverage of the mean over dates and training runs: with the variance of the seeds, and without it.

    Scores of 64 starts with r = 0.6 are a sum: weather that all runs share (variance 1), a constant deviation of each
    run (standard deviation `seeds` over the runs), and a series that differs between runs (variance 1/4).
    """
    rng, series = np.random.default_rng([FIRST_SEED, seed]), regular(64, 0.6)
    weather = series.draw(trials, rng)
    found = [weather + seeds * rng.normal(size=trials) + 0.5 * series.draw(trials, rng) for _ in range(runs)]
    one = np.ones((len(weather), 1))
    pooled = RunMean.over("model", [WeightedMean(values, one) for values in found])
    shares = []
    for mean in (pooled, WeightedMean(pooled.total, pooled.weight)):
        intervals = [estimate.interval for estimate in estimates(np.asarray, [mean], DAY * series.days)]
        shares.append(float(np.mean([ends is not None and ends[0] <= 0 <= ends[1] for ends in intervals])))
    return shares[0], shares[1]


def spacing_coverages(days: float, trials: int, seed: int) -> list[float]:
    """Return the coverage for starts so many days apart, by memory."""
    starts = days * np.arange(max(40, round(730 / days)))
    found = []
    for memory in MEMORIES:
        series = Series("", starts, math.exp(-days / memory) if memory else 0.0, usual=days)
        values = series.draw(trials, np.random.default_rng([FIRST_SEED, seed, memory]))
        found.append(float(np.mean(list(contain(values, starts, 0.0)))))
    return found


def year_coverage(years: int, share: float, trials: int, seed: int) -> float:
    """Return the coverage where a `share` of the variance is common to all 104 starts of a year."""
    rng, starts = np.random.default_rng([FIRST_SEED, seed]), 3.5 * np.arange(104)
    days = (365 * np.arange(years)[:, None] + starts).ravel()
    effects = np.repeat(rng.normal(size=(years, trials)), 104, axis=0)
    values = math.sqrt(1 - share) * rng.normal(size=effects.shape) + math.sqrt(share) * effects
    return float(np.mean(list(contain(values, days, 0.0))))


def false_discoveries(
    series: Series, cells: int, share: float, trials: int, seed: int
) -> tuple[float, float, float, float]:
    """Return the rates of false discoveries on maps and by a t test of each cell, and the shares of differences found.

    A map has 24 x 36 cells, of which neighbours are correlated; a `share` of the cells has a true difference of 0.6
    standard deviations of a single start. The last number is that of a t test on pairs of starts, with the same control
    of false discoveries: independent for `PAIRS`.
    """
    rng, times = np.random.default_rng([FIRST_SEED, seed]), DAY * series.days
    truth = np.zeros((24, 36))
    truth[:, : round(share * 36)] = 0.6
    blocks = date_blocks(times.astype(int), cells)
    if blocks is None:
        raise ValueError("a simulated series is too short for a map")
    rates, single_rates, power, of_pairs = [], [], [], []
    for _ in range(trials):
        white = series.draw(28 * 40, rng).reshape(-1, 28, 40)
        values = truth + sum(white[:, i : i + 24, k : k + 36] for i in range(5) for k in range(5)) / 5
        total, weight = (np.zeros((blocks.max() + 1, *truth.shape)) for _ in range(2))
        np.add.at(total, blocks, values)
        np.add.at(weight, blocks, 1.0)
        sums = WeightedMean(total, weight), WeightedMean(0 * total, weight)
        found = discoveries(field_p_values(*sums, block_times(blocks, times)))
        error = values.std(0, ddof=1) / math.sqrt(len(values))
        single = 2 * stdtr(len(values) - 1, -np.abs(values.mean(0) / error)) < 0.05
        rates.append((found & (truth == 0)).sum() / max(found.sum(), 1))
        single_rates.append((single & (truth == 0)).sum() / max(single.sum(), 1))
        pairs = values[: len(values) // 2 * 2].reshape(-1, 2, *truth.shape).mean(1)
        paired = discoveries(ttest_1samp(pairs, 0).pvalue)
        for shares, cells_found in ((power, found), (of_pairs, paired)):
            shares.append(cells_found[truth > 0].mean() if share else 0.0)
    return float(np.mean(rates)), float(np.mean(single_rates)), float(np.mean(power)), float(np.mean(of_pairs))


def tables(trials: int, maps: int) -> tuple[str, dict[str, float]]:
    """Return all tables as Markdown, without the last one if there are no `maps`, and the extreme rates."""
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
    parts.append("\n".join(lines))
    lines = ["| runs | seeds | dates and seeds | dates only |", "|-|-|-|-|"]
    for number, (runs, seeds) in enumerate([(3, 0.0), (3, 0.2), (3, 0.5), (5, 0.2), (5, 0.5), (2, 0.5)]):
        both, dates = seed_coverages(runs, seeds, trials, 400 + number)
        ratios["seeds_lowest"] = min(ratios.get("seeds_lowest", 1.0), both)
        lines.append(f"| {runs} runs | {seeds} | {both:.3f} | {dates:.3f} |")
    parts.append("\n".join(lines))
    lines = [f"| days between starts | {' | '.join(f'memory {m} d' for m in MEMORIES)} |", "|-|-|-|-|-|-|"]
    for number, days in enumerate(SPACINGS):
        shares = spacing_coverages(days, trials, 600 + number)
        ratios["spacing_lowest"] = min(ratios.get("spacing_lowest", 1.0), *shares)
        ratios["spacing_highest"] = max(ratios.get("spacing_highest", 0.0), *shares)
        lines.append(f"| {days:g} | {' | '.join(f'{share:.3f}' for share in shares)} |")
    parts.append("\n".join(lines))
    lines = ["| years | common to a year | coverage |", "|-|-|-|"]
    for number, (years, share) in enumerate(YEARS):
        lines.append(f"| {years} | {100 * share:.0f} % | {year_coverage(years, share, trials, 700 + number):.3f} |")
    parts.append("\n".join(lines))
    lines = ["| starts | r | true cells | false discoveries | single tests | found | by pairs |", "|-|-|-|-|-|-|-|"]
    for number, ((series, cells), share) in enumerate([(one, c) for one in MAPS for c in (0.0, 0.3) if maps]):
        rate, single, found, paired = false_discoveries(series, cells, share, maps, 500 + number)
        ratios["false_highest"] = max(ratios.get("false_highest", 0.0), rate)
        if series is PAIRS and share:
            ratios["found_over_t_test"] = found / paired
        name, r = series.name + ", in blocks" * (cells == LARGE), "0.17, 0.84" if np.ndim(series.r) else series.r
        lines.append(f"| {name} | {r} | {100 * share:.0f} % | {rate:.3f} | {single:.3f} | {found:.3f} | {paired:.3f} |")
    return "\n\n".join([*parts, *(["\n".join(lines)] if maps else [])]), ratios


if __name__ == "__main__":
    options = command_line(__doc__, trials=2000, maps=200).parse_args()
    text, extremes = tables(options.trials, options.maps)
    print(text)
    report("coverage", extremes, options.json)
