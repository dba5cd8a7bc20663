"""Energy and variogram scores of vectors: definition by loops, published numbers, closed forms, and propriety."""

import math

import numpy as np
import pytest
import scoringrules
import torch
from score_cases import TASK, averages, draws, score_of

from data_pipeline.grid import Grid
from data_pipeline.grids.points import Points
from data_pipeline.task import Task
from evaluation.kernels.vector_scores import vector_scores
from evaluation.scores import all_scores
from evaluation.scores.case import Case
from evaluation.scores.joint import NUMBERS
from evaluation.scores.score import Settings
from models.distribution import Ensemble, Normal
from models.parallel.domain import Domain

LEADS = (24, 48, 96)
M = 5
EXACT = {"rtol": 1e-12, "atol": 1e-14}


def case_of(form="members"):
    """Two starts with three lead times of two targets on a grid whose last rows and columns fill no block."""
    shape = 6, 2, 9, 6
    truth = draws(*shape, seed=1)
    truth[1, 0, 0, 0] = truth[4, 1, 8, 5] = torch.nan
    climate = Normal(draws(*shape, seed=2) / 4, draws(*shape, seed=3).exp())
    forecast = Ensemble(draws(M, *shape, seed=4)) if form == "members" else climate
    return Case(forecast, truth, torch.zeros(shape), M + 1, climate=climate, lead_times=LEADS)


