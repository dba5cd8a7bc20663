"""The coverage table of docs/intervals.md, simulated again."""

import numpy as np
import pytest
from conftest import ROOT

from benchmarks.coverage import DAY, WITHIN, Series, coverages, tables
from evaluation.scoring.aggregation import WeightedMean
from evaluation.significance.intervals import interval


def rows(text):
    """The rows of all tables: text of the first columns, numbers of the others."""
    found = {}
    for line in text.splitlines():
        cells = [cell.strip() for cell in line.strip("|").split("|")]
        if line.startswith("|") and cells[1][0].isdigit():
            found[cells[0], cells[1], len(cells)] = [float(cell) for cell in cells[2:] if "%" not in cell]
    return found


@pytest.fixture(scope="module")
def simulated():
    return tables(2000, maps=0)


def test_intervals_contain_the_truth_in_93_to_97_percent_of_cases(simulated):
    ratios = simulated[1]
    assert 0.93 <= ratios["within_lowest"] <= ratios["within_highest"] <= 0.97
    assert 0.93 <= ratios["uneven_lowest"] <= ratios["uneven_highest"] <= 0.97
    assert 0.93 <= ratios["spacing_lowest"] <= ratios["spacing_highest"] <= 0.97
    assert ratios["seeds_lowest"] >= 0.93


def test_the_page_has_the_simulated_tables(simulated):
    """Another order of sums may move an end of an interval over the truth in a few of 2000 trials."""
    page = rows((ROOT / "docs/intervals.md").read_text())
    for key, numbers in rows(simulated[0]).items():
        assert page[key] == pytest.approx(numbers, abs=0.003)


def test_series_have_the_correlation_of_their_gaps():
    series = Series("", np.array([0.0, 3, 10]), 0.5, usual=3, noise=0.2).draw(200_000, np.random.default_rng(0))
    expected = np.eye(3) + 0.8 * np.array([[0, 0.5, 0.5 ** (10 / 3)], [0.5, 0, 0.5 ** (7 / 3)], [0, 0, 0]])
    expected[2, :2] = expected[:2, 2]
    np.testing.assert_allclose(np.cov(series), expected, atol=0.02)


def test_coverage_counts_single_intervals():
    """The column of this project against one interval at a time."""
    series, trials = WITHIN[2], 50
    values = series.draw(trials, np.random.default_rng([20_000, 7]))
    found = [interval(np.asarray, [WeightedMean(v, np.ones(len(v)))], DAY * series.days) for v in values.T]
    assert coverages(series, trials, 7)["deepweather"] == np.mean([low <= 0 <= high for low, high in found])
