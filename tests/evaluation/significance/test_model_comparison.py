"""Statements about several models and many tests: their numbers against scipy, and how often they are wrong."""

import numpy as np
import pytest
from scipy import stats

from evaluation.scores.ratios import skill
from evaluation.scoring.aggregation import WeightedMean
from evaluation.significance.intervals import Estimate, estimates
from evaluation.significance.model_comparison import best_set, describe_pairs, detectable_differences, discoveries, holm

TIMES = 30 * 86_400 * np.arange(40)


def compare(crps):
    """The pairs and the set of models whose CRPS at each start are given."""
    names, means = list(crps), {name: WeightedMean(values, np.ones(len(values))) for name, values in crps.items()}
    pairs = {(name, other): [means[name], means[other]] for k, name in enumerate(names) for other in names[:k]}
    differences, relative = (
        {pair: estimates(score, two, TIMES)[0] for pair, two in pairs.items()} for score in (np.subtract, skill)
    )
    pairs = describe_pairs(names, dict.fromkeys(pairs, "crps"), differences, relative)
    return pairs, best_set(pairs)


def models(rng, true_crps):
    weather = rng.normal(size=len(TIMES))
    return {name: mean + weather + 0.3 * rng.normal(size=len(TIMES)) for name, mean in true_crps.items()}


def test_pairs_have_the_difference_and_its_p_values():
    pairs, _ = compare(models(np.random.default_rng(0), {"raw": 3.0, "a": 2.0, "b": 1.99}))
    assert list(pairs) == ["raw", "a", "b"]
    assert pairs["raw"] == {}
    assert pairs["b"]["raw"]["p_holm"] == pytest.approx(3 * pairs["b"]["raw"]["p"], rel=1)
    assert pairs["b"]["a"]["p_holm"] == pytest.approx(pairs["b"]["a"]["p"])  # the largest of all is not adjusted
    low, high = pairs["a"]["raw"]["ci95"]
    assert low < pairs["a"]["raw"]["crps_minus"] < high < 0


def test_a_model_that_is_better_in_every_season_is_told_apart():
    """Errors are 100 times as large in one season: the mean difference is uncertain, the ratio is not."""
    rng = np.random.default_rng(2)
    size = np.where(np.arange(len(TIMES)) % 12 == 6, 100.0, 1.0)
    raw = size * np.exp(0.02 * rng.normal(size=len(TIMES)))
    pairs, _ = compare({"raw": raw, "a": 0.9 * raw * np.exp(0.02 * rng.normal(size=len(TIMES)))})
    assert pairs["a"]["raw"]["p"] < 0.001
    assert pairs["a"]["raw"]["ci95"][1] > -0.5 * abs(pairs["a"]["raw"]["crps_minus"])


def test_the_best_set_leaves_out_models_far_above_the_lowest():
    for b, expected, text in ((2.0, {"a", "b"}, "cannot be told from it; raw is worse"), (1.0, {"b"}, "every other")):
        _, found = compare(models(np.random.default_rng(0), {"raw": 3.0, "a": 2.0, "b": b}))
        assert set(found["models"]) == expected
        assert found["models"][0] == found["lowest"]
        assert text in found["text"]


def test_without_intervals_no_model_is_left_out():
    fair = {("a", "raw"): "crps_fair"}
    pairs = describe_pairs(["raw", "a"], fair, {("a", "raw"): Estimate(-1.0)}, {("a", "raw"): Estimate(0.5)})
    unknown = dict.fromkeys(("ci95", "p", "p_holm", "year_share"))
    assert pairs["a"]["raw"] == {"score": "crps_fair", "crps_minus": -1.0} | unknown
    assert best_set(pairs)["models"] == ["a", "raw"]
    nothing = {("a", "raw"): Estimate(np.nan)}
    pairs = describe_pairs(["raw", "a"], fair, nothing, nothing)
    assert pairs["a"]["raw"]["crps_minus"] is None
    assert best_set(pairs) == {"lowest": None, "models": [], "level": 0.05, "text": ""}


def test_the_best_model_is_in_the_set_in_95_percent_of_cases():
    """Of five equally good models, the first counts as the best."""
    rng, trials = np.random.default_rng(1), 150
    inside = sum("a" in compare(models(rng, dict.fromkeys("abcde", 1.0)))[1]["models"] for _ in range(trials))
    assert inside / trials >= 0.95


def test_the_detectable_differences_has_each_share_of_the_crps_of_raw():
    estimate = Estimate(0.1, 0.004, 30.0, 2.0423)
    note = detectable_differences(
        12, {"raw": {"emos": estimate, "net": Estimate(0.2)}, "emos": {"net": Estimate(0.1, 0.0, 9.0, 2.3)}}
    )
    expected = 100 * 0.004 * (2.0423 + 0.8538)  # t quantiles for 30 degrees of freedom, of printed tables
    assert note["models"]["emos"]["raw"] == pytest.approx(expected, rel=1e-4)
    assert note["models"]["net"] == {"raw": None, "emos": 0.0}
    assert "these 12 starts" in note["text"]
    assert "from raw 1.2 % (emos); from emos 0 % (net)." in note["text"]
    assert detectable_differences(3, {"raw": {"net": Estimate(0.2)}})["text"] == ""


def test_holm_rejects_step_by_step():
    """The procedure itself: compare the smallest with α/m, the next with α/(m - 1), until one is not rejected."""
    rng = np.random.default_rng(0)
    for _ in range(200):
        p = rng.random(rng.integers(1, 9)) ** 3
        p[rng.random(len(p)) < 0.2] = p[0]
        rejected = np.zeros(len(p), bool)
        for step, k in enumerate(np.argsort(p, kind="stable")):
            if p[k] > 0.05 / (len(p) - step):
                break
            rejected[k] = True
        assert (np.array(holm(p)) <= 0.05).tolist() == rejected.tolist()


def test_discoveries_are_those_of_scipy():
    rng = np.random.default_rng(1)
    p = np.concatenate([rng.random(50) ** 6, rng.random(50)])
    np.testing.assert_array_equal(discoveries(p), stats.false_discovery_control(p) <= 0.05)
    p[::7] = np.nan
    known = np.isfinite(p)
    expected = np.zeros(100, bool)
    expected[known] = stats.false_discovery_control(p[known]) <= 0.05
    np.testing.assert_array_equal(discoveries(p.reshape(4, 25)).ravel(), expected)
    for none in (np.linspace(0.06, 1, 40), np.full((2, 3), np.nan)):
        assert not discoveries(none).any()
    assert discoveries(np.full(9, 0.04)).all()