def vectors_of(case, kind):
    """Pairs of the cells (b, t, i, j) and places of every vector; places are in the units of its distances."""
    B, T, H, W = case.truth.shape
    if kind == "cells":
        for b, t, i, j in np.ndindex(B, T, H // 4, W // 4):
            block = [(4 * i + k, 4 * j + m) for k in range(4) for m in range(4)]
            yield [(b, t, *cell) for cell in block], block
    elif kind == "lead_times":
        for b, t, i, j in np.ndindex(B // 3, T, H, W):
            yield [(3 * b + k, t, i, j) for k in range(3)], [(lead,) for lead in LEADS]
    else:
        for b, i, j in np.ndindex(B, H, W):
            yield [(b, t, i, j) for t in range(T)], [(0,), (1,)]


def by_loops(x, y, places):
    """The four scores of one vector: members (M, d), truth (d,)."""
    norm, pairs = np.linalg.norm, [(k, m) for k in range(len(y)) for m in range(len(y)) if k != m]
    weights = [1 / math.dist(places[k], places[m]) for k, m in pairs]
    squares, sampling = [], []
    for k, m in pairs:
        v = np.sqrt(abs(x[:, k] - x[:, m]))
        squares.append((math.sqrt(abs(y[k] - y[m])) - v.mean()) ** 2)
        sampling.append(v.var(ddof=1) / M)
    between, to_truth = sum(norm(p - q) for p in x for q in x), np.mean([norm(p - y) for p in x])
    plain = np.average(squares, weights=weights)
    return (
        to_truth - between / (2 * M**2), to_truth - between / (2 * M * (M - 1)),
        plain, plain - np.average(sampling, weights=weights),
    )  # fmt: skip


@pytest.mark.parametrize("kind", ["cells", "lead_times", "targets"])
def test_scores_are_those_of_loops_over_vectors_with_a_truth(kind):
    """Each cell of a vector has its number: the average over the cells is that over vectors of one size."""
    case, found = case_of(), []
    members, truth = case.forecast.members.numpy(), case.truth.numpy()
    if kind == "targets":
        members, truth = ((x - case.climate.mu.numpy()) / case.climate.sigma.numpy() for x in (members, truth))
    scored = np.zeros(case.truth.shape, bool)
    for cells, places in vectors_of(case, kind):
        place = tuple(zip(*cells, strict=True))
        if np.isfinite(truth[place]).all():
            found.append(by_loops(members[:, *place], truth[place], places))
            scored[place] = True
    expected = np.mean(found, 0)
    for number, (name, ending, *_) in enumerate(NUMBERS):
        score = all_scores()[f"{name}_{kind}{ending}"]
        np.testing.assert_allclose(score.value(**averages(case, score)), expected[number], **EXACT, err_msg=score.name)
        known = score.statistics[f"{kind}_known"].cells(case)
        np.testing.assert_array_equal(known.numpy(), scored)
        assert not score.statistics[score.name].cells(case)[known == 0].any()
        assert math.isnan(score_of(score.name, case_of("distribution"))), "only members have a joint distribution"


def test_lead_times_need_whole_starts():
    case = case_of()
    part = Case(case.forecast, case.truth, case.uniform, case.bins, climate=case.climate)
    score = all_scores()["energy_score_lead_times"]
    assert not any(statistic.cells(part).any() for statistic in score.statistics.values())


@pytest.mark.parametrize(("dtype", "tolerance"), [("f4", 1e-5), ("f8", 1e-11)])
def test_scores_equal_those_of_scoringrules(dtype, tolerance):
    """With more vectors than a block and a part of one thread has, and weights that differ for all pairs."""
    rng = np.random.default_rng(0)
    members, truth, weights = (rng.normal(size=shape) for shape in ((7, 6, 300), (6, 300), (6, 6)))
    members, truth, weights = members.astype(dtype), truth.astype(dtype), weights**2 + weights.T**2
    x, y = np.moveaxis(members, -1, 0), truth.T
    expected = [scoringrules.es_ensemble(y, x, estimator=one) for one in ("nrg", "fair")]
    expected += [scoringrules.vs_ensemble(y, x, w=weights, p=0.5, estimator=one) for one in ("nrg", "fair")]
    found = vector_scores(members, truth, weights)
    np.testing.assert_allclose(found, expected, rtol=tolerance, atol=tolerance * 10)


def smooth(correlation, *shape, seed):
    """Normal vectors (*shape, d) with standard margins, and the `correlation` (d, d)."""
    return draws(*shape, len(correlation), seed=seed) @ torch.linalg.cholesky(correlation).T


PLACES = torch.cartesian_prod(torch.arange(4.0), torch.arange(4.0)).double()
RIGHT = torch.exp(-torch.cdist(PLACES, PLACES) / 3)


def test_dependence_is_seen_by_joint_scores_alone():
    """Members with the same values in each cell, but of other members there: no score of single cells changes."""
    starts = 400
    truth = smooth(RIGHT, starts, seed=1).view(starts, 1, 4, 4)
    right = smooth(RIGHT, 20, starts, seed=2).view(20, starts, 1, 4, 4)
    order = torch.rand(right.shape, generator=torch.Generator().manual_seed(3)).argsort(0)
    cases = [Case(Ensemble(x), truth, torch.zeros_like(truth), 21) for x in (right, right.gather(0, order))]
    assert score_of("crps", cases[0]) == pytest.approx(score_of("crps", cases[1]), rel=1e-12)
    loss = {}
    for kind, ending, *_ in NUMBERS:
        name = f"{kind}_cells{ending}"
        good, bad = (all_scores()[name].statistics[name].cells(case)[:, 0, 0, 0] for case in cases)
        loss[name] = (bad - good).mean() / good.mean()
        assert (bad - good).mean() > 4 * (bad - good).std() / math.sqrt(starts), name
    found = [loss[f"{kind}_score_cells"] for kind in ("energy", "variogram")]
    assert found == pytest.approx([0.02, 0.36], abs=0.005), "docs/scores.md"


GRID, STATIONS = Grid.regular(9, 16), Points((47.0,) * 8, tuple(range(8)), ids=tuple("abcdefgh"))


@pytest.mark.parametrize(
    ("score", "settings", "reason"),
    [
        ("energy_score_cells", {"grid": STATIONS}, "stations and points have no neighbouring cells"),
        ("energy_score_cells", {"grid": Grid.regular(3, 16)}, "fewer than 4 rows"),
        ("energy_score_cells", {"grid": GRID, "cuts": Domain.split(GRID, 3).cuts}, "mesh divides blocks"),
        ("energy_score_cells", {"grid": GRID, "cuts": Domain.split(GRID, 2, 3).cuts}, "mesh divides blocks"),
        ("variogram_score_cells", {"grid": GRID, "cuts": Domain.split(GRID, 2, 4).cuts}, ""),
        ("variogram_score_lead_times", {}, "single lead time"),
        ("variogram_score_targets", {"climatology": True}, "single target"),
        ("variogram_score_targets", {"task": Task("two", ["2t", "10u"], ["2t", "10u"], [24])}, "no climatology"),
    ],
)  # fmt: skip
def test_scores_that_cannot_be_computed_say_why(score, settings, reason):
    found = all_scores()[score].missing(Settings(**({"task": TASK, "bins": 6} | settings)))
    assert reason in found if reason else found == ""
