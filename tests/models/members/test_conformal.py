"""The conformal layer: moved quantiles against closed forms, its guarantee under shifts, smoothness, its file."""

import json
import math

import numpy as np
import pytest
from predictions import NormalPrediction
from scipy import stats

from data_pipeline.common.errors import InputError
from data_pipeline.variables.parameters import UNBOUNDED
from models.engines.families import normal_cdf
from models.members.conformal import (
    ConformalLayer,
    ConformalPrediction,
    band_weights,
    coverage_bound,
    interval_levels,
    normal_scores,
    ordered,
    tracked_scores,
)

LEVELS = np.array([0.01, 0.05, 0.1, 0.3, 0.5, 0.7, 0.9, 0.95, 0.99])
NOMINAL = stats.norm.ppf([0.1, 0.5, 0.9])


@pytest.fixture
def normals():
    rng = np.random.default_rng(1)
    return NormalPrediction(rng.normal(280, 10, (2, 3, 4)), rng.uniform(0.5, 3, (2, 3, 4)))


def conformal(inner, scores):
    return ConformalPrediction(inner, NOMINAL, scores, [UNBOUNDED] * scores.shape[1])


def moved(scores, shape=(2, 3, 4)):
    return np.broadcast_to(np.array(scores)[:, None, None, None], (3, *shape))


def test_shifted_and_stretched_levels_of_a_normal_are_another_normal(normals):
    """The scores a z + b give the normal distribution with a times the spread and a mean that is b spreads higher."""
    prediction = conformal(normals, moved(1.5 * NOMINAL - 0.7))
    other = NormalPrediction(normals.mean() - 0.7 * normals.std(), 1.5 * normals.std())
    np.testing.assert_allclose(prediction.quantiles(LEVELS), other.quantiles(LEVELS), rtol=1e-9)
    np.testing.assert_allclose(prediction.mean(), other.mean(), rtol=1e-12)
    np.testing.assert_allclose(prediction.std(), other.std(), rtol=1e-9)
    values = other.quantiles(LEVELS)
    np.testing.assert_allclose(prediction.cdf(values), other.cdf(values), atol=2e-6)
    threshold = np.full((1, 2, 1, 1), 281.0)
    np.testing.assert_allclose(prediction.cdf(threshold), other.cdf(threshold), atol=2e-6)


def test_quantiles_never_cross_and_the_cdf_is_their_inverse(normals):
    rng = np.random.default_rng(2)
    for _ in range(20):
        scores = ordered(rng.normal(0, 2, (3, 2, 3, 4)))
        prediction = conformal(normals, scores)
        quantiles = prediction.quantiles(LEVELS)
        assert (np.diff(quantiles, axis=0) >= 0).all()
        # Equal quantiles have the highest of their levels.
        found = prediction.cdf(quantiles)
        strict = np.abs(scores - scores[1]).max(0) > 0.05
        assert (found >= LEVELS[:, None, None, None] - 1e-5).all()
        apart = (scores[1] - scores[0] > 0.05) & (scores[2] - scores[1] > 0.05) & strict
        np.testing.assert_allclose(found[:, apart], np.broadcast_to(LEVELS[:, None], found[:, apart].shape), atol=1e-5)


def test_members_of_a_model_keep_their_values_at_nominal_levels():
    """Where every analysis is far above all members, a finite move still reaches it, by their spread."""
    members = np.random.default_rng(3).normal(size=(8, 1, 2, 2))
    prediction = conformal(NormalPrediction.of_members(members), moved(NOMINAL, (1, 2, 2)))
    levels = (np.arange(8) + 0.5) / 8
    np.testing.assert_allclose(prediction.quantiles(levels), np.sort(members, axis=0), atol=1e-12)
    members = np.arange(5.0).reshape(5, 1, 1, 1)
    far = conformal(NormalPrediction.of_members(members), moved(NOMINAL + 10, (1, 1, 1)))
    top = stats.norm.ppf(0.9)
    assert far.quantiles(np.array([0.9])).item() == pytest.approx(4 + (top + 10 - top) * np.sqrt(2))


def simulate(analyses, step, delay, levels=(0.1, 0.5, 0.9)):
    """Shares below the issued levels for normal scores of analyses (T, cells), with feedback that comes late."""
    levels, hidden = np.array(levels), stats.norm.ppf(levels)
    history, shares = [hidden], []
    for n, own in enumerate(analyses):
        low, middle, high = history[max(0, n - delay)]
        issued = np.array([min(low, middle), middle, max(high, middle)])
        shares.append((own[:, None] <= issued).mean(0))
        history.append(history[-1] + step * (levels - shares[-1]))
    return np.array(shares), history


