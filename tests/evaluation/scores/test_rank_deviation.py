"""The deviation of the rank histogram: within seasons and latitudes, from pairs of different starts."""

import numpy as np
import pytest
import torch
from score_cases import draws

from data_pipeline.grid import Grid
from data_pipeline.task import Task
from evaluation.regions import region_weights
from evaluation.scores import default_scores, statistics_of
from evaluation.scores.case import Case
from evaluation.scores.rank_histogram import deviation_of_pairs, start_numbers
from evaluation.scores.score import Settings
from evaluation.scoring.aggregation import Tally
from evaluation.scoring.scoreboard import Scoreboard
from evaluation.tables.score_rows import ScoreRows
from models.distribution import Ensemble

GRID, TASK, M = Grid.regular(6, 8), Task("t2m", ["2t"], ["2t"], [24, 48]), 4
REGIONS = region_weights(GRID)
STARTS = np.datetime64("2016-01-04", "s").astype(int) + np.arange(48) * 8 * 86_400


def rows_of(bias):
    """The rows of `rank_deviation`, and the truth's ranks (start, lead time, H, W) among members without error."""
    init, lead = (axis.ravel() for axis in np.meshgrid(STARTS, TASK.lead_times, indexing="ij"))
    shape = len(init), 1, *GRID.shape
    truth, members = draws(*shape, seed=1), draws(M, *shape, seed=2)
    members = members + torch.from_numpy(np.broadcast_to(bias, (len(STARTS), 2, *GRID.shape)).reshape(shape).copy())
    tally = Tally("raw", len(init), Settings(TASK, M + 1), REGIONS, statistics_of(*default_scores()))
    rows = np.arange(len(init))
    tally.add(rows, rows % 2, Case(Ensemble(members), truth, torch.zeros(shape), M + 1))
    board = Scoreboard(TASK, GRID, REGIONS, init, lead, {"raw": tally})
    found = {
        (row.region, row.season, row.lead_time): row
        for row in ScoreRows.of(board, 0).rows
        if row.score == "rank_deviation"
    }
    return found, (members < truth).sum(0).reshape(len(STARTS), 2, *GRID.shape).numpy()


def expected(ranks, weights):
    """The mean over strata of K Σ d d' / Σ w w' over all pairs of different starts, by loops."""
    K, total, mass = M + 1, 0.0, 0.0
    months = (STARTS[:, None] + 3600 * np.array(TASK.lead_times)).astype("datetime64[s]").astype("datetime64[M]")
    seasons = np.array([0, 0, 1, 1, 1, 2, 2, 2, 3, 3, 3, 0])[months.astype(int) % 12]
    for season in range(4):
        for cells in weights:
            counted = (seasons == season)[:, :, None, None] * cells
            h = np.stack([(counted * (ranks == k)).sum((1, 2, 3)) for k in range(K)], -1)
            w = h.sum(-1)
            d = h - w[:, None] / K
            pairs = [(t, u) for t in np.flatnonzero(w) for u in np.flatnonzero(w) if t != u]
            deviation = K * sum(d[t] @ d[u] for t, u in pairs) / sum(w[t] * w[u] for t, u in pairs)
            total, mass = total + w.sum() * deviation, mass + w.sum()
    return total / mass


def test_opposite_biases_do_not_cancel():
    """Warm in the north and cold in the south from December to May, the other way round in the other half."""
    month = STARTS.astype("datetime64[s]").astype("datetime64[M]").astype(int) % 12 + 1
    winter = np.where((month <= 5) | (month == 12), 1, -1)[:, None, None, None]
    side = np.sign(GRID.cell_latitudes) * (abs(GRID.cell_latitudes) > 20)
    found, ranks = rows_of(0.6 * winter * side)
    bands = [REGIONS[name] for name in ("north", "tropics", "south")]
    everywhere = found["global", "all", "all"]
    assert everywhere.value == pytest.approx(expected(ranks, bands), rel=1e-9)
    assert found["unweighted", "all", "all"].value == pytest.approx(expected(ranks, [REGIONS["unweighted"]]), rel=1e-9)
    histogram = np.array(
        [np.average(ranks == k, weights=np.broadcast_to(REGIONS["global"], ranks.shape)) for k in range(M + 1)]
    )
    pooled = (M + 1) * ((histogram - 1 / (M + 1)) ** 2).sum()
    assert everywhere.low > 4 * pooled, "the pooled histogram hides the biases"
    assert {region for region, *_ in found} == set(REGIONS)


@pytest.mark.parametrize("slope", [0.0, 0.3])
def test_few_cases_do_not_raise_it(slope):
    """The mean over 300 draws of few cases is the square of a bias that is opposite in every second stratum."""
    random, line = np.random.default_rng(1), np.linspace(-1, 1, 11)
    found = []
    for _ in range(300):
        totals = np.zeros((24, 6, 11))
        for start in range(24):
            shares = (1 + slope * (-1) ** start * line) / 11
            totals[start, start % 6] = random.multinomial(15, shares)
        whole = totals.sum()
        found.append(deviation_of_pairs(start_numbers(totals).sum(0) / whole, whole))
    error = np.std(found) / np.sqrt(300)
    assert abs(np.mean(found) - slope**2 * (line**2).mean()) < 3 * error < 0.01