SEQUENCES = {
    "shift": lambda rng, t, cells: np.where(t >= 150, 1.5, 0.0) + rng.normal(size=cells),
    "wider": lambda rng, t, cells: (2.5 if t >= 100 else 1) * rng.normal(size=cells),
    "season": lambda rng, t, cells: 1.5 * np.sin(t / 30) + rng.normal(size=cells),
    "hostile": lambda rng, t, cells: (
        rng.choice([-2.0, 2.0]) * np.ones(cells) if t % 40 < 20 else rng.normal(size=cells)
    ),
    # Three places that jump by little: late feedback alone moves the scores far.
    "places": lambda rng, t, cells: np.repeat(NOMINAL, [2, 6, 2]) + (0.02 if (t // 45) % 2 else -0.02),
    "crossing": lambda rng, t, cells: np.full(cells, 2.0 if (t // 7) % 2 else -2.0),
}


@pytest.mark.parametrize(("cells", "delay"), [(1, 0), (40, 1), (40, 40)])
@pytest.mark.parametrize("name", SEQUENCES)
def test_coverage_is_within_the_stated_bound_after_every_forecast(name, cells, delay):
    """Also in the sequences that are made to hurt; B is measured from the analyses as the docstring defines it."""
    rng, step, levels = np.random.default_rng(4), 0.1, interval_levels(0.8)
    analyses = np.array([SEQUENCES[name](rng, t, cells) for t in range(500)])
    shares, history = simulate(analyses, step, delay)
    places = np.quantile(analyses, levels, axis=1, method="inverted_cdf").T
    largest = np.maximum.accumulate(np.abs(places - stats.norm.ppf(levels)), axis=0)
    counts = np.arange(1, 501)[:, None]
    errors = np.abs(shares.cumsum(0) / counts - levels)
    for k in range(3):
        bounds = [coverage_bound(largest[n, k], step, delay, n + 1, end=k != 1) + 1e-9 for n in range(500)]
        assert (errors[:, k] <= bounds).all()
    exact = np.abs(np.array(history[1:]) - stats.norm.ppf(levels)) / (step * counts)
    np.testing.assert_allclose(errors, exact, atol=1e-9)
    np.testing.assert_allclose(tracked_scores(0.8, step, shares), history[-1], atol=1e-9)


def test_regions_share_every_cell_and_blend_without_a_jump():
    latitudes = np.linspace(90, -90, 361)
    shares = band_weights(latitudes)
    np.testing.assert_allclose(sum(shares.values()), 1)
    assert {name: int((share == 1).sum()) for name, share in shares.items()} == {
        "south": 131,
        "tropics": 61,
        "north": 131,
    }
    layer = ConformalLayer("x", 0.8, 0.1, {("2t", 24): {"north": NOMINAL + 1, "tropics": NOMINAL - 1}}, {("2t", 24): 9})
    fields = layer.fields(["2t", "tp"], 24, band_weights(latitudes[:, None]))
    assert np.abs(np.diff(fields[:, 0, :, 0], axis=1)).max() <= 2 * 0.5 / 10 + 1e-9
    north, belt, tropics = (fields[1, 0, np.flatnonzero(latitudes == at)[0], 0] for at in (60, 22.5, 0))
    assert (north, tropics) == (1, -1)
    assert belt == pytest.approx(0.75 * 1 - 0.25)
    np.testing.assert_allclose(fields[:, 1], np.broadcast_to(NOMINAL[:, None, None], (3, 361, 1)), atol=1e-12)


@pytest.mark.parametrize("latitudes", [[50.0, 40.0], [22.0, 18.0], [0.0], [28.0, 22.0, 18.0]])
def test_small_areas_have_the_regions_whose_core_they_touch(latitudes):
    shares = band_weights(np.array(latitudes))
    np.testing.assert_allclose(sum(shares.values()), 1)
    assert all((share == 1).any() for share in shares.values())


def test_the_file_holds_the_layer(tmp_path):
    scores = {("2t", 24): {"north": np.array([-1.5, 0.25, 1.0])}, ("tp:24h", 48): {"all": NOMINAL}}
    layer = ConformalLayer("abc", 0.8, 0.1, scores, {("2t", 24): 9, ("tp:24h", 48): 3})
    path = tmp_path / "conformal.json"
    path.write_text(json.dumps(layer.to_json()))
    read = ConformalLayer.load(path, "abc")
    assert (read.corrector, read.interval, read.step, dict(read.counts)) == ("abc", 0.8, 0.1, dict(layer.counts))
    assert {(place, name) for place, found in read.scores.items() for name in found} == {
        (("2t", 24), "north"), (("tp:24h", 48), "all"),
    }  # fmt: skip
    np.testing.assert_array_equal(read.scores["2t", 24]["north"], [-1.5, 0.25, 1.0])
    with pytest.raises(InputError, match="another corrector"):
        ConformalLayer.load(path, "def")


def test_a_damaged_file_is_refused(tmp_path):
    for text in (
        "", "[]", "{}", '{"kind": "conformal layer", "format": 2}',
        '{"kind": "conformal layer", "format": 1, "corrector": "a", "interval": 0.8, "step": 0.1, "entries": '
        '[{"target": "2t", "lead_time": 24, "verified": 1, "scores": {"north": [1, 2]}}]}',
        '{"kind": "conformal layer", "format": 1, "corrector": "a", "interval": 0.8, "step": 0.1, "entries": '
        '[{"target": "2t", "lead_time": 24, "verified": 1, "scores": {"north": [NaN, 0, 1]}}]}',
        '{"kind": "conformal layer", "format": 1, "corrector": "a", "interval": 1.0, "step": 0.1, "entries": []}',
    ):  # fmt: skip
        path = tmp_path / "conformal.json"
        path.write_text(text)
        with pytest.raises(InputError, match="no conformal layer"):
            ConformalLayer.load(path)
        with pytest.raises(InputError, match="there is no file"):
            ConformalLayer.load(tmp_path / "other.json")


def test_the_normal_distribution_function_in_both_tails_and_its_inverse():
    z = np.concatenate([np.linspace(-27, 9, 4001), [-0.0, np.nan, np.inf, -np.inf]])
    expected = np.array([math.erfc(-each / math.sqrt(2)) / 2 for each in z])
    np.testing.assert_allclose(normal_cdf(z), expected, rtol=1e-12)
    np.testing.assert_allclose(normal_scores(LEVELS), stats.norm.ppf(LEVELS), atol=1e-12)
